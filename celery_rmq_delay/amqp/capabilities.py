"""The capabilities of the connected broker, by its version."""

from __future__ import annotations

from dataclasses import dataclass

from kombu import Connection

Version = tuple[int, int, int]


@dataclass(frozen=True)
class Capabilities:
    """The differences between versions of RabbitMQ."""

    version: Version

    @property
    def reports_death_reason(self) -> bool:
        """Dead-lettered messages carry ``x-last-death-reason``."""
        return self.version >= (3, 13, 0)

    @property
    def keeps_delivery_count(self) -> bool:
        """Quorum queues keep ``x-delivery-count`` when they dead-letter; measured on 4.0.5 and 4.3.6, not on 3.10.8."""
        return self.version >= (4, 0, 0)

    @property
    def flags_returned(self) -> bool:
        """Classic queues flag rejected messages that return from a delay queue as redelivered.

        Measured on 4.3.6, not on 4.0.5. Messages that were published into the delay queue are flagged on no version.
        """
        return self.version >= (4, 1, 0)

    @property
    def sorts_quorum(self) -> bool:
        """In quorum queues a due message waits for those with a higher priority: on 4.0.5, not on 3.10.8 and 4.3.6."""
        return (4, 0, 0) <= self.version < (4, 3, 0)

    @property
    def holds_expired(self) -> bool:
        """Quorum queues can keep an expired message until the next delivery: on 3.10.8 and 4.0.5, not on 4.3.6."""
        return self.version < (4, 3, 0)

    @property
    def cancels_at_time_out(self) -> bool:
        """At a consumer time-out, a quorum queue cancels the consumer (4.3.6); 3.10.8 and 4.0.5 close its channel."""
        return self.version >= (4, 3, 0)

    @property
    def delays_retries(self) -> bool:
        """Quorum queues can delay requeued messages, by argument and by policy."""
        return self.version >= (4, 3, 1)


def capabilities(connection: Connection) -> Capabilities:
    """Return the capabilities of the connected broker."""
    return Capabilities(broker_version(connection))


def broker_version(connection: Connection) -> Version:
    """Return the version that the broker reports; (0, 0, 0) where it reports none."""
    properties = connection.connection.server_properties
    text = properties.get("version", "")
    text = text.decode() if isinstance(text, bytes) else str(text)
    parts = [int("".join(filter(str.isdecimal, part)) or 0) for part in text.split("-")[0].split(".")[:3]]
    parts += [0] * (3 - len(parts))
    return parts[0], parts[1], parts[2]
