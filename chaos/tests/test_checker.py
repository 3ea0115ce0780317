"""The checker finds each kind of defect, and nothing in correct or explained runs."""

from __future__ import annotations

import pytest

from chaos.book import SETTLE
from chaos.checker import EVENT_WAITS, NOTICED
from chaos.plans import NEVER
from chaos.strikes import Effect
from chaos.tales import TIERS, Tale, exhausted, recovered

ALL = [effect for effect in Effect if effect is not Effect.GONE]


def test_good_histories_have_no_findings() -> None:
    assert recovered().found() == []
    assert exhausted().found() == []
    assert Tale().sent(fails=0).ran(0, 100.1, "ok").found() == []


def test_figures_are_counted() -> None:
    figures = recovered().judged().figures
    assert (figures["sent"], figures["confirmed"], figures["executions"], figures["retries"]) == (1, 1, 2, 1)


# -- lost --------------------------------------------------------------------------------------------------------------


def test_a_confirmed_task_that_never_ran_is_lost() -> None:
    assert Tale().sent().found() == ["lost"]


def test_a_task_that_failed_and_did_not_come_back_is_lost() -> None:
    tale = Tale().sent().ran(0, 100.5).reported("parked", 0)
    assert tale.found() == ["lost", "rows"]
    assert "lost" in tale.row("PARKED", 0).found()


def test_a_hopeless_task_that_is_in_no_table_is_lost() -> None:
    tale = exhausted()
    tale.evidence.records.clear()
    assert "lost" in tale.found()


def test_messages_that_are_left_are_lost() -> None:
    tale = recovered()
    tale.evidence.queues["quorum"], tale.evidence.left["quorum"] = 1, ["other"]
    assert tale.found() == ["lost"]


def test_an_unconfirmed_task_is_complete_or_missing_but_not_half_done() -> None:
    assert Tale().sent(confirmed=False).found() == []
    assert Tale().sent(confirmed=False, fails=0).ran(0, 100.1, "ok").found() == []
    assert "lost" in Tale().sent(confirmed=False).ran(0, 100.5).reported("parked", 0).found()


# -- early -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("queue", "delay", "found"), [("quorum", 0.99, ["early"]), ("quorum", 1.0, []),
                                                      ("classic", 0.79, ["early"]), ("classic", 0.8, [])])  # fmt: skip
def test_a_retry_before_its_delay_is_over_is_early(queue: str, delay: float, found: list[str]) -> None:
    tale = Tale().sent(queue=queue).ran(0, 100.0, ended=100.5).ran(1, 100.5 + delay, "ok")
    assert tale.row("RECOVERED", 1).reported("parked", 0).reported("recovered", 1).found() == found


@pytest.mark.parametrize("kind", ["waits", "called_later"])
def test_exact_delays_are_never_early(kind: str) -> None:
    for late, found in ((-0.02, ["early"]), (0.0, [])):
        tale = Tale().sent(kind=kind, countdown=2.5, fails=1 if kind == "waits" else 0)
        if kind == "waits":
            tale.ran(0, 100.1, ended=100.2).reported("parked", 0).ran(1, 102.7 + late, "ok").reported("recovered", 1)
            tale.row("RECOVERED", 1)
        else:
            tale.ran(0, 102.5 + late, "ok")
        assert tale.found() == found


def test_a_killed_process_cannot_have_its_task_retried_at_once() -> None:
    tale = Tale().sent(fails=0).ran(0, 100.0, None).struck(Effect.CHILD, 100.4, pids=[11])
    tale.ran(1, 100.9, "ok", pid=12).row("RECOVERED", 1).reported("parked", 0).reported("recovered", 1)
    assert tale.found() == ["early"]


def test_the_shorter_of_two_ladders_that_may_be_in_force_counts() -> None:
    tale = recovered()
    tale.lines[0]["until"] = 100.2
    other = {queue: {"tiers": ["2000ms"] * 4, "jitter": 0.0} for queue in ("classic", "quorum")}
    tale.lines.append({"kind": "ladder", "at": 0.0, "since": 100.0, "until": None, "settings": other})
    assert tale.found() == ["early"]
    tale.lines[0]["until"] = 100.6
    assert tale.found() == []


# -- twice -------------------------------------------------------------------------------------------------------------


def run_again() -> Tale:
    """Return a task that ran again, whose first attempt a strike may have interrupted."""
    tale = Tale().sent(fails=0).ran(0, 100.5, "ok", ended=101.0)
    return tale.ran(0, 103.0, "ok", pid=22, boss=2)


def test_an_execution_too_many_without_a_strike_is_found() -> None:
    assert run_again().found() == ["twice"]


@pytest.mark.parametrize("effect", [Effect.WORKER, Effect.CONNECTION, Effect.BROKER])
def test_a_strike_that_met_the_worker_explains_it(effect: Effect) -> None:
    pids = None if effect is Effect.BROKER else [1, 11]
    verdict = run_again().struck(effect, 100.8, pids=pids).judged()
    assert verdict.good
    assert verdict.explained == {effect.value: 1}


@pytest.mark.parametrize("effect", ALL)
def test_a_strike_on_another_worker_does_not(effect: Effect) -> None:
    assert run_again().struck(effect, 100.8, pids=[3, 33]).found() == ["twice"]


@pytest.mark.parametrize("effect", [Effect.WORKER, Effect.CONNECTION, Effect.BROKER])
@pytest.mark.parametrize("at", [100.2, 101.0 + SETTLE + 1])
def test_a_strike_at_another_time_does_not(effect: Effect, at: float) -> None:
    tale = Tale().sent(at=100, fails=0).ran(0, 100.5, "ok", ended=101.0).ran(0, 120.0, "ok", pid=22, boss=2)
    assert tale.struck(effect, at, pids=[1, 11]).found() == ["twice"]


def test_a_worker_may_run_messages_it_received_before_it_lost_its_connection() -> None:
    for received, found in ((100.1, []), (100.4, ["twice"])):
        tale = Tale().sent(fails=0).ran(0, 100.5, "ok", received=received).ran(0, 103.0, "ok", pid=22, boss=2)
        assert tale.struck(Effect.CONNECTION, 100.2, pids=[1, 11]).found() == found


def test_a_worker_may_read_messages_sent_just_before_it_lost_its_connection() -> None:
    for effect, received, found in (
        (Effect.CONNECTION, 100.45, []),
        (Effect.BROKER, 100.45, []),
        (Effect.WORKER, 100.45, ["twice"]),
        (Effect.CONNECTION, 100.55, ["twice"]),
    ):
        tale = Tale().sent(fails=0).ran(0, 100.6, "ok", received=received).ran(0, 103.0, "ok", pid=22, boss=2)
        assert tale.struck(effect, 100.2, 100.4, pids=[1, 11]).found() == found


def test_a_strike_after_the_second_execution_does_not() -> None:
    assert run_again().struck(Effect.WORKER, 104.0, pids=[1, 11]).found() == ["twice"]


@pytest.mark.parametrize(
    "effect", [Effect.CHILD, Effect.STALL, Effect.ALARM, Effect.ORDERLY, Effect.RESULTS, Effect.NONE]
)
def test_a_strike_that_redelivers_nothing_explains_nothing(effect: Effect) -> None:
    pids = [11] if effect is Effect.CHILD else None
    tale = run_again().struck(effect, 101.5, pids=pids)
    assert tale.found() == (["twice"] if effect is not Effect.CHILD else [])


def test_a_worker_that_stops_warmly_in_an_alarm_explains_it() -> None:
    for alarm, found in ((100.9, []), (101.2, ["blamed", "twice"])):
        tale = run_again().struck(Effect.ORDERLY, 100.8, 101.0, pids=[1, 11]).quarantined(102.9)
        assert tale.struck(Effect.ALARM, alarm, alarm + 0.05).found() == found


def test_each_silence_doubles_a_retry_that_the_task_publishes() -> None:
    for kind, found in (("changes", []), ("advances", ["twice"])):
        tale = Tale().sent(kind=kind).ran(0, 100.5, number=0).reported("parked", 0)
        for at in (101.6, 103.6, 105.6):
            tale.ran(1, at, "ok", number=1)
        tale.row("RECOVERED", 1).reported("recovered", 1)
        tale.struck(Effect.ALARM, 100.5, 104.0).struck(Effect.CONNECTION, 101.0, pids=[1, 11])
        assert tale.found() == found


def test_a_stall_before_settling_leaves_more_time_for_a_strike() -> None:
    late = 101.0 + SETTLE + 5
    tale = Tale().sent(fails=0).ran(0, 100.5, "ok", ended=101.0).ran(0, late + 1, "ok", pid=22, boss=2)
    tale.struck(Effect.WORKER, late, pids=[1])
    assert tale.found() == ["twice"]
    assert tale.struck(Effect.STALL, 102.0, 108.0).found() == []


def test_one_strike_explains_one_execution_more_of_each_attempt_and_no_other() -> None:
    tale = run_again().struck(Effect.WORKER, 100.8, pids=[1, 11])
    assert tale.ran(0, 105.0, "ok", pid=23, boss=2).found() == ["twice"]


def test_two_strikes_explain_two() -> None:
    tale = run_again().struck(Effect.WORKER, 100.8, pids=[1, 11]).struck(Effect.WORKER, 103.005, pids=[2, 22])
    assert tale.ran(0, 105.0, "ok", pid=33, boss=3).found() == []


def test_a_copy_to_quarantine_that_a_strike_met_may_be_doubled() -> None:
    tale = Tale().sent(fails=0).struck(Effect.WORKER, 100.1, pids=[3]).quarantined(100.2)
    tale.ran(0, 100.5, "ok").ran(0, 100.9, "ok", pid=22, boss=2)
    assert tale.found() == ["twice"]
    assert tale.struck(Effect.WORKER, 100.3, pids=[1]).found() == []


def test_a_broker_that_goes_down_while_it_moves_due_messages_may_double_them() -> None:
    tale = recovered().ran(1, 102.5, "ok", pid=22, boss=2)
    assert tale.found() == ["twice"]
    assert tale.struck(Effect.BROKER, 101.55).found() == []


def test_a_run_after_a_success_is_found() -> None:
    tale = Tale().sent(fails=0).ran(0, 100.5, "ok").ran(1, 102.0, "ok", pid=12).reported("recovered", 1)
    assert tale.row("RECOVERED", 1).found() == ["twice"]
    assert tale.struck(Effect.CHILD, 100.6, pids=[11]).found() == []


# -- wrong -------------------------------------------------------------------------------------------------------------


def test_an_execution_without_an_end_needs_a_kill() -> None:
    tale = Tale().sent(fails=0).ran(0, 100.5, None).ran(0, 103.0, "ok", pid=22, boss=2)
    assert tale.found() == ["rows", "twice", "wrong"]
    assert tale.struck(Effect.WORKER, 100.8, pids=[1, 11]).found() == []


def test_a_process_that_goes_on_was_not_killed() -> None:
    tale = Tale().sent(fails=0).ran(0, 100.5, None).ran(1, 103.0, "ok", pid=22, boss=2)
    tale.reported("parked", 0).reported("recovered", 1).row("RECOVERED", 1)
    tale.sent(task="other", fails=0).ran(0, 101.0, "ok", task="other")
    assert tale.struck(Effect.CHILD, 101.8, pids=[11]).found() == ["wrong"]


def test_an_attempt_that_was_left_out_is_found() -> None:
    tale = Tale().sent(fails=2).ran(0, 100.5).ran(2, 105.0, "ok").row("RECOVERED", 2)
    assert tale.reported("parked", 0).reported("recovered", 2).found() == ["wrong"]


def test_a_task_given_up_too_soon_or_too_late_is_found() -> None:
    tale = Tale().sent(kind="hopeless", fails=NEVER).ran(0, 100.5).reported("exhausted", 0).row("EXHAUSTED", 0)
    assert tale.found() == ["wrong"]
    late = exhausted().ran(len(TIERS) + 1, 120.0).reported("exhausted", len(TIERS) + 1)
    assert "wrong" in late.row("EXHAUSTED", len(TIERS) + 1).found()


def test_a_ladder_that_became_shorter_while_a_task_waited_gives_it_up_later() -> None:
    tale = exhausted()
    shorter = {queue: {"tiers": ["1000ms", "2000ms"], "jitter": 0.0} for queue in ("classic", "quorum")}
    tale.lines[0]["until"] = 105.0
    tale.lines.append({"kind": "ladder", "at": 0.0, "since": 104.0, "until": None, "settings": shorter})
    assert tale.found() == ["wrong"], "attempt 3, of the shorter ladder, was the last one"
    tale.lines[0]["until"], tale.lines[-1]["since"] = 109.0, 108.0 + SETTLE
    assert tale.found() == []


def test_a_result_that_cannot_be_stored_ends_a_recovered_task_among_the_exhausted() -> None:
    tale = (
        Tale()
        .sent()
        .ran(0, 100.5)
        .ran(1, 101.6, "ok")
        .reported("parked", 0)
        .reported("exhausted", 1)
        .row("EXHAUSTED", 1)
    )
    assert tale.found() == ["rows", "wrong"]
    assert tale.struck(Effect.RESULTS, 101.5, 103.0).found() == []


def test_only_a_queue_that_was_gone_meanwhile_makes_a_parked_task_undeliverable() -> None:
    tale = (
        Tale()
        .sent()
        .ran(0, 100.5)
        .reported("parked", 0)
        .reported("exhausted", 0)
        .row("EXHAUSTED", 0, reason="undeliverable")
    )
    assert tale.struck(Effect.GONE, 90.0).found() == ["wrong"]
    assert tale.struck(Effect.GONE, 101.2, 103.0).found() == []


def test_tasks_with_attempts_left_are_exhausted_only_while_their_queue_is_gone() -> None:
    never = Tale().sent().reported("exhausted", 0).row("EXHAUSTED", 0, reason="undeliverable")
    assert "rows" in never.struck(Effect.GONE, 90.0).found()
    assert never.struck(Effect.GONE, 101.2, 103.0).found() == []
    early = Tale().sent(kind="hopeless").ran(0, 100.5).reported("parked", 0).reported("exhausted", 0)
    early.row("EXHAUSTED", 0, reason="undeliverable")
    assert early.struck(Effect.GONE, 90.0).found() == ["wrong"]
    assert early.struck(Effect.GONE, 101.2, 103.0).found() == []


def test_a_task_that_would_have_ended_well_and_is_exhausted_is_found() -> None:
    tale = Tale().sent(fails=0).ran(0, 100.5, "ok").reported("exhausted", 0).row("EXHAUSTED", 0)
    assert tale.found() == ["wrong"]
    assert tale.struck(Effect.RESULTS, 100.4, 102.0).found() == []


def test_arguments_of_another_attempt_are_found() -> None:
    for number, found in ((0, ["wrong"]), (1, []), (2, ["wrong"])):
        tale = Tale().sent(kind="changes").ran(0, 100.5, number=0).ran(1, 101.6, "ok", number=number)
        assert tale.reported("parked", 0).reported("recovered", 1).row("RECOVERED", 1).found() == found


@pytest.mark.parametrize("effect", ALL)
def test_a_retry_without_a_confirm_may_go_on_with_the_arguments_it_had(effect: Effect) -> None:
    silent = effect in {Effect.BROKER, Effect.CONNECTION, Effect.STALL, Effect.ALARM}
    for since, number, found in ((100.2, 0, [] if silent else ["wrong"]), (98.0, 0, ["wrong"]), (100.2, 1, [])):
        tale = Tale().sent(kind="changes").ran(0, 100.5, number=0).ran(1, 101.6, "ok", number=number)
        tale.reported("parked", 0).reported("recovered", 1).row("RECOVERED", 1)
        assert tale.struck(effect, since, since + 0.5, pids=[1]).found() == found


def test_a_process_killed_while_it_publishes_may_leave_the_retry_unchanged() -> None:
    for since, pid, found in ((100.7, 11, []), (100.7, 12, ["wrong"]), (98.0, 11, ["wrong"])):
        tale = Tale().sent(kind="changes").ran(0, 100.5, number=0).ran(1, 101.6, "ok", number=0, pid=13)
        tale.reported("parked", 0).reported("recovered", 1).row("RECOVERED", 1)
        assert tale.struck(Effect.CHILD, since, since + 0.1, pids=[pid]).found() == found


def test_a_task_that_ran_and_was_never_sent_is_found() -> None:
    assert recovered().ran(0, 100.0, "ok", task="stranger").found() == ["wrong"]


# -- blamed ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ALL)
def test_a_quarantine_needs_a_strike_that_ended_a_worker_or_a_connection(effect: Effect) -> None:
    ends = effect in (Effect.WORKER, Effect.CONNECTION, Effect.BROKER)
    assert ("blamed" in recovered().quarantined(101.0).struck(effect, 100.8).found()) is not ends
    assert "blamed" in recovered().quarantined(101.0).struck(effect, 101.1).found()
    assert "blamed" in recovered().quarantined(101.0).struck(effect, 99.0).found()
    just_before = 99.99 - NOTICED / 2  # the broker sends new messages to a lost worker until it notices the loss
    assert ("blamed" in recovered().quarantined(101.0).struck(effect, just_before).found()) is not ends


# -- rows and files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "attempt"),
    [("PARKED", 0), ("RUNNING", 0), ("RECOVERED", 0), ("RECOVERED", 2), ("DISCARDED", 1), ("REQUEUED", 1)],
)
def test_a_row_with_another_outcome_is_found(state: str, attempt: int) -> None:
    assert recovered().row(state, attempt).found() == ["rows"]


def test_a_row_that_is_missing_is_found() -> None:
    tale = recovered()
    tale.evidence.records.clear()
    assert tale.found() == ["rows"]


def test_a_row_of_a_task_that_never_ran_is_found() -> None:
    assert Tale().sent(confirmed=False).row("RECOVERED", 0).found() == ["rows"]


def test_an_attempt_without_a_row_is_found() -> None:
    tale = recovered()
    tale.evidence.attempts.pop(0), tale.evidence.history.pop(0)
    assert tale.found() == ["rows"]


@pytest.mark.parametrize("reported", [("recovered", 0), ("exhausted", 7), ("parked", 2)])
def test_a_row_of_an_attempt_that_was_not_made_is_found(reported: tuple[str, int]) -> None:
    assert recovered().reported(*reported).found() == ["rows"]


def test_an_event_that_a_strike_can_have_cost_is_not_missed() -> None:
    tale = recovered().row("PARKED", 0)
    tale.evidence.attempts.pop(), tale.evidence.history.pop()
    assert tale.found() == ["rows"]
    assert tale.struck(Effect.WORKER, 101.7, pids=[1, 11]).found() == []


def test_a_strike_long_after_costs_no_event() -> None:
    tale = recovered().row("PARKED", 0).struck(Effect.WORKER, 101.7 + SETTLE + EVENT_WAITS + 5, pids=[1])
    tale.evidence.attempts.pop(), tale.evidence.history.pop()
    assert tale.found() == ["rows"]


def test_tables_and_files_have_the_same() -> None:
    assert recovered().reported("exhausted", 1, rows=False).found() == ["files"]
    tale = recovered()
    tale.evidence.history.pop()
    assert tale.found() == ["files"]
    doubled = recovered()
    doubled.evidence.history *= 2  # a file may be written twice
    assert doubled.found() == []
