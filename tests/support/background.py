"""Programs that are started as background jobs."""

from __future__ import annotations

import signal


def as_a_background_job() -> None:
    """Ignore SIGINT, as shells have it ignored in jobs that they start with ``&``; for ``preexec_fn``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
