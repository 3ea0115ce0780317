"""One exception tree: every message names what was found and what mends it."""

__all__ = [
    "AdoptionError",
    "AnalyticsError",
    "BrokerBlockedError",
    "ConflictError",
    "DelayError",
    "EventError",
    "HistoryError",
    "IntervalError",
    "LockTimeoutError",
    "ManagementError",
    "NackedError",
    "OutcomeUnknownError",
    "PublishError",
    "RmqDelayError",
    "SettingsError",
    "TopologyError",
    "TransportError",
    "UnknownVersionError",
    "UnroutableError",
]


class RmqDelayError(Exception):
    """Base class of every error this package raises."""


class SettingsError(RmqDelayError):
    """A setting cannot be used as it stands."""

    def __init__(self, setting: str, found: object, mend: str) -> None:
        self.setting, self.found, self.mend = setting, found, mend
        super().__init__(f"{setting}: found {found!r}. {mend}")


class DelayError(RmqDelayError, ValueError):
    """A delay of a call or a retry cannot be used."""

    def __init__(self, what: str, found: object, mend: str) -> None:
        super().__init__(f"{what}: found {found!r}. {mend}")


class TopologyError(RmqDelayError):
    """The broker's objects are not what the ladder needs."""


class ConflictError(TopologyError):
    """An exchange or a queue exists with other arguments than planned, and RabbitMQ cannot change them."""


class AdoptionError(RmqDelayError):
    """A queue cannot be adopted by a policy, or given back, as things are."""


class LockTimeoutError(TopologyError):
    """Another process kept the record of a queue's ladder for too long."""


class UnknownVersionError(RmqDelayError):
    """The installed Celery, kombu, billiard or py-amqp lacks what this package needs of it."""


class TransportError(RmqDelayError):
    """The app's broker is not an AMQP broker, so nothing can be parked in it."""


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


class BrokerBlockedError(RmqDelayError):
    """RabbitMQ reads nothing from connections that publish: it has a memory or disk alarm."""


class ManagementError(RmqDelayError):
    """The management HTTP API did not answer as it should."""


class UnreadableError(RmqDelayError):
    """A message is not of a shape that Celery can take."""


class EventError(RmqDelayError, ValueError):
    """What came through the queue of events is none that this version can read."""

    def __init__(self, field: str, found: object, mend: str) -> None:
        self.field = field
        super().__init__(f"{field}: found {str(found)[:100]!r}. {mend}")


class IntervalError(RmqDelayError, ValueError):
    """Times or counts of failures cannot be estimated from."""

    def __init__(self, what: str, found: object, mend: str) -> None:
        super().__init__(f"{what}: found {found!r}. {mend}")


class AnalyticsError(RmqDelayError):
    """The history, or what is computed of it, cannot be read or written as things are."""


class HistoryError(RmqDelayError):
    """History files cannot be written where they are to be."""
