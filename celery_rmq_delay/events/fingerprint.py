"""Fingerprints of failures: exception type, message without its numbers and names, and frame. No I/O.

The worker's events, the collector and the admin use these functions.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from ..redaction.forms import CARD

#: Characters of a message that count; later ones seldom distinguish failures.
MAX_MESSAGE = 1_000
_DIGEST_LENGTH = 16

# Every quantifier has a bound or no overlap with what follows it: messages are hostile text.
_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
_QUOTED = re.compile(r"""(?<!\w)(?:'[^'\n]{0,200}'|"[^"\n]{0,200}")(?!\w)""")
_NUMBER = re.compile(
    r"(?P<uuid>\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b)"
    r"|(?P<hex>\b0[xX][0-9a-fA-F]+\b|\b(?=[a-fA-F]{0,40}[0-9])[0-9a-fA-F]{8,}\b)"
    r"|(?P<n>[0-9]+(?:[.,:][0-9]+)*)"
)
_FRAME = re.compile(r'File "([^"\n]{1,1000})", line [0-9]+, in ([^\n]{1,300})')
_NO_APPLICATION = re.compile(
    r"[\\/](?:site-packages|dist-packages)[\\/]|[\\/]lib(?:64|rary)?[\\/]python[0-9][^\\/]*[\\/]|^<|[\\/]Lib[\\/]"
)
_MACHINERY = re.compile(r"[\\/](?:celery|kombu|billiard|celery_rmq_delay|gevent|eventlet)[\\/](?!.*tests[\\/])")
_TITLE = "\nTraceback (most recent call last):\n"
_RETRY = "celery.exceptions.Retry"
_FILE = 'File "'
#: Whose code a frame is, the most useful first.
_PLACES = ("application", "library", "machinery")
#: Frames that are read, from the innermost outwards.
_MAX_FRAMES = 200


def normalise_message(message: str) -> str:
    """Return ``message`` with its numbers, uuids, hex, quoted texts and e-mail addresses replaced by their kind."""
    # A number that could be one of a card counts like others.
    text = message[:MAX_MESSAGE].replace(CARD, "<hex>")
    if "@" in text:
        text = _EMAIL.sub("<email>", text)
    if "'" in text or '"' in text:
        text = _QUOTED.sub("<text>", text)
    return " ".join([word if word.isalpha() else _NUMBER.sub(_kind, word) for word in text.split()])


def _kind(found: re.Match[str]) -> str:
    return f"<{found.lastgroup}>"


def top_frame(traceback: str | None) -> str | None:
    """Return the innermost frame of the application as ``folder/file.py:function``; None where there is no traceback.

    Where all frames are of libraries, the innermost that is neither the standard library's nor Celery's; then the
    innermost.
    """
    if not traceback:
        return None
    at, best = len(traceback), (len(_PLACES), "")
    for _ in range(_MAX_FRAMES):
        at = traceback.rfind(_FILE, 0, at)
        if at < 0:
            break
        frame = _frame(traceback[at : traceback.find("\n", at)])
        if frame is not None and frame[0] < best[0]:
            best = frame
            if not best[0]:
                break
    return best[1] or None


@lru_cache(maxsize=2048)
def _frame(line: str) -> tuple[int, str] | None:
    """Return the index in `_PLACES` of a traceback's line, and its file with one folder: others differ by machine."""
    found = _FRAME.match(line)
    if found is None:
        return None
    parts = found[1].replace("\\", "/").split("/")
    return _PLACES.index(_place(found[1])), f"{'/'.join(parts[-2:])}:{found[2].strip()}"


def is_application(path: str) -> bool:
    """Return whether a file of a traceback belongs to the application, not to a library, Python or Celery."""
    return _place(path) == "application"


@lru_cache(maxsize=2048)
def _place(path: str) -> str:
    if _MACHINERY.search(path) or path.startswith("<"):
        return "machinery"
    found = _NO_APPLICATION.search(path)
    if found is None:
        return "application"
    return "library" if "-packages" in found[0] else "machinery"


def without_retry(traceback: str) -> str:
    """Return the traceback without Celery's ``Retry`` at its end; unchanged where it ends with another exception."""
    last = traceback.rfind("\n", 0, len(traceback) - 1) + 1
    if not traceback.startswith(_RETRY, last):
        return traceback
    cut = traceback.rfind(_TITLE, 1)
    return traceback if cut < 0 else traceback[:cut]


@lru_cache(maxsize=2048)
def fingerprint(exception_type: str, message: str | None, frame: str | None) -> str:
    """Return the digest of a failure, 16 hexadecimal digits, from a redacted message and a frame of `top_frame`."""
    parts = exception_type, normalise_message(message or ""), frame or ""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:_DIGEST_LENGTH]


def type_name(exception: BaseException) -> str:
    """Return the type of an exception with its module; built-in types have no module."""
    kind = type(exception)
    wrapped = getattr(exception, "exc_cls_name", None)  # celery.utils.serialization.UnpickleableExceptionWrapper
    if wrapped:
        return str(wrapped)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def message_of(exception: BaseException) -> str:
    """Return the text of an exception, or a placeholder where its ``__str__`` fails, for example after unpickling."""
    try:
        return str(exception)
    except Exception as error:  # noqa: BLE001 - it is a user's code
        return f"<no text: {type_name(error)}>"
