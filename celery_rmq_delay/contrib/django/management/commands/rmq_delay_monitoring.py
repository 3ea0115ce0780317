"""``manage.py rmq_delay_monitoring``: write the dashboard for Grafana and the alert rules for Prometheus."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

FILES = ("grafana-dashboard.json", "prometheus-rules.yml")


class Command(BaseCommand):
    """Writes all files or none, and replaces existing ones with ``--force`` only."""

    help = "Write grafana-dashboard.json and prometheus-rules.yml into a folder."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--output", type=Path, default=Path(), metavar="DIR", help="the folder (default: the current one)"
        )
        parser.add_argument("--force", action="store_true", help="replace existing files")

    def handle(self, *_: Any, **options: Any) -> None:
        folder: Path = options["output"]
        if not folder.is_dir():
            raise CommandError(f"--output: {folder} is not a folder. Create it first.")
        paths = [folder / name for name in FILES]
        if not options["force"] and (existing := [str(path) for path in paths if path.exists()]):
            raise CommandError(f"Nothing was written: {' and '.join(existing)} exist. Use --force to replace them.")
        source = files("celery_rmq_delay.contrib.django") / "monitoring"
        try:
            for path in paths:
                path.write_bytes((source / path.name).read_bytes())
                self.stdout.write(f"Wrote {path}")
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}") from error
