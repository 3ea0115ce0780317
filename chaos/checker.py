"""Check a run by its ledger and its evidence. Pure, and without any code of the package.

* **lost**: a confirmed task that did not end as planned; one without a confirm that happened only partly.
* **early**: an attempt that began before its delay after the previous attempt was over.
* **twice**: an additional execution that no strike explains.
* **blamed**: a task that was moved to the quarantine queue although no strike had ended a worker or a connection.
* **wrong**: an execution that contradicts the plan, the ladder, or earlier attempts.
* **rows**, **files**: tables or history files that do not agree with the executions.

A strike explains an additional execution if it met the process or connection that held the message while it held it:
from when its worker received it until `SETTLE` seconds after the last line of the task's code, longer only if another
strike kept worker and broker from communicating. One interruption explains one more execution of this attempt and of
each later one. A retry that the task publishes as a new message may be duplicated by each strike that suppresses its
confirm: the new message may exist, and the old one continues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from chaos.book import SETTLE, Book, Execution, Story, Struck
from chaos.evidence import Evidence, Record
from chaos.strikes import Effect

#: Tolerance in seconds for the broker's clock, which counts whole milliseconds.
TOLERANCE = 0.005
#: Seconds for which an event may be delayed: a worker that has lost its connection for events waits for a new one.
EVENT_WAITS = 40.0

#: Seconds until a broker detects that a worker is gone: until then it sends it new messages.
NOTICED = 0.1
#: Seconds until a broker has the confirm of a message that it moved to the next queue.
MOVED = 1.0
#: Seconds after the end of a connection in which its worker may still read messages sent before.
UNREAD = 0.1
#: Seconds between a strike and a publish whose confirm it can suppress.
ANSWERED = 1.0
#: Tasks with findings whose stories are described.
DESCRIBED = 5

_ENDS = (Effect.CHILD, Effect.WORKER, Effect.CONNECTION, Effect.BROKER)
_REDELIVERS = (Effect.WORKER, Effect.CONNECTION, Effect.BROKER)
_DISCONNECTS = (Effect.CONNECTION, Effect.BROKER)
_SILENCES = (*_DISCONNECTS, Effect.STALL, Effect.ALARM)


@dataclass(frozen=True)
class Finding:
    """A violation of the guarantees."""

    kind: str
    id: str
    text: str


@dataclass
class Verdict:
    """The findings and figures of a run."""

    findings: list[Finding] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)
    #: Additional executions, by the fault that explains them.
    explained: dict[str, int] = field(default_factory=dict)
    #: Stories of the first tasks with findings, a line each.
    stories: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.findings

    def count(self, kind: str) -> int:
        """Return how many tasks have a finding of this kind."""
        return len({each.id for each in self.findings if each.kind == kind})


@dataclass(frozen=True)
class Interruption:
    """A strike that met a message while a worker, or the broker, held it."""

    attempt: int
    at: float
    strike: Struck


def check(book: Book, evidence: Evidence) -> Verdict:
    """Return the verdict on a run."""
    verdict = Verdict()
    found = Counter(task for ids in evidence.left.values() for task in ids)
    explained: Counter[str] = Counter()
    for story in book.stories.values():
        interruptions = list(_interruptions(book, story))
        for finding in (
            *_lost(book, story, evidence, found, interruptions),
            *_wrong(book, story, evidence.records.get(story.id)),
            *_early(book, story),
            *_twice(story, interruptions, explained),
            *_blamed(book, story),
            *_rows(book, story, evidence),
        ):
            verdict.findings.append(finding)
    verdict.findings += [Finding("wrong", task, "ran, but was never sent") for task in set(book.strangers)]
    verdict.findings += [
        Finding("lost", queue, f"{count} messages are left") for queue, count in evidence.queues.items()
    ]
    verdict.findings += [*_files(evidence), *_attempts(book, evidence)]
    verdict.explained = dict(explained)
    for task in list(dict.fromkeys(finding.id for finding in verdict.findings if finding.id in book.stories))[
        :DESCRIBED
    ]:
        verdict.stories.append(_describe(book, book.stories[task], evidence))
    verdict.figures = _figures(book, evidence)
    return verdict


def _figures(book: Book, evidence: Evidence) -> dict[str, int]:
    stories = book.stories.values()
    executions = sum(len(story.executions) for story in stories)
    attempts = sum(len({each.attempt for each in story.executions}) for story in stories)
    return {
        "sent": len(stories),
        "confirmed": sum(story.confirmed is not None for story in stories),
        "unknown": sum(story.confirmed is None for story in stories),
        "unknown, and there": sum(story.confirmed is None and bool(story.executions) for story in stories),
        "executions": executions,
        "retries": sum(each.attempt > 0 for story in stories for each in story.executions),
        "run twice": executions - attempts,
        "recovered": sum(record.state == "RECOVERED" for record in evidence.records.values()),
        "exhausted": sum(record.state == "EXHAUSTED" for record in evidence.records.values()),
        "moved to the quarantine queue": sum(len(story.quarantined) for story in stories),
        "strikes": len(book.strikes),
    }


def _describe(book: Book, story: Story, evidence: Evidence) -> str:
    """Return a task's story as text; seconds since it was sent."""
    parts = [f"{story.id} {story.plan.kind} on {story.plan.queue}, to fail {story.plan.fails} times"]
    parts.append("confirmed" if story.confirmed is not None else "not confirmed")
    for each in story.executions:
        end = f"{each.ended - story.sent:.3f} {each.how}" if each.ended is not None else "never"
        parts.append(f"{each.attempt}: {each.began - story.sent:.3f} to {end} in {each.boss}/{each.pid}")
    parts += [f"quarantined {at - story.sent:.3f} by {boss}" for at, boss in story.quarantined]
    last = story.executions[-1].began if story.executions else story.sent
    for strike in book.between(story.sent, book.settled_by(last)):
        parts.append(f"[{strike.name} {strike.since - story.sent:.3f} to {strike.until - story.sent:.3f}]")
    record = evidence.records.get(story.id)
    parts.append(f"row: {record}" if record else "no row")
    return "; ".join(parts)


# -- what strikes met --------------------------------------------------------------------------------------------------


def _interruptions(book: Book, story: Story) -> Iterator[Interruption]:
    for each in story.executions:
        yield from _of_execution(book, story, each)
    for at, boss in story.quarantined:  # a copy was being sent: it and the original may both arrive
        for strike in book.between(at, book.settled_by(at)):
            if strike.effect in _REDELIVERS and strike.meets(boss):
                yield Interruption(-1, max(strike.since, at), strike)
    yield from _while_moved(book, story)


def _of_execution(book: Book, story: Story, each: Execution) -> Iterator[Interruption]:
    until = book.settled_by(each.ended) if each.ended is not None else _death(book, each)
    publishes = story.plan.kind == "changes" and each.how == "fails"
    for strike in book.between(each.received - UNREAD, until):
        if strike.until < each.received and strike.effect not in _DISCONNECTS:
            continue
        child = strike.effect is Effect.CHILD
        met = strike.meets(each.pid) and strike.until >= each.began if child else strike.meets(each.boss)
        if met and strike.effect in (*_ENDS, *(_SILENCES if publishes else ())):
            yield Interruption(each.attempt, max(strike.since, each.received), strike)
            if not publishes:
                return


def _death(book: Book, each: Execution) -> float:
    """Return when the process of an execution without an end died, by the strikes; otherwise its beginning."""
    for strike in book.strikes:
        if strike.until >= each.began and strike.pids is not None and strike.meets(each.pid, each.boss):
            return max(each.began, strike.since)
    return each.began


def _while_moved(book: Book, story: Story) -> Iterator[Interruption]:
    """The broker moves due messages at least once: a broker that goes down meanwhile may move them twice."""
    for attempt in sorted({each.attempt for each in story.executions}):
        since, delay = _due(book, story, attempt)
        if not delay:
            continue
        # An exact delay has a move for each of its bits.
        due = since if story.plan.countdown is not None else since + delay
        for strike in book.between(due, story.at(attempt)[0].began + MOVED):
            if strike.effect is Effect.BROKER:
                yield Interruption(attempt, max(strike.since, due), strike)
                break


# -- lost --------------------------------------------------------------------------------------------------------------


def _lost(
    book: Book, story: Story, evidence: Evidence, left: Counter[str], interruptions: list[Interruption]
) -> Iterator[Finding]:
    record = evidence.records.get(story.id)
    exhausted = record is not None and record.state == "EXHAUSTED"
    done = any(each.how == "ok" for each in story.executions)
    if not done and not exhausted:
        if story.confirmed is None and not story.executions:
            return  # it was unknown whether it was sent, and it was not
        where = (
            f"; it is left in {[queue for queue, ids in evidence.left.items() if story.id in ids]}"
            if left[story.id]
            else ""
        )
        yield Finding("lost", story.id, f"neither done nor exhausted{where}")
    elif exhausted and story.plan.kind != "hopeless" and not _may_be_exhausted(book, story, record, interruptions):
        yield Finding("wrong", story.id, f"exhausted ({record.reason if record else ''}), but its plan is to succeed")


def _may_be_exhausted(book: Book, story: Story, record: Record, interruptions: list[Interruption]) -> bool:
    """A killed pool process costs an attempt; for Celery a result that cannot be stored is a failure."""
    if record.reason == "undeliverable":
        return _was_gone(book, story, record)
    unstored = any(_is_unstored(book, each) for each in story.executions)
    return any(each.strike.effect is Effect.CHILD for each in interruptions) or unstored


def _was_gone(book: Book, story: Story, record: Record | None) -> bool:
    """Return whether a task is exhausted because its queue was gone: then it may have attempts left, or none made."""
    if record is None or record.reason != "undeliverable":
        return False
    return any(strike.effect is Effect.GONE and strike.until >= story.sent for strike in book.strikes)


def _is_unstored(book: Book, each: Execution) -> bool:
    """Return whether the result of an execution may not have been stored."""
    if each.how != "ok" or each.ended is None:
        return False
    return any(strike.effect is Effect.RESULTS for strike in book.between(each.ended, book.settled_by(each.ended)))


# -- wrong -------------------------------------------------------------------------------------------------------------


def _wrong(book: Book, story: Story, record: Record | None) -> Iterator[Finding]:
    seen = {each.attempt for each in story.executions}
    children = [strike for strike in book.strikes if strike.effect is Effect.CHILD]
    for attempt in range(max(seen, default=0)):
        if attempt not in seen:
            after = min(each.began for each in story.executions if each.attempt > attempt)
            if not any(story.sent <= strike.since <= after for strike in children):
                yield Finding("wrong", story.id, f"attempt {attempt} is missing, but later ones exist")
    for each in story.executions:
        if each.ended is None and (book.went_on(each) or not _was_killed(book, each)):
            yield Finding(
                "wrong", story.id, f"attempt {each.attempt} did not end, but process {each.pid} was not killed"
            )
        if each.number is not None:
            killed = sum(other.ended is None for other in story.executions if other.attempt < each.attempt)
            missing = sum(attempt not in seen for attempt in range(each.attempt))
            unsure = len({o.attempt for o in story.executions if o.attempt < each.attempt and _is_unsure(book, o)})
            if not each.attempt - killed - missing - unsure <= each.number <= each.attempt:
                yield Finding("wrong", story.id, f"attempt {each.attempt} has the arguments of {each.number}")
    if story.plan.kind == "hopeless" and seen and not _was_gone(book, story, record):
        yield from _given_up(book, story, max(seen))


def _is_unsure(book: Book, each: Execution) -> bool:
    """Return whether the new message of a retry may have had no confirm: then the old one continues unchanged.

    The same happens if the process is killed before it reports the new message.
    """
    if each.ended is None:
        return False
    published = book.between(each.ended - ANSWERED, each.ended + ANSWERED)
    silenced = any(strike.effect in _SILENCES and strike.meets(each.boss) for strike in published)
    return silenced or any(strike.effect is Effect.CHILD and strike.meets(each.pid) for strike in published)


def _given_up(book: Book, story: Story, last: int) -> Iterator[Finding]:
    """The ladder in force must have no further tier; that of the previous attempt must have had one."""

    def tiers(moment: float) -> set[int]:
        return {len(ladder.tiers[story.plan.queue]) for ladder in book.in_force(moment)}

    now, ends = tiers(story.executions[-1].began), [each.ended for each in story.at(last - 1)]
    if any(each.ended is None for each in story.at(last)):
        return
    was_due = not ends or any(end is None or max(tiers(end)) >= last for end in ends)
    if min(now) > last or not was_due:
        yield Finding("wrong", story.id, f"given up after attempt {last}, but the ladder has {now} tiers")


def _was_killed(book: Book, each: Execution) -> bool:
    return any(
        strike.until >= each.began and strike.pids is not None and strike.meets(each.pid, each.boss)
        for strike in book.strikes
    )


# -- early -------------------------------------------------------------------------------------------------------------


def _early(book: Book, story: Story) -> Iterator[Finding]:
    for each in story.executions:
        since, delay = _due(book, story, each.attempt)
        early = since + delay - each.began
        if early > TOLERANCE:
            yield Finding(
                "early",
                story.id,
                f"attempt {each.attempt} began {early:.3f} s before the end of its delay of {delay:.3f} s",
            )


def _due(book: Book, story: Story, attempt: int) -> tuple[float, float]:
    """Return the earliest time from which an attempt waits, and its shortest delay."""
    if attempt == 0:
        later = story.plan.countdown if story.plan.kind == "called_later" else None
        return story.sent, later or 0.0
    before = story.at(attempt - 1)
    if not before:
        return story.sent, 0.0
    first = min(before, key=lambda each: each.ended or _death(book, each))
    since = first.ended or _death(book, first)
    if story.plan.kind == "waits":
        exact = story.plan.countdown or 0.0
        return since, min(exact, _least_delay(book, story, attempt - 1, since)) if _some_killed(before) else exact
    return since, _least_delay(book, story, attempt - 1, since)


def _some_killed(executions: list[Execution]) -> bool:
    return any(each.ended is None for each in executions)


def _least_delay(book: Book, story: Story, retries: int, since: float) -> float:
    """Return the shortest delay after this many retries, in the ladders that may have been in force."""
    queue = story.plan.queue
    delays = [
        ladder.tiers[queue][min(max(retries, 0), len(ladder.tiers[queue]) - 1)] * (1 - ladder.jitter[queue])
        for ladder in book.in_force(since)
    ]
    return min(delays, default=0.0)


# -- twice -------------------------------------------------------------------------------------------------------------


def _twice(story: Story, interruptions: list[Interruption], explained: Counter[str]) -> Iterator[Finding]:
    succeeded = min((each.ended for each in story.executions if each.how == "ok" and each.ended), default=float("inf"))
    first_ok = min((each.attempt for each in story.executions if each.how == "ok"), default=0)
    for attempt in {each.attempt for each in story.executions}:
        runs = story.at(attempt)
        after_success = attempt > first_ok and runs[0].began > succeeded
        extras = runs if after_success else runs[1:]
        causes = sorted((each for each in interruptions if each.attempt <= attempt), key=lambda each: each.at)
        for number, extra in enumerate(extras):
            fitting = [cause for cause in causes if cause.at <= extra.began]
            if number < len(fitting):
                explained[fitting[number].strike.name] += 1
            else:
                yield Finding("twice", story.id, f"attempt {attempt} ran {len(runs)} times, but no strike explains it")
                break


# -- blamed ------------------------------------------------------------------------------------------------------------


def _blamed(book: Book, story: Story) -> Iterator[Finding]:
    for at, boss in story.quarantined:
        if not any(strike.effect in _REDELIVERS for strike in book.between(story.sent - NOTICED, at)):
            yield Finding("blamed", story.id, f"moved to the quarantine queue by {boss}, but no strike explains it")


# -- rows and files ----------------------------------------------------------------------------------------------------


def _rows(book: Book, story: Story, evidence: Evidence) -> Iterator[Finding]:
    record = evidence.records.get(story.id)
    done = [each for each in story.executions if each.how == "ok"]
    failed = [each for each in story.executions if each.how != "ok"]
    if record is None:
        reported = [each for each in failed if not _may_lack_event(book, each)]
        if reported:
            yield Finding("rows", story.id, f"no row, but attempt {reported[0].attempt} failed")
    elif not story.executions and not _was_gone(book, story, record):
        yield Finding("rows", story.id, f"a row ({record.state}) of a task that never ran")
    elif record.state == "RECOVERED":
        if record.attempt not in {each.attempt for each in done}:
            yield Finding("rows", story.id, f"recovered at attempt {record.attempt}, which did not succeed")
    elif record.state == "EXHAUSTED":
        if story.executions and record.attempt not in {each.attempt for each in story.executions}:
            yield Finding("rows", story.id, f"exhausted at attempt {record.attempt}, which was not made")
    elif record.state in ("PARKED", "RUNNING"):
        if not any(_may_lack_event(book, each) for each in done):
            yield Finding("rows", story.id, f"{record.state} at attempt {record.attempt}, but the run has ended")
    else:
        yield Finding("rows", story.id, f"unexpected state {record.state}")


def _may_lack_event(book: Book, each: Execution) -> bool:
    """Return whether a strike may have lost the event of an execution, in transit or with its worker."""
    end = each.ended if each.ended is not None else _death(book, each)
    return any(
        strike.effect in _ENDS and strike.meets(each.boss, each.pid)
        for strike in book.between(each.began, book.settled_by(end) + EVENT_WAITS)
    )


def _files(evidence: Evidence) -> Iterator[Finding]:
    """Compare the attempts of tables and files with each other."""
    rows, files = ({each[0]: each for each in reported} for reported in (evidence.attempts, evidence.history))
    for event in rows.keys() - files.keys():
        yield Finding("files", rows[event][1], f"{rows[event][2]} {rows[event][3]} is in the tables, but in no file")
    for event in files.keys() - rows.keys():
        yield Finding("files", files[event][1], f"{files[event][2]} {files[event][3]} is in a file, but in no table")


def _attempts(book: Book, evidence: Evidence) -> Iterator[Finding]:
    """Compare the attempts in the tables with the executions."""
    reported: dict[str, set[tuple[str, int]]] = {}
    for _, task, kind, attempt in evidence.attempts:
        reported.setdefault(task, set()).add(("parked" if kind == "forwarded" else kind, attempt))
    for task in reported.keys() - book.stories.keys():
        yield Finding("rows", task, "the tables have attempts of a task that was never sent")
    for story in book.stories.values():
        recorded = reported.get(story.id, set())
        never_ran = not story.executions and _was_gone(book, story, evidence.records.get(story.id))
        for kind, attempt in recorded:
            hows = [each.how for each in story.at(attempt)]
            if not (_can_be(kind, hows) or (never_ran and (kind, attempt) == ("exhausted", 0))):
                yield Finding("rows", story.id, f"{kind} {attempt}, but that attempt ended {hows or 'never'}")
        for attempt in {each.attempt for each in story.executions}:
            yield from _unreported(book, story.id, attempt, story.at(attempt), recorded)


def _can_be(kind: str, hows: list[Any]) -> bool:
    if kind == "recovered":
        return "ok" in hows
    if kind == "parked":
        return "fails" in hows or "" in hows or "ok" in hows
    return kind == "exhausted" and bool(hows)


def _unreported(
    book: Book, task: str, attempt: int, runs: list[Execution], recorded: set[tuple[str, int]]
) -> Iterator[Finding]:
    wanted = {"recovered"} if any(each.how == "ok" for each in runs) and attempt else set()
    if wanted and any(_is_unstored(book, each) for each in runs):
        wanted |= {"exhausted"}
    if all(each.how == "fails" for each in runs):
        wanted = {"parked", "exhausted"}
    if (
        wanted
        and not any((kind, attempt) in recorded for kind in wanted)
        and not any(_may_lack_event(book, e) for e in runs)
    ):
        yield Finding("rows", task, f"attempt {attempt} ended {runs[-1].how}, but no row has it")


__all__ = ["SETTLE", "TOLERANCE", "Finding", "Interruption", "Verdict", "check"]
