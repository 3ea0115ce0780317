"""The result of an operation as one sentence, whose numbers add up."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db.models import Count
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...models import Operation, OperationItem
from ...queries import grouped

Kind = Operation.Kind
Outcome = OperationItem.Outcome

#: The most reasons that are named per outcome.
_REASONS = 3
_MAX_DETAIL = 255


def report(operation: Operation) -> str:
    """Return the result of an operation, such as "38 requeued, 2 skipped (already requeued by alice)".

    The numbers are those of the operation; their sum is the number of requested tasks.
    """
    reasons = _reasons(operation)
    untried = sum(count for _detail, count in reasons.get(Outcome.UNTRIED, ()))
    parts = [_done(operation.kind, operation.ok)]
    for outcome, count, text in (
        (Outcome.SKIPPED, operation.skipped, _("%(count)s skipped")),
        (Outcome.FAILED, operation.failed - untried, _("%(count)s failed")),
        (Outcome.UNTRIED, untried, _untried(operation.kind)),
        (Outcome.UNKNOWN, operation.unknown, _("%(count)s with unknown outcome")),
        (Outcome.CANCELLED if operation.is_over else Outcome.PENDING, operation.remaining, _rest(operation)),
    ):
        if count:
            parts.append(text % {"count": grouped(count)} + _because(reasons.get(outcome, []), count))
    note = operation.details.get("note", "")
    is_named = any(shortened(note) == detail for group in reasons.values() for detail, _count in group)
    return ", ".join(parts) + (f". {note}" if note and not is_named else "")


def shortened(detail: str) -> str:
    """Return a reason, cut to the length that an item can store."""
    return detail[:_MAX_DETAIL]


def _rest(operation: Operation) -> str:
    return _("%(count)s cancelled") if operation.is_over else _("%(count)s to go")


def _untried(kind: str) -> str:
    texts = {Kind.DISCARD: _("%(count)s not discarded"), Kind.RESTORE: _("%(count)s not restored")}
    return texts.get(Kind(kind), _("%(count)s not sent"))


def _done(kind: str, count: int) -> str:
    texts = {
        Kind.REQUEUE: ngettext("%(count)s requeued", "%(count)s requeued", count),
        Kind.EDIT: ngettext("%(count)s edited and requeued", "%(count)s edited and requeued", count),
        Kind.RUN_NOW: ngettext("%(count)s sent to run now", "%(count)s sent to run now", count),
        Kind.DISCARD: ngettext("%(count)s discarded", "%(count)s discarded", count),
        Kind.RESTORE: ngettext("%(count)s restored", "%(count)s restored", count),
    }
    return texts.get(Kind(kind), ngettext("%(count)s done", "%(count)s done", count)) % {"count": grouped(count)}


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


def _because(reasons: Iterable[tuple[str, int]], total: int) -> str:
    known = list(reasons)
    if not known:
        return ""
    if len(known) == 1 and known[0][1] == total:
        return f" ({known[0][0]})"
    named = [f"{grouped(count)} {detail}" for detail, count in known[:_REASONS]]
    rest = total - sum(count for _detail, count in known[:_REASONS])
    if rest > 0:
        named.append(_("%(count)s for other reasons") % {"count": grouped(rest)})
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
