"""Resource costs of RabbitMQ: every constant of the estimate, with its source.

The measured ones are what `MEASURED_BY` prints, on the machine of docs/contributing/performance.md: bytes for one of
100,000 messages, 1,000 queues, 10,000 bindings, 1,000 exchanges. The documented ones name the page of RabbitMQ's docs.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The versions of RabbitMQ that were measured, the newest last.
VERSIONS = ("3.10", "4.0", "4.3")

#: The command that prints the measured constants.
MEASURED_BY = "python -m benchmarks broker_memory --rabbitmq VERSION"

_QUORUM = "RabbitMQ docs, Quorum Queues"
_CLASSIC = "RabbitMQ docs, Classic Queues"
_MIB = 1024**2


@dataclass(frozen=True)
class Constant:
    """A number, or one per RabbitMQ version in the order of `VERSIONS`."""

    name: str
    what: str
    unit: str
    values: float | tuple[float, float, float]
    source: str = "measured"

    def of(self, version: str) -> float:
        """Return the value for a version."""
        return self.values[VERSIONS.index(version)] if isinstance(self.values, tuple) else self.values


NODE = Constant("node", "resident memory of an idle node", "B", (147e6, 109e6, 150e6))
HIGH_WATERMARK = Constant(
    "high_watermark", "share of its RAM at which a node stops publishers", "", (0.4, 0.6, 0.6),
    "RabbitMQ docs, Memory Threshold and Limit; read from the nodes",
)  # fmt: skip

CLASSIC_BUFFER = Constant(
    "classic_buffer", "memory for buffers of a classic queue, at most", "B", _MIB,
    f"{_CLASSIC}, Memory Footprint: up to 1 MB of the per-queue store",
)  # fmt: skip
CLASSIC_KEPT = Constant("classic_kept", "memory of a kept message, over its size; 0: none is kept", "B", (935, 0, 0))
CLASSIC_EMBEDDED = Constant(
    "classic_embedded", "larger messages are in the shared message store", "B", 4096,
    f"{_CLASSIC}, Persistence: the embedding threshold",
)  # fmt: skip
CLASSIC_STORED = Constant(
    "classic_stored", "memory of a message in the shared store; 0: it is kept", "B", (0, 310, 314)
)  # fmt: skip
CLASSIC_DISK = Constant("classic_disk", "disk of a classic message, over its size", "B", (243, 227, 227))
CLASSIC_QUEUE = Constant("classic_queue", "memory of an empty classic queue", "B", (23_213, 11_403, 28_295))
CLASSIC_QUEUE_DISK = Constant("classic_queue_disk", "disk of an empty classic queue", "B", (496, 9_507, 9_097))

QUORUM_MESSAGE = Constant(
    "quorum_message", "memory of a quorum message, in each replica", "B", (66, 70, 78),
    f"measured; {_QUORUM}, Resource Use: at least 32",
)  # fmt: skip
QUORUM_DISK = Constant("quorum_disk", "disk of a quorum message, over its size", "B", (340, 317, 276))
QUORUM_QUEUE = Constant("quorum_queue", "memory of an empty quorum queue", "B", (62_393, 69_571, 130_384))
QUORUM_QUEUE_DISK = Constant("quorum_queue_disk", "disk of an empty quorum queue", "B", (21_598, 28_140, 30_040))
QUORUM_BACKLOG = Constant(
    "quorum_backlog", "messages in one quorum queue that are too many", "", 5e6,
    f"{_QUORUM}, When Not to Use Quorum Queues",
)  # fmt: skip
WAL = Constant(
    "wal", "write-ahead log of a node, before it is flushed", "B", 512 * _MIB,
    f"{_QUORUM}, How Memory, WAL and Segments Files Interact",
)  # fmt: skip
WAL_MESSAGE = Constant("wal_message", "memory of a message in the log, over its size", "B", (747, 447, 795))
WAL_NODE_FACTOR = Constant(
    "wal_node_factor", "a node's RAM is at least so many write-ahead logs", "", 3,
    f"{_QUORUM}, How Memory, WAL and Segments Files Interact",
)  # fmt: skip

BINDING = Constant("binding", "memory of a binding, on every node", "B", (2_507, 2_692, 3_220))
BINDING_DISK = Constant("binding_disk", "disk of a binding, on every node", "B", (266, 147, 5_792))
EXCHANGE = Constant("exchange", "memory of an exchange, on every node", "B", (852, 1_101, 687))
DEATH = Constant("death", "headers that the first retry adds to a message", "B", (371, 498, 498))
DEATH_MORE = Constant("death_more", "headers that every further retry adds", "B", 151)
MANY_QUEUES = Constant(
    "many_queues", "queues that take minutes to declare", "", 10_000,
    "measured: python -m benchmarks apply_topology, 8 to 14 ms a queue",
)  # fmt: skip

#: Every constant, in the order in which they are printed.
CONSTANTS: tuple[Constant, ...] = tuple(value for value in list(vars().values()) if isinstance(value, Constant))
