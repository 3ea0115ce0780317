"""``python -m celery_rmq_delay.analytics``."""

from ..stopping import exit_at_once, handling

with handling(exit_at_once):
    from .cli import main

    main(prog_name="python -m celery_rmq_delay.analytics")
