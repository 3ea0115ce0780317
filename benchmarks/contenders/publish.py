"""``python -m benchmarks.contenders.publish MODULE COUNT FIRST [PER_SECOND]``: publish tasks as the contender does.

Prints when the first one was due (monotonic seconds).
"""

from __future__ import annotations

import sys
from importlib import import_module

from benchmarks.contenders.pace import Pace


def main() -> None:
    module, count, first, *rate = sys.argv[1:]
    pace = Pace(int(count), float(rate[0]) if rate else None, int(first))
    import_module(module).enqueue(pace)
    print(pace.started)


if __name__ == "__main__":
    main()
