"""Connections, publishing with confirms, frames and declarations: all that uses py-amqp or internals of kombu."""
