"""Connections, publishing with confirms, frames and declarations, over py-amqp and internals of kombu."""
