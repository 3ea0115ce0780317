"""Gathers the collector's events for the history files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....events.schema import Event
from ....exceptions import HistoryError
from ....history.tables import day_folder
from ....history.url import checked
from .facts import Reading, Unreadable

if TYPE_CHECKING:
    from ..history_files import HistoryFiles


class History:
    """Gathers events and writes one file per day. Belongs to one thread."""

    def __init__(self, files: HistoryFiles) -> None:
        self._files = files
        #: By day, then by event ids: a batch that is written again is not gathered twice.
        self._tables: dict[str, dict[tuple[str, ...], Any]] = {}

    def write(self, batch: Sequence[Reading]) -> None:
        """Gather the events of a batch. Raises `pyarrow.ArrowException` for a value that does not fit its column."""
        from ..history_files import table_of

        days: dict[str, list[Event]] = defaultdict(list)
        for reading in batch:
            if not isinstance(reading, Unreadable):
                days[day_folder(reading.event.occurred_at)].append(reading.event)
        for day, events in days.items():
            ids = tuple(event.event_id for event in events)
            self._tables.setdefault(day, {})[ids] = table_of([vars(each) for each in events])

    def flush(self) -> None:
        """Write the gathered events; stored when this returns. Raises `HistoryError`: the rest stays gathered."""
        for day in list(self._tables):
            self._files.write(day, list(self._tables[day].values()))
            del self._tables[day]


def open_files(url: str) -> HistoryFiles:
    """Return the files under ``url``, none open yet. Raises `HistoryError` for a bad URL, or without pyarrow."""
    try:
        from ..history_files import HistoryFiles
    except ImportError as error:
        hint = 'Run pip install "celery-rmq-delay[history]".'
        raise HistoryError(f"History files need pyarrow, and it cannot be imported ({error}). {hint}") from error
    return HistoryFiles(checked(url))
