"""Errors of the private servers that tests start."""

from celery_rmq_delay.exceptions import RmqDelayError


class PrivateServerError(RmqDelayError):
    """A private RabbitMQ or Redis server could not do what was asked of it."""


class ServerNotFoundError(PrivateServerError):
    """No server program was found on this machine; the message says what to install."""


class ServerStartError(PrivateServerError):
    """A server did not become ready in time; the message ends with the tail of its log."""
