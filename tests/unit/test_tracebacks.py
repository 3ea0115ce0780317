"""Our traceback text is the standard library's, faster."""

import builtins
import sys
import traceback

import pytest

from celery_rmq_delay.worker import trace as tracebacks
from celery_rmq_delay.worker.trace import format_exception
from tests.support.corpus import corpus


class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class MultiLineError(Exception):
    pass


def plain():
    raise ValueError("a value")


def without_message():
    raise KeyError


def cause():
    try:
        plain()
    except ValueError as error:
        raise KeyError("k") from error


def context():
    try:
        plain()
    except ValueError:
        {}["missing"]


def suppressed():
    try:
        plain()
    except ValueError:
        raise KeyError("k") from None


def long_chain():
    try:
        cause()
    except KeyError:
        try:
            context()
        except KeyError as error:
            raise RuntimeError("end") from error


def cycle():
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


def own_cause():
    error = ValueError("itself")
    error.__cause__ = error
    raise error


def syntax_error():
    compile("def f(:\n  pass", "<text>", "exec")


def indentation_error():
    compile("if 1:\npass", "<text>", "exec")


def deep(depth=50):
    if depth:
        deep(depth - 1)
    else:
        raise ValueError("deep")


def too_deep():
    too_deep()


def unprintable():
    raise UnprintableError


def many_lines():
    raise MultiLineError("one\ntwo\n\nfour")


def odd_text():
    raise ValueError("\0 \ud800 ünïcode")


def never_raised_cause():
    raise KeyError("k") from ValueError("never raised")


def exit_request():
    raise SystemExit(3)


def name_error():
    plian()  # type: ignore[name-defined]  # noqa: F821


def generated():
    exec(compile("def f():\n  raise ValueError('generated')\nf()", "<generated>", "exec"), {})


CASES = [
    plain, without_message, cause, context, suppressed, long_chain, cycle, own_cause, syntax_error, indentation_error,
    deep, too_deep, unprintable, many_lines, odd_text, never_raised_cause, exit_request, name_error, generated,
]  # fmt: skip


def raised(function):
    try:
        function()
    except BaseException as error:  # noqa: BLE001 - any will do
        return error
    raise AssertionError


def assert_same(error):
    expected = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    for _ in range(2):  # written, then remembered
        assert format_exception(error, error.__traceback__) == expected


@corpus("case", CASES)
def test_the_text_with_and_without_a_traceback_is_the_standard_librarys(case):
    error = raised(case)
    assert_same(error)
    assert format_exception(error, None) == "".join(traceback.format_exception(type(error), error, None))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes and groups came with Python 3.11")
def test_notes_and_groups_are_written():
    noted = raised(cause)
    noted.add_note("a note\nof two lines")  # type: ignore[attr-defined,unused-ignore]
    assert_same(noted)
    group_type = builtins.ExceptionGroup  # type: ignore[attr-defined,unused-ignore]
    group = group_type("several", [raised(plain), group_type("inner", [raised(cause), raised(syntax_error)])])

    def inside_a_chain():
        raise RuntimeError("after the group") from group

    assert_same(group)
    assert_same(raised(inside_a_chain))


def test_the_message_is_new_each_time_and_the_frames_are_remembered():
    def fail(text):
        raise ValueError(text)

    tracebacks._stacks.clear()
    for text in ("first", "second"):
        error = raised(lambda text=text: fail(text))
        assert format_exception(error, error.__traceback__).endswith(f"ValueError: {text}\n")
    assert len(tracebacks._stacks) == 1


def test_different_lines_of_a_function_are_different_texts():
    def fail(where):
        if where:
            raise ValueError("same")
        raise ValueError("same")

    texts = set()
    for where in (0, 1):
        error = raised(lambda where=where: fail(where))
        assert_same(error)
        texts.add(format_exception(error, error.__traceback__))
    assert len(texts) == 2


def test_the_cache_of_stacks_is_bounded(monkeypatch):
    monkeypatch.setattr(tracebacks, "_CACHED_STACKS", 3)
    for number in range(10):
        source = "\n" * number + "raise ValueError('x')"
        assert_same(raised(lambda source=source: exec(source, {})))
        assert len(tracebacks._stacks) <= 3
