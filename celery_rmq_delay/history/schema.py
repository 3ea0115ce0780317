"""The schema of the history files in pyarrow's types, for writing. Needs pyarrow."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from .columns import COLUMNS, Kind

_TYPES: dict[Kind, Any] = {
    "text": pa.string(),
    "time": pa.timestamp("us", tz="UTC"),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "delays": pa.list_(pa.int64()),
}
SCHEMA = pa.schema([pa.field(each.name, _TYPES[each.kind], nullable=not each.required) for each in COLUMNS])
