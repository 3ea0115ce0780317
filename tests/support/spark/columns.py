"""The columns of events from which `along.attempts_of` makes attempts, and those of the attempts, for Arrow."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from celery_rmq_delay.analytics.schema import ATTEMPTS, DAY

SCHEMA = to_arrow_schema(StructType([*ATTEMPTS, DAY]), timezone="UTC")
EVENTS = pa.schema(
    [
        *(SCHEMA.field(name) for name in ("task_id", "outcome", "ended_at")),
        ("event_id", pa.string()),
        ("kind", pa.string()),
        ("first_failed_at", pa.timestamp("us", "UTC")),
        *(
            SCHEMA.field(name)
            for name in (
                *("generation", "attempt", "task", "queue", "worker", "tier", "delay_ms", "runtime_ms", "reason"),
                *("exception_type", "fingerprint", "exception_message", "ladder_ms", "max_retries"),
            )
        ),
    ]
)
