"""``manage.py rmq_delay_prune``: delete what the settings KEEP_* keep no longer."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...services.prune import BATCH, prune


class Command(BaseCommand):
    """Deletes in batches, can run at any time, and goes on where it was interrupted."""

    help = "Delete the retried tasks, attempts and operations that RMQ_DELAY's KEEP_* settings keep no longer."

    def add_arguments(self, parser: CommandParser) -> None:
        """Tell the parser of the options."""
        parser.add_argument("--dry-run", action="store_true", help="only say how much would go")
        parser.add_argument("--batch", type=int, default=BATCH, help="rows of one transaction (default: %(default)s)")

    def handle(self, *_: Any, **options: Any) -> None:
        """Delete, and say how many rows of what went."""
        if options["batch"] < 1:
            raise CommandError("--batch has to be 1 or more.")
        done = prune(dry_run=options["dry_run"], batch=options["batch"])
        for name, rows in done.items():
            self.stdout.write(f"{rows:>10}  {name}")
        self.stdout.write("Nothing was deleted." if options["dry_run"] else "Deleted.")
