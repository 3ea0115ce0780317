"""Python loads this by its name where the folder is on the path: in processes whose clock can be stepped.

libfaketime 0.9.10 takes the times at which Python's `time.sleep` is to wake up for those of the stepped clock, and
refuses them.
"""

import select
import time


def sleep(seconds: float) -> None:
    select.select([], [], [], seconds)


time.sleep = sleep
