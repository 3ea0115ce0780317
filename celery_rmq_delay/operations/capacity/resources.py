"""Memory and disk of a node, when most messages are parked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from . import costs
from .objects import Counts
from .workload import Workload


@dataclass(frozen=True)
class Waiting:
    """``count`` messages of ``size`` bytes that wait in ``queues`` equal queues of the cluster."""

    where: str
    queues: int
    count: float
    size: float


@dataclass(frozen=True)
class Item:
    """A part of a node's memory or disk, in bytes, and the constants that it was computed from."""

    what: str
    size: float
    constants: tuple[str, ...]


def size_after(load: Workload, deaths: int) -> float:
    """Return a message's bytes after ``deaths`` dead-letterings: the broker records each queue in its headers."""
    more = costs.DEATH.of(load.version) + (deaths - 1) * costs.DEATH_MORE.of(load.version)
    return load.size + (more if deaths else 0)


def memory(load: Workload, waiting: Sequence[Waiting], counts: Counts) -> tuple[Item, ...]:
    """Return the parts of a node's memory."""
    return (
        _item(load, "the node itself", 1, costs.NODE),
        *(_quorum_messages if load.quorum else _classic_messages)(load, waiting),
        _item(load, "queues", load.share * counts.queues, costs.QUORUM_QUEUE if load.quorum else costs.CLASSIC_QUEUE),
        _item(load, "bindings", counts.bindings, costs.BINDING),
        _item(load, "exchanges", counts.exchanges, costs.EXCHANGE),
    )


def _quorum_messages(load: Workload, waiting: Sequence[Waiting]) -> Iterator[Item]:
    """Return the index of all messages, and those in the write-ahead log, where small ones need more than on disk."""
    yield _item(
        load, "index of parked messages", load.share * sum(each.count for each in waiting), costs.QUORUM_MESSAGE
    )
    size, version = size_after(load, 1), load.version
    logged = costs.WAL.of(version) / (size + costs.QUORUM_DISK.of(version))
    made_of = (costs.WAL.name, costs.QUORUM_DISK.name, costs.WAL_MESSAGE.name)
    yield Item("messages in the write-ahead log", logged * (size + costs.WAL_MESSAGE.of(version)), made_of)


def _classic_messages(load: Workload, waiting: Sequence[Waiting]) -> Iterator[Item]:
    """Return the messages that RabbitMQ 3.10 keeps, or the buffers and the index of large ones of later versions."""
    kept = costs.CLASSIC_KEPT.of(load.version)
    if kept:
        size = sum(each.count * (each.size + kept) for each in waiting)
        yield Item("parked messages", load.share * size, (costs.CLASSIC_KEPT.name,))
        return
    buffer = costs.CLASSIC_BUFFER.of(load.version)
    size = sum(min(each.queues * buffer, each.count * each.size) for each in waiting)
    yield Item("buffers of queues with messages", load.share * size, (costs.CLASSIC_BUFFER.name,))
    large = sum(each.count for each in waiting if each.size > costs.CLASSIC_EMBEDDED.of(load.version))
    made_of = (costs.CLASSIC_EMBEDDED.name, costs.CLASSIC_STORED.name)
    yield Item("index of the shared store", load.share * large * costs.CLASSIC_STORED.of(load.version), made_of)


def disk(load: Workload, waiting: Sequence[Waiting], counts: Counts) -> tuple[Item, ...]:
    """Return the parts of a node's disk."""
    over = costs.QUORUM_DISK if load.quorum else costs.CLASSIC_DISK
    stored = sum(each.count * (each.size + over.of(load.version)) for each in waiting)
    log = [_item(load, "write-ahead log", 1, costs.WAL)] if load.quorum else []
    queue = costs.QUORUM_QUEUE_DISK if load.quorum else costs.CLASSIC_QUEUE_DISK
    return (
        Item("parked messages", load.share * stored, (costs.DEATH.name, costs.DEATH_MORE.name, over.name)),
        *log,
        _item(load, "queues", load.share * counts.queues, queue),
        _item(load, "bindings", counts.bindings, costs.BINDING_DISK),
    )


def memory_needed(load: Workload, used: float) -> float:
    """Return the RAM of a node, in bytes, with which ``used`` bytes stay below its high watermark."""
    needed = used / costs.HIGH_WATERMARK.of(load.version)
    log = costs.WAL_NODE_FACTOR.of(load.version) * costs.WAL.of(load.version)
    return max(needed, log) if load.quorum else needed


def _item(load: Workload, what: str, count: float, constant: costs.Constant) -> Item:
    return Item(what, count * constant.of(load.version), (constant.name,))
