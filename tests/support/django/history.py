"""The history files that a collector wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyarrow import parquet


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return what is in the files, as a reader finds them."""
    files = sorted(folder.glob("day=*/[!._]*.parquet"))
    return [row for file in files for row in parquet.ParquetFile(file).read().to_pylist()]
