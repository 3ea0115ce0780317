"""The search of the lists: ids, beginnings of names, and words of messages and arguments, each with an index."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db import DatabaseError, connections, transaction
from django.db.models import Q, QuerySet

from ..conf import conf
from ..models import LookupValue, TaskRecord, search
from ..queries import among, grouped

#: The most characters and the most words of a text to search for.
MAX_TERM, MAX_WORDS = 1_000, 100
#: Maximum number of task names and error classes that a prefix in a search matches.
_MATCHES = 50
#: Sampling ratio: search 1 in `_SHARE` counted rows for a frequent word.
_SHARE = 4
#: A word may be a rare one if fewer than 1 in `_EXPECTED` of these rows have it.
_EXPECTED = 10
#: PostgreSQL stores no word with more than 2,046 bytes.
_MAX_WORD = 500
#: The rows with the words of a text for ``to_tsquery``.
_HAVING_WORDS = f"FROM {TaskRecord._meta.db_table} WHERE {search.VECTOR} @@ to_tsquery('simple', %s)"
_BETWEEN_WORDS = re.compile(f"[\0{search.SEPARATORS}]+")


@dataclass(frozen=True)
class Words:
    """Words to search for, in any case: all of them, and with ``is_open`` any word that begins with the last."""

    words: tuple[str, ...]
    is_open: bool = False

    @property
    def tsquery(self) -> str:
        """The words for PostgreSQL's ``to_tsquery``; they have no quotes and no backslashes.

        In a database with the locale C, PostgreSQL compares letters beyond ASCII by case: words with such letters are
        tried as they are, in lower case, in upper case, and with a capital.
        """
        parts = []
        for number, word in enumerate(self.words, start=1):
            end = ":*" if self.is_open and number == len(self.words) else ""
            cases = [] if word.isascii() else [word.lower(), word.upper(), word.capitalize()]
            forms = dict.fromkeys([word, *cases])
            either = " | ".join(f"'{search.MARK}{form}'{end}" for form in forms)
            parts.append(f"({either})")
        return " & ".join(parts)

    @property
    def match(self) -> str:
        """The words for FTS5's MATCH."""
        return " AND ".join(f'"{word}"' for word in self.words) + ("*" if self.is_open else "")

    @cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        # Each begins with the letters of its word, so that Python skips to these quickly, and only then looks around.
        letter = f"[^\0{search.SEPARATORS}]"
        words = [re.escape(word.lower()) for word in self.words]
        ends = [f"(?!{letter})"] * len(words)
        if self.is_open:
            ends[-1] = ""
        return [re.compile(f"{word}(?<!{letter}{word}){end}") for word, end in zip(words, ends, strict=True)]

    def are_in(self, *texts: str) -> bool:
        """Return whether all words are in these texts together."""
        text = " ".join(texts).lower()
        return all(pattern.search(text) for pattern in self._patterns)


def words_of(term: str) -> Words:
    """Return the words of a search; an asterisk after the last one makes it a beginning."""
    found = [word for word in _BETWEEN_WORDS.split(term) if any(char.isalnum() for char in word)]
    last = found[-1:] if term.rstrip().endswith("*") else []
    whole = dict.fromkeys(found[: len(found) - len(last)])
    return Words((*whole, *last), is_open=bool(last))


@dataclass(frozen=True)
class Found:
    """The tasks that a search has found; ``note`` states why there may be others, and is empty if there are none."""

    rows: QuerySet[Any]
    note: str = ""


def searched(rows: QuerySet[Any], term: str) -> Found:
    """Search the ``rows`` of a list, which are filtered and in their order.

    A task id or root id is found alone. Otherwise tasks are found whose name or error begins with ``term``, or whose
    message and arguments have its words. Where more than `COUNT_CAP` tasks of the table have these words, or PostgreSQL
    expects so, only the first rows of the list are searched, a quarter of `COUNT_CAP`: a frequent word takes no longer
    than a rare one.
    """
    own = Q(task_id=term) | Q(root_id=term)
    if TaskRecord.objects.using(rows.db).filter(own).exists():
        return Found(rows.filter(own))
    named, of_names = _named(term)
    ids, of_words = _with_words(rows, term)
    return Found(rows.filter(named | among(ids, rows.db)), " ".join(filter(None, [of_names, of_words])))


def _named(term: str) -> tuple[Q, str]:
    """Return the condition of tasks whose name or error begins with ``term``, and a note where there are more names."""
    starts = LookupValue.objects.filter(value__istartswith=term, kind__in=["task", "error"]).order_by("value", "kind")
    found: dict[str, list[str]] = {"task": [], "error": []}
    values = list(starts.values_list("kind", "value")[: _MATCHES + 1])
    for kind, value in values[:_MATCHES]:
        found[kind].append(value)
    note = (
        f"More than {_MATCHES} names of tasks and errors begin with this: only the first were searched, in the order "
        "of the alphabet. Enter more of the name."
    )
    condition = Q(name__in=found["task"]) | Q(exception_type__in=found["error"])
    return condition, note if len(values) > _MATCHES else ""


def _with_words(rows: QuerySet[Any], term: str) -> tuple[list[int], str]:
    """Return the ids of tasks with the words of ``term``, and a note where not all rows were searched."""
    if len(term) > MAX_TERM or len((words := words_of(term)).words) > MAX_WORDS:
        return [], f"A search has at most {grouped(MAX_TERM)} characters and {MAX_WORDS} words."
    if not words.words or max(map(len, words.words)) > _MAX_WORD:
        return [], ""
    most = conf().count_cap
    searched = max(1, most // _SHARE)
    is_frequent = _are_frequent(rows.db, words, most)
    found, first = _among_the_first(rows, words, searched) if is_frequent else ([], searched)
    if first == searched and len(found) * _EXPECTED < first:  # rare, or an estimate may be out of date
        ids = _candidates(rows.db, words, most + 1)
        if ids is None:
            return [], (
                "Messages and arguments were not searched: the database has no index for it. See “manage.py check”."
            )
        if len(ids) <= most:
            return ids, ""
        if not is_frequent:
            found, first = _among_the_first(rows, words, searched)
    note = (
        f"Many tasks have these words: only the first {grouped(searched)} of this list were searched. "
        "Use the filters to search others."
    )
    return found, note if first == searched else ""


def _among_the_first(rows: QuerySet[Any], words: Words, most: int) -> tuple[list[int], int]:
    """Return which of the first rows have the words, and how many rows these are, ``most`` at most."""
    first = list(rows.values_list("pk", *search.COLUMNS)[:most])
    return [pk for pk, *texts in first if words.are_in(*texts)], len(first)


def _are_frequent(using: str, words: Words, most: int) -> bool:
    """Return whether PostgreSQL expects far more than ``most`` tasks with these words, from its statistics.

    It would read the index to the end for them, however few rows a query asks for; FTS5 reads no further than needed.
    """
    connection = connections[using]
    if connection.vendor != "postgresql":
        return False
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) SELECT id {_HAVING_WORDS}", [words.tsquery])
        ((plan,),) = cursor.fetchall()
    return bool(plan[0]["Plan"]["Plan Rows"] > 4 * most)


def _candidates(using: str, words: Words, limit: int) -> list[int] | None:
    """Return the ids of up to ``limit`` tasks with these words, from the index; None if there is no index."""
    connection = connections[using]
    if connection.vendor == "postgresql":
        return _from_gin(using, words, limit)
    sql = f"SELECT rowid FROM {search.NAME} WHERE {search.NAME} MATCH %s LIMIT %s"  # noqa: S608 - names of ours
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql, [words.match, limit])
            return [pk for (pk,) in cursor.fetchall()]
    except DatabaseError:
        if search.exists(connection):
            raise
        return None


def _from_gin(using: str, words: Words, limit: int) -> list[int]:
    sql = f"SELECT id {_HAVING_WORDS} LIMIT %s"
    with transaction.atomic(using), connections[using].cursor() as cursor:
        # For a frequent word PostgreSQL would read the table from its beginning, and split the text of each row.
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(sql, [words.tsquery, limit])
        found = [pk for (pk,) in cursor.fetchall()]
        cursor.execute("SET LOCAL enable_seqscan = DEFAULT")
    return found
