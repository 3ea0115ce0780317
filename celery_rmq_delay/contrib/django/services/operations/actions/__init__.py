"""The actions on tasks. A new one is a module here, and a line in `ACTIONS`; lists show them in its order."""

from __future__ import annotations

from ..action import registered
from .discard import Discard
from .edit import Edit
from .gradually import Gradually
from .requeue import Requeue
from .restore import Restore
from .run_now import RunNow

ACTIONS = registered(
    (
        RunNow(),
        Requeue(),
        Gradually(),
        Discard(),
        Restore(),
        Edit(),
    )
)
