"""The settings of events: whether workers send them, how many are kept, what is redacted."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..exceptions import SettingsError
from ..redaction import DEFAULT_KEYS, Redaction, load_hook
from .validators import check_known, read_integer

KEYS = ("events", "events_max_length", "redact")

#: The Django app that reads events.
DJANGO_APP = "celery_rmq_delay.contrib.django"

_DEFAULT_LENGTH, _SHORTEST, _LONGEST = 1_000_000, 1_000, 1_000_000_000


@dataclass(frozen=True)
class EventSettings:
    """``wanted`` as set; ``max_length``: the number of events above which the queue drops the oldest."""

    wanted: bool | Literal["auto"] = "auto"
    max_length: int = _DEFAULT_LENGTH
    redaction: Redaction = field(default_factory=Redaction)

    @property
    def on(self) -> bool:
        """Whether this process sends events: as set; with ``"auto"`` if the Django app that reads them is installed."""
        return _is_installed(DJANGO_APP) if self.wanted == "auto" else self.wanted


def parse_events(raw: Mapping[str, Any], setting: str) -> EventSettings:
    """Return the validated settings of events. Raises `SettingsError`."""
    wanted = raw.get("events", "auto")
    if wanted != "auto" and not isinstance(wanted, bool):
        raise SettingsError(f"{setting}.events", wanted, 'Write "auto", True or False.')
    length = read_integer(
        raw.get("events_max_length", _DEFAULT_LENGTH), f"{setting}.events_max_length", _SHORTEST, _LONGEST
    )
    return EventSettings(wanted, length, _redaction(raw.get("redact", {}), f"{setting}.redact"))


def _redaction(raw: object, where: str) -> Redaction:
    if not isinstance(raw, Mapping):
        raise SettingsError(where, raw, 'Write {"keys": ["maiden_name"], "hook": "shop.privacy.redact"}.')
    check_known(raw, ("keys", "hook"), where)
    keys = raw.get("keys", ())
    if isinstance(keys, str) or not all(isinstance(key, str) and key.strip("_- ") for key in _listed(keys, where)):
        raise SettingsError(f"{where}.keys", keys, "Write a list of non-empty texts.")
    hook = raw.get("hook")
    if hook is not None and (not isinstance(hook, str) or "." not in hook.strip(".")):
        raise SettingsError(f"{where}.hook", hook, "Write the dotted path of a function that takes and returns a text.")
    return Redaction(tuple(dict.fromkeys((*DEFAULT_KEYS, *keys))), hook)


def _listed(keys: object, where: str) -> list[Any]:
    if not isinstance(keys, (list, tuple, set, frozenset)):
        raise SettingsError(f"{where}.keys", keys, "Write a list of non-empty texts.")
    return list(keys)


def check_hook(redaction: Redaction, setting: str) -> None:
    """Raise `SettingsError` where the hook cannot be imported; for worker start, when all modules are importable."""
    if redaction.hook is None:
        return
    hint = "Write the dotted path of a function that takes and returns a text."
    try:
        found = load_hook(redaction.hook)
    except Exception as error:
        raise SettingsError(
            f"{setting}.redact.hook", redaction.hook, f"It cannot be imported ({error}). {hint}"
        ) from error
    if not callable(found):
        raise SettingsError(f"{setting}.redact.hook", redaction.hook, hint)


def _is_installed(app: str) -> bool:
    """Return whether a Django app is installed in this process, without importing Django."""
    module = sys.modules.get("django.apps")
    registry = getattr(module, "apps", None)
    return bool(registry is not None and registry.ready and registry.is_installed(app))
