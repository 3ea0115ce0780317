"""Growth of the work on a text with its length, also on a busy machine."""

import time
from collections.abc import Callable

#: CPU seconds that are too few to be worth a comparison.
QUICK = 0.3


def assert_linear(work: Callable[[int], object], size: int) -> None:
    """Fail where the work on a size takes more than ten times that on a quarter of it: quadratic, it would be sixteen.

    The fastest of several tries counts, so that other load of the machine hardly matters.
    """
    if _seconds(work, size) > QUICK:
        part, whole = (min(_seconds(work, each) for _ in range(3)) for each in (size // 4, size))
        assert whole < 10 * part, f"{whole:g} s for {size}, {part:g} s for a quarter"


def _seconds(work: Callable[[int], object], size: int) -> float:
    began = time.process_time()
    work(size)
    return time.process_time() - began
