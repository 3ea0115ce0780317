"""``pytest --leaks``: objects that a test leaves to the garbage collector, whose warnings would fail another test."""

import gc
import io
import socket
from collections.abc import Iterator
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--leaks", action="store_true", help="fail each test that leaves an open socket or file behind as garbage"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--leaks"):
        gc.disable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Check the garbage after the teardown of all fixtures of a test."""
    yield
    if item.config.getoption("--leaks"):
        before = _open()
        gc.collect()
        found = sorted(before[each] for each in before.keys() - _open().keys())
        assert not found, f"left to the garbage collector: {', '.join(found)}"


def _open() -> dict[int, str]:
    return {id(each): repr(each) for each in gc.get_objects() if _is_open(each)}


def _is_open(each: Any) -> bool:
    kind = type(each)  # `isinstance` would evaluate lazy objects
    if issubclass(kind, socket.socket):
        return bool(each.fileno() >= 0)
    return issubclass(kind, io.FileIO) and not each.closed
