"""Every address, every action and every permission of the admin, on both sites."""

import re
from copy import deepcopy
from itertools import product
from typing import Any

import django
import pytest
from django.apps import apps
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client, override_settings
from django.urls import get_resolver

from celery_rmq_delay.contrib.django.admin import PAGES, register
from celery_rmq_delay.contrib.django.admin.base import PERMISSIONS
from celery_rmq_delay.contrib.django.models import (
    CollectorStatus,
    FailureGroup,
    InsightRun,
    Operation,
    TaskRecord,
    TaskState,
    UnreadableMessage,
)
from tests.support.django import people, seed
from tests.support.django.admin_pages import messages_of
from tests.support.django.admin_sites import operations_desk
from tests.support.django.markup import faults

SITES = {"admin": admin.site, "desk": operations_desk}
#: Both have the same pages; other tests check that.
each_site = pytest.mark.parametrize("site", ["admin", pytest.param("desk", marks=pytest.mark.slow)])
#: Pages for reading; all others are forbidden or take a POST, and answer a GET with the way to the page of their row.
READABLE = {"changelist", "change", "history"}
FORBIDDEN = {"add", "delete"}


def of_a_get(page):
    """Return the status of a GET by a user who may view the page."""
    return 200 if page in READABLE else 403 if page in FORBIDDEN else 302


@pytest.fixture(autouse=True)
def two_sites(sqlite):
    with override_settings(ROOT_URLCONF="tests.support.django.admin_sites", RMQ_DELAY={"ALLOW_EDIT": True}):
        yield


@pytest.fixture
def rows(two_sites):
    """One row of each model, to open the pages of rows."""
    seed.shop(parked=2, exhausted=2)
    parked = TaskRecord.objects.filter(state=TaskState.PARKED)[0]
    exhausted = TaskRecord.objects.filter(state=TaskState.EXHAUSTED)[0]
    return {
        "parkedtask": parked,
        "exhaustedtask": exhausted,
        "taskrecord": exhausted,
        "failuregroup": FailureGroup.objects.all()[0],
        "operation": Operation.objects.create(kind="requeue", actor="alice", requested=3),
        "insightrun": InsightRun.objects.create(
            output_url="/srv/insights",
            first_day=seed.now().date(),
            last_day=seed.now().date(),
            since=seed.now().date(),
            loaded_at=seed.now(),
        ),
        "collectorstatus": CollectorStatus.objects.get(),
        "unreadablemessage": UnreadableMessage.objects.create(
            digest="0", queue="rmq_delay.events", error="no JSON", body=b"\xff\x00", headers=b"", received_at=seed.now()
        ),
    }


def addresses(rows, *sites):
    """Return (address, model, page) of all addresses of this app on one site, or on both."""
    found = []
    for site in sites or SITES:
        for name, entries in get_resolver().namespace_dict[site][1].reverse_dict.lists():
            if not isinstance(name, str) or not name.startswith("rmq_delay_"):
                continue
            model, page = name.removeprefix("rmq_delay_").split("_", 1)
            possible, *_ = entries[0]
            for template, arguments in possible:
                values = dict.fromkeys(arguments, rows[model].pk)
                found.append((f"/{site}/{template % values}", model, page))
    return found


def contents():
    """Return everything in the database but sessions."""
    return {
        model._meta.label: sorted(map(repr, model._default_manager.values_list()))
        for model in apps.get_models()
        if model is not Session
    }


def test_the_walk_covers_all_pages(rows):
    found = {(model, page) for _address, model, page in addresses(rows)}
    for model in PAGES:
        for page in READABLE | FORBIDDEN:
            assert (model._meta.model_name, page) in found
    assert ("operation", "cancel") in found
    assert ("failuregroup", "note") in found
    for model in ("parkedtask", "exhaustedtask", "taskrecord"):
        assert {(model, "reveal"), (model, "edit")} <= found


def test_a_superuser_sees_every_page_that_is_there_to_be_seen_and_no_page_writes(rows):
    browser = people.superuser()
    before = contents()
    for address, model, page in addresses(rows):
        answer = browser.get(address)
        assert answer.status_code == of_a_get(page), address
        if page in READABLE:
            assert faults(answer.content.decode()) == [], address
            styles = re.findall(r'<link[^>]*href="/static/(.+?)"', answer.content.decode())
            assert {"admin/css/base.css", "rmq_delay/pages.css"} <= {*styles}, address
            has_form = page == "change" or (model, page) == ("insightrun", "changelist")
            assert ("admin/css/forms.css" in styles) == has_form, address
            assert f"/{address.split('/')[1]}/rmq_delay/" in answer.content.decode()
            other = "desk" if address.startswith("/admin/") else "admin"
            assert f"/{other}/rmq_delay" not in answer.content.decode(), f"{address} leads to the other site"
    assert contents() == before


@pytest.mark.skipif(django.VERSION < (6, 1), reason="The admin's own scripts have nonces from Django 6.1 on.")
def test_scripts_and_styles_have_the_nonce_of_the_content_security_policy(rows):
    templates = deepcopy(settings.TEMPLATES)
    templates[0]["OPTIONS"]["context_processors"].append("django.template.context_processors.csp")
    middleware = ["django.middleware.csp.ContentSecurityPolicyMiddleware", *settings.MIDDLEWARE]
    policy = {"script-src": ["<CSP_NONCE_SENTINEL>"], "style-src": ["<CSP_NONCE_SENTINEL>"]}
    with override_settings(TEMPLATES=templates, MIDDLEWARE=middleware, SECURE_CSP=policy):
        browser = people.superuser()
        for address, _model, page in addresses(rows, "admin"):
            if page in READABLE:
                answer = browser.get(address)
                (nonce,) = set(re.findall(r"'nonce-(.+?)'", answer["Content-Security-Policy"]))
                loaded = re.findall(r"<script[^>]*>|<link[^>]*stylesheet[^>]*>", answer.content.decode())
                assert len(loaded) > 3, address
                assert [each for each in loaded if f'nonce="{nonce}"' not in each] == [], address


def test_every_page_requires_a_login_a_permission_and_for_a_post_the_csrf_token(rows):
    staff, forged = people.staff(), people.superuser()
    forged.handler.enforce_csrf_checks = True
    before = contents()
    for address, model, _page in addresses(rows):
        for answer in (Client().get(address), Client().post(address)):
            assert answer.status_code == 302
            assert "/login/" in answer["Location"]
        sent = {"action": "export_csv", "_selected_action": str(rows[model].pk)}
        assert staff.get(address).status_code == 403, address
        assert staff.post(address, sent).status_code == 403, address
        assert forged.post(address, {**sent, "action": "discard", "confirm": "1"}).status_code == 403, address
    assert contents() == before


@each_site
def test_who_logs_in_again_lands_on_the_page_whose_button_was_pressed(rows, site):
    browser = people.superuser()
    user = User.objects.get()
    user.set_password("s3cr3t")
    user.save()
    posted = [each for each in addresses(rows, site) if each[2] not in READABLE | FORBIDDEN]
    assert {page for _address, _model, page in posted} == {
        "cancel", "download", "drop", "edit", "mute", "note", "requeue", "reveal",
    }  # fmt: skip
    before = without_logins()
    for address, model, page in posted:
        browser.logout()
        login = browser.post(address, {"muted": "1", "note": "x", "confirm": "1", "queue": "q"})
        assert login["Location"] == f"/{site}/login/?next={address}"
        again = browser.post(login["Location"], {"username": "alice", "password": "s3cr3t"}, follow=True)
        change = f"/{site}/rmq_delay/{model}/{rows[model].pk}/change/"
        assert again.redirect_chain == [(address, 302), (change, 302)], address
        assert again.status_code == 200, address
        (message,) = messages_of(again)
        assert message.startswith("Nothing was done"), (address, page)
        assert browser.put(address).status_code == 405
    assert without_logins() == before


def without_logins():
    """Return everything in the database but sessions and users, whose last login changes."""
    return {label: found for label, found in contents().items() if label != "auth.User"}


@each_site
def test_each_view_permission_opens_its_own_pages_only(rows, site):
    for permission in people.VIEWS:
        browser = people.staff(permission, name=permission)
        own = permission.removeprefix("view_")
        for address, model, page in addresses(rows, site):
            answer = browser.get(address)
            expected = of_a_get(page) if model == own else 403
            assert answer.status_code == expected, (permission, address)
            if expected == 200:
                assert faults(answer.content.decode()) == []


@each_site
def test_a_user_with_view_permissions_is_refused_every_action(rows, site):
    browser = people.staff(*people.VIEWS)
    before = contents()
    for address, model, page in addresses(rows, site):
        if page == "changelist":
            for name in actions(model) - {"export_csv", "export_jsonl", "show_tasks"}:
                for more in ({}, {"index": "0"}, {"confirm": "1", "draft": "1"}):
                    sent = {"action": name, "_selected_action": str(rows[model].pk), **more}
                    assert browser.post(address, sent).status_code == 403, (address, name, more)
                assert f'value="{name}"' not in browser.get(address).content.decode()
        elif page != "history":
            assert browser.post(address, {"note": "x", "args": "[]", "kwargs": "{}"}).status_code == 403, address
    assert contents() == before


def actions(model):
    """Return the names of all actions of a list, regardless of permissions; Django 6.1 has a class for them."""
    found: Any = admin.site._registry[apps.get_model("rmq_delay", model)]
    names = {each.name if hasattr(each, "func") else each[1] for each in found._get_base_actions()}
    return names - {"delete_selected"}


NEEDED = {
    "run_now": "requeue_taskrecord",
    "requeue": "requeue_taskrecord",
    "requeue_gradually": "requeue_taskrecord",
    "discard": "discard_taskrecord",
    "restore": "discard_taskrecord",
    "mute": "change_failuregroup",
    "unmute": "change_failuregroup",
}


@each_site
def test_each_permission_allows_its_own_acts_only(rows, site):
    for permission in people.ACTS:
        browser = people.staff(*people.VIEWS, permission, name=permission)
        for model in ("parkedtask", "exhaustedtask", "taskrecord", "failuregroup"):
            for name in actions(model) - {"export_csv", "export_jsonl", "show_tasks"}:
                sent = {"action": name, "_selected_action": str(rows[model].pk)}
                answer = browser.post(f"/{site}/rmq_delay/{model}/", sent)
                expected = (200, 302) if NEEDED[name] == permission else (403,)
                assert answer.status_code in expected, (permission, model, name)
        pk = rows["exhaustedtask"].pk
        for page, needed in (("reveal", "view_payload_taskrecord"), ("edit", "edit_payload_taskrecord")):
            answer = browser.post(f"/{site}/rmq_delay/exhaustedtask/{pk}/{page}/")
            assert (answer.status_code == 403) == (permission != needed), (permission, page)
        cancelled = browser.post(f"/{site}/rmq_delay/operation/{rows['operation'].pk}/cancel/")
        assert (cancelled.status_code == 403) == (permission != "requeue_taskrecord")
        noted = browser.post(f"/{site}/rmq_delay/failuregroup/{rows['failuregroup'].pk}/note/", {"note": "x"})
        assert (noted.status_code == 403) == (permission != "change_failuregroup")


def test_the_documented_permissions_are_those_of_the_models():
    for model in PAGES:
        assert f"view_{model._meta.model_name}" in people.VIEWS
        assert set(model._meta.default_permissions) <= {"view", "change"}
    assert {name.removeprefix("rmq_delay.") for name in PERMISSIONS.values()} == set(people.ACTS)


def test_an_address_of_no_row_is_not_found():
    browser = people.superuser()
    for number, model, page in product(
        ("0", "999999", "x", "1'--", "%00", "9" * 30, "-1", "../1"), PAGES, ("change", "history")
    ):
        address = f"/admin/rmq_delay/{model._meta.model_name}/{number}/{page}/"
        assert browser.get(address).status_code in (302, 404), address


def test_a_site_keeps_the_pages_that_it_has_of_its_own():
    site = admin.AdminSite(name="own")
    site.register(TaskRecord, admin.ModelAdmin)
    register(site)
    assert type(site._registry[TaskRecord]) is admin.ModelAdmin
    assert set(site._registry) == set(PAGES)
