"""Gathers the collector's events for the history files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....events.schema import Event
from ....exceptions import HistoryError
from ....history.columns import day_folder
from ....history.url import checked
from .reading import Reading, Unreadable

if TYPE_CHECKING:
    from ..history_files import HistoryFiles


class History:
    """Gathers events and writes one file per day. Belongs to one thread."""

    def __init__(self, files: HistoryFiles) -> None:
        self._files = files
        #: By day and event ids: a batch that is written again is not gathered twice.
        self._tables: dict[tuple[str, tuple[str, ...]], Any] = {}

    def write(self, batch: Sequence[Reading]) -> None:
        """Gather the events of a batch: `flush` stores them.

        Raises `pyarrow.ArrowException` for a value that does not fit its column.
        """
        from ..history_files import table_of

        days: dict[str, list[Event]] = defaultdict(list)
        for reading in batch:
            if not isinstance(reading, Unreadable):
                days[day_folder(reading.event.occurred_at)].append(reading.event)
        for day, events in days.items():
            self._tables[day, tuple(event.event_id for event in events)] = table_of([vars(each) for each in events])

    def flush(self) -> None:
        """Write the gathered events; stored when this returns. Raises `HistoryError`: the rest stays gathered."""
        days: dict[str, list[tuple[str, tuple[str, ...]]]] = defaultdict(list)
        for key in self._tables:
            days[key[0]].append(key)
        for day, keys in days.items():
            self._files.write(day, [self._tables[key] for key in keys])
            for key in keys:
                del self._tables[key]


def open_files(url: str) -> HistoryFiles:
    """Return the files under ``url``; nothing is opened yet.

    Raises `HistoryError` where the URL cannot be used, or pyarrow is not installed.
    """
    try:
        from ..history_files import HistoryFiles
    except ImportError as error:
        hint = 'Run pip install "celery-rmq-delay[history]".'
        raise HistoryError(f"History files need pyarrow, and it cannot be imported ({error}). {hint}") from error
    return HistoryFiles(checked(url))
