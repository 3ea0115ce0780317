"""Spark schemas of the history and of every table that the pipeline writes."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ..history import tables
from ..history.tables import COLUMNS, TABLES, Kind

_TYPES: dict[Kind, DataType] = {
    "text": StringType(),
    "time": TimestampType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "float64": DoubleType(),
    "flag": BooleanType(),
    "delays": ArrayType(LongType(), containsNull=False),
    "names": ArrayType(StringType(), containsNull=False),
}


def _struct(columns: Mapping[str, Kind]) -> StructType:
    return StructType([StructField(name, _TYPES[kind]) for name, kind in columns.items()])


#: The columns of the history files.
EVENTS = _struct({each.name: each.kind for each in COLUMNS})

EPISODE_SO_FAR = _TYPES["episode"] = _struct(tables.EPISODE_SO_FAR)
QUARANTINE = _struct(TABLES["quarantine"])
ATTEMPTS = _struct(TABLES["attempts"])
EPISODES = _struct(TABLES["episodes"])
TIER_OUTCOMES = _struct(TABLES["tier_outcomes"])
RECOVERY_CURVE = _struct(TABLES["recovery_curve"])
INCIDENTS = _struct(TABLES["incidents"])
FAILURE_GROUPS = _struct(TABLES["failure_groups"])
HOURLY = _struct(TABLES["hourly"])
LADDER_ADVICE = _struct(TABLES["ladder_advice"])
EXCEPTION_ADVICE = _struct(TABLES["exception_advice"])
WHAT_IF = _struct(TABLES["what_if"])

#: The day to which a row of a table belongs; the folders of the tables are ``<table>/day=YYYY-MM-DD/``.
DAY = StructField("day", DateType())
