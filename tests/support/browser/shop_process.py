"""The demo's stack in a process of its own, which calls functions for the tests.

The only argument is the settings module. The test process has neither the shop's Django settings nor its Celery app,
and Django refuses database access beside Playwright's event loop. The first line on stdout is the JSON of the stack's
environment. Each line on stdin is the JSON of ``[function, arguments]``, each further line on stdout that of
``[result, traceback or null]``. The end of stdin ends the stack.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from contextlib import nullcontext
from types import ModuleType

from example_django_project.demo.stack import Stack, ending_on_signals
from tests.support import ROOT

SEARCH = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


class TestedStack(Stack):
    """The stack under the given settings."""

    @property
    def environment(self) -> dict[str, str]:
        """The environment of all its processes, which find the tests' modules, too."""
        return {**super().environment, "DJANGO_SETTINGS_MODULE": sys.argv[1], "PYTHONPATH": SEARCH}


def answer(functions: ModuleType, line: str) -> tuple[object, str | None]:
    name, arguments = json.loads(line)
    try:
        return getattr(functions, name)(*arguments), None
    except Exception:  # noqa: BLE001 - the test gets to see it, whatever it is
        return None, traceback.format_exc()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # all output goes to the log
    with ending_on_signals(), TestedStack(lambda _what: nullcontext(), management=False) as stack:
        inside = importlib.import_module("tests.support.browser.inside")  # it needs Django's settings
        inside.running = stack  # type: ignore[attr-defined]
        print(json.dumps(stack.environment), file=answers)
        for line in sys.stdin:
            print(json.dumps(answer(inside, line)), file=answers)


if __name__ == "__main__":
    main()
