"""The result of an operation as one sentence, whose numbers add up."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db.models import Count

from ...models import Operation, OperationItem
from ...queries import grouped
from .action import of_kind

Outcome = OperationItem.Outcome

#: The most reasons that are named per outcome.
_REASONS = 3
_MAX_DETAIL = 255


def report(operation: Operation) -> str:
    """Return the result of an operation, such as "38 requeued, 2 skipped (already requeued by alice)"."""
    reasons = _reasons(operation)
    untried = sum(count for _detail, count in reasons.get(Outcome.UNTRIED, ()))
    action = of_kind(operation.kind)
    parts = [f"{grouped(operation.ok)} {action.done if action else 'done'}"]
    rest = (Outcome.CANCELLED, "cancelled") if operation.is_over else (Outcome.PENDING, "to go")
    for outcome, text, count in (
        (Outcome.SKIPPED, "skipped", operation.skipped),
        (Outcome.FAILED, "failed", operation.failed - untried),
        (Outcome.UNTRIED, action.not_done if action else "not sent", untried),
        (Outcome.UNKNOWN, "with unknown outcome", operation.unknown),
        (*rest, operation.remaining),
    ):
        if count:
            parts.append(f"{grouped(count)} {text}{_because(reasons.get(outcome, []), count)}")
    note = operation.details.get("note", "")
    is_named = any(shortened(note) == detail for group in reasons.values() for detail, _count in group)
    return ", ".join(parts) + (f". {note}" if note and not is_named else "")


def shortened(detail: str) -> str:
    """Return a reason, cut to the length that an item can store."""
    return detail[:_MAX_DETAIL]


def _reasons(operation: Operation) -> dict[str, list[tuple[str, int]]]:
    found: dict[str, list[tuple[str, int]]] = {}
    counted = (
        OperationItem.objects.filter(operation=operation)
        .exclude(detail="")
        .values_list("outcome", "detail")
        .annotate(count=Count("pk"))
        .order_by("-count", "detail")
    )
    for outcome, detail, count in counted:
        found.setdefault(outcome, []).append((detail, count))
    return found


def _because(known: Sequence[tuple[str, int]], total: int) -> str:
    if not known:
        return ""
    if len(known) == 1 and known[0][1] == total:
        return f" ({known[0][0]})"
    named = [f"{grouped(count)} {detail}" for detail, count in known[:_REASONS]]
    rest = total - sum(count for _detail, count in known[:_REASONS])
    if rest > 0:
        named.append(f"{grouped(rest)} for other reasons")
    return f" ({'; '.join(named)})"


def time_left(operation: Operation, now: datetime) -> timedelta | None:
    """Return how long the remaining tasks take at the rate, or as fast as those so far; None where it is not known."""
    done = operation.requested - operation.remaining
    if operation.is_over or operation.remaining <= 0 or operation.state == Operation.State.CANCELLING:
        return None
    if operation.rate:
        return timedelta(minutes=operation.remaining / operation.rate)
    if operation.state != Operation.State.RUNNING or not done or operation.started_at is None:
        return None
    return (now - operation.started_at) * operation.remaining / done
