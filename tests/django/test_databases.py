"""The databases of the tests themselves."""

import pytest
from django.db import connection
from django.utils import timezone

from celery_rmq_delay.contrib.django.models import FailureGroup
from tests.support.django.databases import emptied


def seen(fingerprint):
    now = timezone.now()
    return FailureGroup.objects.create(fingerprint=fingerprint, first_seen=now, last_seen=now)


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_begins_with_empty_tables(database, turn):
    assert connection.vendor == database.vendor
    assert not FailureGroup.objects.exists()
    assert seen(f"turn {turn}").pk == 1


def test_rows_that_the_end_of_a_test_could_not_delete_are_deleted_for_the_next_one(sqlite_tables, django_db_blocker):
    with django_db_blocker.unblock():
        with pytest.raises(ConnectionError), emptied(sqlite_tables):
            seen("left")
            raise ConnectionError("the server has ended")
        with emptied(sqlite_tables):
            assert not FailureGroup.objects.exists()
