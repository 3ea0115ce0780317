"""The exceptions of this package: one tree, and each message has what was found and what to do."""

from __future__ import annotations

__all__ = [
    "AbandonedError",
    "AdoptionError",
    "AnalyticsError",
    "BrokerBlockedError",
    "BrokerDownError",
    "CannotHoldError",
    "ConflictError",
    "DelayError",
    "EditError",
    "EventError",
    "HistoryError",
    "IntervalError",
    "LeaseLostError",
    "LockTimeoutError",
    "ManagementError",
    "NackedError",
    "NotFinishedError",
    "NotUnderstoodError",
    "OperationBusyError",
    "OutcomeUnknownError",
    "OutputError",
    "PrivateServerError",
    "PublishError",
    "RecordGoneError",
    "RmqDelayError",
    "ServerNotFoundError",
    "ServerStartError",
    "SettingsError",
    "TopologyError",
    "TransportError",
    "UnknownVersionError",
    "UnreadableError",
    "UnroutableError",
    "UnsendableError",
]


class RmqDelayError(Exception):
    """Base class of every error this package raises."""


# -- settings and calls ------------------------------------------------------------------------------------------------


class SettingsError(RmqDelayError):
    """A setting cannot be used as it stands."""

    def __init__(self, setting: str, found: object, hint: str) -> None:
        self.setting, self.found, self.hint = setting, found, hint
        super().__init__(f"{setting}: found {found!r}. {hint}")


class DelayError(RmqDelayError, ValueError):
    """A delay of a call or a retry cannot be used."""

    def __init__(self, what: str, found: object, hint: str) -> None:
        super().__init__(f"{what}: found {found!r}. {hint}")


class UnknownVersionError(RmqDelayError):
    """The installed Celery, kombu, billiard or py-amqp lacks what this package needs of it."""


class TransportError(RmqDelayError):
    """The app's broker is not an AMQP broker, so nothing can be parked in it."""


# -- the broker --------------------------------------------------------------------------------------------------------


class TopologyError(RmqDelayError):
    """The broker's objects are not what the ladder needs."""


class ConflictError(TopologyError):
    """An exchange or a queue exists with other arguments than planned, and RabbitMQ cannot change them."""


class LockTimeoutError(TopologyError):
    """Another process kept the record of a queue's ladder for too long."""


class RecordGoneError(TopologyError):
    """The queue of a record does not exist, or does not exist any more."""


class AdoptionError(RmqDelayError):
    """A queue cannot be adopted by a policy, or given back, as things are."""


class BrokerBlockedError(RmqDelayError):
    """RabbitMQ reads nothing from connections that publish: it has a memory or disk alarm."""


class BrokerDownError(RmqDelayError):
    """The broker cannot be reached, or confirms nothing."""


class ManagementError(RmqDelayError):
    """The management HTTP API did not answer as it should."""


# -- messages ----------------------------------------------------------------------------------------------------------


class PublishError(RmqDelayError):
    """The broker did not take responsibility for a message."""


class UnroutableError(PublishError):
    """A mandatory message reached no queue and was returned."""


class UnsendableError(PublishError):
    """AMQP cannot carry a message: its headers are too large, or of no type that it has, or a name is too long."""


class NackedError(PublishError):
    """The broker refused a message (queue full, or not enough replicas)."""


class OutcomeUnknownError(PublishError):
    """No confirm arrived: the message may or may not be in the broker."""


class UnreadableError(RmqDelayError):
    """A message is not of a shape that Celery can take."""


class EventError(RmqDelayError, ValueError):
    """What came through the queue of events is none that this version can read."""

    def __init__(self, field: str, found: object, hint: str) -> None:
        self.field = field
        super().__init__(f"{field}: found {str(found)[:100]!r}. {hint}")


# -- moving messages ---------------------------------------------------------------------------------------------------


class NotUnderstoodError(RmqDelayError):
    """Nothing tells where a message is to go, or when."""


class CannotHoldError(RmqDelayError):
    """A message that the target cannot take: it stays where it is."""


# -- history and analytics ---------------------------------------------------------------------------------------------


class HistoryError(RmqDelayError):
    """History files cannot be written where they are to be."""


class AnalyticsError(RmqDelayError):
    """The history, or what is computed of it, cannot be read or written as things are."""


class IntervalError(RmqDelayError, ValueError):
    """Times or counts of failures cannot be estimated from."""

    def __init__(self, what: str, found: object, hint: str) -> None:
        super().__init__(f"{what}: found {found!r}. {hint}")


class OutputError(RmqDelayError):
    """The output of the analytics cannot be loaded; the message says what is wrong and what to do."""


# -- the Django app ----------------------------------------------------------------------------------------------------


class OperationBusyError(RmqDelayError):
    """An operation is over, or somebody else runs it."""


class LeaseLostError(RmqDelayError):
    """Somebody else has taken the operation over: this process was silent for too long."""


class EditError(RmqDelayError):
    """A task cannot be edited, or not like this; ``field`` is ``args``, ``kwargs``, or empty."""

    def __init__(self, text: str, field: str = "") -> None:
        self.field = field
        super().__init__(text)


class AbandonedError(RmqDelayError):
    """The collector was told to stop while a batch could not be written: the broker delivers it again."""


# -- tests -------------------------------------------------------------------------------------------------------------


class PrivateServerError(RmqDelayError):
    """A private server could not do what was asked of it."""


class ServerNotFoundError(PrivateServerError):
    """No server program was found on this machine; the message says what to install."""


class ServerStartError(PrivateServerError):
    """A server did not become ready in time; the message ends with the tail of its log."""


class NotFinishedError(RmqDelayError):
    """A task of a test did not come to its end."""
