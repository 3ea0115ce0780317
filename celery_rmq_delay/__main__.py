"""``python -m celery_rmq_delay``."""

from .demo.command import main

if __name__ == "__main__":
    main(prog_name="python -m celery_rmq_delay")
