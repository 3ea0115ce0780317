"""``python -m benchmarks [NAME] [OPTIONS]``: run the retry round trip, or the benchmark NAME."""

import sys

from benchmarks import (
    admin_pages,
    apply_topology,
    broker_memory,
    collector,
    events_cost,
    exact_delays,
    history,
    incidents,
    ladder_advice,
    long_haul,
    peers,
    pools,
    retry_roundtrip,
)
from celery_rmq_delay.stopping import exit_at_once, handling

_ALL = (
    retry_roundtrip,
    peers,
    pools,
    long_haul,
    exact_delays,
    broker_memory,
    apply_topology,
    events_cost,
    collector,
    admin_pages,
    history,
    incidents,
    ladder_advice,
)
NAMED = {each.__name__.removeprefix("benchmarks."): each for each in _ALL}

if __name__ == "__main__":
    name = sys.argv[1].replace("-", "_") if sys.argv[1:] else ""
    if name in NAMED:
        sys.argv.pop(1)
    with handling(exit_at_once):
        NAMED.get(name, retry_roundtrip).main()
