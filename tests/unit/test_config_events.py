"""The settings of events and redaction are checked before the first task runs."""

import sys
from types import SimpleNamespace

import pytest

from celery_rmq_delay import SettingsError
from celery_rmq_delay.redaction.keys import DEFAULT_KEYS
from celery_rmq_delay.settings.parser import check_hook, parse_settings
from celery_rmq_delay.settings.values import DJANGO_APP
from tests.support.corpus import corpus


def django(*installed, ready=True):
    return SimpleNamespace(apps=SimpleNamespace(ready=ready, is_installed=installed.__contains__))


@corpus(
    "found, on",
    [(None, False), (django(), False), (django(DJANGO_APP), True), (django(DJANGO_APP, ready=False), False)],
)
def test_events_are_on_by_themselves_where_the_app_that_reads_them_is_installed(monkeypatch, found, on):
    monkeypatch.setitem(sys.modules, "django.apps", found)
    assert parse_settings({}).events.on is on
    assert parse_settings({"events": True}).events.on
    assert not parse_settings({"events": False}).events.on


def test_configured_keys_are_added_to_the_default_keys():
    found = parse_settings({"redact": {"keys": ["plate", "token"], "hook": "a.b"}}).redaction
    assert (found.keys, found.hook) == ((*DEFAULT_KEYS, "plate"), "a.b")


@corpus("hook", ["no.such.module", "celery_rmq_delay.nothing", "celery_rmq_delay.redaction.REDACTED"])
def test_a_hook_that_cannot_be_called_is_found_when_a_worker_starts(hook):
    with pytest.raises(SettingsError, match=r"rmq_delay\.redact\.hook"):
        check_hook(parse_settings({"redact": {"hook": hook}}).redaction, "rmq_delay")


def test_a_hook_that_can_be_called_is_taken():
    check_hook(parse_settings({"redact": {"hook": "textwrap.dedent"}}).redaction, "rmq_delay")
    check_hook(parse_settings({}).redaction, "rmq_delay")


def test_the_queue_of_events_is_no_origin_queue():
    with pytest.raises(SettingsError, match="reserves such names"):
        parse_settings({"queues": {"rmq_delay.events": {}}})
