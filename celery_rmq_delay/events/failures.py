"""What an exception is called and says, whatever its author made of it."""

from __future__ import annotations


def type_name(exception: BaseException) -> str:
    """Return the type of an exception with its module, but for Python's own."""
    kind = type(exception)
    wrapped = getattr(exception, "exc_cls_name", None)  # celery.utils.serialization.UnpickleableExceptionWrapper
    if wrapped:
        return str(wrapped)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def message_of(exception: BaseException) -> str:
    """Return the text of an exception; a word about it where it cannot say it, as after its way through a pickle."""
    try:
        return str(exception)
    except Exception as error:  # noqa: BLE001 - it is a user's code
        return f"<no text: {type_name(error)}>"
