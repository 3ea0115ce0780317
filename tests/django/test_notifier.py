"""Alerts: grouped, throttled, to a real mail server and a real webhook, and never in the collector's way."""

import logging
import time
from types import SimpleNamespace
from typing import Any

import django
import pytest
from django.test import override_settings
from django.urls import resolve

from celery_rmq_delay.contrib.django import signals
from celery_rmq_delay.contrib.django.alerts import notifier, outbox
from celery_rmq_delay.contrib.django.alerts.notifier import notifying
from celery_rmq_delay.contrib.django.conf import conf
from celery_rmq_delay.contrib.django.models import FailureGroup, TaskRecord, TaskState
from celery_rmq_delay.contrib.django.signals import announce
from celery_rmq_delay.exceptions import SettingsError
from celery_rmq_delay.redaction import REDACTED
from celery_rmq_delay.testing.servers.host import free_port
from tests.support.corpus import corpus
from tests.support.django.receivers import mail_server, webhook
from tests.support.django.records import group, record
from tests.support.waiting import wait_for

BACKEND = "django.core.mail.backends.smtp.EmailBackend"


@pytest.fixture(autouse=True)
def quick(monkeypatch, sqlite):
    """Let alerts wait only a moment for others and for another try."""
    monkeypatch.setattr(outbox, "SETTLE", 0.2)
    monkeypatch.setattr(outbox, "RETRY_AFTER", 0.2)


@pytest.fixture
def mail():
    with (
        mail_server(free_port()) as server,
        override_settings(**mail_settings(server.port), EMAIL_SUBJECT_PREFIX="[shop] "),
    ):
        yield server


def mail_settings(port):
    """Return the settings of this version of Django by which mail goes to a port of this machine."""
    if django.VERSION >= (6, 1):
        mailer = {"BACKEND": BACKEND, "OPTIONS": {"host": "127.0.0.1", "port": port}}
        return {"ADMINS": ["ops@example.org"], "MAILERS": {"default": mailer}}
    return {
        "ADMINS": ["ops@example.org"] if django.VERSION >= (6, 0) else [("Ops", "ops@example.org")],
        "EMAIL_BACKEND": BACKEND,
        "EMAIL_HOST": "127.0.0.1",
        "EMAIL_PORT": port,
    }


@pytest.fixture
def hook():
    with webhook() as found:
        yield found


def notify(**settings):
    return override_settings(RMQ_DELAY={"NOTIFY": settings})


def fail(count=1, **given):
    """Store exhausted tasks and announce them as the collector does."""
    found = [record(reason="retries_used", **given) for _ in range(count)]
    announce((TaskState.EXHAUSTED, each.task_id, None) for each in found)
    return found


def alerts(hook):
    return [(alert["exception_type"], alert["count"]) for post in hook.posts for alert in post["alerts"]]


def test_a_burst_is_one_mail_with_a_paragraph_per_failure_group(mail, monkeypatch):
    monkeypatch.setattr(outbox, "SETTLE", 60.0)
    timeouts, refused = group(frame="orders/gateway.py:charge"), group(exception_type="shop.Refused", message="")
    with notify(mail=True), notifying():
        fail(3, failure_group=timeouts)
        fail(12, failure_group=refused)
        (last,) = fail(failure_group=timeouts, name="orders.tasks.charge", queue="payments")
    (found,) = mail.mails
    assert found["To"] == "ops@example.org"
    assert found["Subject"] == "[shop] 16 tasks exhausted in 2 failure groups"
    text = found.get_content().replace("\r\n", "\n")
    first, second = text.split("\n\n")
    assert first.startswith("12 exhausted: shop.Refused\n")
    assert second.startswith("4 exhausted: requests.Timeout: no answer in <n> s\n  since 20")
    assert "UTC, in orders/gateway.py:charge\n" in second
    assert f"last: orders.tasks.charge[{last.task_id}] of queue payments (retries_used)" in second


def test_the_subject_of_one_group_names_its_error(mail):
    with notify(mail=True), notifying():
        fail(failure_group=group(message="line\r\nBcc: all@example.org " + "x" * 1000))
    (found,) = mail.mails
    subject = " ".join(found["Subject"].split())  # Django 6.1 breaks the line before the long word
    assert subject.startswith("[shop] 1 task exhausted: requests.Timeout: line Bcc: all@example.org xxx")
    assert len(subject) < 170
    assert found["Bcc"] is None


def test_a_webhook_gets_text_for_people_and_data_for_programs(hook):
    failed = group(frame="orders/gateway.py:charge")
    with notify(webhook=hook.url), notifying():
        (task,) = fail(failure_group=failed)
    (post,) = hook.posts
    assert post["text"].startswith("1 task exhausted: requests.Timeout")
    (alert,) = post["alerts"]
    assert alert.pop("since").endswith("+00:00")
    assert alert == {
        "kind": "exhausted",
        "count": 1,
        "task": "payments.charge",
        "queue": "payments",
        "task_id": task.task_id,
        "reason": "retries_used",
        "exception_type": "requests.Timeout",
        "message": "no answer in <n> s",
        "frame": "orders/gateway.py:charge",
        "fingerprint": failed.fingerprint,
        "url": "",
    }


def test_alerts_link_to_the_group_or_the_list_or_the_task(hook, mail):
    failed = group()
    ran_again = record(TaskState.DISCARDED)  # an alert by default
    site = "https://shop.example/admin"
    with notify(webhook=hook.url, mail=True, admin_url=f"{site}/"), notifying():
        fail(failure_group=failed)
        fail()
        signals.task_ran_after_discard.send(sender=TaskRecord, record=ran_again)
    sent = [alert for post in hook.posts for alert in post["alerts"]]
    assert "1 ran again after discard: payments.charge" in "".join(post["text"] for post in hook.posts)
    assert sorted(alert["kind"] for alert in sent) == ["discarded_ran", "exhausted", "exhausted"]
    urls = {alert["url"] for alert in sent}
    assert urls == {
        f"{site}/rmq_delay/failuregroup/{failed.pk}/change/",
        f"{site}/rmq_delay/exhaustedtask/",
        f"{site}/rmq_delay/taskrecord/{ran_again.pk}/change/",
    }
    mails = "".join(each.get_content() for each in mail.mails)
    assert all(url in mails for url in urls)
    for url in urls:
        assert resolve(url.removeprefix("https://shop.example")).app_name == "admin"


def test_a_message_for_slack_has_blocks_with_links_and_no_other_keys(hook):
    failed = group(message="<!channel> <https://evil.example|click> & more")
    with notify(webhook=hook.url, format="slack", admin_url="https://shop.example/admin/"), notifying():
        fail(3, failure_group=failed)
    (post,) = hook.posts
    assert set(post) == {"text", "blocks"}
    (block,) = post["blocks"]
    assert block["type"] == "section"
    assert block["text"]["type"] == "mrkdwn"
    text = block["text"]["text"]
    assert text.startswith(
        "*3 exhausted: requests.Timeout: &lt;!channel&gt; &lt;https://evil.example|click&gt; &amp; more*"
    )
    assert f"<https://shop.example/admin/rmq_delay/failuregroup/{failed.pk}/change/|Open in the admin>" in text
    assert "<!" not in post["text"] + text


def test_a_message_for_slack_keeps_its_limits(hook):
    with notify(webhook=hook.url, format="slack"), notifying():
        for _ in range(60):
            fail(failure_group=group(message="<" * 500, frame="x" * 255))
    blocks = [each for post in hook.posts for each in post["blocks"]]
    assert all(len(post["blocks"]) <= 50 for post in hook.posts)
    assert all(len(each["text"]["text"]) <= 3_000 for each in blocks)


def test_no_alert_has_a_secret_in_any_of_its_texts(hook):
    with notify(webhook=hook.url), notifying():
        fail(failure_group=group(exception_type="", message="password=hunter2"))
        wait_for(lambda: hook.posts)
    (post,) = hook.posts
    assert post["alerts"][0]["message"] == f"password={REDACTED}"
    assert "hunter2" not in str(post)


def test_a_group_alerts_once_per_interval_with_the_count_since_the_last_alert(hook, monkeypatch):
    timeouts, refused = group(), group(exception_type="shop.Refused")
    with notify(webhook=hook.url, every_minutes=30), notifying():
        fail(failure_group=timeouts)
        wait_for(lambda: len(hook.posts) == 1, "the first alert")
        for _ in range(5):
            fail(failure_group=timeouts)
        fail(failure_group=refused)
        wait_for(lambda: len(hook.posts) == 2, "the other group")
        assert alerts(hook)[1:] == [("shop.Refused", 1)]
        monkeypatch.setattr(outbox, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 30 * 60))
        fail(failure_group=group(exception_type="shop.Lost"))
        wait_for(lambda: len(alerts(hook)) == 4, "the rest of the first group")
    assert sorted(alerts(hook)[2:]) == [("requests.Timeout", 5), ("shop.Lost", 1)]


def test_only_the_configured_kinds_send_alerts(hook):
    parked, recovered = (record(state, failure_group=group()) for state in (TaskState.PARKED, TaskState.RECOVERED))
    with notify(webhook=hook.url, kinds=["recovered", "parked"]), notifying():
        fail(failure_group=group())
        announce([(TaskState.PARKED, parked.task_id, None), (TaskState.RECOVERED, recovered.task_id, None)])
    kinds = sorted(alert["kind"] for post in hook.posts for alert in post["alerts"])
    assert kinds == ["parked", "recovered"]


def test_a_muted_group_sends_no_alerts(hook, mail):
    muted = group(muted=True)
    with notify(webhook=hook.url, mail=True), notifying():
        fail(5, failure_group=muted)
    assert (hook.posts, mail.mails) == ([], [])
    FailureGroup.objects.update(muted=False)
    with notify(webhook=hook.url, mail=True), notifying():
        fail(failure_group=muted)
    assert (alerts(hook), len(mail.mails)) == ([("requests.Timeout", 1)], 1)


def test_tasks_without_an_exception_are_grouped_by_name_and_reason(hook):
    with notify(webhook=hook.url), notifying():
        fail(2)
        fail(name="orders.import")
    alerted = sorted((alert["task"], alert["count"]) for post in hook.posts for alert in post["alerts"])
    assert alerted == [("orders.import", 1), ("payments.charge", 2)]


def test_a_webhook_that_hangs_never_holds_the_collector_up(hook, monkeypatch):
    monkeypatch.setattr(notifier, "TIMEOUT", 600.0)  # waiting for it would never reach the last line
    hook.hold.clear()
    with notify(webhook=hook.url), notifying():
        fail(failure_group=group())
        wait_for(lambda: hook.asked, "the webhook to hang")
        for _ in range(49):
            fail(failure_group=group())
        hook.hold.set()
        wait_for(lambda: sum(count for _, count in alerts(hook)) == 50, "all of them")


@pytest.mark.parametrize("way", ["hangs", "drips"])
def test_a_webhook_that_never_finishes_is_left_after_the_timeout(hook, way, monkeypatch, caplog):
    monkeypatch.setattr(notifier, "TIMEOUT", 1.0)
    if way == "hangs":
        hook.hold.clear()
    else:
        hook.drips = True
    with notify(webhook=hook.url), notifying():
        fail(failure_group=group())
        wait_for(lambda: "cannot be sent by webhook" in caplog.text, "the error in the log")
        assert "did not answer within 1 s" in caplog.text or "TimeoutError" in caplog.text
        assert "secret-path" not in caplog.text
        hook.drips = False
        hook.hold.set()
        wait_for(lambda: hook.posts, "the alert")


def test_a_webhook_is_called_through_the_proxy_of_the_environment(hook, monkeypatch):
    monkeypatch.setenv("http_proxy", hook.url)
    monkeypatch.delenv("no_proxy", raising=False)
    with notify(webhook="http://alerts.example/hook"), notifying():
        fail(failure_group=group())
        wait_for(lambda: hook.posts, "the alert")
    assert hook.paths == ["http://alerts.example/hook"]


def test_user_and_password_of_a_webhook_are_sent_as_a_header(hook):
    with notify(webhook=hook.url.replace("://", "://ann:p%40ss@")), notifying():
        fail(failure_group=group())
        wait_for(lambda: hook.posts, "the alert")
    assert hook.authorizations == ["Basic YW5uOnBAc3M="]


@pytest.mark.parametrize("status", [500, 404, 301])
def test_a_webhook_that_fails_is_logged_once_and_tried_until_it_answers(hook, status, caplog):
    hook.status = status
    caplog.set_level(logging.WARNING)
    with notify(webhook=hook.url), notifying():
        fail(2, failure_group=(failed := group()))
        wait_for(lambda: "cannot be sent" in caplog.text, "the error in the log")
        fail(3, failure_group=failed)
        tries = hook.asked
        wait_for(lambda: hook.asked > tries + 1, "a try with all five")
        hook.status = 200
        wait_for(lambda: hook.posts, "the alert")
        wait_for(lambda: "can be sent by webhook again" in caplog.text, "the recovery in the log")
    assert alerts(hook) == [("requests.Timeout", 5)]
    assert caplog.text.count("cannot be sent") == 1
    assert f"answered with status {status}" in caplog.text
    assert "secret-path" not in caplog.text
    assert not hook.followed


def test_alerts_are_sent_by_the_other_channel_when_one_fails(hook):
    with override_settings(**mail_settings(free_port())), notify(mail=True, webhook=hook.url), notifying():
        fail(failure_group=group())
        wait_for(lambda: hook.posts, "the webhook")
    assert alerts(hook) == [("requests.Timeout", 1)]


def test_a_mail_server_that_refuses_gets_the_mail_later(mail, caplog):
    mail.refusing = True
    with notify(mail=True), notifying():
        fail(failure_group=group())
        wait_for(lambda: "cannot be sent by mail" in caplog.text, "the error in the log")
        mail.refusing = False
        wait_for(lambda: mail.mails, "the mail")
    assert len(mail.mails) == 1


def test_without_recipients_no_mail_server_is_used(hook, caplog):
    without_recipients = {**mail_settings(free_port()), "ADMINS": []}
    with override_settings(**without_recipients), notify(mail=True, webhook=hook.url):
        with notifying():
            fail(failure_group=group())
        assert alerts(hook) == [("requests.Timeout", 1)]
    assert "cannot be sent" not in caplog.text


def test_pending_alerts_are_sent_at_the_end_and_none_after_it(hook, monkeypatch):
    monkeypatch.setattr(outbox, "SETTLE", 60.0)
    with notify(webhook=hook.url), notifying():
        fail(failure_group=group())
    assert alerts(hook) == [("requests.Timeout", 1)]
    fail(failure_group=group())
    assert not signals.task_exhausted.has_listeners(TaskRecord)


def test_the_end_does_not_wait_without_a_limit(hook, monkeypatch):
    monkeypatch.setattr(outbox, "LAST_WORDS", 0.5)
    monkeypatch.setattr(notifier, "TIMEOUT", 600.0)
    hook.hold.clear()
    with notify(webhook=hook.url), notifying():
        fail(failure_group=group())
    assert not hook.posts


def test_more_groups_than_can_wait_are_dropped_and_logged(hook, monkeypatch, caplog):
    monkeypatch.setattr(outbox, "MAX_GROUPS", 3)
    monkeypatch.setattr(outbox, "SETTLE", 60.0)  # none of them leaves before the last one is there
    with notify(webhook=hook.url), notifying():
        for _ in range(5):
            fail(failure_group=group())
    assert len(alerts(hook)) == 3
    assert caplog.text.count("others are dropped") == 1


def test_nothing_is_read_without_receivers_and_without_alerts_there_are_none(django_assert_num_queries):
    task = record()
    with override_settings(RMQ_DELAY={}), notifying(), django_assert_num_queries(0):
        assert not signals.task_exhausted.has_listeners(TaskRecord)
        announce([(TaskState.EXHAUSTED, task.task_id, None)])


def test_a_receiver_of_a_signal_gets_the_record_and_may_fail(caplog):
    received: list[Any] = []

    def broken(**_):
        raise RuntimeError("a user's bug")

    def good(sender, record, **_):
        received.append((sender, record, record.failure_group))

    failed = group()
    signals.task_exhausted.connect(broken)
    signals.task_exhausted.connect(good)
    try:
        tasks = fail(2, failure_group=failed)
        announce([(TaskState.EXHAUSTED, "gone", None), (TaskState.DISCARDED, tasks[0].task_id, None)])
    finally:
        signals.task_exhausted.disconnect(broken)
        signals.task_exhausted.disconnect(good)
    assert received == [(TaskRecord, task, failed) for task in tasks]
    assert "a user's bug" in caplog.text


@corpus(
    "settings",
    [
        *(
            {"webhook": url}
            for url in ("alerts.example/hook", "ftp://a.example", "https://[::1", "https://a.example/a b")
        ),
        *({"every_minutes": value} for value in (0, True, 10_081)),
        *({"kinds": value} for value in ("exhausted", [], ["failed"], [["exhausted"]])),
        *({"mail": "yes"}, {"format": "xml"}, {"admin_url": "/admin/"}, {"sms": True}, []),
    ],
)
def test_settings_that_cannot_work_are_refused_with_a_fix(settings):
    with (
        override_settings(RMQ_DELAY={"NOTIFY": settings}),
        pytest.raises(SettingsError, match=r"Write|Known") as raised,
    ):
        conf()
    assert "RMQ_DELAY['NOTIFY']" in str(raised.value)
