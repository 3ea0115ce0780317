"""Messages that were due, and wait in quorum queues until another queue takes them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from ..commands import command
from .findings import Finding

if TYPE_CHECKING:
    from ..app.state import AppState
    from ..management.records import QueueDetail

#: RabbitMQ sends the messages that a queue has refused again after this time: its
#: ``dead_letter_worker_publisher_confirm_timeout``.
_AGAIN = "3 minutes"


def dead_letters_waiting(
    delay: AppState, details: Mapping[str, QueueDetail], only: Collection[str] = ()
) -> dict[str, int]:
    """Return the waiting dead letters of all queues of the app and of its prefix, by name; none without any.

    Only the management API reports them (``details``). ``only``: those that belong to these origin queues, if any.
    """
    prefix, own = delay.settings.prefix, {*delay.app.amqp.queues, delay.settings.exhausted_queue}
    found = {
        name: detail.dead_letters_waiting
        for name, detail in sorted(details.items())
        if detail.dead_letters_waiting and (name in own or detail.belongs_to(prefix))
    }
    return {name: count for name, count in found.items() if not only or {name, details[name].target} & {*only}}


def dead_letter_findings(
    delay: AppState, details: Mapping[str, QueueDetail], only: Collection[str] = ()
) -> Iterator[Finding]:
    """Report dead letters that no queue has taken."""
    for name, count in dead_letters_waiting(delay, details, only).items():
        target = details[name].target
        found = f"{count} dead letters wait in {name} because no queue has taken them."
        full = f"If {target} is full, drain it" if target else "Empty a full target queue"
        stay = f"If they stay, run `{command('apply', delay.app)}`."
        hint = f"{full}: RabbitMQ sends them again after up to {_AGAIN}. {stay}"
        yield Finding("dead-letters-waiting", "warning", target or name, found, hint)
