"""The truth of a synthetic history: counts, and how long failures really last. Written beside the files."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from . import failing
from .failing import Episodes
from .spec import Spec
from .world import World

#: The file; readers of the history ignore names that begin with ``_``.
NAME = "_truth.json"

#: Seconds for which the truth contains the share of failures that have ended.
GRID = np.geomspace(1, 86_400, 100).round(3)

_OUTCOMES = {
    failing.RECOVERED: "recovered",
    failing.USED_UP: "retries_used",
    failing.GAVE_UP: "gave_up",
    failing.CRASHED: "crashed",
    failing.DISCARDED: "discarded",
}


class Tally:
    """Counts of the chunks of a history. Small, as it is sent between processes."""

    def __init__(self, spec: Spec) -> None:
        tasks = len(spec.shop.tasks)
        self.counts: Counter[str] = Counter()
        #: By task: failure episodes by outcome, attempts, informative failure episodes, and those ended by the grid.
        self.outcomes = np.zeros((tasks, len(_OUTCOMES)), np.int64)
        self.attempts = np.zeros(tasks, np.int64)
        self.informative = np.zeros(tasks, np.int64)
        self.over = np.zeros((tasks, len(GRID)), np.int64)

    def add_episodes(self, episodes: Episodes) -> None:
        """Count these episodes."""
        np.add.at(self.outcomes, (episodes.task, episodes.outcome), 1)
        np.add.at(self.attempts, episodes.task, episodes.attempts)
        for task in range(len(self.informative)):
            lasts = np.sort(episodes.lasts[(episodes.task == task) & episodes.is_informative])
            self.informative[task] += len(lasts)
            self.over[task] += np.searchsorted(lasts, GRID, side="right")

    def add(self, other: Tally) -> None:
        """Add the counts of another chunk."""
        self.counts += other.counts
        self.outcomes += other.outcomes
        self.attempts += other.attempts
        self.informative += other.informative
        self.over += other.over


def truth_of(spec: Spec, world: World, tally: Tally) -> dict[str, Any]:
    """Return the content of ``_truth.json``.

    ``recovery`` has for each task and exception the share of failures that have ended after ``grid_s`` seconds:
    ``drawn`` counted over the generated failure episodes, and for independent failures ``expected`` by the
    distribution. Failure episodes that gave up or crashed the worker are left out.
    """
    tasks = spec.shop.tasks
    exceptions = {each.name: each.exception_type for each in spec.shop.dependencies}
    groups = [("task", task.name, [index]) for index, task in enumerate(tasks)]
    for name in dict.fromkeys(exceptions.values()):
        mine = [index for index, task in enumerate(tasks) if exceptions[task.dependency] == name]
        groups.append(("exception", name, mine))
    return {
        "spec": spec.describe(),
        "counts": dict(sorted(tally.counts.items())),
        "tasks": {task.name: _of_task(tally, index) for index, task in enumerate(tasks)},
        "grid_s": GRID.tolist(),
        "recovery": [_recovery(spec, tally, *group) for group in groups if tally.informative[group[2]].sum()],
        "outages": _outages(spec, world),
    }


def _of_task(tally: Tally, index: int) -> dict[str, int]:
    found = {"attempts": int(tally.attempts[index]), "episodes": int(tally.outcomes[index].sum())}
    return found | {name: int(tally.outcomes[index, which]) for which, name in _OUTCOMES.items()}


def _recovery(spec: Spec, tally: Tally, scope: str, name: str, mine: list[int]) -> dict[str, Any]:
    informative = tally.informative[mine].sum()
    found = {
        "scope": scope,
        "name": name,
        "episodes": int(informative),
        "drawn": (tally.over[mine].sum(axis=0) / informative).tolist(),
    }
    if spec.outages == "independent":
        known = {each.name: each for each in spec.shop.dependencies}
        of_tasks = [known[spec.shop.tasks[index].dependency] for index in mine]
        shares = [(1 - each.hard) * each.lasting.over(GRID) for each in of_tasks]
        found["expected"] = (np.average(shares, axis=0, weights=tally.informative[mine])).tolist()
    return found


def _outages(spec: Spec, world: World) -> dict[str, list[list[float]]]:
    """Return start and end of each outage by dependency, in seconds from the history's start."""
    return {
        each.name: np.stack([down.starts, down.ends], axis=1).round(3).tolist()
        for each, down in zip(spec.shop.dependencies, world.downtimes, strict=bool(world.downtimes))
    }
