"""The lean record of a failed attempt: small on its way to the parent, an `ExceptionInfo` for its users."""

import gc
import inspect
import logging
import pickle
import sys
import weakref
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery import Celery
from celery.app.trace import build_tracer
from celery.exceptions import Retry

from celery_rmq_delay.retry.delivery import Parked, RetryPath
from celery_rmq_delay.task import RetryableTask
from celery_rmq_delay.worker.trace import LeanExceptionInfo, LeanInfo, format_exception


class Canary:
    """An object in the locals of a frame."""


def fail(depth=20, canary=None):
    if depth:
        fail(depth - 1, canary)
    raise ValueError("the gateway does not answer")


def lean(error):
    return LeanExceptionInfo(error, error.__traceback__, format_exception(error, error.__traceback__))


def records(canary=None):
    """Return our record and Celery's of the same failure."""
    try:
        fail(canary=canary)
    except ValueError as error:
        return lean(error), ExceptionInfo(sys.exc_info())
    raise AssertionError


def test_the_lean_record_equals_celerys_record():
    ours, stock = records()
    assert isinstance(ours, ExceptionInfo)
    assert str(ours) == ours.traceback
    assert ours.traceback == stock.traceback
    assert ours.type is stock.type is ValueError
    assert str(ours.exception) == "the gateway does not answer"
    assert not ours.internal
    assert ours.exc_info[:2] == (ValueError, ours.exception)


def test_hooks_find_the_frames_as_celery_shows_them():
    ours, stock = records()
    assert ours.tb is not None
    expected, found = stock.tb, ours.tb
    while expected is not None:
        assert found is not None
        assert found.tb_lineno == expected.tb_lineno
        assert found.tb_frame.f_code.co_name == expected.tb_frame.f_code.co_name
        found, expected = found.tb_next, expected.tb_next
    assert found is None


def test_the_lean_record_is_small_when_pickled_and_arrives_whole():
    ours, _ = records()
    pickled = pickle.dumps(ours)
    assert len(pickled) < 4096
    back = pickle.loads(pickled)
    assert isinstance(back, LeanExceptionInfo)
    assert (back.type, back.traceback, str(back.exception)) == (ValueError, ours.traceback, str(ours.exception))
    assert back.tb is None
    assert back.exc_info[2] is None


def test_frames_and_their_variables_are_released():
    canary = Canary()
    gone = weakref.ref(canary)

    def attempt(canary):
        try:
            fail(canary=canary)
        except ValueError as error:
            found = lean(error)
            error.__traceback__ = None
            return found
        raise AssertionError

    ours = attempt(canary)
    del canary
    gc.collect()
    assert gone() is not None, "hooks still need the frames"
    ours.let_go()
    gc.collect()
    assert gone() is None
    assert "the gateway does not answer" in ours.traceback


@pytest.fixture
def app():
    return Celery("test", broker="memory://", backend="cache+memory://", set_as_current=False)


def run(task, *args, **request):
    """Run a task as a worker's process does."""
    task.__trace__ = build_tracer(task.name, task, app=task.app)
    return task.__trace__("some-id", args, {}, {"is_eager": False, "id": "some-id", **request})


@pytest.mark.parametrize("base", ["stock", "ours"])
def test_hooks_and_backend_get_the_same_values_from_both_kinds_of_task(app, base):
    seen: list[Any] = []
    kind = RetryableTask if base == "ours" else app.Task

    class Hooked(kind):  # type: ignore[misc,valid-type]
        def on_failure(self, exc, task_id, args, kwargs, einfo):
            seen.append((type(exc), str(exc), task_id, args, isinstance(einfo, ExceptionInfo), einfo.tb is not None))

        def after_return(self, status, retval, *_):
            seen.append((status, retval.__traceback__ is not None))

    @app.task(base=Hooked, name="t", autoretry_for=(), shared=False)
    def t(number):
        raise ValueError(number)

    einfo, info, *_ = run(t, 7)
    result = app.AsyncResult("some-id")
    assert seen == [(ValueError, "7", "some-id", (7,), True, True), ("FAILURE", True)]
    assert result.state == "FAILURE"
    assert isinstance(result.result, ValueError)
    assert result.traceback is not None
    assert result.traceback.startswith("Traceback (most recent call last):\n")
    assert result.traceback.endswith("ValueError: 7\n")
    assert info.state == "FAILURE"
    if base == "ours":
        assert isinstance(einfo, LeanExceptionInfo)
        assert einfo.tb is None, "nothing keeps the frames after the attempt"


def test_a_retry_is_stored_and_signalled_as_celerys(app):
    seen: list[Any] = []

    class Hooked(RetryableTask):
        def on_retry(self, exc, task_id, args, kwargs, einfo):
            seen.append((type(exc), task_id, args, isinstance(einfo.exception, Retry)))

    @app.task(base=Hooked, name="t", autoretry_for=(), shared=False)
    def t(number):
        try:
            raise ValueError(number)
        except ValueError as error:
            raise Retry("again", error, 5) from error

    einfo, info, *_ = run(t, 7)
    result = app.AsyncResult("some-id")
    assert seen == [(ValueError, "some-id", (7,), True)]
    assert (result.state, info.state) == ("RETRY", "RETRY")
    assert isinstance(result.result, ValueError)
    assert isinstance(einfo, LeanExceptionInfo)


@pytest.mark.parametrize("ends", ["failure", "retry"])
def test_a_failed_attempt_leaves_nothing_to_the_garbage_collector(app, caplog, ends):
    class Declined(Exception):
        pass

    gone: list[weakref.ref[Declined]] = []

    @app.task(base=RetryableTask, name="t", autoretry_for=(), shared=False)
    def t():
        try:
            error = Declined()
            gone.append(weakref.ref(error))
            raise error
        except Declined as declined:
            if ends == "retry":
                raise Parked.of(Retry("again", declined, 5), RetryPath.REJECT, 1) from declined
            raise

    caplog.set_level(logging.CRITICAL, "celery.app.trace")  # pytest keeps what is logged
    gc.disable()
    try:
        run(t)
        assert gone[0]() is None
    finally:
        gc.enable()


def test_an_unreachable_result_backend_turns_no_retry_into_a_failure(app, monkeypatch, caplog):
    called: list[str] = []

    class Hooked(RetryableTask):
        def on_retry(self, exc, task_id, args, kwargs, einfo):
            called.append(task_id)

    @app.task(base=Hooked, name="t", autoretry_for=(), shared=False)
    def t():
        raise Retry("again", ValueError("once"), 5)

    def away(*_, **__):
        raise ConnectionError("Connection refused.")

    monkeypatch.setattr(app.backend, "mark_as_retry", away)
    einfo, info, *_ = run(t)
    assert info.state == "RETRY"
    assert isinstance(einfo.exception, Retry)
    assert called == ["some-id"]
    assert "Storing RETRY of t[some-id] raised" in caplog.text


def test_a_tracer_set_by_a_user_gets_the_lean_record(app):
    @app.task(base=RetryableTask, name="t", shared=False)
    def t():
        return "done"

    assert t.__trace__ is None
    t.__trace__ = given = build_tracer("t", t, app=app, hostname="celery@here")
    assert t.__trace__ is not given
    tracer = inspect.unwrap(t.__trace__)
    cells = dict(zip(tracer.__code__.co_freevars, tracer.__closure__, strict=True))
    assert cells["Info"].cell_contents is LeanInfo
    assert cells["hostname"].cell_contents == "celery@here"
    t.__trace__ = None
    assert t.__trace__ is None
