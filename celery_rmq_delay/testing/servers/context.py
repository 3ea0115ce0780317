"""Base class of the private servers: they run inside a ``with`` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

from .process import KeptProcess

_Server = TypeVar("_Server", bound="PrivateServer")


class PrivateServer(ABC):
    """A server that starts on entry of a ``with`` block, and ends, with its data, on exit or when the start fails."""

    _process: KeptProcess | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the server, or None when it does not run."""
        return self._process.pid if self._process is not None and self._process.is_running() else None

    def revive(self) -> str | None:
        """Start the server again if it has ended; return how it ended if this object did not end it.

        Data that it kept only in memory is lost.

        :raises ServerStartError: with the tail of its log.
        """
        process = self._process
        if process is None or process.is_running():
            return None
        loss = None if process.was_ordered_to_end else f"{self!r} ended unexpectedly, with code {process.exit_code}."
        self.start()
        return loss

    @abstractmethod
    def start(self) -> None:
        """Start and wait until it is ready."""

    @abstractmethod
    def stop(self) -> None:
        """End it."""

    def close(self) -> None:
        """End it and delete its data, as the end of the ``with`` block does."""
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
