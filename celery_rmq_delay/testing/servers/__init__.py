"""Private servers for tests: a RabbitMQ on free ports, ended with its owner."""
