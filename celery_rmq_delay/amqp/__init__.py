"""Connections, publishing with confirms, frames and declarations: everything that uses py-amqp or internals of kombu.

May import the modules at the top of the package.
"""
