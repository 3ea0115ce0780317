"""An action on tasks: one class has all that the pages, the command and the runner need to know about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from django.db.models import QuerySet

from ...models import Operation, OperationItem, TaskState
from .forms import ConfirmForm

if TYPE_CHECKING:
    from django.utils.safestring import SafeString


class Work(Protocol):
    """The work of one kind of operation, on a window of tasks."""

    @property
    def window(self) -> int:
        """The most tasks of the next call of `do`."""

    def resume(self) -> None:
        """Settle the tasks that a dead runner left unfinished."""

    def do(self, items: Sequence[OperationItem]) -> None:
        """Process these tasks, and settle each that is done."""

    def abandon(self) -> None:
        """Settle the tasks that an error has left unfinished: as UNKNOWN where they may have been done."""


@dataclass(frozen=True)
class Run:
    """What a runner gives to the work of an action."""

    lease: Any
    link: Any
    #: To call between two tasks; it may raise.
    tick: Callable[[], None]
    #: The edited messages by task, of an edit whose request has not ended.
    edited: Mapping[int, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Counted:
    """The tasks of one combination of values: how many, and how many of them have no message."""

    values: dict[str, str]
    count: int
    without_message: int


@dataclass(frozen=True)
class Undo:
    """The action, by its name, that undoes another one on the tasks that are still in a state that it left."""

    action: str
    state: TaskState


class Action:
    """What an operator can do to tasks: a subclass in a module of `actions`, with one instance in ``ACTIONS``.

    Each instance with ``states`` is on the lists of tasks in these states, and has a confirmation page.
    """

    #: The name in requests, and in the code.
    name: str
    #: The kind of its operations.
    kind: str
    label: str
    #: What it does, on the confirmation page.
    explanation: str = ""
    #: The states of the tasks that it applies to.
    states: tuple[TaskState, ...] = ()
    #: The permission that it needs: a key of the admin's ``PERMISSIONS``.
    permission: str
    #: What was done to a task, and what was not done to one that an error left out, in the result.
    done: str
    not_done: str = "not sent"
    #: The labels of the buttons that continue with failed tasks, and with those that it has not tried, too.
    again: tuple[str, str] | None = None
    undo: Undo | None = None
    #: Its form on the confirmation page.
    form: type[ConfirmForm] = ConfirmForm
    #: Whether ``rmq_delay_operate`` runs it also for few tasks.
    in_background: bool = False
    #: Whether the page of a task has its button.
    on_task_page: bool = True
    #: Whether its button looks like one that deletes.
    dangerous: bool = False
    #: Whether it publishes the stored message of a task.
    requeues: bool = False
    #: Whether its operations can have canaries and a rate.
    can_be_gradual: bool = False
    #: Its name as an action of ``rmq_delay_operate``, and the state of the tasks that this selects.
    command: tuple[str, TaskState] | None = None

    def work(self, run: Run) -> Work:
        """Return what processes the tasks of an operation of this kind."""
        raise NotImplementedError

    def notes(self, tasks: QuerySet[Any], counts: Sequence[Counted]) -> list[str | SafeString]:
        """Return the warnings of the confirmation page about these tasks."""
        return []

    def obstacle(self, counts: Sequence[Counted]) -> str:
        """Return why none of these tasks can be processed; empty if one may be."""
        return ""

    def continued_by(self, operation: Operation) -> str:
        """Return the name of the action that continues an operation of this kind."""
        return self.name


_BY_KIND: dict[str, Action] = {}
_Actions = TypeVar("_Actions", bound=tuple[Action, ...])


def registered(actions: _Actions) -> _Actions:
    """Make actions known to `of_kind`, and return them; of several of a kind the first stands for it."""
    for each in actions:
        _BY_KIND.setdefault(each.kind, each)
    return actions


def of_kind(kind: str) -> Action | None:
    """Return the action of a kind of operation; None if operations of this kind cannot be run."""
    return _BY_KIND.get(kind)
