"""``python -m celery_rmq_delay.analytics``."""

import signal
import sys

try:
    from .cli import main
except ModuleNotFoundError as error:
    if str(error.name).startswith("celery_rmq_delay"):
        raise
    sys.stderr.write(f"{error.name} is not installed. Run pip install 'celery-rmq-delay[spark]', which brings it.\n")
    raise SystemExit(2) from None


def _end(number: int, _frame: object) -> None:
    """Leave by an exception, which takes back what is half done."""
    raise SystemExit(128 + number)


signal.signal(signal.SIGTERM, _end)
main(prog_name="python -m celery_rmq_delay.analytics")
