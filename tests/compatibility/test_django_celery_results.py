"""django-celery-results: the rows of tasks that were retried."""

import pytest

from tests.support.compatibility.django_shop import DJANGO, result_rows
from tests.support.compatibility.plays import KINDS

pytest.importorskip("django_celery_results")


@pytest.fixture(scope="module")
def plays(make_plays):
    return make_plays(DJANGO, lambda play: result_rows(play)[-1]["task_name"] == "last")


def facts(row):
    """What a row states, without ids and times."""
    traceback = (row["traceback"] or "").strip().splitlines()[-1:]
    return (
        *(row[name] for name in ("task_name", "status", "task_args", "task_kwargs", "states")),
        row["result"] if row["task_name"] != "calls" else None,
        [line.rpartition(".")[2] for line in traceback],
        '"children": []' in row["meta"],
    )


def test_the_rows_have_the_contents_that_they_have_with_stock_celery(plays):
    stock, ours = (sorted(map(facts, result_rows(plays[kind])), key=repr) for kind in KINDS)
    assert ours == stock


def test_a_row_has_the_state_retry_while_its_task_is_parked(plays):
    for kind in KINDS:
        states = {row["task_id"]: row["states"] for row in result_rows(plays[kind])}
        assert states[plays[kind].id("fails")] == ["RETRY", "RETRY", "FAILURE"]
        assert states[plays[kind].id("asks")] == ["RETRY", "SUCCESS"]
