"""Delete the delay queues and exchanges of retired ladders, once no message can be in them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kombu import Connection

from ..amqp import apply
from ..amqp.objects import Queue
from ..amqp.record import Record, locked_record
from ..commands import command
from ..durations import format_ms
from ..ladders import Ladder
from ..management.records import QueueDetail
from ..topology.applied import Applied
from ..topology.ladder import LadderPlan
from .results import Result, listed_counts

#: Seconds to wait after the last message of a retired ladder can have become due.
GRACE = 60.0


@dataclass
class Pruned(Result):
    """The result of `prune` for one origin queue.

    ``deleted`` names queues and exchanges; ``kept`` maps the id of each kept retired ladder to the reason.
    """

    queue: str
    ladders: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)


def prune(
    connection: Connection, plan: LadderPlan, details: Mapping[str, QueueDetail] | None, *, now: bool = False,
    lock_timeout: float = 30.0,
) -> Pruned:  # fmt: skip
    """Delete the delay queues and exchanges of the queue's retired ladders. Never deletes a queue with messages.

    A quorum queue also keeps messages that were due for a full queue. Only ``details``, the queues as the management
    API reports them, count these. With None, ladders with quorum queues are kept; a queue that is not in it counts as
    having none.

    A ladder is deleted when its delay queues are empty and it retired longer ago than its longest delay and `GRACE`
    seconds: until then a worker that runs with old settings may still use it. ``now`` skips the wait. Waits at most
    ``lock_timeout`` seconds for others that apply or prune, then raises `LockTimeoutError`.
    """
    record_queue = plan.record_queue()
    if apply.inspect_queue(connection, record_queue.name) is None:
        return Pruned(plan.queue)
    with locked_record(connection, record_queue, lock_timeout, create=False) as (_, record):
        return _Prune(connection, plan, record, details).run(now)


class _Prune:
    def __init__(
        self, connection: Connection, plan: LadderPlan, record: Record, details: Mapping[str, QueueDetail] | None
    ) -> None:
        self.connection, self.plan, self.record, self.details = connection, plan, record, details
        self.report = Pruned(plan.queue)
        self.applied = Applied.from_json(record.value)

    def run(self, now: bool) -> Pruned:
        candidates = {key: each for key, each in self.applied.ladders.items() if self._may_go(key, each, now)}
        empty = {key: each for key, each in candidates.items() if self._is_empty(key, each)}
        staying = self._delay_queues(
            [*self.plan.ladders.values(), *(each for key, each in self.applied.ladders.items() if key not in empty)]
        )
        for key, ladder in empty.items():
            self._prune(key, ladder, [queue for queue in self._delay_queues([ladder]) if queue not in staying])
        if self.report.ladders:
            self._forget()
        return self.report

    def _may_go(self, key: str, ladder: Ladder, now: bool) -> bool:
        if key not in self.applied.retired or key in self.plan.ladders or key in self.applied.in_force:
            return False
        if self.applied.phase != "settled":
            self.report.kept[key] = f"A change of ladders was interrupted: run `{command('apply')}` first."
            return False
        longest = max(ttl for tier_index in range(1, len(ladder) + 1) for ttl in ladder.lane_ttls(tier_index)) / 1000
        left = self.applied.retired[key] + longest + GRACE - time.time()
        if left > 0 and not now:
            wait = format_ms(max(1000, round(left) * 1000))
            self.report.kept[key] = f"Old workers may still use it: wait {wait}, or use --now."
            return False
        return True

    def _delay_queues(self, ladders: Iterable[Ladder]) -> list[Queue]:
        return [queue for _, _, queue in self.plan.delay_queues(ladders)]

    def _is_empty(self, key: str, ladder: Ladder) -> bool:
        in_force = {*self._delay_queues(self.plan.ladders.values())}
        in_force |= {*self._delay_queues(each for each in map(self.applied.ladders.get, self.applied.in_force) if each)}
        own = [queue.name for queue in self._delay_queues([ladder]) if queue not in in_force]
        counts = apply.ready_counts(self.connection, own)
        if full := listed_counts(counts):
            self.report.kept[key] = f"Messages are parked in {full}."
            return False
        if ladder.queue_type == "quorum" and self.details is None:
            self.report.kept[key] = (
                "Its quorum queues may keep messages that were due for a full queue, and only the management API "
                "reports them: see --management-url and --no-management."
            )
            return False
        waiting = {name: detail.dead_letters_waiting for name, detail in (self.details or {}).items() if name in own}
        if full := listed_counts(waiting):
            self.report.kept[key] = f"Messages that were due wait for a target queue, in {full}."
        return not full

    def _prune(self, key: str, ladder: Ladder, queues: list[Queue]) -> None:
        # No binding leads to these exchanges. Without them no message enters a tier while its queue is deleted.
        for name in self._exchanges(key, ladder):
            self.record.delete_exchange(name)
            self.report.deleted.append(name)
        for queue in queues:
            self.record.check()
            if not apply.delete_unused(self.connection, queue):
                self.report.kept[key] = f"{queue.name} is in use: messages were just parked, or are being inspected."
                return
            self.report.deleted.append(queue.name)
        self.report.ladders.append(key)

    def _exchanges(self, key: str, ladder: Ladder) -> list[str]:
        names, queue = self.plan.names, self.plan.queue
        found = [names.ladder(queue, key), names.first(queue, key)]
        for tier_index in range(1, len(ladder) + 1):
            if len(ladder.lane_ttls(tier_index)) > 1:
                found += [names.tier(queue, key, tier_index), names.lane0(queue, key, tier_index)]
        return found

    def _forget(self) -> None:
        """Remove the pruned ladders from the record, and the return bindings of tiers that no ladder has."""
        gone = set(self.report.ladders)
        kept = replace(
            self.applied,
            ladders={key: each for key, each in self.applied.ladders.items() if key not in gone},
            retired={key: when for key, when in self.applied.retired.items() if key not in gone},
        )
        self.record.save(kept.to_json())
        highest = max(kept.highest_tier, *(len(ladder) for ladder in self.plan.ladders.values()))
        for tier_index in range(highest + 1, self.applied.highest_tier + 1):
            self.record.unbind(self.plan.return_binding(tier_index))
