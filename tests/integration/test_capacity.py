"""The objects that `rmq-delay capacity` counts are those that an apply declares."""

from dataclasses import replace

import pytest
from kombu import Connection

from celery_rmq_delay.amqp.capabilities import capabilities
from celery_rmq_delay.app.exact import ExactDelays
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.names import Names
from celery_rmq_delay.settings.parser import parse_settings
from celery_rmq_delay.topology.common import origin_arguments
from celery_rmq_delay.topology.counts import Counts, ladder_counts, levels_counts
from celery_rmq_delay.topology.ladder import LadderPlan
from celery_rmq_delay.topology.transition import apply_plan

ORIGINS = ("payments", "mails", "imports")


def counted(broker, vhost):
    """Count the objects of a vhost without those that every vhost has."""

    def count(module, entry, condition="true"):
        field = "source_name" if module == "rabbit_binding" else "name"
        listed = f'{module}:info_all(<<"{vhost}">>, [{field}])'
        return int(broker.evaluate(f"length([1 || [{entry}] <- {listed}, {condition}])"))

    ours = 'binary:match(Name, <<"rmq_delay.">>) =:= {0, 10}'
    return Counts(
        count("rabbit_amqqueue", "_") - len(ORIGINS),
        count("rabbit_exchange", "{_, {resource, _, _, Name}}", ours),
        # Every queue is bound to the default exchange, whose name is empty.
        count("rabbit_binding", "{_, Name}", ours),
    )


@pytest.mark.parametrize(
    "ladder", [Ladder((1000, 2000, 3000)), Ladder((1000, 2000), 0.2, 3, repeat_last=True)], ids=str
)
def test_the_objects_of_three_origin_queues_are_as_counted(own_broker, queue_type, ladder):
    vhost = f"capacity-{queue_type}-{ladder.id}"
    url = own_broker.vhost(vhost)
    try:
        with Connection(url) as connection:
            reasons = capabilities(connection).reports_death_reason
            plan = LadderPlan(Names("rmq_delay"), "", queue_type, "rmq_delay.exhausted", ladder, reason_routing=reasons)
            for name in ORIGINS:
                declared = origin_arguments(plan.names, name, queue_type)
                connection.default_channel.queue_declare(name, durable=True, auto_delete=False, arguments=declared)
                apply_plan(connection, replace(plan, queue=name))
            ladders = ladder_counts(ladder, queue_type, len(ORIGINS), reason_routing=reasons)
            assert counted(own_broker, vhost) == ladders
            exact = ExactDelays(parse_settings({"exact_levels": 12}), queue_type)
            exact.declare(connection, unused=True)
            for name in ORIGINS:
                exact.bind(connection, name)
        assert counted(own_broker, vhost) == ladders + levels_counts(12, 1000, queue_type, len(ORIGINS))
    finally:
        own_broker.delete_vhost(vhost)
