"""An app on a lab's broker: one origin queue, one task."""

from typing import Any

from celery import Celery
from kombu import Queue

from celery_rmq_delay import RetryableTask, install
from celery_rmq_delay.app.inventory import plans
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.operations.doctor import examine
from celery_rmq_delay.operations.results import Finding
from celery_rmq_delay.topology.ladder import LadderPlan
from celery_rmq_delay.topology.transition import apply_plan
from tests.support.brokers.lab import Lab


def charge() -> None:
    """Do nothing: no worker runs here."""


def shop(lab: Lab, **settings: Any) -> Celery:
    """Return an app whose only origin queue is the lab's."""
    app = Celery("shop", broker=lab.url, set_as_current=False)
    name = f"{lab.names.prefix}-q"
    app.conf.task_default_queue = name
    app.conf.task_queues = [Queue(name, queue_arguments={"x-queue-type": lab.queue_type})]
    # Independent of whether Django and the reader of events are installed in the test process.
    defaults = {"prefix": lab.names.prefix, "tiers": ["1h", "2h"], "events": False, "exact_levels": 4}
    app.conf.rmq_delay = {**defaults, **settings}
    install(app)
    app.task(base=RetryableTask, name="shop.charge", shared=False)(charge)
    plan = plan_of(lab, app)
    lab.plan(plan.ladder, plan.tasks)  # so that all of it is deleted at the end
    lab.forget(lab.names.events, exchanges=[name])
    return app


def plan_of(lab: Lab, app: Celery) -> LadderPlan:
    (plan,) = plans(lab.connection, state_of(app), [app.conf.task_default_queue])
    return plan


def opened(lab: Lab, **settings: Any) -> tuple[Celery, LadderPlan]:
    """Return an app whose queue and ladder are in the broker, and its plan."""
    app = shop(lab, **settings)
    plan = plan_of(lab, app)
    lab.origin(plan)
    apply_plan(lab.connection, plan)
    return app, plan


def declare_exact(lab: Lab, app: Celery) -> None:
    """Declare the objects of exact delays, used or not."""
    exact = state_of(app).exact
    exact.declare(lab.connection, unused=True)
    for topology in exact.topologies:
        shared = topology.frame()
        lab.forget(*(each.name for each in shared.queues), exchanges=[each.name for each in shared.exchanges])


def found(app: Celery, management_url: str | None = None) -> dict[str, Finding]:
    """Return the findings of the doctor that need a person, by code."""
    every = examine(app, management_url=management_url, use_management=management_url is not None)
    return {each.code: each for each in every if each.needs_a_person}


def park(lab: Lab, plan: LadderPlan, *task_ids: str, **headers: Any) -> None:
    """Publish tasks and reject them once, so that they wait in the first tier."""
    for task_id in task_ids:
        lab.publish(plan.queue, f"body of {task_id}", headers={"id": task_id, "task": "shop.charge", **headers})
        lab.reject(lab.get(plan.queue))
