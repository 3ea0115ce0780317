"""Hypothesis strategies for hostile messages, settings and answers."""

import string
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from struct import pack
from typing import Any

from amqp import serialization
from hypothesis import strategies as st

from celery_rmq_delay import headers as h

#: Texts that have broken programs before.
NASTY = (
    *("", "\0", "\ud800", "\N{RIGHT-TO-LEFT OVERRIDE}", "a" * 256, "ä" * 200, "%s{}%(x)s", "'; DROP TABLE x; --"),
    *("<script>", "../../etc/passwd", "\x1b[31m", "\r\nX: y", "://", "://[", "amqp://u:p@[::1", "1e400", "-1", "NaN"),
    *("0" * 5_000, "@", "q@1", "q.retry.1.10s", "q.quarantine", "\N{ARABIC-INDIC DIGIT THREE}", "\N{SUPERSCRIPT TWO}"),
)
texts = st.sampled_from(NASTY) | st.text(max_size=40) | st.text("\0'\"\\ \n:@/=.?#[]{}()%-" + string.ascii_letters[:4])
integers = st.sampled_from([2**63 - 1, -(2**63), 2**31 - 1, 2**31, 0, 1, -1]) | st.integers(-(2**63), 2**63 - 1)
moments = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)).map(lambda moment: moment.replace(microsecond=0))
#: Values of an AMQP table as py-amqp decodes them.
scalars = st.one_of(
    *(st.none(), st.booleans(), integers, st.floats(), texts, st.binary(max_size=20), moments),
    *(st.integers(-(2**31), 2**31 - 1).map(Decimal),),
)
keys = st.text(max_size=12) | st.binary(max_size=8)
DEATH = ("count", "reason", "queue", "time", "exchange", "routing-keys")
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | st.sampled_from(DEATH), inner, max_size=3),
    max_leaves=8,
)
deaths = st.fixed_dictionaries(
    {},
    optional={
        "count": integers | values,
        "reason": st.sampled_from(["rejected", "expired", "maxlen", "delivery_limit"]) | values,
        "queue": st.sampled_from(["q", "q.retry.1.10s", "q.quarantine", ""]) | values,
        "time": moments | values,
        "exchange": values,
        "routing-keys": st.lists(values, max_size=2) | values,
    },
)
KNOWN = (
    *(value for name, value in sorted(vars(h).items()) if name.isupper() and str(value).startswith(h.PREFIX)),
    *("x-death", "x-delivery-count", "x-acquired-count", "x-last-death-reason", "x-first-death-queue", "CC", "BCC"),
    *("id", "task", "retries", "eta", "expires", "timelimit", "group", "root_id", "argsrepr", "compression"),
)


def on_the_wire(headers: dict[Any, Any]) -> dict[Any, Any]:
    (found,), _ = serialization.loads("F", serialization.dumps("F", (headers,)), 0)
    arrived: dict[Any, Any] = found
    return arrived


def _fits(headers: dict[Any, Any]) -> bool:
    return all(len(key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key) < 256 for key in headers)


headers = (
    st.dictionaries(st.sampled_from(KNOWN) | keys, values | st.lists(deaths, max_size=4), max_size=8)
    .filter(_fits)
    .map(on_the_wire)
)

#: JSON of any shape, including texts that only Python's parser accepts.
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)

#: Values in a settings module.
settings_values = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(), st.floats(), texts, st.binary(max_size=8), st.timedeltas()),
        *(st.decimals(), st.fractions(), st.complex_numbers(), st.just(object()), st.just(10**400)),
        *(
            st.sampled_from(["10s", "1m", "1h30m", "classic", "quorum", "levels", "native", "all"]),
            st.just(Fraction(1, 3)),
        ),
        *(st.just(timedelta.max), st.just(iter([]))),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner),
        st.dictionaries(texts | st.integers() | st.none(), inner, max_size=3),
        st.frozensets(texts, max_size=2),
    ),
    max_leaves=8,
)

raw_tables = st.lists(
    st.tuples(st.binary(max_size=10), st.sampled_from(b"tbBUuIiLlfdDFATSVsx?"), st.binary(max_size=30)), max_size=4
).map(lambda entries: b"".join(pack("B", len(name)) + name + bytes([kind]) + value for name, kind, value in entries))
#: The bytes of a message's properties: well formed or not.
properties = st.one_of(
    st.binary(max_size=60),
    raw_tables.map(lambda table: pack(">HI", 1 << 13, len(table)) + table),
    headers.map(lambda found: pack(">H", 1 << 13) + serialization.dumps("F", (found,))),
    st.integers(0, 1_200).map(lambda depth: pack(">HI", 1 << 13, 7 * depth) + b"\x01aF\0\0\0\0" * depth),
)
