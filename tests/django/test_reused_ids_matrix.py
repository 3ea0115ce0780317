"""Ids that are used again, for each state of the first row: what is kept is compared with a ledger of what was sent."""

from itertools import chain

import pytest

from celery_rmq_delay.contrib.django.models import TaskRecord, TaskState
from celery_rmq_delay.events.schema import Event
from tests.support.django import reused
from tests.support.django.batches import QUEUE, carried, delivery, writer
from tests.support.django.reused import FIRSTS, of_first

pytestmark = pytest.mark.usefixtures("database")

#: Properties that end in the middle of a header.
MALFORMED = b"\xff\xff\xff"


def deliveries(*sent):
    """Return events and exhausted messages as the collector receives them."""
    found = []
    for tag, each in enumerate(sent, 1):
        if isinstance(each, Event):
            found.append((QUEUE, delivery(each.to_json(), tag)))
        elif "bad" in each.headers:
            found.append(("rmq_delay.exhausted", delivery(each.body, tag, MALFORMED)))
        else:
            found.append(("rmq_delay.exhausted", carried(each, tag)))
    return found


def collect(*sent):
    """Write a batch as a collector does that has just started."""
    if sent:
        writer().write(deliveries(*sent))


@pytest.mark.parametrize("state", FIRSTS)
def test_the_kept_messages_of_an_id_that_is_used_twice_are_those_that_were_sent(state):
    first = FIRSTS[state]
    uses = {str(number): use for number, use in enumerate(reused.seconds())}

    def collect_first(names):
        collect(*(of_first(task_id, name) for task_id in uses for name in names))

    collect_first(first.sent)
    reused.set_state(first, list(uses))
    collect_first(first.then)
    # Rows that stand for a message or a requeue, whose state no use of the first generation changes.
    first_uses = [task_id for task_id, use in uses.items() if use.generation == 0]
    rows = TaskRecord.objects.filter(task_id__in=first_uses).exclude(state=TaskState.RECOVERED)
    standing = dict(rows.exclude(call_digest="", generation=0).values_list("pk", "state"))
    batches = [[*chain(*each)] for each in zip(*(use.batches(task_id) for task_id, use in uses.items()), strict=True)]
    for batch in batches:
        collect(*batch)
    collect_first(first.late)
    for _delivery in range(2):
        assert reused.hidden(uses) == []
        assert reused.kept() ^ reused.ledger(first, uses) == set()
        assert dict(TaskRecord.objects.filter(pk__in=standing).values_list("pk", "state")) == standing
        before = list(TaskRecord.objects.order_by("pk").values())
        for batch in batches:
            collect(*batch)
        assert list(TaskRecord.objects.order_by("pk").values()) == before, "a redelivery changes nothing"
