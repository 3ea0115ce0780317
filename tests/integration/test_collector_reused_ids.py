"""Ids that are used again, collected from a real broker: what is kept is compared with a ledger of what was sent."""

import pytest

from tests.support.django import reused
from tests.support.django.reused import FIRSTS, Second, of_first

SENT = [name for name, first in FIRSTS.items() if "unreadable" not in first.sent]


@pytest.mark.parametrize("order", ["before", "after", "together"])
def test_the_messages_of_ids_that_are_used_twice_are_kept_and_acked(rig, order):
    uses = {f"{name} {same}": Second(same, 1, 0, False, order) for name in SENT for same in (False, True)}
    firsts = {task_id: FIRSTS[task_id.rpartition(" ")[0]] for task_id in uses}
    rig.send(*(of_first(task_id, name) for task_id, first in firsts.items() for name in first.sent))
    rig.collect()
    for task_id, first in firsts.items():
        reused.set_state(first, [task_id])
    rig.send(*(of_first(task_id, name) for task_id, first in firsts.items() for name in first.then))
    rig.collect()
    for number in range(2):
        rig.send(*(each for task_id, use in uses.items() for each in use.batches(task_id)[number]))
        rig.collect(batch=7)
    rig.send(*(of_first(task_id, name) for task_id, first in firsts.items() for name in first.late))
    rig.collect()
    assert reused.hidden(uses) == []
    expected = set().union(*(reused.ledger(first, {task_id: uses[task_id]}) for task_id, first in firsts.items()))
    assert reused.kept() ^ expected == set()
    assert rig.left() == 0
