"""A corpus of texts and values with secrets, and of harmless ones: how they are shown, whole and cut."""

import json
import random
from typing import Any, NamedTuple

import pytest

from celery_rmq_delay.redaction import DEFAULT, shortened
from celery_rmq_delay.redaction.forms import CARD
from tests.support.corpus import corpus
from tests.support.effort import assert_linear

SECRET = "hunter2Xq7Lm9RtVw"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"
KEY = "MIIEpAIBAAKCAQEAn3s9hunter2Xq7Lm9RtVw"


class Case(NamedTuple):
    """An input, the secret that must not be shown, and a text that must stay."""

    shown: Any
    secret: str = SECRET
    stays: str = ""


def joined(*parts):
    """Return a token of a service: in one piece, scanners of repositories would report it."""
    return "".join(parts)


TOKENS = (
    JWT,
    joined("AKIA", "IOSFODNN7EXAMPLE"),
    joined("ASIA", "IOSFODNN7EXAMPLE"),
    joined("AIza", "SyD4hunter2Xq7Lm9RtVwxxxxxxxxxxxx"),
    joined("ya29.", "a0AfH6SMhunter2Xq7Lm9RtVw"),
    joined("GOCSPX-", "hunter2Xq7Lm9RtVw"),
    joined("abc8Q~", "hunter2Xq7Lm9RtVwxxxxxxxxxxx"),
    joined("ghp_", "16C7e42F292c6912E7710c838347Ae178B4a"),
    joined("github_pat_", "11AAAAAAA0hunter2Xq7Lm9RtVw"),
    joined("glpat-", "hunter2Xq7Lm9RtVw"),
    joined("xoxb-", "123456789012-hunter2Xq7Lm9RtVw"),
    joined("xapp-", "1-A0123-hunter2Xq7Lm9RtVw"),
    joined("sk_live_", "4eC39HqLyjWDarjtT1zdp7dc"),
    joined("rk_test_", "4eC39HqLyjWDarjtT1zdp7dc"),
    joined("whsec_", "hunter2Xq7Lm9RtVw"),
    joined("npm_", "hunter2Xq7Lm9RtVwhunter2"),
    joined("pypi-AgE", "IcHlwaS5vcmcCJGhunter2"),
    joined("SG.", "hunter2Xq7Lm9RtVw.hunter2Xq7Lm9RtVw"),
)

STRUCTURES = [
    *(Case(["login", flag, SECRET, "ann"], stays="ann") for flag in ("--password", "-password", "--db-password")),
    Case(["login", f"--password={SECRET}", "ann"], stays="ann"),
    Case(["login", "--api-key", f"{SECRET}", "--user", "ann"], stays="ann"),
    Case([["password", SECRET], ["user", "ann"]], stays="ann"),
    Case([["user", "ann"], ("db_pass", SECRET)], stays="ann"),
    *(
        Case([{name: "db_password", value: SECRET}, {name: "user", value: "ann"}], stays="ann")
        for name, value in (("name", "value"), ("key", "value"), ("Name", "Value"), ("field", "new_value"), ("k", "v"))
    ),
    Case({"value": SECRET, "name": "password", "n": "ann"}, stays="ann"),
    Case({"name": "Authorization", "type": "string", "value": SECRET, "n": "ann"}, stays="ann"),
    Case({"body": json.dumps({"password": SECRET, "user": "ann"})}, stays="ann"),
    Case({"body": json.dumps({"inner": json.dumps({"api_key": SECRET, "user": "ann"})})}, stays="ann"),
    Case({"body": json.dumps([["password", SECRET], ["user", "ann"]])}, stays="ann"),
    Case({"body": repr({"password": SECRET, "user": "ann"}.items())}, stays="ann"),
    Case({"body": repr(json.dumps({"password": SECRET, "user": "ann"}).encode())}, stays="ann"),
    *(
        Case({key: SECRET, "user": "ann"}, stays="ann")
        for key in ("pass", "PIN", "userPin", "pin_code", "passcode", "auth", "X-Auth", "db.pass", "pass2", "sig")
    ),
    *(Case({"note": f"use {token} now"}, token, "use ") for token in TOKENS),
    *(Case({token: "ann"}, token, "ann") for token in TOKENS),
    Case({"url": f"postgres://ann:{SECRET}@db/shop"}, stays="@db/shop"),
    Case({"headers": {"Authorization": f"Bearer {SECRET}", "Accept": "json"}}, stays="json"),
    Case({"headers": [["Authorization", f"Bearer {SECRET}"], ["Accept", "json"]]}, stays="json"),
    Case({"pem": f"-----BEGIN RSA PRIVATE KEY-----\n{KEY}\n{KEY}\n-----END RSA PRIVATE KEY-----"}, KEY),
    Case({"xml": f"<login><user>ann</user><password>{SECRET}</password></login>"}, stays="<user>ann</user>"),
]

TEXTS = [
    Case(f"login --password {SECRET} ann", stays="ann"),
    Case(f"login --password={SECRET} ann", stays="ann"),
    Case(f"<user name='ann'><ns:password type='text'>{SECRET}</ns:password></user>", stays="ann"),
    Case(f"<user password='{SECRET}' name='ann'/>", stays="ann"),
    Case(f"<password><![CDATA[{SECRET}]]></password><user>ann</user>", stays="ann"),
    Case(f"<password><value>{SECRET}</value></password><user>ann</user>", stays="ann"),
    Case(f'<property name="password" value="{SECRET}"/><user>ann</user>', stays="ann"),
    Case(f'<property value="{SECRET}" name="password"/><user>ann</user>', stays="ann"),
    Case(f'<entry key="password">{SECRET}</entry><user>ann</user>', stays="ann"),
    Case(f"<key>password</key><string>{SECRET}</string><user>ann</user>", stays="ann"),
    Case(f"<name>fs.secret.key</name>\n  <value>{SECRET}</value><user>ann</user>", stays="ann"),
    Case(f"&lt;p password=&quot;{SECRET}&quot; user=&quot;ann&quot;/&gt;", stays="ann"),
    Case(f"env:\n  - name: DB_PASSWORD\n    value: {SECRET}\n  - name: USER\n    value: ann", stays="ann"),
    Case(f"Authorization: Bearer {SECRET}\nUser: ann", stays="ann"),
    Case(f"{{'Authorization': 'Bearer {SECRET}', 'user': 'ann'}}", stays="ann"),
    Case(f"sent 'Bearer {SECRET}' as ann", stays="ann"),
    Case("sent Basic YW5uOmh1bnRlcjI= as ann", "YW5uOmh1bnRlcjI", "ann"),
    Case(f"Cookie: lang=da; id={SECRET}; theme=dark\nUser: ann", stays="ann"),
    Case(f"auth=HTTPBasicAuth('ann', '{SECRET}'), timeout=5", stays="timeout=5"),
    Case(f"password=SecretText('{SECRET}'), user=ann", stays="ann"),
    Case(f"password=12{SECRET} user=ann", stays="ann"),
    Case(f"password == '{SECRET}' for ann", stays="ann"),
    Case(f"amqp://ann:{SECRET}@rabbit:5672//", stays="@rabbit:5672//"),
    Case(f"amqp://ann:{SECRET[:10]}/{SECRET}@rabbit:5672//", stays="@rabbit:5672//"),
    Case(f"DefaultEndpoint=https;AccountKey={SECRET}==;Suffix=net", stays="Suffix=net"),
    Case(f"https://shop.example/blob?sv=2020&sig={SECRET}%3D&se=2027", stays="&se=2027"),
    Case(f"https://hooks.slack.com/services/T0123/B0123/{SECRET} failed", stays="failed"),
    Case(f"-----BEGIN PRIVATE KEY-----\\n{KEY}\\n-----END PRIVATE KEY-----, user=ann", KEY, "ann"),
    Case(f"Command '['login', '--password', '{SECRET}', 'ann']' failed", stays="ann"),
    Case(f'["login","--password","{SECRET}","ann"]', stays="ann"),
    *(Case(f"{token} was refused for ann", token, "ann") for token in TOKENS),
    *(Case(f"https://api.example/?key={token}&user=ann", token, "ann") for token in TOKENS),
]

HARMLESS = [
    {"passenger": "ann", "spin": 3, "author": "bo", "passes": 2, "authority": "x", "compass": "n", "pinned": True},
    {"OAuthor": "x", "signal": 9, "design": "x", "Mapping": 1, "bypass": 2, "passing": {"spins": 1}},
    ["user", "ann"],
    ["login", "--user", "ann", "-v", "--token", "--verbose"],
    ["Your session has expired", 17],
    [["user", "ann"], ["n", 1]],
    {"name": "colour", "value": "blue"},
    {"name": "ann", "values": [1, 2], "key": "order"},
    {"key": "Reset your password", "value": "blue"},
    {"region": "ASIAPACIFIC", "code": "AKIAN", "sku": "eyJa", "file": "sk_live", "part": "xoxo-hugs"},
    json.dumps({"user": "ann", "items": [["a", 1], {"name": "colour", "value": "blue"}]}),
    "<user><name>ann</name><value>3</value></user>",
    "usage: login <user> <password>",
    "usage: login <password> <host> [--pin]",
    "amqp://rabbit:5672//",
    "https://rabbit:15672/api/queues",
    "https://rabbit:15672",
    "amqp://[::1]:5672",
    "amqp://{user}:{password}",
    "Basic authentication is required",
    "Basic Information of the bearer",
    "bearer authentication failed",
    "No module named 'django.contrib.auth.views'",
    'File "/srv/lib/django/contrib/auth/backends.py", line 17, in authenticate',
    "django.contrib.auth.models.User.DoesNotExist: User matching query does not exist.",
    "caused by django.contrib.auth.models.User.DoesNotExist: User matching query",
    'relation "auth_user" does not exist',
    "the pin was wrong, spin: 3, author: ann, passenger=bo, mapping: {'a': 1}",
    "try:\n    pass\nexcept ValueError: raise",
    "ValueError: invalid value 'blue' for colour",
    "commit 3f786850e387550fdab836ed7e6dc881de23001b, id 00000000-0000-4000-8000-000000000000",
    "mkdir -p /srv/shop; ssh -p 22 rabbit",
    "-----------------------------\n| order | 17 |\n-----------------------------",
]


def forms(value):
    """Return texts that contain a value."""
    text = json.dumps(value)
    return {
        "repr": repr(value),
        "JSON": text,
        "indented JSON": json.dumps(value, indent=4),
        "compact JSON": json.dumps(value, separators=(",", ":")),
        "JSON in JSON": json.dumps({"body": text}),
        "JSON in JSON in JSON": json.dumps({"a": json.dumps({"body": text})}),
        "repr of JSON": repr(text),
        "repr of repr": repr(repr(value)),
        "repr of bytes": repr(text.encode()),
        "repr of bytes of repr": repr(repr(value).encode()),
        "bytes in JSON": json.dumps(repr(text.encode())),
    }


ALL_TEXTS = [
    *TEXTS,
    *(
        Case(text, json.dumps(case.secret)[1:-1], case.stays)
        for case in STRUCTURES
        for text in forms(case.shown).values()
    ),
]


@corpus("case", STRUCTURES)
def test_a_value_is_shown_without_its_secret(case):
    shown = json.dumps(DEFAULT.value(case.shown))
    assert case.secret not in shown
    assert case.stays in shown


@corpus("case", ALL_TEXTS)
def test_a_text_is_shown_without_its_secret(case):
    shown = DEFAULT.text(case.shown)
    assert case.secret not in shown
    assert case.stays in shown
    assert case.secret not in json.dumps(DEFAULT.value([case.shown, {"message": case.shown}]))
    assert DEFAULT.text(shown) == shown


def test_a_pem_block_whose_beginning_is_cut_off_is_not_shown():
    text = f"[90 characters left out]\n{KEY}\n{KEY}\n-----END PRIVATE KEY-----\nuser=ann"
    shown = DEFAULT.text(text)
    assert KEY not in shown
    assert shown.startswith("[90 characters left out]\n")
    assert shown.endswith("-----END PRIVATE KEY-----\nuser=ann")
    assert DEFAULT.text(shown) == shown


@corpus("case", ALL_TEXTS)
def test_half_of_a_secret_is_not_shown_wherever_a_text_is_cut(case):
    half = case.secret[: len(case.secret) // 2]
    for length in range(case.shown.index(half) + len(half), len(case.shown)):
        for end in ("", "…", "...") if case in TEXTS else ("",):
            shown = DEFAULT.text(case.shown[:length] + end)
            assert half not in shown, case.shown[:length]


@corpus("case", TEXTS)
def test_a_secret_at_the_end_of_what_is_examined_is_not_shown(case):
    half = case.secret[: len(case.secret) // 2]
    before = f"password={'x' * 2_900} "  # as long as what is examined, and short when it is redacted
    for limit in range(940, 1_060):
        assert half not in DEFAULT.text(before + case.shown, limit)


@corpus("value", HARMLESS)
def test_what_is_harmless_stays_unchanged(value):
    assert json.dumps(DEFAULT.value(value)) == json.dumps(value)
    for text in (value,) if isinstance(value, str) else forms(value).values():
        assert DEFAULT.text(text) == text


#: Numbers that issuers and payment services publish for tests.
CARDS = {
    "Visa": "4111111111111111",
    "Mastercard": "5555555555554444",
    "Mastercard, series 2": "2223003122003222",
    "American Express": "378282246310005",
    "Diners Club": "36227206271667",
    "Discover": "6011111111111117",
    "JCB": "3530111333300000",
    "Maestro": "6759649826438453",
    "Mir": "2200770239097761",
    "UnionPay": "6200000000000005",
    "UnionPay, 19 digits": "6205500000000000004",
}


def printed(digits, separator):
    """Return a number in the groups in which it is printed on a card."""
    ends = [4, 10] if len(digits) < 16 else [4, 8, 12, 16]
    groups = [digits[begin:end] for begin, end in zip([0, *ends], [*ends, len(digits)], strict=True)]
    return separator.join(filter(None, groups))


CARD_TEXTS = ("charge of {} declined", "{}", "{}: declined", "PAN={}&n=1", "no.{}", "for 17 {} 12/27 123", "4711 {}")


@corpus("digits", CARDS.values())
def test_a_card_number_is_not_shown_in_any_of_its_forms(digits):
    for number in (digits, printed(digits, " "), printed(digits, "-")):
        for text in CARD_TEXTS:
            shown = DEFAULT.text(text.format(number))
            assert shown == text.format(CARD)
            assert DEFAULT.text(shown) == shown
        for text in forms({"n": [1, number, f"first line\n{number}\nlast line"], number: "ann"}).values():
            shown = DEFAULT.text(text)
            assert number not in shown, text
            assert "last line" in shown
    assert DEFAULT.value({"n": [1, int(digits), 17], int(digits): digits}) == {"n": [1, CARD, 17], CARD: CARD}


@corpus("digits", CARDS.values())
def test_half_of_a_card_number_is_not_shown_where_a_text_is_cut(digits):
    for number in (digits, printed(digits, " "), printed(digits, "-")):
        for length in range(1, len(number)):
            for end in ("...", "…", "..., 17)", "...'"):
                shown = DEFAULT.text(f"({number[:length]}{end}")
                assert sum(letter.isdigit() for letter in shown.split(",")[0]) <= 8
        for limit in range(20, 60):
            assert number[: len(number) // 2 + 1] not in DEFAULT.text(
                f"password={'x' * 1_000} charge of {number}", limit
            )


NO_CARDS = [
    *(1_767_225_600_000, 1_767_225_600_000_000, 1_767_225_600_000_000_000),  # milli-, micro- and nanoseconds
    *(1_541_815_603_606_036_480, 175_928_847_299_117_063, 7_188_423_764_049_408),  # snowflakes
    *(4_711_000_000_000_017, 20_261_126_074_715, 2_026_112_607_471_512, 202_611_260_747_151_234),  # orders
    490_154_203_237_518,  # IMEI
    4_006_381_333_931,  # EAN
    -4_111_111_111_111_111,
    0.4242424242424242,
    1234.4242424242424242,
    "order-4111111111111111 is unknown",
    "A4111111111111111, 4111111111111111B, x_4111111111111111, 4111111111111111-2, 4111111111111111.5",
    "41111111111111111, 94111111111111111, 411111111111111",
    "id 41111111-1111-1111-4111-111111111111, 00004111-1111-1111-1111-000000000000",
    "call +34911222333444",
    "in 2023 2024 2025 2026 and 17 4711 3 2",
    "order 4711000017 waits...",
    "order 47110000...",
    "Retry of 4711000000000017...",
    "x" * 2_000 + "4111111111111111" + "x" * 2_000,
]


@corpus("value", NO_CARDS)
def test_numbers_that_are_no_card_numbers_stay(value):
    assert DEFAULT.value([value, {str(value): value}]) == [value, {shortened(str(value), 200): value}]
    for text in forms(value).values():
        assert DEFAULT.text(text) == text


def test_few_random_numbers_are_taken_for_card_numbers():
    generator = random.Random(15)
    for length in range(10, 20):
        numbers = [generator.randrange(10 ** (length - 1), 10**length) for _ in range(4_000)]
        share = DEFAULT.value(numbers).count(CARD) / len(numbers)
        assert share < (0.035 if length == 16 else 0.01), length


HOSTILE = [
    *(case.shown for case in TEXTS if len(case.shown) < 80),
    *('"value": "', "'value':'", '"value":[', "value=\"a\" name='", '\\"value\\":\\"', '{"name":"password","a":{'),
    *("<password", "<password>", "<password a ", "</password>", "<key>pin</key><a>", "&quot;pin&quot;:&quot;"),
    *("-----BEGIN A-----", "-----END A-----", "-----END A-----\n", "AAAA\n", "eyJ", "eyJ.", "ghp_", "xoxb-", "SG."),
    *("['password', ", "[('pin',[", "('password', '\\", "name: pin, ", "pin ", "Pin", "auth.", "--pin a"),
    *("\\\\'pin\\\\': ", "Cookie: a=b; ", "cookie=a;", "basic ", "Basic a/", "password=a(", "password=("),
    *("password='\\\\\"", "://a:b", "card no"),
    *("4", "4 ", "4-", "4111 ", "4111-", "4111 1111 1111 1112 ", "4111111111111112 ", "41111111111...", "62 2"),
]  # fmt: skip


@pytest.mark.slow
@corpus("unit", HOSTILE)
def test_the_time_for_hostile_text_is_linear(unit):
    assert_linear(lambda size: DEFAULT.text((unit * size)[:size], size), 100_000)
    assert_linear(lambda size: DEFAULT.text((unit * size)[:size]), 1_000_000)
