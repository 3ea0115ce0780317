"""Publish a run of an output by one small file, and remove the files that no run shows any more."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from ...exceptions import AnalyticsError, OutputError
from ...history.output import CURRENT, RUNS, Current, Manifest, folder_of, lost_manifest, manifest_of
from .files import Storage

#: `locking.Lock.held`.
Held = Callable[[], AbstractContextManager[None]]

#: The name of a run: other folders are not removed.
_NAME = re.compile(r"\d{8}T\d{6}Z-\w{8}")
#: Files that a process was writing when it was killed.
_LEFTOVER = re.compile(r"_+(?:current|lock)\.json\..+")


def current_run(storage: Storage) -> Current | None:
    """Return the run that the output shows, or None. Raises `AnalyticsError` if that cannot be read."""
    path = f"{storage.url}/{CURRENT}"
    text = storage.read(path)
    return None if text is None else Current.parse(text, path)


def read_manifest(storage: Storage, run: str) -> Manifest:
    """Return the tables that a run shows. Raises `AnalyticsError` if its manifest is missing or damaged."""
    if (found := _find_manifest(storage, run)) is None:
        raise lost_manifest(f"{storage.url}/{manifest_of(run)}")
    return found


def shown_tables(storage: Storage) -> Manifest:
    """Return the tables that the output shows: none if no run has been published.

    Raises `AnalyticsError` if that cannot be read or is missing, or the output has tables of a version that replaced
    them in place.
    """
    if (current := current_run(storage)) is not None:
        return read_manifest(storage, current.run)
    complete = [run for run in _runs(storage) if storage.find(f"{storage.url}/{manifest_of(run)}")]
    if complete:
        text = Current(complete[-1]).text().replace("\n", "")
        raise OutputError(
            f"{storage.url}: has {len(complete)} runs, but {CURRENT}, which names the run to read, is missing. Restore"
            f" it, or write it with the content {text} to read the last run."
        )
    if storage.find(f"{storage.url}/attempts"):
        raise OutputError(
            f"{storage.url}: has tables of an earlier version of celery-rmq-delay. Use another --output, or remove this"
            " folder, and compute all days again."
        )
    return Manifest()


def _runs(storage: Storage) -> list[str]:
    return [folder.name for folder in storage.folders(f"{storage.url}/{RUNS}")]


def publish(storage: Storage, shown: Manifest, new: Manifest, now: datetime) -> None:
    """Make the output show the tables ``new`` instead of ``shown``.

    Raises `AnalyticsError` if another run was published after ``shown`` was read.
    """
    storage.write(f"{storage.url}/{manifest_of(new.run)}", new.text())
    before = current_run(storage)
    if (before.run if before else "") != shown.run:
        raise AnalyticsError(
            f"{storage.url}: the run {before and before.run} was published while this one computed. Run again."
        )
    earlier = {} if before is None else {**before.earlier, before.run: now}
    storage.write(f"{storage.url}/{CURRENT}", Current(new.run, earlier).text())


def remove_unused(storage: Storage, keep: timedelta, now: datetime, held: Held = nullcontext) -> list[str]:
    """Remove runs that were not finished, and files that no run shows; return what was removed, in words.

    The runs that were replaced within ``keep`` before ``now`` keep their files: programs may be reading them. ``held``
    is entered for each change, and raises if this run no longer holds the output.
    """
    output = _Fenced(storage, held)
    present, current = _runs(storage), current_run(storage)
    for entry in storage.entries(storage.url):
        if _LEFTOVER.fullmatch(entry.name):
            output.delete(entry.name)
    if current is None:
        return output.delete_runs(filter(_NAME.fullmatch, present), "which was not finished")
    kept = {run: replaced for run, replaced in current.earlier.items() if replaced + keep >= now and run in present}
    expired = [run for run in current.earlier if run not in kept]
    if expired:
        # From now on no program may read them, even if the clock goes back.
        gone = dict.fromkeys(expired, datetime.fromtimestamp(0, timezone.utc))
        output.point(Current(current.run, kept | gone))
    shown = [read_manifest(storage, run) for run in (current.run, *kept)]
    used = {folder for manifest in shown for folder in manifest.used()}
    runs = {manifest.run for manifest in shown} | {run for run, _table, _day in used}
    # A removal that was interrupted has removed some of their manifests.
    earlier = [found for run in expired if (found := _find_manifest(storage, run))]
    unused = {folder for manifest in earlier for folder in manifest.used()} - used
    for folder in sorted(unused):
        if folder[0] in runs:
            output.delete(folder_of(*folder))
    replaced = {*expired, *(run for run, _table, _day in unused)} - runs
    output.delete_runs(replaced.intersection(present), "which was replaced")
    left = (run for run in present if _NAME.fullmatch(run) and run not in runs | replaced)
    notes = output.delete_runs(left, "which was not finished")
    if expired:
        output.point(Current(current.run, kept))
    return notes


def _find_manifest(storage: Storage, run: str) -> Manifest | None:
    path = f"{storage.url}/{manifest_of(run)}"
    text = storage.read(path)
    return None if text is None else Manifest.parse(text, path, run)


@dataclass(frozen=True)
class _Fenced:
    """Changes of an output, each of which is refused if the run no longer holds it."""

    storage: Storage
    held: Held

    def point(self, current: Current) -> None:
        with self.held():
            self.storage.write(f"{self.storage.url}/{CURRENT}", current.text())

    def delete(self, path: str) -> None:
        with self.held():
            pass  # a large folder takes long, and other runs would wait to see who holds the lock
        self.storage.delete(f"{self.storage.url}/{path}")

    def delete_runs(self, runs: Iterable[str], why: str) -> list[str]:
        notes = []
        for run in sorted(runs):
            self.delete(f"{RUNS}/{run}")
            notes.append(f"removed the run {run}, {why}")
        return notes
