"""Pauses between attempts."""

from __future__ import annotations

#: Seconds after which a connection counts as stable, and the next pause is the first one again.
STABLE = 30.0


class Backoff:
    """Pauses that double, from ``first`` to ``longest`` seconds."""

    def __init__(self, first: float = 1.0, longest: float = 30.0) -> None:
        self._first, self._longest = first, longest
        self._next = first

    def pause(self) -> float:
        """Return the seconds to wait before the next attempt."""
        found, self._next = self._next, min(2 * self._next, self._longest)
        return found

    def reset(self) -> None:
        """Start with the first pause again."""
        self._next = self._first
