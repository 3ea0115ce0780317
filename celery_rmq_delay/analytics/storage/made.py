"""Rows that a function makes in Spark's Python workers, and the counts that it makes beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

Batches = Iterator[pa.RecordBatch]

#: Receives counts: a table with some of their columns.
Count = Callable[[pa.Table], None]

_ROW, _COUNT = "row", "count"


@dataclass(frozen=True)
class Made:
    """Rows (``schema``) and counts (``counts``) that ``make`` makes of the batches of each partition of a ``frame``.

    It yields the rows, and calls its second argument with the counts. On one machine both are written where they are
    made: moving them to Java and back takes as long as making them.
    """

    frame: DataFrame
    make: Callable[[Batches, Count], Batches]
    schema: StructType
    counts: StructType

    @cached_property
    def both(self) -> DataFrame:
        """Rows and counts, made once if it is persisted: a ``row`` or a ``count``, the other one is null."""
        fields = StructType([StructField(_ROW, self.schema), StructField(_COUNT, self.counts)])
        return self.frame.mapInArrow(_both(self.make, fields), fields)

    def to_frame(self) -> DataFrame:
        """Return the rows."""
        return self.both.where(F.col(_ROW).isNotNull()).select(f"{_ROW}.*")

    def to_counts(self) -> DataFrame:
        """Return the counts."""
        return self.both.where(F.col(_COUNT).isNotNull()).select(f"{_COUNT}.*")


def with_columns(found: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema; those that the table lacks are null."""
    size = len(found)
    return pa.table(
        [
            found[field.name].cast(field.type) if field.name in found.column_names else pa.nulls(size, field.type)
            for field in schema
        ],
        schema=schema,
    )


def _both(make: Callable[[Batches, Count], Batches], fields: StructType) -> Callable[[Batches], Batches]:
    """Return the function for Spark, which takes rows of one kind only."""

    def made(batches: Batches) -> Batches:
        schema = to_arrow_schema(fields, timezone="UTC")
        counted: list[pa.Table] = []

        def only(name: str, batch: pa.RecordBatch) -> pa.RecordBatch:
            values = pa.StructArray.from_arrays(batch.columns, fields=list(schema.field(name).type))
            others = {field.name: pa.nulls(len(batch), field.type) for field in schema}
            return pa.record_batch(list({**others, name: values}.values()), schema=schema)

        def counts() -> Batches:
            while counted:
                each = with_columns(counted.pop(), pa.schema(list(schema.field(_COUNT).type)))
                yield from (only(_COUNT, batch) for batch in each.to_batches())

        for batch in make(batches, counted.append):
            yield only(_ROW, batch)
            yield from counts()
        yield from counts()

    return made
