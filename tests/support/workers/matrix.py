"""The tasks of the matrix, one for each end of an attempt and each option, with the outcome in the table."""

import asyncio
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, NamedTuple

import celery
from celery import signals
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.dispatch import Signal

from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.retry.decision import Action, Attempt, End, Ending, end
from celery_rmq_delay.retry.delivery import Delivery, Parked, RetryPath

#: Options of a task, and those of its call.
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {}),
    "ignore_result": ({"ignore_result": True}, {}),
    "max_retries": ({"max_retries": 1}, {}),
    "no retries": ({"max_retries": 0}, {}),
    "own tiers": ({"tiers": ["150ms", "250ms"]}, {}),
    "retry_kwargs": ({"retry_kwargs": {"max_retries": 1}}, {}),
    "expires and headers": ({}, {"expires": 3600, "headers": {"tenant": "north"}}),
    "track_started": ({"track_started": True}, {}),
    "priority": ({}, {"priority": 5}),
}


@dataclass(frozen=True)
class Outcome:
    """The behaviour of a task: ``act`` in its process, and the end of an attempt after so many retries or runs."""

    act: Callable[[Any, int], Any]
    ends: Callable[[int, int], End]
    options: dict[str, Any] = field(default_factory=dict)
    #: The pools that support it; None is any.
    pools: tuple[str, ...] | None = None
    #: Whether it calls ``retry`` itself, so that ``retry_kwargs`` are ignored, and its own limit.
    asks: bool = False
    asked_limit: int | None = None
    #: Options of the call, beside those of the cell.
    call: dict[str, Any] = field(default_factory=dict)
    #: When the test revokes it.
    revoked: Literal["never", "before it is sent", "while it runs"] = "never"
    #: Whether a worker runs it at all.
    runs: bool = True
    #: Whether its result backend stores anything.
    stores: bool = True
    #: Whether an attempt may run twice: a pool gives a job to another process if the first is lost so soon that the
    #: pool has not read yet that it had begun.
    repeats: bool = False
    #: A signal of the task's process with a receiver that panics.
    panics_at: Signal | None = None


def first(how: End, later: End = End.SUCCEEDED) -> Callable[[int, int], End]:
    return lambda retries, _runs: later if retries else how


def always(how: End) -> Callable[[int, int], End]:
    return lambda _retries, _runs: how


def fail(_task: Any, _run: int) -> None:
    raise ValueError("always")


def fail_once(task: Any, _run: int) -> str:
    if task.request.retries == 0:
        raise ValueError("once")
    return "done"


def give_up(_task: Any, _run: int) -> None:
    raise LookupError("no card will do")


def retry_with(once: bool = True, **options: Any) -> Callable[[Any, int], Any]:
    def act(task: Any, _run: int) -> str:
        if task.request.retries == 0 or not once:
            task.retry(**options)
        return "done"

    return act


def raising(make: Callable[[], BaseException], *, once: bool = True) -> Callable[[Any, int], Any]:
    def act(task: Any, _run: int) -> str:
        if task.request.retries == 0 or not once:
            raise make()
        return "done"

    return act


def requeue_once(_task: Any, run: int) -> str:
    if run == 0:
        raise Reject("not now", requeue=True)
    return "done"


def overrun(task: Any, _run: int) -> str:
    if task.request.retries == 0:
        time.sleep(60)
    return "done"


def sleep(_task: Any, _run: int) -> None:
    time.sleep(600)


def leak_a_timeout(task: Any, _run: int) -> str:
    import gevent  # this process does not need it

    if task.request.retries == 0:
        with gevent.Timeout(0.05):
            gevent.sleep(60)
    return "done"


def overrun_late(task: Any, _run: int) -> str:
    """Let a timeout of its own pass, and then overrun the hard time limit."""
    import gevent

    with suppress(gevent.Timeout), gevent.Timeout(0.05):
        gevent.sleep(60)
    return overrun(task, _run)


def end_itself(task: Any, _run: int) -> str:
    import gevent

    if task.request.retries == 0:
        gevent.kill(gevent.getcurrent())
        gevent.sleep(60)
    return "done"


def broken_hook(_task: Any, *_: Any) -> None:
    raise RuntimeError("the hook is broken")


def panicking_hook(_task: Any, *_: Any) -> None:
    raise Panic("an extension panics in a hook")


def panicking_receiver(**_: Any) -> None:
    raise Panic("an extension panics in a receiver")


def take_nothing() -> None:
    pass


class AwayBackend(DisabledBackend):
    """A result backend that is away when it is to store one of these states."""

    def __init__(self, *states: str) -> None:
        super().__init__(celery.Celery("away", set_as_current=False))
        self.states = states

    def store_result(self, task_id: Any, result: Any, state: Any, *_: Any, **__: Any) -> None:
        if state in self.states:
            raise ConnectionError(f"The result backend is away: {state} of {task_id}")


def leave(task: Any, _run: int) -> str:
    if task.request.retries == 0:
        sys.exit(3)
    return "done"


def kill_child(task: Any, _run: int) -> str:
    if task.request.retries == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


class Panic(BaseException):
    """What an extension in another language may raise."""


class Sealed(BaseException):
    """An exception that cannot be inspected."""

    def __getattribute__(self, name: str) -> Any:
        raise GeneratorExit(name)

    def __repr__(self) -> str:
        raise GeneratorExit("repr")


#: The name of an errback that takes no argument.
ERRBACK = "matrix: an errback without arguments"
AWAY, AWAY_AT_START = AwayBackend("SUCCESS", "FAILURE"), AwayBackend("STARTED")

OUTCOMES = {
    "succeeds": Outcome(lambda _task, _run: "done", always(End.SUCCEEDED)),
    "fails once": Outcome(fail_once, first(End.RETRIED)),
    "fails": Outcome(fail, always(End.RETRIED)),
    "runs out of memory": Outcome(raising(lambda: MemoryError("no more"), once=False), always(End.RETRIED)),
    "gives up": Outcome(give_up, always(End.FAILED), {"give_up_on": (LookupError,)}),
    "fails otherwise": Outcome(fail, always(End.FAILED), {"autoretry_for": (OSError,)}),
    "retries with a countdown": Outcome(retry_with(countdown=0.5), first(End.RETRIED), asks=True),
    "retries with arguments": Outcome(retry_with(kwargs={"changed": True}), first(End.RETRIED), asks=True),
    "retries in another queue": Outcome(retry_with(queue="other"), first(End.RETRIED), asks=True),
    "retries and goes on": Outcome(retry_with(throw=False), first(End.RETRIED), asks=True),
    "retries up to a limit": Outcome(
        retry_with(once=False, max_retries=1), always(End.RETRIED), asks=True, asked_limit=1
    ),
    "raises Retry": Outcome(raising(Retry), first(End.RETRIED), asks=True),
    "raises Retry always": Outcome(raising(Retry, once=False), always(End.RETRIED), asks=True),
    "requeues": Outcome(requeue_once, lambda _retries, runs: End.SUCCEEDED if runs else End.REQUEUED),
    "rejects": Outcome(raising(lambda: Reject("no")), first(End.REJECTED)),
    "rejects always": Outcome(raising(lambda: Reject(OSError("no")), once=False), always(End.REJECTED)),
    "ignores": Outcome(raising(Ignore), first(End.IGNORED)),
    "is revoked": Outcome(fail, always(End.REVOKED), revoked="before it is sent", runs=False),
    "is terminated": Outcome(sleep, always(End.REVOKED), pools=("prefork",), revoked="while it runs"),
    "has expired": Outcome(
        fail, always(End.EXPIRED), call={"expires": datetime.now(timezone.utc) - timedelta(days=1)}, runs=False
    ),
    "runs out of memory for good": Outcome(
        raising(lambda: MemoryError("no more")), always(End.FAILED), {"autoretry_for": ()}
    ),
    "is cancelled": Outcome(raising(asyncio.CancelledError), first(End.LOST)),
    "is interrupted": Outcome(raising(KeyboardInterrupt), first(End.LOST)),
    "panics": Outcome(raising(lambda: Panic("an extension panics")), first(End.LOST)),
    "raises what cannot be inspected": Outcome(raising(Sealed), first(End.LOST)),
    "has an on_retry that panics": Outcome(fail_once, first(End.RETRIED), {"on_retry": panicking_hook}),
    "has an on_retry that panics after a retry with a countdown": Outcome(
        retry_with(countdown=0.5), first(End.RETRIED), {"on_retry": panicking_hook}, asks=True
    ),
    "has a receiver of task_retry that panics": Outcome(
        retry_with(countdown=0.5), first(End.RETRIED), asks=True, panics_at=signals.task_retry
    ),
    "has a receiver of task_failure that panics": Outcome(fail, always(End.RETRIED), panics_at=signals.task_failure),
    "has an on_failure that panics": Outcome(fail, always(End.RETRIED), {"on_failure": panicking_hook}),
    "panics always": Outcome(raising(GeneratorExit, once=False), always(End.LOST)),
    "leaks a timeout": Outcome(leak_a_timeout, first(End.LOST), pools=("gevent",)),
    "leaks a timeout within a limit": Outcome(leak_a_timeout, first(End.LOST), {"time_limit": 30}, pools=("gevent",)),
    "ends its greenlet": Outcome(end_itself, first(End.LOST), pools=("gevent",)),
    "has a broken on_failure": Outcome(fail, always(End.RETRIED), {"on_failure": broken_hook}),
    "has a broken on_retry": Outcome(fail_once, first(End.RETRIED), {"on_retry": broken_hook}),
    "has an impossible errback": Outcome(
        fail, always(End.RETRIED), call={"link_error": celery.signature(ERRBACK, args=("too", "many"))}
    ),
    "succeeds without a backend": Outcome(
        lambda _task, _run: "done", always(End.FAILED), {"backend": AWAY, "ignore_result": False}, stores=False
    ),
    "starts without a backend": Outcome(
        lambda _task, _run: "done",
        always(End.SUCCEEDED),
        {"backend": AWAY_AT_START, "ignore_result": False, "track_started": True},
        stores=False,
    ),
    "fails without a backend": Outcome(
        fail, always(End.RETRIED), {"backend": AWAY, "ignore_result": False}, stores=False
    ),
    "leaves": Outcome(leave, first(End.LOST), repeats=True),
    "overruns softly": Outcome(overrun, first(End.RETRIED), {"soft_time_limit": 1}, pools=("prefork",)),
    "overruns": Outcome(overrun, first(End.LOST), {"time_limit": 1}, pools=("prefork", "gevent")),
    "overruns after a timeout": Outcome(overrun_late, first(End.LOST), {"time_limit": 1}, pools=("gevent",)),
    "loses its process": Outcome(kill_child, first(End.LOST), pools=("prefork",), repeats=True),
}


def name_of(outcome: str, option: str) -> str:
    return f"matrix: {outcome}, {option}"


#: A task that runs until the test opens the gate, to end its worker meanwhile.
AT_THE_GATE = "waits at the gate"


def register(
    app: Any, base: Any, note: Callable[..., None], count: Callable[[str], int], wait: Callable[[], None]
) -> None:
    """Make a task for each cell.

    ``count`` returns how often it was called before for a task id; ``wait`` waits at the gate.
    """
    app.task(name=ERRBACK, shared=False)(take_nothing)
    gated = Outcome(lambda _task, _run: wait(), always(End.SUCCEEDED))
    outcomes = {**OUTCOMES, AT_THE_GATE: gated}
    for outcome, option in itertools.product(outcomes, OPTIONS):
        found = outcomes[outcome]

        def run(self: Any, changed: bool = False, found: Outcome = found) -> Any:
            note(self, changed=changed, redelivered=self.request.delivery_info["redelivered"])
            return found.act(self, count(self.request.id))

        options = {**OPTIONS[option][0], **found.options}
        task = app.task(base=base, bind=True, shared=False, name=name_of(outcome, option), **options)(run)
        if found.panics_at is not None:
            found.panics_at.connect(panicking_receiver, sender=task)


class Expected(NamedTuple):
    """The outcome of a task: ``request.retries`` of its attempts, its final state, and why it is exhausted."""

    retries: list[int]
    state: str
    reason: str | None


def expected(outcome: str, option: str, ladder: Ladder) -> Expected:
    """Return the outcome of a cell in the table of decisions."""
    found, (options, _) = OUTCOMES[outcome], OPTIONS[option]
    if "tiers" in options:
        ladder = Ladder((150, 250))
    budget: int = options.get("max_retries", len(ladder))
    asked = min(budget, options.get("retry_kwargs", {}).get("max_retries", budget))
    retries, attempts = 0, list[int]()
    for runs in itertools.count():
        attempts += [retries] if found.runs else []
        how, parked, most = found.ends(retries, runs), None, budget
        by_hand = outcome.startswith("raises Retry")
        if how is End.RETRIED and not by_hand:
            most = asked if not found.asks else budget if found.asked_limit is None else found.asked_limit
            how = End.FAILED if retries >= most else how  # `Task.retry` raises the exception of the task
            parked = Parked.of(Retry(), RetryPath.COPY, 1) if how is End.RETRIED else None
        ending = end(how, parked or Attempt(Delivery("shop", retries, None, RetryPath.REJECT), ladder, retries, most))
        if ending.action is Action.PARK:
            retries += 1
        elif ending.action is not Action.RETURN:
            return Expected(
                attempts, _state(found, option, ending), ending.reason if ending.action is Action.EXHAUSTED else None
            )
    raise AssertionError


def _state(found: Outcome, option: str, ending: Ending) -> str:
    if not found.stores:
        return "PENDING"
    # Celery's command stores the state from 5.6 on; from 5.7 on not that of a task that runs.
    since = {"before it is sent": celery.VERSION >= (5, 6), "while it runs": (5, 6) <= celery.VERSION < (5, 7)}
    is_stored = since.get(found.revoked or "", False)
    if ending.reason in ("revoked", "expired") and (is_stored or option != "ignore_result"):
        return "REVOKED"
    if option == "ignore_result" or ending.reason == "ignored":
        return "STARTED" if option == "track_started" else "PENDING"
    return "FAILURE" if ending.action is Action.EXHAUSTED else "SUCCESS"
