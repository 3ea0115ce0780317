"""``python -m celery_rmq_delay.analytics``."""

import sys

from ..stopping import exit_at_once, handling

with handling(exit_at_once):
    try:
        from .cli import main
    except ModuleNotFoundError as error:
        if str(error.name).startswith("celery_rmq_delay"):
            raise
        sys.stderr.write(f"{error.name} is not installed. Run pip install 'celery-rmq-delay[spark]'.\n")
        raise SystemExit(2) from None
    main(prog_name="python -m celery_rmq_delay.analytics")
