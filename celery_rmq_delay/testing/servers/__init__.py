"""Private servers for tests: RabbitMQ, Redis and PostgreSQL on free ports, ended with their owner."""
