"""The report of an uninstall: what was deleted, and what could not be deleted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ..results import Result
from ..steps import Deleted, Left


@dataclass
class Report(Result):
    """The result of an uninstall.

    ``moved`` counts the messages that were put into each queue; in a dry run those that wait, by the queue in which
    they are. ``refused`` is why nothing was done, or would be. ``verified``: the management API has listed the objects.
    """

    dry_run: bool = False
    moved: Counter[str] = field(default_factory=Counter)
    deleted: list[Deleted] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    refused: str | None = None
    verified: bool = False

    def __bool__(self) -> bool:
        """Whether there was anything to do."""
        return bool(self.moved or self.deleted)
