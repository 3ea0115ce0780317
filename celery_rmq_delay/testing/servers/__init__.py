"""Private servers for tests: a RabbitMQ on free ports, ended with its owner.

May import the modules at the top of the package.
"""
