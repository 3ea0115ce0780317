"""Times of changes come from the clock of the database, whatever the clocks of the hosts are."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from celery_rmq_delay.contrib.django.collecting.database import Database
from celery_rmq_delay.contrib.django.models import TaskRecord
from celery_rmq_delay.contrib.django.services import clock
from celery_rmq_delay.contrib.django.services.actors import Actor
from celery_rmq_delay.contrib.django.services.operations.requests import freeze, run
from tests.support.brokers.kinds import BOTH_DATABASES
from tests.support.django.records import record
from tests.support.django.reported import fact

AHEAD = timedelta(hours=2)


@pytest.fixture
def ahead(postgres):
    """Let PostgreSQL's clock be two hours ahead of this process."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA ahead")
        cursor.execute(
            "CREATE FUNCTION ahead.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS "
            "$$ SELECT pg_catalog.clock_timestamp() + interval '2 hours' $$"
        )
        cursor.execute("SET search_path = ahead, pg_catalog, public")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET search_path")
            cursor.execute("DROP SCHEMA ahead CASCADE")


@pytest.mark.usefixtures("ahead", "shop")
def test_a_change_has_the_time_of_the_database():
    before = timezone.now() + AHEAD
    Database().write([fact("id-0")])
    discarded = record()
    run(freeze("discard", TaskRecord.objects.filter(pk=discarded.pk), actor=Actor(None, "alice")))
    times = TaskRecord.objects.values_list("changed_at", flat=True)
    assert all(before <= each <= timezone.now() + AHEAD for each in times), list(times)


@BOTH_DATABASES
@pytest.mark.usefixtures("database")
def test_the_time_fits_the_columns_of_a_project_without_time_zones():
    assert timezone.is_aware(clock.now())
    with override_settings(USE_TZ=False):
        assert timezone.is_naive(clock.now())
        assert timezone.is_aware(clock.utc_of(connection))
