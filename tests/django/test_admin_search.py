"""The search of the lists: by the words of messages and arguments, and by ids and names."""

from urllib.parse import quote

from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from celery_rmq_delay.contrib.django.models import LookupValue, TaskRecord, TaskState, search
from celery_rmq_delay.contrib.django.services.prune import prune
from celery_rmq_delay.contrib.django.services.searching import MAX_TERM, MAX_WORDS, searched, words_of
from tests.support.brokers.kinds import BOTH_TABLES
from tests.support.django.admin_pages import BASE
from tests.support.django.markup import faults
from tests.support.django.records import ago, record


def task(number, **given):
    """Return an exhausted task about an order."""
    return record(
        **{
            "exhausted_at": ago(minutes=number),
            "exception_type": "shop.errors.Declined",
            "exception_message": f"Card of order-{number} was declined by 'the bank'",
            "args_preview": f"({number}, 'EUR')",
            "kwargs_preview": "{'card': '[redacted]', 'customer_id': 2e05e5}",
            **given,
        }
    )


def found(term):
    """Return the numbers of the tasks that the search finds."""
    rows = TaskRecord.objects.order_by("-exhausted_at")
    return {each.pk for each in searched(rows, term).rows}


def listed(client, term, name="exhaustedtask", more=""):
    page = client.get(f"{BASE}/{name}/?q={quote(term)}{more}")
    assert page.status_code == 200
    assert faults(page.content.decode()) == []
    return [each.task_id for each in page.context["cl"].result_list]


FOUND_BY_WORD = {
    "4711": [4711],
    "-4711": [4711],
    "order-4711": [4711],
    "order 47": [],
    "471*": [4711, 4712],
    "declin*": [4711, 4712],
    "declin": [],
    "ORDER declined": [4711, 4712],
    "declined 4712": [4712],
    "4711 4712": [],
    "2e05e5": [4711, 4712],
    "2e0*": [4711, 4712],
    "customer_id": [4711, 4712],
    "Bahnhofstraße": [5],
    "MÜNCHEN": [5],
    "München": [5],
    "münch*": [5],
    "munchen": [],
    "“münchen”": [5],
    "東京": [5],
    "redacted card": [4711, 4712],
    "4111": [],
    "nothing": [],
    "bank'": [4711, 4712],
}


@BOTH_TABLES
def test_words_of_messages_and_arguments_find_tasks(tables):
    tasks = {number: task(number) for number in (4711, 4712)}
    tasks[5] = task(5, exception_message="Kein Haus in der Bahnhofstraße, „München“ 大阪、東京。", kwargs_preview="{}")
    for term, numbers in FOUND_BY_WORD.items():
        assert found(term) == {tasks[number].pk for number in numbers}, term


@BOTH_TABLES
def test_a_list_finds_the_task_of_an_order(client):
    tasks = [task(number) for number in (4711, 4712)]
    task(4711, state=TaskState.DISCARDED, queue="mail")
    assert listed(client, "4711") == [tasks[0].task_id]
    assert listed(client, "declined") == [tasks[1].task_id, tasks[0].task_id][::-1]
    assert listed(client, "4711", more="&queue=mail") == []
    assert len(listed(client, "4711", "taskrecord")) == 2
    assert len(listed(client, "4711", "taskrecord", "&queue=mail")) == 1
    assert listed(client, "4711", "parkedtask") == []


@BOTH_TABLES
def test_the_index_follows_updates_upserts_and_deletes(tables):
    made = task(4711)
    assert found("4711") == {made.pk}
    TaskRecord.objects.filter(pk=made.pk).update(args_preview="[4712]", exception_message="gone")
    assert (found("4711"), found("4712 gone")) == (set(), {made.pk})
    with connection.cursor() as cursor:
        columns = "task_id, life, name, state, changed_at, queue, exception_message, args_preview, kwargs_preview"
        filled = "root_id, parent_id, canvas_id, exchange, routing_key, worker, exception_type, reason, delay_queue"
        cursor.execute(
            f"INSERT INTO rmq_delay_taskrecord ({columns}, {filled}, generation, attempt, crashes, ladder_ms) "
            f"SELECT {columns}, {filled}, generation, attempt, crashes, ladder_ms FROM rmq_delay_taskrecord WHERE true "
            "ON CONFLICT (task_id, life) DO UPDATE SET args_preview = '[4713]', exception_message = 'upserted'"
        )
    assert (found("4712"), found("gone"), found("4713 upserted")) == (set(), set(), {made.pk})
    TaskRecord.objects.filter(pk=made.pk).update(state=TaskState.PARKED)
    assert found("4713") == {made.pk}
    TaskRecord.objects.filter(pk=made.pk).update(state=TaskState.EXHAUSTED, changed_at=ago(days=400))
    assert prune()["exhausted tasks"] == 1
    assert candidates("upserted") == []


def candidates(term):
    """Return what the index has, also where the table has no such row."""
    from celery_rmq_delay.contrib.django.services import searching

    return searching._candidates("default", words_of(term), 10)


HOSTILE = [
    "a", "ab", "*", "**", "a*", "a **", "!@#$%^&*()", "'", '"', "''", "a' | 'b", "a & !b", "a <-> b", "(a", ":*",
    "a:*b", "a\\", "\\'", "NOT", "a OR b", "a NEAR b", "NEAR(a b)", "args_preview : a", "^a", "a + b", "{a b} : c",
    "--", "/* a", "a" * 10_000, "a " * 5_000, "語" * 1_000, "💩", "\u0301", "\u200b", "\ufeff", "\ud7ff", "İ", "1e400",
    "%s %(a)s {0} %%", " ".join(f"w{number}" for number in range(MAX_WORDS)), "x" * 500, "é" * 900, "x",
]  # fmt: skip


@BOTH_TABLES
def test_no_text_breaks_the_search_or_finds_what_does_not_match(client):
    task(4711)
    for term in HOSTILE:
        assert listed(client, term) == [], term
    for refused in ("%00", "a%00b"):
        assert client.get(f"{BASE}/exhaustedtask/?q={refused}").status_code == 400


@BOTH_TABLES
def test_a_task_id_is_found_alone(tables):
    first, _second = task(1), task(2)
    third = task(3, root_id=first.task_id, exception_message=f"see {first.task_id}")
    task(4, exception_message=f"see {first.task_id}")
    assert found(first.task_id) == {first.pk, third.pk}


@BOTH_TABLES
def test_frequent_words_are_searched_in_the_first_rows_of_the_list(client, settings):
    settings.RMQ_DELAY = {"COUNT_CAP": 40}
    tasks = [task(number, queue="mail" if number == 25 else "payments") for number in range(50)]
    assert listed(client, "declined") == [each.task_id for each in tasks[:10]]
    page = client.get(f"{BASE}/exhaustedtask/?q=declined").content.decode()
    assert "Many tasks have these words: only the first 10 of this list were searched." in page
    assert listed(client, "declined", more="&queue=mail") == [tasks[25].task_id]
    assert listed(client, "declined 25") == [tasks[25].task_id]
    assert listed(client, "decl*", more="&queue=mail") == [tasks[25].task_id]
    for complete in ("25", "declined&queue=mail"):
        assert "Many tasks" not in client.get(f"{BASE}/exhaustedtask/?q={complete}").content.decode()
    settings.RMQ_DELAY = {"COUNT_CAP": 3}
    assert listed(client, "declined") == [tasks[0].task_id]


@BOTH_TABLES
def test_a_beginning_of_more_names_than_are_searched_has_a_note(client):
    for number in range(60):
        name = f"shop.task{number:02}"
        LookupValue.objects.create(kind=LookupValue.Kind.TASK, value=name)
        task(number, name=name)
    for term, count, is_cut in (("shop.task", 50, True), ("shop.task0", 10, False)):
        page = client.get(f"{BASE}/exhaustedtask/?q={term}")
        assert page.context["cl"].result_count == count
        assert ("More than 50 names of tasks and errors begin with this" in page.content.decode()) == is_cut


@BOTH_TABLES
def test_the_index_is_not_read_for_words_that_are_known_to_be_frequent(client, settings):
    settings.RMQ_DELAY = {"COUNT_CAP": 20}
    tasks = [task(number, queue="mail" if number % 25 == 5 else "payments") for number in range(100)]
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE rmq_delay_taskrecord")
    with CaptureQueriesContext(connection) as queries:
        assert listed(client, "declined") == [each.task_id for each in tasks[:5]]
    if connection.vendor == "postgresql":
        assert not [each for each in queries if "to_tsquery" in each["sql"] and "EXPLAIN" not in each["sql"]]
    assert len(listed(client, "declined", more="&queue=mail")) == 4
    assert listed(client, "declined 25") == [tasks[25].task_id]
    # The statistics are old now.
    TaskRecord.objects.exclude(pk=tasks[99].pk).update(exception_message="a timeout")
    assert listed(client, "declined") == [tasks[99].task_id]
    assert "Many tasks" not in client.get(f"{BASE}/exhaustedtask/?q=declined").content.decode()


@BOTH_TABLES
def test_a_search_that_is_too_long_finds_nothing_and_states_the_limits(client):
    task(1)
    for term in ("declined " * (MAX_TERM // 9 + 1), " ".join(f"w{number}" for number in range(MAX_WORDS + 1))):
        assert listed(client, term) == []
        page = client.get(f"{BASE}/exhaustedtask/?q={quote(term)}").content.decode()
        assert "A search has at most 1,000 characters and 100 words." in page


@BOTH_TABLES
def test_a_page_with_a_search_takes_a_bounded_number_of_queries(client, settings):
    most = 15 if connection.vendor == "postgresql" else 14  # whose planner is asked first
    settings.RMQ_DELAY = {"COUNT_CAP": 10, "BROKER_CACHE": 3600}  # a count of the queues takes a query of its own
    for number in range(20):
        task(number)
    listed(client, "declined")
    for term in ("declined", "7", "nothing"):
        with CaptureQueriesContext(connection) as queries:
            listed(client, term)
        statements = [
            query["sql"] for query in queries if not query["sql"].startswith(("BEGIN", "COMMIT", "SET LOCAL"))
        ]
        assert len(statements) <= most, "\n".join(statements)


@BOTH_TABLES
def test_words_are_split_in_python_as_in_the_database(tables):
    texts = [
        "order-4711 (2e05e5)",
        "a_b.c@d",
        "Über 3,5 km \u2013 “quoted”",
        "0x1F 1e5 -7 +8",
        "東京、大阪 x",
        "ÄÖÜ",
        "1e5f00d",
    ]
    tasks = {text: task(0, exception_message=text, args_preview="", kwargs_preview="") for text in texts}
    for text, made in tasks.items():
        for word in words_of(text).words:
            for term in (word, f"{word[:-1]}*"):
                wanted = words_of(term)
                expected = {each.pk for each_text, each in tasks.items() if wanted.words and wanted.are_in(each_text)}
                assert set(candidates(term) if wanted.words else []) == expected, term
            assert made.pk in candidates(word)


@BOTH_TABLES
def test_the_search_reads_an_index(tables):
    task(4711)
    with CaptureQueriesContext(connection) as queries:
        assert len(candidates("4711")) == 1
    (query,) = (each["sql"] for each in queries if search.NAME in each["sql"] or "to_tsquery" in each["sql"])
    if connection.vendor == "sqlite":
        return  # only the index has the table that it reads
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        cursor.execute(f"EXPLAIN {query}".replace("%", "%%"), [])
        plan = "\n".join(row[0] for row in cursor.fetchall())
        cursor.execute("RESET enable_seqscan")
    assert f"Bitmap Index Scan on {search.NAME}" in plan


def has_index():
    master = "pg_class WHERE relname" if connection.vendor == "postgresql" else "sqlite_master WHERE name"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {master} LIKE %s", [f"{search.NAME}%"])
        return bool(cursor.fetchone()[0])


@BOTH_TABLES
def test_an_index_that_is_created_again_has_the_existing_rows(tables):
    made = task(4711)
    search.drop(connection)
    assert not has_index()
    later = task(4712)
    later.delete()
    for _ in range(2):
        search.create(connection)
        assert has_index()
        assert candidates("4711") == [made.pk]
    made.delete()
    assert candidates("4711") == []


def test_triggers_that_a_rebuilt_table_has_lost_are_created_by_migrate(sqlite):
    first = task(4711)
    with connection.schema_editor() as editor:
        editor._remake_table(TaskRecord)
    second = task(4712)
    assert candidates("4712") == []
    call_command("migrate", verbosity=0)
    assert (candidates("4711"), candidates("4712")) == ([first.pk], [second.pk])
    third = task(4713)
    assert candidates("4713") == [third.pk]


def test_a_sqlite_without_fts5_searches_ids_and_names_and_shows_it(client, monkeypatch):
    made = task(4711)
    monkeypatch.setattr(search, "has_fts5", lambda _cursor: False)
    try:
        search.create(connection)
        assert not has_index()
        assert listed(client, made.task_id) == [made.task_id]
        assert listed(client, "4711") == []
        page = client.get(f"{BASE}/exhaustedtask/?q=4711").content.decode()
        assert "Messages and arguments were not searched" in page
    finally:
        monkeypatch.undo()
        call_command("migrate", verbosity=0)  # with a SQLite that has FTS5
    assert listed(client, "4711") == [made.task_id]
