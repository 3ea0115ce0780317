"""The exceptions of this package. Each message states the value found and what to do."""

from __future__ import annotations


class RmqDelayError(Exception):
    """Base class of the errors that the package raises for its users."""


class LostError(RmqDelayError):
    """This process has lost the right to go on: it was suspended, or cut off, and another process has taken over."""


# -- settings and calls ------------------------------------------------------------------------------------------------


class _InvalidValueError(RmqDelayError):
    """A named value is invalid. Survives the way from a child process, as an exception that can be pickled."""

    def __init__(self, what: str, found: object, hint: str) -> None:
        self.found, self.hint, self._what = found, hint, what
        super().__init__(f"{what}: found {found!r}. {hint}")

    def __reduce__(self) -> tuple[type[_InvalidValueError], tuple[str, object, str]]:
        return type(self), (self._what, self.found, self.hint)


class SettingsError(_InvalidValueError):
    """A setting has an invalid value."""

    @property
    def setting(self) -> str:
        """The name of the setting, or of the option of a command."""
        return self._what


class SelectionError(RmqDelayError):
    """The options of a command, or the arguments of an operation, are missing or exclude each other."""


class DelayError(_InvalidValueError, ValueError):
    """The delay of a call or a retry is invalid."""


class UnknownVersionError(RmqDelayError):
    """The installed version of Celery, kombu, billiard or py-amqp is not supported."""


class TransportError(RmqDelayError):
    """The app's broker is not an AMQP broker, so it cannot hold parked tasks."""


# -- the broker --------------------------------------------------------------------------------------------------------


class TopologyError(RmqDelayError):
    """The broker's objects do not match what the ladder needs."""


class ConflictError(TopologyError):
    """An exchange or a queue exists with other arguments than planned, and RabbitMQ cannot change them."""


class LockTimeoutError(TopologyError):
    """Another process held the lock on the record of a queue's ladder for too long."""


class LockLostError(TopologyError, LostError):
    """RabbitMQ has taken back the lock on the record of a queue's ladder while a process changed the ladder."""


class RecordGoneError(TopologyError):
    """The queue of a record does not exist, or was deleted."""


class AdoptionError(RmqDelayError):
    """A queue cannot be adopted by a policy, or cannot be detached."""


class BrokerBlockedError(RmqDelayError):
    """RabbitMQ blocks publishing connections because of a memory or disk alarm."""


class BrokerDownError(RmqDelayError):
    """The broker is unreachable, or does not confirm publishes."""


class ManagementError(RmqDelayError):
    """A request to the management HTTP API failed."""


# -- messages ----------------------------------------------------------------------------------------------------------


class PublishError(RmqDelayError):
    """The broker did not take responsibility for a message."""


class UnroutableError(PublishError):
    """A mandatory message reached no queue and was returned."""


class UnsendableError(PublishError):
    """AMQP cannot carry a message: its headers are too large or of an unsupported type, or a name is too long."""


class RefusedError(PublishError):
    """The broker closed the channel of a message: a permission is missing, a limit is reached, or a queue is locked."""


class NackedError(PublishError):
    """The broker refused a message with a nack (queue full, or not enough replicas)."""


class OutcomeUnknownError(PublishError):
    """No confirm arrived: the message may or may not be in the broker."""


class UnreadableError(RmqDelayError):
    """A message does not have the format of a Celery task message."""


class EventError(RmqDelayError, ValueError):
    """A message of the event queue is not an event that this version can read."""

    def __init__(self, field: str, found: object, hint: str) -> None:
        self.field = field
        super().__init__(f"{field}: found {str(found)[:100]!r}. {hint}")


# -- moving messages ---------------------------------------------------------------------------------------------------


class NotUnderstoodError(RmqDelayError):
    """The destination or the due time of a message cannot be determined."""


class CannotHoldError(RmqDelayError):
    """The target cannot take a message, which stays where it is."""


# -- history and analytics ---------------------------------------------------------------------------------------------


class HistoryError(RmqDelayError):
    """History files cannot be written to the configured place."""


class AnalyticsError(RmqDelayError):
    """The history, or the output computed from it, cannot be read or written."""


class RunLostError(AnalyticsError, LostError):
    """Another run has taken over the output, or its lock was removed: this one publishes nothing."""


class IntervalError(_InvalidValueError, ValueError):
    """The given times or counts of failures are not valid input of an estimate."""


class OutputError(AnalyticsError):
    """The output of the analytics cannot be loaded."""


# -- the Django app ----------------------------------------------------------------------------------------------------


class OperationBusyError(RmqDelayError):
    """An operation has ended, or another process runs it."""


class LeaseLostError(LostError):
    """Another process has taken over the operation because this one did not renew its lease in time."""


class EditError(RmqDelayError):
    """A task cannot be edited, or the edit is invalid; ``field`` is ``args``, ``kwargs``, or empty."""

    def __init__(self, text: str, field: str = "") -> None:
        self.field = field
        super().__init__(text)


class AbandonedError(RmqDelayError):
    """The collector was stopped while it could not write a batch, which the broker delivers again."""


# -- tests -------------------------------------------------------------------------------------------------------------


class PrivateServerError(RmqDelayError):
    """An operation on a private server failed."""


class ServerNotFoundError(PrivateServerError):
    """No server program was found on this machine; the message states what to install."""


class ServerStartError(PrivateServerError):
    """A server did not become ready in time; the message ends with the tail of its log."""


class NotFinishedError(RmqDelayError):
    """A task of a test did not finish."""
