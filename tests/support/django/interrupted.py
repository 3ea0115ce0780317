"""Interruptions after some publishes: by a function in this process, or by a signal to another one."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable

import pytest

from celery_rmq_delay.amqp.confirms import ConfirmingPublisher


def at_the(count: int, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a function once, after so many published messages."""
    publish, published = ConfirmingPublisher.publish, 0

    def counting(self: ConfirmingPublisher, *arguments: object) -> None:
        nonlocal published
        published += 1
        if published == count:
            act()
        publish(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ConfirmingPublisher, "publish", counting)


def main(count: str, signal: str, *command: str) -> None:
    """Run a Python program with its arguments; it sends itself a signal after so many published messages."""
    sys.argv = list(command)
    with pytest.MonkeyPatch.context() as patch:
        at_the(int(count), lambda: os.kill(os.getpid(), int(signal)), patch)
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
