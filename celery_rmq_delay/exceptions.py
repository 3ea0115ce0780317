"""One exception tree: every message names what was found and what mends it."""


class RmqDelayError(Exception):
    """Base class of every error this package raises."""


class SettingsError(RmqDelayError):
    """A setting cannot be used as it stands."""

    def __init__(self, setting: str, found: object, mend: str) -> None:
        self.setting, self.found, self.mend = setting, found, mend
        super().__init__(f"{setting}: found {found!r}. {mend}")


class TopologyError(RmqDelayError):
    """The broker's objects are not what the ladder needs."""


class LockTimeoutError(TopologyError):
    """Another process kept the record of a queue's ladder for too long."""


class TransportError(RmqDelayError):
    """The app's broker is not an AMQP broker, so nothing can be parked in it."""


class PublishError(RmqDelayError):
    """The broker did not take responsibility for a message."""


class UnroutableError(PublishError):
    """A mandatory message reached no queue and was returned."""


class NackedError(PublishError):
    """The broker refused a message (queue full, or not enough replicas)."""


class OutcomeUnknownError(PublishError):
    """No confirm arrived: the message may or may not be in the broker."""


class ManagementError(RmqDelayError):
    """The management HTTP API did not answer as it should."""
