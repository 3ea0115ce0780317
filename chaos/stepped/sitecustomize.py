"""Loaded by Python because of its name, in processes whose clock can be stepped: they have its folder on the path.

libfaketime 0.9.10 takes the wake-up times of Python's `time.sleep` for times of the stepped clock, and refuses them.
"""

import select
import time


def sleep(seconds: float) -> None:
    select.select([], [], [], seconds)


time.sleep = sleep
