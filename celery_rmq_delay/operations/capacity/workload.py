"""A load, and where its messages wait."""

from __future__ import annotations

from dataclasses import dataclass

from ...exceptions import SettingsError
from ...ladders import Ladder, QueueType
from .costs import VERSIONS


@dataclass(frozen=True)
class Workload:
    """A load and where its messages wait.

    ``rate``: first attempts per second, over all ``queues`` origin queues. ``failures``: the share of attempts that
    fail, see `flow`. ``size``: bytes of a message, properties and headers included. ``countdown_rate`` of them are
    published with an exact delay of ``countdown_ms``; ``levels`` (0: none) of ``unit_ms`` hold them. ``replicas``: of
    quorum queues. ``nodes`` of the cluster share queues and messages evenly. ``version`` of RabbitMQ: one of
    `costs.VERSIONS`. ``node_memory``: RAM of a node in bytes, for a warning if it is too little.
    """

    rate: float
    failures: tuple[float, ...]
    size: int
    ladder: Ladder
    queue_type: QueueType = "classic"
    replicas: int = 3
    nodes: int | None = None
    queues: int = 1
    outage_ms: int = 0
    countdown_rate: float = 0.0
    countdown_ms: int = 0
    levels: int = 28
    unit_ms: int = 1000
    version: str = VERSIONS[-1]
    node_memory: int | None = None

    @property
    def quorum(self) -> bool:
        """Whether the queues are quorum queues."""
        return self.queue_type == "quorum"

    @property
    def copies(self) -> int:
        """Copies of each message in the cluster."""
        return self.replicas if self.quorum else 1

    @property
    def cluster(self) -> int:
        """Number of nodes; by default as many as copies."""
        return self.copies if self.nodes is None else self.nodes

    @property
    def share(self) -> float:
        """The share of the cluster's messages and queues on one node."""
        return self.copies / self.cluster

    def check(self) -> None:
        """Raise `SettingsError` if it is inconsistent."""
        if self.quorum and self.cluster < self.replicas:
            hint = f"Each of {self.replicas} replicas needs its own node: use more nodes or fewer replicas."
            raise SettingsError("nodes", self.nodes, hint)
        if self.version not in VERSIONS:
            raise SettingsError(
                "rabbitmq", self.version, f"Measured versions are {', '.join(VERSIONS)}: use the nearest."
            )
        if self.countdown_rate > self.rate:
            hint = f"These tasks are part of the total rate of {self.rate:g}/s: raise that rate, or lower this one."
            raise SettingsError("countdown rate", self.countdown_rate, hint)
        if bool(self.countdown_rate) != bool(self.countdown_ms):
            hint = "Tasks with a countdown need both a rate and a delay."
            raise SettingsError("countdown", self.countdown_ms or None, hint)
        if self.countdown_rate and not self.levels:
            hint = "Only delays of `levels` can be estimated: leave out the countdown, or add levels."
            raise SettingsError("levels", self.levels, hint)
