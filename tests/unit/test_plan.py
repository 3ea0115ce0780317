"""Plans, routed by a small model of RabbitMQ: every message goes to exactly one place."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from celery_rmq_delay.amqp.objects import Binding, Exchange, Objects, Queue, arguments
from celery_rmq_delay.headers import LANE
from celery_rmq_delay.ladders import Ladder, QueueType
from celery_rmq_delay.names import Names, is_derived, quarantine, return_key
from celery_rmq_delay.topology.applied import Applied
from celery_rmq_delay.topology.common import origin_arguments
from celery_rmq_delay.topology.ladder import LadderPlan
from tests.support.corpus import corpus

NAMES = Names("p")
NASTY = ["a", "a.first", "a.retry", "a.retry.1", "a@1", "return", "exhausted", "dlx", "a.ladder", "Ünïcode", "a b", "."]

tiers = st.lists(st.integers(1, 1000), min_size=1, max_size=5).map(tuple)
plain = st.builds(Ladder, tiers, repeat_last=st.booleans())
spread = st.builds(Ladder, tiers, st.just(0.3), st.integers(2, 4), st.booleans())
ladders = st.one_of(plain, spread)
queues = st.one_of(st.sampled_from(NASTY), st.text(min_size=1, max_size=20)).filter(lambda name: not is_derived(name))
types: st.SearchStrategy[QueueType] = st.sampled_from(["classic", "quorum"])


def plan_of(queue="q", ladder=None, tasks=None, queue_type="classic", reason_routing=True):
    return LadderPlan(NAMES, queue, queue_type, "p.exhausted", ladder or Ladder((10, 20)), tasks or {}, reason_routing)


plans = st.builds(
    plan_of, queues, ladders, st.dictionaries(st.sampled_from("stu"), st.one_of(st.none(), ladders)), types
)


class Model:
    """A model of exchanges, bindings and alternate exchanges in RabbitMQ."""

    def __init__(self, objects):
        self.exchanges = {exchange.name: exchange for exchange in objects.exchanges}
        self.bindings = objects.bindings

    def route(self, exchange, key, headers):
        found: list[str] = []
        for binding in self.bindings:
            if binding.source == exchange and self._matches(self.exchanges[exchange], binding, key, headers):
                there = binding.destination
                found += [there] if binding.to == "queue" else self.route(there, key, headers)
        alternate = self.exchanges[exchange].alternate
        return self.route(alternate, key, headers) if not found and alternate else found

    @staticmethod
    def _matches(exchange, binding, key, headers):
        if exchange.type == "fanout":
            return True
        if exchange.type == "direct":
            return binding.key == key
        wanted = {name: value for name, value in binding.arguments.items() if name != "x-match"}
        return all(headers.get(name) == value for name, value in wanted.items())


def applied(plan, highest=0):
    """The plan's objects with the bindings that the active exchange has."""
    names, queue = plan.names, plan.queue

    def lead(source, to, **declared):
        return Binding(source, names.ladder(queue, to.id), to="exchange", declared=arguments(declared))

    own = [
        lead(names.tasks(queue), ladder, task=task, **{"x-match": "all"})
        for task, ladder in plan.tasks.items()
        if ladder
    ]
    moving = (lead(names.active(queue), plan.ladder), lead(names.standby(queue), plan.ladder), *own)
    rejected = Binding(
        names.dlx(queue),
        names.tasks(queue),
        to="exchange",
        declared=arguments({"x-match": "all-with-x", "x-last-death-reason": "rejected"}),
    )
    ending = Binding(names.other(queue), plan.exhausted)
    return plan.objects(highest) + Objects(bindings=(*moving, rejected, ending))


@given(plans, st.integers(0, 7))
def test_every_rejected_message_goes_to_exactly_one_place(plan, highest):
    """For any task, any tier of any ladder of the queue, any lane and any other key."""
    model = Model(applied(plan, highest))
    top = max(highest, *(len(ladder) for ladder in plan.ladders.values()))
    for task, lane, tier_index in itertools.product(
        (None, "s", "t", "u", "x"), (None, 0, 1, 3, 9, "x"), range(top + 1)
    ):
        ladder = plan.tasks.get(task or "") or plan.ladder
        headers = {"x-last-death-reason": "rejected"}
        headers |= {} if task is None else {"task": task}
        headers |= {} if lane is None else {LANE: lane}  # type: ignore[dict-item]
        for key in (
            [return_key(plan.queue, tier_index)] if tier_index else [plan.queue, "", "any.key", return_key("other", 1)]
        ):
            if not tier_index and key == return_key(plan.queue, 1):
                continue
            found = model.route(plan.names.dlx(plan.queue), key, headers)
            if tier_index < len(ladder) or ladder.repeat_last:
                following = min(tier_index + 1, len(ladder))
                assert found == [plan.delay_queue(following, ladder.ttl(following, lane)).name]
            else:
                assert found == [plan.exhausted]


@given(plans, st.sampled_from(["expired", "maxlen", "delivery_limit", None]))
def test_every_other_death_goes_to_the_exhausted_queue_once(plan, reason):
    model = Model(applied(plan))
    for key in (plan.queue, return_key(plan.queue, 1)):
        assert model.route(plan.names.dlx(plan.queue), key, {"x-last-death-reason": reason}) == [plan.exhausted]


@given(plans, st.integers(0, 7))
def test_every_delay_queue_leads_back_to_its_origin_queue(plan, highest):
    objects = plan.objects(highest)
    model = Model(objects)
    for _, _, queue in plan.delay_queues(plan.ladders.values()):
        declared = queue.arguments
        assert queue in objects.queues
        assert declared["x-dead-letter-exchange"] == plan.names.returns
        assert model.route(plan.names.returns, declared["x-dead-letter-routing-key"], {}) == [plan.queue]
        assert "x-expires" not in declared
    top = max(highest, *(len(ladder) for ladder in plan.ladders.values()))
    for tier_index in range(1, top + 1):
        assert model.route(plan.names.returns, return_key(plan.queue, tier_index), {}) == [plan.queue]


@given(st.lists(plans, min_size=2, max_size=4, unique_by=lambda plan: plan.queue))
def test_queues_of_one_prefix_do_not_interfere(several):
    exchanges: dict[str, Exchange] = {}
    queues: dict[str, Queue | None] = {plan.queue: None for plan in several} | {"p.exhausted": None}
    together = Objects()
    for plan in several:
        objects = applied(plan)
        together += objects
        for exchange in objects.exchanges:
            assert exchanges.setdefault(exchange.name, exchange) == exchange
        for queue in (*objects.queues, plan.record_queue()):
            assert queues.setdefault(queue.name, queue) is queue
    alone = [Model(applied(plan)) for plan in several]
    model = Model(together)
    for plan, own in zip(several, alone, strict=True):
        for tier_index in range(1, len(plan.ladder) + 1):
            key = return_key(plan.queue, tier_index)
            assert model.route(NAMES.returns, key, {}) == [plan.queue]
            headers = {"x-last-death-reason": "rejected"}
            dlx = NAMES.dlx(plan.queue)
            assert model.route(dlx, key, headers) == own.route(dlx, key, headers)


@given(plans, st.integers(0, 7))
def test_every_object_is_declared_once_and_before_it_is_needed(plan, highest):
    objects = plan.objects(highest)
    for kind in (objects.exchanges, objects.queues, objects.bindings):
        assert len(set(kind)) == len(kind)
    names = [each.name for each in (*objects.exchanges, *objects.queues)]
    assert len(set(names)) == len(names)
    known = {*names, plan.queue, plan.exhausted}
    for binding in objects.bindings:
        assert {binding.source, binding.destination} <= known
    seen: set[str] = set()
    for exchange in objects.exchanges:
        assert exchange.alternate is None or exchange.alternate in seen
        seen.add(exchange.name)


@given(plans, ladders)
def test_a_higher_tier_only_adds_ends(plan, other):
    """A ladder that is declared again for a queue with a longer ladder keeps all its objects."""
    before, after = plan.objects(), plan.objects(len(other) + 5)
    assert set(before.exchanges) == set(after.exchanges)
    assert set(before.queues) == set(after.queues)
    assert set(before.bindings) <= set(after.bindings)


@corpus("reason_routing", [False, True])
def test_the_brokers_version_changes_no_object(reason_routing):
    assert plan_of(reason_routing=reason_routing).objects() == plan_of().objects()


def test_a_quorum_queue_loses_no_message():
    plan = plan_of(queue_type="quorum")
    safe = {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    assert safe.items() <= origin_arguments(NAMES, "q", "quorum").items()
    for queue in plan.objects().queues:
        assert safe.items() <= queue.arguments.items()


def test_a_classic_queue_has_nothing_but_its_dead_letter_exchange():
    assert origin_arguments(NAMES, "q", "classic") == {"x-dead-letter-exchange": "p.q.dlx"}


def test_quarantined_tasks_die_as_the_messages_of_their_queue_do():
    declared = {queue.name: queue.arguments for queue in plan_of().objects().queues}
    assert declared[quarantine("q")] == {"x-dead-letter-exchange": "p.q.dlx"}


@given(plans)
def test_the_record_is_read_back(plan):
    found = Applied(
        ladders=plan.ladders,
        retired={"x": 1.5},
        current=plan.ladder.id,
        following="y",
        phase="standby",
        tasks={task: ["", ladder.id] for task, ladder in plan.tasks.items() if ladder},
        reason_routing=False,
    )
    assert Applied.from_json(found.to_json()) == found
    assert found.in_force == {plan.ladder.id, "y", *(ladder.id for ladder in plan.tasks.values() if ladder)}
    assert found.highest_tier == max(len(ladder) for ladder in plan.ladders.values())


def test_nothing_was_applied_to_a_queue_without_a_record():
    assert Applied.from_json(None) == Applied()
    assert Applied().highest_tier == 0
