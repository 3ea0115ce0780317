"""Edit and requeue: replaces the arguments of an exhausted task, and leaves the rest of its message unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from math import isfinite
from typing import Any, NoReturn

from celery.utils.saferepr import saferepr

from .....amqp.bodies import Call, UndecodableError, decode
from .....exceptions import EditError
from .....operations.preview import as_json
from .....redaction import REDACTED, Redaction, shortened
from ...conf import SETTING, conf
from ...messages import headers_of
from ...models import Operation, TaskRecord, TaskState
from ..actors import Actor
from ..payloads import kept_of, redaction_of_project
from .requests import freeze
from .requeue import Edited
from .runner import Runner

#: The most characters of a form field, and of Celery's argsrepr and kwargsrepr.
MAX_TEXT = 1_000_000
_MAX_REPR = 1024
#: The most differences in the audit log.
_MAX_CHANGES = 100
_MAX_SHOWN = 1_000
#: The most characters of a number or key in an error.
_MAX_NUMBER = 40
#: The type of each field of the form, and what to write instead of another one.
_FIELDS: dict[str, tuple[type, str]] = {
    "args": (list, 'Arguments are a JSON list, such as [1, "a"].'),
    "kwargs": (dict, 'Keyword arguments are a JSON object, such as {"amount": 1}.'),
}


def editable(record: TaskRecord) -> dict[str, str]:
    """Return the unredacted arguments of a task by field of the form. Raises `EditError` where it cannot be edited."""
    call, _headers = _readable(record)
    return {"args": as_json(call.args, MAX_TEXT), "kwargs": as_json(call.kwargs, MAX_TEXT)}


def edit(record: TaskRecord, args: str, kwargs: str, *, actor: Actor, reason: str = "") -> Operation:
    """Requeue an exhausted task with other arguments, given as JSON; return the finished operation.

    The task, its id and its canvas stay the same. The redacted differences are in the operation's details. Raises
    `EditError` for invalid arguments; then nothing was changed.
    """
    call, headers = _readable(record)
    new = replace(call, args=_parsed(args, "args"), kwargs=_parsed(kwargs, "kwargs"))
    try:
        changes = differences(call, new)
        body = json.dumps([new.args, new.kwargs, new.embed], allow_nan=False).encode()
    except RecursionError as error:
        raise EditError("This is nested too deep.") from error
    except ValueError as error:  # the embedded callbacks of the message: these are no form fields
        raise EditError(f"The message has a number that JSON cannot hold: {error}.") from error
    if not changes:
        raise EditError("Nothing was changed: requeue the task instead.")
    texts = {
        **_repr(headers, "argsrepr", tuple(call.args), tuple(new.args)),
        **_repr(headers, "kwargsrepr", call.kwargs, new.kwargs),
    }
    this = TaskRecord.objects.filter(pk=record.pk)
    details: dict[str, Any] = {"diff": changes[:_MAX_CHANGES]}
    if changes[_MAX_CHANGES:]:
        details["more_changes"] = len(changes) - _MAX_CHANGES
    operation = freeze(Operation.Kind.EDIT, this, actor=actor, reason=reason, details=details)
    return Runner(operation, edited={record.pk: Edited(body, texts)}).run()


def differences(old: Call, new: Call) -> list[dict[str, str]]:
    """Return the redacted differences: ``path`` such as ``kwargs.amount``, ``old`` and ``new`` as JSON.

    A missing value is an empty text. Keys that are not identifiers are in brackets: ``kwargs["a.b"]``.
    """
    redaction = redaction_of_project()
    before, after = (
        dict([*_leaves("args", call.args, redaction), *_leaves("kwargs", call.kwargs, redaction)])
        for call in (old, new)
    )
    return [
        {"path": path, "old": before.get(path, ("", ""))[1], "new": after.get(path, ("", ""))[1]}
        for path in dict.fromkeys([*before, *after])
        if before.get(path, (None,))[0] != after.get(path, (None,))[0]
    ]


def _leaves(
    path: str, value: Any, redaction: Redaction, *, denied: bool = False
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield (path, (exact JSON, redacted JSON)) of all values except non-empty containers."""
    if isinstance(value, (dict, list)) and value:
        for key, each, is_secret in redaction.members(value):
            name = f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{json.dumps(key)}]"
            yield from _leaves(path + name, each, redaction, denied=denied or is_secret)  # paths are unique
    else:
        shown = REDACTED if denied else redaction.value(value)
        yield path, (json.dumps(value), as_json(shown, _MAX_SHOWN))


def _readable(record: TaskRecord) -> tuple[Call, dict[str, Any]]:
    if not conf().allow_edit:
        raise EditError(f"Editing is off: set {SETTING}['ALLOW_EDIT'] to True to allow it.")
    if record.state != TaskState.EXHAUSTED:
        raise EditError(f"Only exhausted tasks can be edited; this one is {record.get_state_display().lower()}.")
    kept = kept_of(record)
    if kept is None:
        raise EditError("Its message is not in the database.")
    headers = headers_of(kept)
    if "task" not in headers or "id" not in headers:
        raise EditError("Its message is not of Celery's protocol 2.")
    try:
        return decode(kept.body, kept.properties, headers, compressed=False), headers
    except UndecodableError as error:
        raise EditError(f"Only plain JSON can be edited; this message is: {error}.") from error


def _parsed(text: str, field: str) -> Any:
    def refuse(found: str) -> NoReturn:
        raise ValueError(f"{found} is not a number of JSON")

    def finite(found: str) -> float:
        number = float(found)
        if not isfinite(number):
            refuse(shortened(found, _MAX_NUMBER))
        return number

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _value in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"the key {json.dumps(shortened(twice, _MAX_NUMBER))} is there twice")
        return found

    if len(text) > MAX_TEXT:
        raise EditError(f"At most {MAX_TEXT} characters.", field)
    try:
        value = json.loads(text, parse_constant=refuse, parse_float=finite, object_pairs_hook=unique)
    except RecursionError as error:
        raise EditError("This is nested too deep.", field) from error
    except ValueError as error:
        raise EditError(f"This is not JSON: {error}.", field) from error
    kind, problem = _FIELDS[field]
    if not isinstance(value, kind):
        raise EditError(problem, field)
    return value


def _repr(headers: dict[str, Any], name: str, old: Any, new: Any) -> dict[str, str]:
    """Return the header with Celery's text of the arguments; a text that the caller chose becomes ``(edited)``."""
    if name not in headers:
        return {}
    if headers[name] != saferepr(old, _MAX_REPR):
        return {name: "(edited)"}
    return {name: saferepr(new, _MAX_REPR)}
