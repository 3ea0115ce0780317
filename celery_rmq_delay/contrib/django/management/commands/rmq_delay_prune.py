"""``manage.py rmq_delay_prune``: delete rows that are older than the KEEP_* settings allow."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...services.prune import BATCH, prune


class Command(BaseCommand):
    """Deletes in batches; it can run at any time, and continues where it was interrupted."""

    help = "Delete retried tasks, attempts and operations that are older than RMQ_DELAY's KEEP_* settings allow."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="only show how many rows would be deleted")
        parser.add_argument("--batch", type=int, default=BATCH, help="rows per transaction (default: %(default)s)")

    def handle(self, *_: Any, **options: Any) -> None:
        if options["batch"] < 1:
            raise CommandError(f"--batch: found {options['batch']}. Write 1 or more.")
        done = prune(dry_run=options["dry_run"], batch=options["batch"])
        for name, rows in done.items():
            self.stdout.write(f"{rows:>10}  {name}")
        self.stdout.write("Nothing was deleted." if options["dry_run"] else "Deleted.")
