"""The history files that a collector wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyarrow import parquet


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the files."""
    files = sorted(folder.glob("day=*/[!._]*.parquet"))
    return [row for file in files for row in parquet.ParquetFile(file).read().to_pylist()]
