"""Equal failures have the same fingerprint, and others have different ones."""

from hypothesis import given
from hypothesis import strategies as st

from celery_rmq_delay.events.fingerprint import fingerprint, normalise_message, top_frame, without_retry
from celery_rmq_delay.redaction import DEFAULT
from tests.support.corpus import corpus

SAME = [
    ("no order 17", "no order 4711", "no order <n>"),
    ("took 1.5 s", "took 20,000 s", "took <n> s"),
    ("at 12:01:07", "at 9:00", "at <n>"),
    ("user 'ann' gone", "user 'bob o' gone", "user <text> gone"),
    ('key "a" missing', 'key "b" missing', "key <text> missing"),
    ("mail to ann@example.org", "mail to b.c+d@mail.example.com", "mail to <email>"),
    ("job 123e4567-e89b-12d3-a456-426614174000", "job 00000000-0000-0000-0000-000000000000", "job <uuid>"),
    ("<Foo object at 0x7f3a>", "<Foo object at 0xdeadbeef>", "<Foo object at <hex>>"),
    ("commit 0a1b2c3d4e", "commit ffff00001111aaaa", "commit <hex>"),
    ("no order 4711000000000017", DEFAULT.text("no order 4111111111111111"), "no order <hex>"),
    ("two\n  lines", "two lines", "two lines"),
]


@corpus("one, other, both", SAME)
def test_messages_that_differ_in_names_and_numbers_are_the_same(one, other, both):
    assert normalise_message(one) == normalise_message(other) == both
    assert fingerprint("E", one, None) == fingerprint("E", other, None)


def test_apostrophes_are_no_quotes_and_words_that_look_like_hex_are_words():
    assert normalise_message("it can't and won't be a defaced facade") == "it can't and won't be a defaced facade"


@given(st.text(max_size=2000))
def test_normalising_a_message_twice_changes_nothing(message):
    once = normalise_message(message)
    assert fingerprint("E", message, None) == fingerprint("E", message, None)
    assert not any(char in "0123456789" for char in once)


def test_type_message_and_frame_make_the_fingerprint():
    every = {fingerprint(kind, message, frame) for kind in "AB" for message in "xy" for frame in ("f", "g", None)}
    assert len(every) == 12
    assert all(len(each) == 16 for each in every)


APPLICATION = """Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/celery/app/trace.py", line 453, in trace_task
    R = retval = fun(*args, **kwargs)
  File "/srv/releases/17/shop/payments/tasks.py", line 12, in charge
    gateway.post(order)
  File "/srv/releases/17/shop/payments/gateway.py", line 40, in post
    response.raise_for_status()
  File "/venv/lib/python3.11/site-packages/requests/models.py", line 1021, in raise_for_status
    raise HTTPError(http_error_msg, response=self)
requests.exceptions.HTTPError: 503
"""
RETRY = (
    APPLICATION
    + """
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/celery/app/autoretry.py", line 38, in run
    return task._orig_run(*args, **kwargs)
  File "/srv/releases/17/shop/payments/tasks.py", line 99, in charge
    raise self.retry()
celery.exceptions.Retry: Retry in 10s: HTTPError('503')
"""
)


LIBRARY = "".join(line for line in APPLICATION.splitlines(keepends=True) if "/srv/" not in line)
WINDOWS = '  File "C:\\app\\shop\\tasks.py", line 3, in Shop.charge.<locals>.inner\n'


@corpus(
    "text, frame",
    [
        (APPLICATION, "payments/gateway.py:post"),
        (without_retry(RETRY), "payments/gateway.py:post"),
        (LIBRARY, "requests/models.py:raise_for_status"),
        ("""  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode\n""", "json/decoder.py:raw_decode"),
        (WINDOWS, "shop/tasks.py:Shop.charge.<locals>.inner"),
        *((text, None) for text in (None, "", "no traceback", 'File "', 'File "a", line', 'File "' * 100_000)),
    ],
)
def test_the_top_frame_is_the_innermost_of_the_application_or_else_of_a_library(text, frame):
    assert top_frame(text) == frame


def test_a_failure_that_is_not_retried_keeps_its_traceback():
    assert without_retry(APPLICATION) == APPLICATION
