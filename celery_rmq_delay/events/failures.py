"""The type name and the message of any exception."""

from __future__ import annotations


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
