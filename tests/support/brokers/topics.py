"""How a topic exchange matches, from the AMQP 0-9-1 model: ``*`` is one word, ``#`` any number of them."""


def matches(pattern: str, key: str) -> bool:
    """Return whether a topic exchange takes ``key`` to a binding with ``pattern``."""
    return _match(pattern.split("."), key.split("."))


def _match(pattern: list[str], key: list[str]) -> bool:
    if not pattern:
        return not key
    head, *rest = pattern
    if head == "#":
        return any(_match(rest, key[skipped:]) for skipped in range(len(key) + 1))
    return bool(key) and head in ("*", key[0]) and _match(rest, key[1:])
