"""The commands of ``celery rmq-delay`` as a user types them, in this process."""

import json
from typing import Any

from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_rmq_delay.cli.main import rmq_delay


def run(app: Celery, *arguments: str, code: int | None = 0, typed: str | None = None) -> Result:
    """Run a command and check its exit code; None allows any."""
    result = CliRunner().invoke(rmq_delay, arguments, obj=CLIContext(app, no_color=True, workdir=None), input=typed)
    assert code in {None, result.exit_code}, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exc_info)
    return result


def data(app: Celery, *arguments: str, code: int = 0) -> Any:
    return json.loads(run(app, *arguments, "--json", code=code).stdout)
