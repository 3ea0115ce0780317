"""Programs that are started in the background, by a shell or a supervisor."""

from __future__ import annotations

import signal

from celery_rmq_delay.stopping import STOP_SIGNALS


def as_a_background_job() -> None:
    """Ignore SIGINT, as in jobs of a shell with ``&``, and block signals that stop a command; for ``preexec_fn``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
