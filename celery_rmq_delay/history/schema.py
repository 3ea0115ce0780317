"""The columns of the history files, and those of tables, in pyarrow's types. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from .tables import COLUMNS, Kind

_TYPES: Mapping[Kind, Any] = {
    "text": pa.string(),
    "time": pa.timestamp("us", tz="UTC"),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "flag": pa.bool_(),
    "delays": pa.list_(pa.int64()),
    "names": pa.list_(pa.string()),
}
SCHEMA = pa.schema([pa.field(each.name, _TYPES[each.kind], nullable=not each.required) for each in COLUMNS])


def schema_of(columns: Mapping[str, Kind]) -> pa.Schema:
    """Return the schema of a table's columns, such as those in `history.tables.TABLES`."""
    return pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])
