"""Plain text tables for terminals."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

#: The most characters of a cell.
_WIDEST = 200


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], right: Collection[str] = ()) -> str:
    """Return columns under ``headings``: numbers and the columns in ``right`` right-aligned, None as a dash."""
    body = [list(row) for row in rows]
    lines = [list(headings), *([_text(value) for value in row] for row in body)]
    columns = [
        _aligned(
            [line[index] for line in lines],
            right=heading in right or all(row[index] is None or isinstance(row[index], int) for row in body),
        )
        for index, heading in enumerate(headings)
    ]
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _aligned(cells: list[str], *, right: bool) -> list[str]:
    width = max(map(len, cells))
    return [cell.rjust(width) if right else cell.ljust(width) for cell in cells]


def _text(value: object) -> str:
    if value is None:
        return "-"
    text = " ".join(str(value).split())
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
