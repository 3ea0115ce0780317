"""Import this in a worker process to use the `LadderClock` of a test there.

    CELERY_RMQ_DELAY_TEST_CLOCK=... celery -A proj worker -I celery_rmq_delay.testing.scaled

The variable's value is that of `LadderClock.environment`. The clock runs for as long as the process.
"""

import logging
import os
from typing import Any

from celery import current_app

from ..durations import format_ms
from .clock import clock_from

_app: Any = current_app  # a proxy, which the stubs do not know

clock = clock_from(os.environ, _app._get_current_object()).__enter__()
logging.getLogger(__name__).warning(
    "The delays are shortened for a test: %s become %g ms.", format_ms(clock.scale.longest_ms), clock.scale.target_ms
)
