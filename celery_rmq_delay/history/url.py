"""URLs of history files: validation, and display without secrets. No I/O, no dependency."""

from __future__ import annotations

import re

from ..exceptions import HistoryError
from ..redaction import DEFAULT

#: The schemes that `pyarrow.fs.FileSystem.from_uri` opens.
SCHEMES = ("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_PARTED = re.compile(r"[:@&?#=/]+")
#: Parts of a query that an error may show.
_HARMLESS = re.compile(r"[?&](?:region|scheme|endpoint_override)=[^&]*")
#: Shorter parts of a URL do not count as secrets: replacing them would make errors unreadable.
_SHORTEST_SECRET = 6


def scheme_of(url: str) -> str | None:
    """Return the scheme of a URL as it is written; None for a path."""
    found = _SCHEME.match(url)
    return None if found is None else found[1]


def problem_of(url: object) -> str | None:
    """Return the problem of a place for history files, with a hint; None where it is valid."""
    if not isinstance(url, str) or not url:
        return "Write a URL or an absolute path, such as '/srv/history' or 's3://bucket/history', or None."
    if "\0" in url or not url.isprintable():
        return "It contains unprintable characters: remove them."
    scheme = scheme_of(url)
    if scheme is None:
        return None if url.startswith("/") else "A path has to be absolute; a URL begins with its scheme, as s3://."
    if scheme.lower() not in SCHEMES:
        return f"The scheme {scheme!r} is unknown. Known: {', '.join(SCHEMES)}."
    if scheme == "file" and not url.startswith("file:///"):
        return "A file URL has three slashes: 'file:///srv/history'."
    return None


def checked(url: object) -> str:
    """Return ``url``. Raises `HistoryError`, without its secrets, where it is invalid."""
    problem = problem_of(url)
    if problem is not None:
        raise HistoryError(f"History files: found {shown(url)!r}. {problem}")
    return str(url)


def shown(url: object) -> str:
    """Return a URL for display: without user, password and query."""
    if not isinstance(url, str):
        return type(url).__name__
    found = _SCHEME.match(url)
    if found is None:
        return url.rpartition("@")[2]
    rest = url[found.end() :]
    place, mark, query = rest.partition("?")
    if mark and "@" in query and "@" not in place:  # may be a query or a password
        return f"{found[0]}..."
    return found[0] + place.rpartition("@")[2].partition("#")[0]


def without_secrets(text: str, url: str) -> str:
    """Return the text of an error about ``url``, without the parts that `shown` leaves out."""
    seen = shown(url)
    text = text.replace(url, seen)
    for part in _PARTED.split(_HARMLESS.sub("&", url)):
        if len(part) >= _SHORTEST_SECRET and part not in seen and part.lower() not in SCHEMES:
            text = text.replace(part, "[redacted]")
    return DEFAULT.text(text)
