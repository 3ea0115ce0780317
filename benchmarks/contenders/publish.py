"""``python -m benchmarks.contenders.publish MODULE COUNT [PER_SECOND]``: publish tasks as the given contender does."""

from __future__ import annotations

import sys
from importlib import import_module


def main() -> None:
    module, count, *rate = sys.argv[1:]
    import_module(module).enqueue(int(count), float(rate[0]) if rate else None)


if __name__ == "__main__":
    main()
