"""Convert columns of other types into the history's types, if every value can be represented.

Returns expressions; does not read anything.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    LongType,
    NullType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

#: Numbers that may have a fraction; pandas also writes whole numbers so if some are missing.
_FRACTIONS = (FloatType, DoubleType, DecimalType)
_NANOS_IN_MICRO = 1000


class Converted(NamedTuple):
    """The value in the history's type, and whether it is wrong: present, but without an equivalent in that type."""

    value: Column
    is_wrong: Column | None = None


def converted(name: str, found: DataType, wanted: DataType, *, nanoseconds: bool = False) -> Converted | None:
    """Return the column ``name`` of type ``found`` converted to ``wanted``; None if no value can be converted.

    ``nanoseconds``: the column is a time, which Spark reads as a number of nanoseconds since the epoch.
    """
    column = F.col(name)
    if nanoseconds:
        return Converted(F.timestamp_micros(_micros(name))) if isinstance(wanted, TimestampType) else None
    if isinstance(found, NullType):
        return Converted(F.lit(None).cast(wanted))
    if isinstance(wanted, ArrayType):
        return _delays(column, found, wanted)
    if found == wanted:
        return Converted(column)
    if isinstance(wanted, TimestampType):
        possible = isinstance(found, (TimestampNTZType, DateType, StringType))
    elif isinstance(wanted, StringType):
        possible = isinstance(found, (StringType, IntegralType))
    else:
        possible = isinstance(found, (IntegralType, StringType, *_FRACTIONS))
    return _cast(column, found, wanted) if possible else None


def _micros(nanos: str) -> Column:
    # Integer arithmetic only: a double, the result of "/", cannot represent today's nanoseconds.
    return F.expr(f"(`{nanos}` - pmod(`{nanos}`, {_NANOS_IN_MICRO})) div {_NANOS_IN_MICRO}")


def _cast(column: Column, found: DataType, wanted: DataType) -> Converted:
    if isinstance(found, (FloatType, DoubleType)):
        column = F.when(~F.isnan(column), column)
    value = column.try_cast(wanted)
    wrong = column.isNotNull() & value.isNull()
    if isinstance(found, _FRACTIONS):
        wrong = wrong | (column != F.floor(column))
    return Converted(value, wrong)


def _delays(column: Column, found: DataType, wanted: ArrayType) -> Converted | None:
    if not isinstance(found, ArrayType):
        return None
    if isinstance(found.elementType, LongType):
        return Converted(column, F.exists(column, lambda each: each.isNull()))
    if not isinstance(found.elementType, (IntegralType, StringType, NullType)):
        return None
    value = F.transform(column, lambda each: each.try_cast(wanted.elementType))
    return Converted(value, F.exists(value, lambda each: each.isNull()))
