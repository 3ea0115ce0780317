"""Errors of what tests are given."""

from ..exceptions import RmqDelayError


class PrivateServerError(RmqDelayError):
    """A private server could not do what was asked of it."""


class ServerNotFoundError(PrivateServerError):
    """No server program was found on this machine; the message says what to install."""


class ServerStartError(PrivateServerError):
    """A server did not become ready in time; the message ends with the tail of its log."""


class NotFinishedError(RmqDelayError):
    """A task of a test did not come to its end."""
