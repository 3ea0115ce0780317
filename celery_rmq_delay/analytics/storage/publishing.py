"""Publish a run of an output by one small file, and remove the files that no run shows any more."""

from __future__ import annotations

from datetime import datetime, timedelta

from ...exceptions import AnalyticsError, OutputError
from ...history.output import CURRENT, RUNS, Current, Manifest, folder_of, manifest_of
from .files import Storage


def current_run(storage: Storage) -> Current | None:
    """Return the run that the output shows, or None. Raises `AnalyticsError` if that cannot be read."""
    path = f"{storage.url}/{CURRENT}"
    text = storage.read(path)
    return None if text is None else Current.parse(text, path)


def read_manifest(storage: Storage, run: str) -> Manifest:
    """Return the tables that a run shows. Raises `AnalyticsError` if its manifest is missing or damaged."""
    path = f"{storage.url}/{manifest_of(run)}"
    if (text := storage.read(path)) is None:
        raise OutputError(f"{path}: is missing. Restore it, or use another --output and compute all days again.")
    return Manifest.parse(text, path)


def shown_tables(storage: Storage) -> Manifest:
    """Return the tables that the output shows: none if no run has been published.

    Raises `AnalyticsError` if that cannot be read, or the output has tables of a version that replaced them in place.
    """
    if (current := current_run(storage)) is not None:
        return read_manifest(storage, current.run)
    if storage.exists(f"{storage.url}/attempts"):
        raise OutputError(
            f"{storage.url}: has tables of an earlier version of celery-rmq-delay. Use another --output, or remove this"
            " folder, and compute all days again."
        )
    return Manifest()


def publish(storage: Storage, shown: Manifest, new: Manifest, now: datetime) -> None:
    """Let the output show the tables ``new`` instead of ``shown``.

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


def remove_unused(storage: Storage, keep: timedelta, now: datetime) -> list[str]:
    """Remove runs that were not finished, and files that no run shows; return what was removed, in words.

    The runs that were replaced within ``keep`` before ``now`` keep their files: programs may be reading them. No other
    process may write to the output meanwhile.
    """
    present = [folder.name for folder in storage.folders(f"{storage.url}/{RUNS}")]
    current = current_run(storage)
    kept: dict[str, datetime] = {}
    shown: list[Manifest] = []
    expired: list[str] = []
    if current is not None:
        kept = {run: replaced for run, replaced in current.earlier.items() if replaced + keep >= now and run in present}
        shown = [read_manifest(storage, run) for run in (current.run, *kept)]
        expired = [run for run in current.earlier if run not in kept]
    used = {folder for manifest in shown for folder in manifest.used()}
    runs = {manifest.run for manifest in shown} | {run for run, _table, _day in used}
    replaced = set(expired)
    for name in expired:
        path = f"{storage.url}/{manifest_of(name)}"
        if (text := storage.read(path)) is not None:
            folders = Manifest.parse(text, path).used() - used
            replaced |= {run for run, _table, _day in folders}
            for folder in sorted(folders):
                if folder[0] in runs:
                    storage.delete(f"{storage.url}/{folder_of(*folder)}")
    notes = []
    for name in present:
        if name not in runs:
            storage.delete(f"{storage.url}/{RUNS}/{name}")
            notes += [] if name in replaced else [f"removed the run {name}, which was not finished"]
    if current is not None and expired:
        storage.write(f"{storage.url}/{CURRENT}", Current(current.run, kept).text())
    return notes
