"""Private servers for tests: RabbitMQ, Redis and PostgreSQL on free ports, ended with their owner.

May import the modules at the top of the package.
"""
