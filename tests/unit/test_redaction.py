"""No secret gets through, nothing raises, and other text stays readable."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from celery_rmq_delay.redaction import DEFAULT, FAILED, LEFT_OUT, REDACTED, Redaction
from celery_rmq_delay.redaction.keys import DEFAULT_KEYS
from tests.support.corpus import corpus

SECRET = "hunter2secretvalue"

TEXTS = [
    ("password=hunter2secretvalue", "password=[redacted]"),
    ("password = hunter2secretvalue, user=ann", "password = [redacted], user=ann"),
    ("{'password': 'hunter2secretvalue', 'n': 1}", "{'password': [redacted], 'n': 1}"),
    ('{"db_password": "hunter2secretvalue", "n": 1}', '{"db_password": [redacted], "n": 1}'),
    ("{'token': b'hunter2secretvalue'}", "{'token': [redacted]}"),
    ("{'card': {'no': 'hunter2secretvalue', 'b]': ['}']}, 'n': 1}", "{'card': [redacted], 'n': 1}"),
    ("{'card': <Card hunter2secretvalue>, 'n': 1}", "{'card': [redacted], 'n': 1}"),
    ("{'card': 4111111111111111}", "{'card': [redacted]}"),
    ("card number: 4111 1111 1111 1111 declined", "card number: [redacted] declined"),
    ("{'secret': 'it\\'s hunter2secretvalue'}", "{'secret': [redacted]}"),
    ('body "{\\"token\\": \\"hunter2secretvalue\\", \\"n\\": 1}"', 'body "{\\"token\\": [redacted], \\"n\\": 1}"'),
    ("X-Api-Key: hunter2secretvalue", "X-Api-Key: [redacted]"),
    ("apikey=hunter2secretvalue&n=1", "apikey=[redacted]&n=1"),
    ("Authorization: Bearer hunter2secretvalue", "Authorization: [redacted]"),
    ("{'headers': ('Bearer hunter2secretvalue',)}", "{'headers': ('Bearer [redacted]',)}"),
    ("amqp://ann:hunter2secretvalue@rabbit:5672//", "amqp://[redacted]@rabbit:5672//"),
    ("amqp://ann:hunter2@secretvalue@rabbit:5672//", "amqp://[redacted]@rabbit:5672//"),
    ("Token(token='hunter2secretvalue')", "Token(token=[redacted])"),
    ("amqp://ann:hunter2/secretvalue@rabbit:5672//", "amqp://[redacted]@rabbit:5672//"),
    ("pg_dump --password hunter2secretvalue shop", "pg_dump --password [redacted] shop"),
    ("deploy -v --registry-token-file hunter2secretvalue", "deploy -v --registry-token-file [redacted]"),
    (
        "Command '['pg_dump', '--password', 'hunter2secretvalue', 'shop']'",
        "Command '['pg_dump', '--password', [redacted], 'shop']'",
    ),
    ("Key (password)=(hunter2secretvalue) already exists.", "Key (password)=[redacted] already exists."),
    ("Key (token, email)=(hunter2secretvalue, a@b.c) exists.", "Key (token, email)=[redacted] exists."),
    ("os.environ['SECRET_KEY'] = 'hunter2secretvalue'", "os.environ['SECRET_KEY'] = [redacted]"),
]


@corpus("text, safe", TEXTS)
def test_secrets_in_texts_are_replaced(text, safe):
    assert DEFAULT.text(text) == safe


@corpus(
    "text",
    [
        "",
        "no such order: 17",
        "jwt.exceptions.InvalidTokenError: Not enough segments",
        "shop.gateway.InvalidCard: The card was reported stolen.",
        "raise it\nshop.gateway.TokenExpired: It is too old",
        "https://example.org/path?user=ann",
        "the token is old",
        "https://rabbit:15672/users/ann@example.org",
        "usage: login [--password-stdin] --token --verbose",
        "a card (token, email) was refused",
        "HTTPConnectionPool(host='rabbit', port=80): Max retries exceeded",
    ],
)
def test_text_without_secrets_is_not_changed(text):
    assert DEFAULT.text(text) == text


def test_values_are_redacted_at_every_depth():
    value = {"user": "ann", "Card-Number": 4111, "orders": [{"apiKey": SECRET, "n": 1}, ("password=x", None)], 3: 1.5}
    assert DEFAULT.value(value) == {
        "user": "ann",
        "Card-Number": REDACTED,
        "orders": [{"apiKey": REDACTED, "n": 1}, ["password=[redacted]", None]],
        "3": 1.5,
    }


keys = st.sampled_from(DEFAULT_KEYS).flatmap(
    lambda key: st.sampled_from(
        [key, key.upper(), key.replace("_", "-"), f"my_{key}", f"{key}_2", key.replace("_", "")]
    )
)
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
trees = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


def hide(tree, key):
    """Return values that hold a secret beside ``tree``."""
    return [
        {key: SECRET, "rest": tree},
        [tree, {"inner": {key: [SECRET, tree]}}],
        {"a": {key: {"b": SECRET}}, "t": tree},
    ]


@given(trees, keys)
def test_no_secret_under_a_denied_key_gets_through(tree, key):
    for value in hide(tree, key):
        assert SECRET not in json.dumps(DEFAULT.value(value))
        assert SECRET not in DEFAULT.text(repr({key: SECRET, "n": 1}))
        assert SECRET not in DEFAULT.text(json.dumps({"n": [1], key: SECRET}))
        assert SECRET not in DEFAULT.text(f"{key}={SECRET}")
        assert SECRET not in DEFAULT.text(f"failed with {key}: {SECRET}, sorry")


@given(trees)
def test_redacting_twice_changes_nothing_more(tree):
    once = DEFAULT.value(tree)
    assert DEFAULT.value(once) == once


@given(st.text(), st.integers(0, 50))
def test_any_text_is_taken_and_its_limit_kept(text, limit):
    found = DEFAULT.text(text, limit)
    assert len(found) <= limit
    assert "\0" not in found
    found.encode()


def test_deep_wide_and_endless_values_are_bounded():
    deep: Any = "end"
    for _ in range(100_000):
        deep = [deep]
    endless: dict[str, Any] = {}
    endless["me"] = endless
    assert LEFT_OUT in json.dumps(DEFAULT.value(deep))
    assert LEFT_OUT in json.dumps(DEFAULT.value(endless))
    wide = DEFAULT.value({str(n): list(range(1000)) for n in range(1000)})
    assert len(json.dumps(wide)) < 100_000
    while isinstance(deep, list):  # freed step by step: freeing it at once would overflow the stack of old Pythons
        deep = deep[0]


def test_strange_values_are_named_by_their_type():
    class Hostile:
        def __repr__(self):
            raise RuntimeError

        __str__ = __repr__

    class Liar(dict[str, Any]):
        def items(self):
            raise RuntimeError

    value = DEFAULT.value([Hostile(), b"abc", 2**70, Liar(a=1), {Hostile(): 1, None: 2}])
    assert value == ["<Hostile>", "<3 bytes>", "<int of 71 bits>", FAILED, {"<Hostile>": 1, "<NoneType>": 2}]


def upper(text):
    return text.upper()


def fails(text):
    raise RuntimeError(text)


def returns_nothing(text):
    return None


def test_the_hook_sees_every_text_after_the_keys():
    own = Redaction(hook=f"{__name__}.upper")
    assert own.value(["a", {"token": "b", "c": 1}]) == ["A", {"token": REDACTED, "c": 1}]
    assert own.text("token=b c") == "TOKEN=[REDACTED] C"


@corpus("hook", ["fails", "returns_nothing", "is_missing"])
def test_a_hook_that_fails_lets_nothing_through(hook):
    assert Redaction(hook=f"{__name__}.{hook}").value({"a": "b", "n": 1}) == {"a": FAILED, "n": 1}


def test_configured_keys_are_redacted():
    own = Redaction(keys=(*DEFAULT_KEYS, "Date of birth"))
    assert own.value({"date_of_birth": "1.1.", "token": "x"}) == {"date_of_birth": REDACTED, "token": REDACTED}
    assert own.text("dateOfBirth=1.1.2000 n=1") == "dateOfBirth=[redacted] n=1"


def test_a_secret_is_not_parted_from_its_key_by_the_limit():
    text = "x" * 90 + "password=" + SECRET
    for limit in range(len(text) + 20):
        assert SECRET[:4] not in DEFAULT.text(text, limit)
