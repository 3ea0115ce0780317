"""Insights: runs the analytics in a subprocess, and loads the output of a finished run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from django.db import router, transaction
from django.utils import timezone

from ....exceptions import OutputError
from ....history.url import shown, without_secrets
from ....redaction import Redaction
from ..conf import SETTING, conf
from ..models import InsightRun
from .insight_rows import read_rows
from .insight_tables import open_output

#: Lines of a failed run that its error repeats.
_TAIL = 20

Report = Callable[[str], None]


def output_url(given: str | None = None, history: str | None = None) -> str:
    """Return ``given``, or the setting, or a place beside the history. Raises `OutputError` without any."""
    place = history or conf().history_url
    if found := given or conf().insights_url:
        return found
    if place is None:
        raise OutputError(
            f"No output of the analytics is configured: use --output, or set {SETTING}['INSIGHTS_URL'], or "
            f"{SETTING}['HISTORY_URL'] to write beside the history."
        )
    place, mark, query = place.partition("?")
    return f"{place.rstrip('/')}-insights{mark}{query}"


def run_and_load(source: str, output: str, options: Sequence[str], report: Report) -> InsightRun:
    """Run the analytics over a history in a subprocess, with ``options`` of their command, and load their output.

    ``report`` is called with each line of their progress. The present insights stay until the new ones are complete.
    Raises `OutputError`.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise OutputError(
            "The analytics need PySpark, which is not installed: pip install 'celery-rmq-delay[spark]'. Or run them "
            "on a host with PySpark, and load their output with --load-only."
        )
    command = [sys.executable, "-m", "celery_rmq_delay.analytics", "run", *options]
    _run(command, report, {"RMQ_DELAY_HISTORY_URL": source, "RMQ_DELAY_INSIGHTS_URL": output})
    return load(output, source=source)


def _run(command: Sequence[str], report: Report, urls: Mapping[str, str]) -> None:
    """Run a command with ``urls`` in its environment: they may contain secrets, and all users can see arguments."""
    tail: deque[str] = deque(maxlen=_TAIL)
    with subprocess.Popen(  # noqa: S603 - this Python, our own module
        command,
        env={**os.environ, **urls},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            for line in process.stdout or ():
                for url in urls.values():
                    line = without_secrets(line, url)
                tail.append(line.rstrip())
                report(tail[-1])
        finally:
            if process.poll() is None and sys.exc_info()[0] is not None:
                process.terminate()
    if process.returncode:
        raise OutputError(
            f"The analytics exited with {process.returncode}, and nothing was loaded. Their last lines:\n"
            + "\n".join(tail)
        )


def load(output: str, *, source: str = "") -> InsightRun:
    """Replace all insights by the output of a finished run under a URL or a path, in one transaction.

    Tables with rows per day are loaded for the last `insight_rows.DAYS` days, with the days of earlier runs. The others
    are those of the newest day: a later run of old days, for late events, does not replace them. Raises `OutputError`.
    """
    opened = open_output(output)
    found = read_rows(opened)
    report = {**Redaction(keys=()).value(opened.report), "input": shown(source), "output": shown(output)}
    run = InsightRun(
        input_url=shown(source),
        output_url=shown(output),
        first_day=opened.first_day,
        last_day=opened.last_day,
        since=found.since,
        report=report,
        loaded_at=timezone.now(),
        left_out=found.left_out,
        rows=found.by_table,
    )
    using = router.db_for_write(InsightRun)
    with transaction.atomic(using=using):
        InsightRun.objects.using(using).all().delete()
        run.save(using=using)
    return run
