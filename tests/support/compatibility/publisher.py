"""Calls each task of `shop`, waits for its end before the next, and writes the results to ``results.json``."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

from tests.support.compatibility.shop import app
from tests.support.waiting import SECONDS, wait_for

CALLS = ("succeeds", "recovers", "fails", "gives_up", "asks", "changes", "calls", "last")


def main() -> None:
    """Call the tasks."""
    found = {}
    publishing = getattr(import_module("after_product"), "publishing", nullcontext)
    for name in CALLS:
        with publishing(name):
            result = app.tasks[name].delay()
        wait_for(result.ready, f"the end of {name}", SECONDS)
        found[name] = {"id": result.id, "state": result.state, "result": repr(result.result)}
    Path(os.environ["SHOP_FOLDER"], "results.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
