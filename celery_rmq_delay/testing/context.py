"""What the private servers have in common: they run for the length of a ``with`` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

_Server = TypeVar("_Server", bound="PrivateServer")


class PrivateServer(ABC):
    """A context manager that starts on entry and ends, with all it left, on exit or when the start fails."""

    @abstractmethod
    def start(self) -> None:
        """Start and wait until it is ready."""

    @abstractmethod
    def stop(self) -> None:
        """End it."""

    def close(self) -> None:
        """End it and delete its data: what the end of the ``with`` block does."""
        self.stop()

    def __enter__(self: _Server) -> _Server:
        """Start."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
