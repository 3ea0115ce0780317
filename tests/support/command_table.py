"""What each command prints with ``--json``, the table in docs/reference/cli.md, and for one wrong use, `ERRORS`.

``python -m tests.support.command_table`` runs every command on a private broker and writes both; the test in
tests/integration/test_command_table.py compares them.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import amqp
import click
from celery import Celery
from kombu import Queue

from celery_rmq_delay import RetryableTask, install
from celery_rmq_delay import headers as h
from celery_rmq_delay.management.client import URL_VARIABLE
from celery_rmq_delay.testing import PrivateBroker
from tests.support.commands import run

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
#: A table beside this module: the errors of one wrong use of each command.
ERRORS = Path(__file__).with_name("command_errors.md")
BEGIN, END = "<!-- the table: tests/support/command_table.py -->\n", "<!-- the end of the table -->\n"

#: By command: a use with ``--json``, and a wrong use, in the order in which they are run.
USES: dict[str, tuple[str, str]] = {
    "plan": ("plan --queue payments", "plan --queue paymnets"),
    "apply": ("apply", "apply --queue paymnets"),
    "status": ("status", "status --limit 5"),
    "doctor": ("doctor --queue payments", "doctor --queue"),
    "adopt": ("adopt --queue existing --dry-run", "adopt"),
    "prune": ("prune", "prune --queue paymnets"),
    "parked list": ("parked list", "parked list --tier soon"),
    "release": ("release --all --queue payments", "release"),
    "capacity": ("capacity --rate 100/s --failure-rate 2%", "capacity --rate fast --failure-rate 2%"),
    "migrate": ("migrate --from levels --to ladder --dry-run", "migrate --from levels --remove"),
    "exhausted list": ("exhausted list", "exhausted list --limit 0"),
    "exhausted show": ("exhausted show 3f1c", "exhausted show 5d77"),
    "exhausted requeue": ("exhausted requeue 3f1c --to existing", "exhausted requeue"),
    "exhausted discard": ("exhausted discard --all --yes", "exhausted discard --all --reason crashed"),
    "delete-queue": ("delete-queue payments", "delete-queue"),
    "uninstall": ("uninstall --dry-run", "uninstall --wait soon"),
}


def charge() -> None:
    """Do nothing: no worker runs here."""


def make_shop(url: str) -> Celery:
    """Return an app with the queues `payments` and `existing`, which was declared before the package came."""
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.task_queues = [Queue("payments")]
    app.conf.task_default_queue = "payments"
    app.conf.rmq_delay = {"tiers": ["10s", "1m"], "events": True, "queues": {"existing": {}}}
    with app.connection_for_write() as connection:
        connection.default_channel.queue_declare("existing", durable=True, auto_delete=False)
    install(app)
    app.task(base=RetryableTask, name="shop.charge", shared=False)(charge)
    return app


def fill(app: Celery) -> None:
    """Put one parked and one exhausted task into the broker."""
    facts = {"id": "3f1c", "task": "shop.charge"}
    exhausted = {h.QUEUE: "payments", h.REASON: "retries_used", h.ATTEMPTS: 3, h.EXCEPTION: "shop.Timeout"}
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        for queue, headers in (("payments.retry.1.10s", facts), ("rmq_delay.exhausted", {**facts, **exhausted})):
            body = amqp.Message("[[], {}, {}]", content_type="application/json", application_headers=headers)
            channel.basic_publish(body, exchange="", routing_key=queue)


def commands(group: click.Group, *before: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *before, name)
        else:
            yield " ".join((*before, name)), command


def keys(found: Any) -> str:
    """Describe a JSON document by its keys."""
    if isinstance(found, list):
        return f"a list: {keys(found[0])}" if found else "an empty list"
    named = (f"`{key}` ({keys(value)})" if is_table(value) else f"`{key}`" for key, value in found.items())
    return ", ".join(named)


def is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def wrong(output: str) -> str:
    return re.sub(r"\s+", " ", output.rpartition("Error: ")[2]).strip()


def tables(app: Celery) -> tuple[str, str]:
    """Run every command; return the table of the page and that of `ERRORS`."""
    rows = ["| Command | Exit code | `--json` prints |", "|---|---|---|"]
    errors = ["| Wrong use | Exit code | Error |", "|---|---|---|"]
    for name, (use, misuse) in USES.items():
        right = run(app, *use.split(), "--json", code=None)
        if name == "apply":
            fill(app)
        refused = run(app, *misuse.split(), code=None)
        rows.append(f"| `{use}` | {right.exit_code} | {keys(json.loads(right.stdout))} |")
        errors.append(f"| `{misuse}` | {refused.exit_code} | {wrong(refused.output)} |")
    page, wrong_uses = ("".join(f"{line}\n" for line in lines) for lines in (rows, errors))
    return page, wrong_uses


def main() -> None:
    with PrivateBroker(management=True) as broker:
        os.environ[URL_VARIABLE] = str(broker.management_url)
        table, errors = tables(make_shop(broker.url))
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table + END + rest.partition(END)[2])
    ERRORS.write_text(errors)


if __name__ == "__main__":
    main()
