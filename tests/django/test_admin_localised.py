"""The pages in languages that group digits, or are written from right to left, with ids above a million."""

import re
from urllib.parse import urljoin, urlsplit

import pytest
from django.test import override_settings

from celery_rmq_delay.contrib.django.admin import PAGES
from celery_rmq_delay.contrib.django.models import (
    FailureGroup,
    Operation,
    OperationItem,
    TaskRecord,
    TaskState,
    UnreadableMessage,
)
from celery_rmq_delay.contrib.django.services.actors import Actor, note_done
from celery_rmq_delay.contrib.django.services.insight_runs import load
from tests.support.brokers.kinds import POSTGRES_TABLES
from tests.support.django import seed
from tests.support.django.admin_pages import BASE
from tests.support.django.databases import number_from
from tests.support.django.insights import finished
from tests.support.django.markup import faults
from tests.support.django.sent_forms import PageParts

FIRST = 1_234_567
LISTS = [f"{BASE}/{model._meta.model_name}/" for model in PAGES]
NUMBER = re.compile(r"-?\d+(\.\d+)?(%|rem)?")


@pytest.fixture(params=["de", *(pytest.param(each, marks=pytest.mark.slow) for each in ("en", "fr", "ar"))])
def language(request):
    """A language: numbers are 1,234 in English, 1.234 in German, 1 234 in French; Arabic is from right to left."""
    with override_settings(LANGUAGE_CODE=request.param, USE_THOUSAND_SEPARATOR=True):
        yield request.param


@pytest.fixture
def rows(tables, shop, tmp_path):
    """Rows in each table, with ids above a million."""
    number_from(FIRST)
    seed.shop(parked=3, exhausted=6)
    for task in TaskRecord.objects.order_by("pk")[:5]:
        seed.message(task, seed.call(task.pk))
    TaskRecord.objects.filter(pk__gte=FIRST + 7).update(state=TaskState.DISCARDED)
    operation = Operation.objects.create(kind="requeue", actor="alice", requested=23_456, ok=12_345, rate=1_200)
    OperationItem.objects.create(operation=operation, record=TaskRecord.objects.all()[0], position=0)
    UnreadableMessage.objects.create(
        digest="0", queue="rmq_delay.events", error="no JSON", body=b"\xff", headers=b"", received_at=seed.now()
    )
    load(str(finished(tmp_path, seed.now().date())))


def kind(address):
    """Return an address without its numbers, and the names of its parameters: what pages have in common."""
    path, _, query = address.partition("?")
    return re.sub(r"\d+", "N", path) + "?" + "&".join(sorted(part.partition("=")[0] for part in query.split("&")))


def crawled(client):
    """Return a page of each kind that links lead to; each must open without a fault."""
    pages: dict[str, PageParts] = {}
    waiting, seen = [f"{address}?" for address in LISTS], set(map(kind, LISTS))
    while waiting:
        address = waiting.pop()
        answer = client.get(address, follow=True)
        assert answer.status_code == 200, address
        address = answer.redirect_chain[-1][0] if answer.redirect_chain else address
        content = answer.content.decode()
        assert faults(content) == [], address
        pages[address] = PageParts(content)
        for link in pages[address].links:
            target = urlsplit(urljoin(address, link))
            found = f"{target.path}?{target.query}"
            if target.path.startswith(f"{BASE}/") and kind(found) not in seen and address.endswith("?"):
                seen.add(kind(found))
                waiting.append(found)
    return pages


def posts(page):
    """Return the forms of these pages that change something."""
    return [form for form in page.forms if form.method == "post" and "logout" not in form.action]


def sent(client, address, form, values):
    """Send a form as a browser does, then the confirmation that the response asks for; return the last response."""
    fields = {name: value for name, value in form.fields.items() if name != "csrfmiddlewaretoken"}
    answer = client.post(urljoin(address, form.action), {**fields, **values})
    assert answer.status_code in (200, 302), (address, form, values)
    if answer.status_code == 200 and not answer.streaming and "Content-Disposition" not in answer:
        for asked in posts(PageParts(answer.content.decode())):
            if "confirm" in [name for name, _label in asked.buttons]:
                chosen = {**fields, **values}
                # The pages of an unreadable message have no draft.
                drafted = OperationItem.objects.filter(operation__in=asked.fields.get("draft", []))
                ids = set(map(str, drafted.values_list("record", flat=True)))
                assert chosen.get("select_across") == ["1"] or ids <= set(chosen.get("_selected_action", []))
                return sent(client, answer.request["PATH_INFO"], asked, {"confirm": "1"})
    return answer


@override_settings(LANGUAGE_CODE="de", USE_THOUSAND_SEPARATOR=True)
def test_texts_are_english_in_every_language_and_numbers_are_not(rows, client):
    listed = client.get(f"{BASE}/operation/").content.decode()
    assert "Start</a>" in listed  # Django's own word, in Django's own breadcrumbs
    assert "By state" in listed
    assert "12.345 / 23.456" in re.sub(r"\s+", " ", listed)
    page = client.get(f"{BASE}/operation/{Operation.objects.get().pk}/change/").content.decode()
    assert "<dt>By</dt>" in page
    assert "Start</a>" in page


@POSTGRES_TABLES
def test_all_pages_open_and_programs_read_their_numbers(rows, language, client):
    pages = crawled(client)
    assert len(pages) > 40
    assert re.search(r"/12345\d\d/change/", " ".join(pages))
    numbers = [(address, *each) for address, page in pages.items() for each in page.numbers]
    assert [each for each in numbers if not NUMBER.fullmatch(each[-1])] == []
    bars = {(name, value) for _address, tag, name, value in numbers if tag == "progress" and value != "0"}
    assert bars == {("value", "12345"), ("max", "23456")}
    for address in LISTS:
        assert f'dir="{"rtl" if language == "ar" else "ltr"}"' in client.get(address).content.decode()


@pytest.mark.slow
def test_every_form_and_every_action_on_ticked_rows_is_accepted(rows, language, client):
    done = set()
    for address, page in crawled(client).items():
        for form in posts(page):
            ticked = form.boxes.get("_selected_action", [])
            assert all(box.isdigit() for box in ticked)
            buttons = [("action", each) for each in form.choices.get("action", [])] if ticked else form.buttons
            for name, value in buttons:
                extra = {"_selected_action": ticked} if ticked else {}
                sent(client, address, form, {name: value, **extra} if name else extra)
                done.add(value or form.action.rstrip("/").rsplit("/", 1)[-1])
    assert {"requeue", "requeue_gradually", "discard", "restore", "run_now", "mute", "unmute", "export_csv"} <= done
    assert {"reveal", "edit", "cancel", "body", "properties", "drop"} <= done


def test_the_undo_of_a_mute_selects_the_groups_by_their_ids(rows, language, client):
    groups = list(FailureGroup.objects.values_list("pk", flat=True))
    assert min(groups) >= FIRST
    FailureGroup.objects.update(muted=True)
    muted = note_done(Operation.Kind.MUTE, Actor(None, "alice"), requested=len(groups), groups=groups, muted=True)
    address = f"{BASE}/operation/{muted.pk}/change/"
    (form,) = [
        each for each in posts(PageParts(client.get(address).content.decode())) if ("action", "unmute") in each.buttons
    ]
    sent(client, address, form, {"action": "unmute"})
    assert not FailureGroup.objects.filter(muted=True).exists()
