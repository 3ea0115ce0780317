"""Private servers that only this project's tests, demo and benchmarks need: PostgreSQL, Redis and RabbitMQ clusters."""
