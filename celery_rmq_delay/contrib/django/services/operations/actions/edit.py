"""Edit and requeue: has a page of its own, and one task."""

from __future__ import annotations

from ....models import Operation
from .. import requeue
from ..action import Action, Run, Work


class Edit(Action):
    """Requeue a task with other arguments; its form is in the admin's `message`."""

    name = "edit"
    kind = Operation.Kind.EDIT
    label = "Edit and requeue"
    permission = "edit_payload"
    done = "edited and requeued"
    requeues = True

    def work(self, run: Run) -> Work:
        """Return what publishes the edited messages; after the end of the request these are lost."""
        return requeue.Requeue(run.lease, run.link, run.edited) if run.edited else requeue.LostEdit(run.lease, run.link)
