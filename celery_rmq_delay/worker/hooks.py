"""The internals of Celery, kombu, billiard and py-amqp that this package uses.

A worker checks them when it starts. If a future version lacks some, the worker runs as in stock Celery: it retries
tasks as Celery does, and acks those that have failed for good.
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from types import CodeType
from typing import Any

from kombu.utils.imports import symbol_by_name

#: The first and the last tested versions, which have all of them.
TRIED = {
    "celery": ("5.5.0", "5.7.0"),
    "kombu": ("5.5.2", "5.7.0"),
    "billiard": ("4.2.1", "4.3.2"),
    "amqp": ("5.4.2", "5.4.2"),
}

#: The attributes that a module, class or instance must have, or the parameters of a function, by its path.
HOOKS: dict[str, tuple[str, ...]] = {
    # Incoming messages: handlers, also of unreadable messages.
    "celery.worker.consumer.consumer:Consumer": (
        *("create_task_handler", "on_decode_error", "on_unknown_message", "on_unknown_task", "on_invalid_task"),
        *("add_task_queue", "cancel_task_queue", "call_soon", "conninfo", "hub", "pool", "task_consumer", "timer"),
        *("loop", "perform_pending_operations", "qos", "_restore_prefetch_count_after_connection_restart"),
        # The connection for Celery's own events.
        *("connection_for_write", "ensure_connected"),
    ),
    "kombu.common:QoS": ("callback", "set", "value"),
    "kombu.asynchronous.hub:Hub": ("_ready",),
    "kombu.transport.base:Transport": ("_make_reader",),
    "kombu.pidbox:Mailbox": ("producer_pool",),
    "celery.worker.strategy": ("default",),
    "celery.worker.state": ("active_requests", "reserved_requests", "should_terminate"),
    "kombu:Consumer": ("_active_tags", "_basic_consume", "add_queue", "cancel_by_queue"),
    # How an attempt ends, in the main process.
    "celery.worker.request": ("create_request_cls", "task_ready", "safe_repr", "safe_str"),
    "celery.worker.request:Request": (
        *("_already_cancelled", "_announce_cancelled", "_announce_revoked", "_connection_errors", "_context"),
        *("_message", "_on_ack", "_on_reject", "_request_dict", "acknowledge", "acknowledged", "on_accepted"),
        *("on_failure", "on_retry", "on_timeout", "reject", "store_errors"),
    ),
    "kombu.message:Message": ("_state", "acknowledged", "ack_log_error", "reject_log_error"),
    # How an attempt ends, in the process or thread of the task.
    "celery.app.task:Task": ("_get_exec_options", "override_max_retries", "signature_from_request"),
    "celery.app.trace": ("LOG_RETRY", "get_task_name", "info", "logger", "trace_ok_t", "traceback_clear"),
    "celery.app.trace:TraceInfo": ("_log_error", "handle_failure", "handle_retry", "retval"),
    "celery.app.trace:build_tracer": ("Info", "app", "hostname", "loader"),
    "billiard.einfo:ExceptionInfo": ("exception", "internal", "tb", "traceback", "type"),
    "billiard.einfo:ExceptionWithTraceback": ("exc",),
    # Tasks that prefork's pool has handed to a process.
    "celery.concurrency.asynpool:AsynPool": (
        *("_active_writers", "_busy_workers", "_cache", "_flush_writer", "flush", "outbound_buffer"),
    ),
    "billiard.process:BaseProcess": ("_is_alive",),
    "billiard.pool:ApplyResult": ("_accepted", "_write_to", "ready", "worker_pids"),
    # Tasks that wait for a thread.
    "celery.concurrency.thread:TaskPool": ("executor",),
    "concurrent.futures.thread:ThreadPoolExecutor": ("_work_queue",),
    # Publishing of calls, retries and copies, with confirm.
    "celery.app.base:Celery": ("_pending", "_tasks", "finalize", "send_task", "steps"),
    "celery._state": ("_on_app_finalizers",),
    "celery.app.amqp:AMQP": ("Queues", "default_queue", "queues", "queues_cls", "router", "send_task_message"),
    "celery.app.amqp:Queues": ("_add", "consume_from"),
    "celery.app.routes": ("MapRoute",),
    "celery.app.routes:Router": ("queues", "routes"),
    "celery.app.control:Inspect": ("_request",),
    "kombu:Connection": ("collect", "declared_entities", "info", "revive"),
    "amqp:Connection": ("bytes_recv", "frame_handler", "frame_writer", "on_blocked", "on_unblocked"),
    "amqp:Channel": ("_callbacks", "callbacks", "events", "send_method"),
    "amqp:Message": ("_load_properties", "_serialize_properties", "inbound_body", "inbound_header"),
    "amqp.method_framing": ("frame_handler", "frame_writer"),
    "amqp.transport:_AbstractTransport": ("connected", "having_timeout", "raise_on_initial_eintr", "sock", "write"),
}


@lru_cache(maxsize=1)
def missing() -> tuple[str, ...]:
    """Return the full names of the hooks that the installed versions lack."""
    found: list[str] = []
    for where, names in HOOKS.items():
        try:
            owner = symbol_by_name(where) if ":" in where else import_module(where)
        except (AttributeError, ImportError):  # noqa: PERF203 - runs once
            found.append(where)
        else:
            # A function that takes any keyword is the wrapper of a monitoring product, which passes them on.
            if not (inspect.isfunction(owner) and inspect.getfullargspec(owner).varkw is not None):
                known = _names(owner)
                found += [f"{where}.{name}" for name in names if name not in known]
    return tuple(found)


def _names(owner: Any) -> set[str]:
    """Return the parameters of a function; of a class its attributes, and the names that its methods use."""
    if inspect.isfunction(owner):
        return set(inspect.signature(owner).parameters)
    found = set(dir(owner))
    for each in owner.__mro__ if isinstance(owner, type) else ():
        for value in vars(each).values():
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if inspect.isfunction(function):
                found |= _used(inspect.unwrap(function).__code__)
    return found


def _used(code: CodeType) -> set[str]:
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names, *code.co_varnames}.union(*map(_used, inner))


def complaint() -> str | None:
    """Return an error text if hooks are missing, else None."""
    gone = missing()
    if not gone:
        return None
    installed = ", ".join(f"{name} {version(name)}" for name in TRIED)
    tried = ", ".join(f"{name} {first} to {last}" for name, (first, last) in TRIED.items())
    return (
        f"The installed versions ({installed}) lack what this package needs: {', '.join(gone)}. Retries wait in the "
        f"worker, as in stock Celery. Use tested versions ({tried}), or a newer celery-rmq-delay."
    )
