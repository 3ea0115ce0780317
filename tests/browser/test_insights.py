"""The page *Insights*: in light, in dark, on a phone, and with hostile names."""

import re
from datetime import datetime, timezone

import pytest
from playwright.sync_api import expect

from tests.support.browser import pages, seeds
from tests.support.browser.looks import MODES, in_each_mode
from tests.support.django import insights

TODAY = datetime.now(timezone.utc).date()


@pytest.fixture
def loaded(shop, tmp_path):
    """The shop with insights of a week."""
    shop.call("load_insights", str(insights.finished(tmp_path, TODAY)))
    return shop


def open_insights(page, query=""):
    pages.open_list(page, "insightrun", query)
    expect(page.get_by_role("heading", level=1, name="Insights")).to_be_visible()


@in_each_mode
def test_the_page_in_each_mode(open_page, shop, look, tmp_path, mode):
    shop.call("no_insights")
    page = open_page(**MODES[mode])
    open_insights(page)
    expect(page.locator(".rmq-note")).to_contain_text("manage.py rmq_delay_insights")
    look(page, f"insights-empty-{mode}")
    shop.call("load_insights", str(insights.finished(tmp_path, TODAY)))
    open_insights(page)
    expect(page.locator(".rmq-tier-advised")).to_have_count(3)
    look(page, f"insights-{mode}")


@pytest.mark.slow
def test_charts_are_read_as_tables_curves_are_a_click_away_and_settings_can_be_copied(open_page, loaded, look):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    open_insights(page)
    charts = page.locator("figure.rmq-chart")
    assert charts.count() > 0
    for number in range(charts.count()):
        chart = charts.nth(number)
        expect(chart.locator("svg[role=img] desc")).not_to_be_empty()
        chart.locator("summary").click()
        expect(chart.locator("tbody tr").first).to_be_visible()
    look(page, "insights-tables")

    for section, code in (
        ("#rmq-advice", '"payments": {"tiers": ["15s", "2m", "30m"]}'),
        ("#rmq-errors", "give_up_on=(orders.errors.CardRefused,)"),
    ):
        page.locator(section).get_by_role("button", name="Copy").click()
        expect(page.locator(section).get_by_role("button", name="Copied")).to_be_visible()
        assert code in page.evaluate("navigator.clipboard.readText()")

    page.get_by_role("link", name="catalogue.tasks.import_prices").click()
    expect(page.get_by_role("heading", level=3, name="catalogue.tasks.import_prices")).to_be_visible()
    expect(page.locator(".rmq-tier-today")).to_have_count(2)
    expect(page.locator(".rmq-tier-advised")).to_have_count(0)
    look(page, "insights-curve")

    page.get_by_role("link", name="About this run").click()
    expect(page.locator("#content-main .rmq-facts")).to_contain_text(str(TODAY))
    look(page, "insights-run")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "stacked"), [(1_440, False), (1_280, False), (390, True)])
def test_advice_backtest_refusal_hint_and_errors_are_read_on_each_screen(open_page, loaded, width, *, stacked):
    page = open_page(viewport={"width": width, "height": 844})
    open_insights(page)
    advice = page.locator("#rmq-advice")
    figures = advice.get_by_role("region", name="payments", exact=True)
    expect(figures.get_by_role("columnheader")).to_have_count(10)
    expect(figures.get_by_role("rowheader")).to_contain_text(
        [re.compile(r"Today.*5s, 30s, 5m.*counted, 8,102 failures"), re.compile(r"Advised.*15s, 2m, 30m.*estimated")]
    )
    today, advised = (figures.get_by_role("rowheader", name=name).bounding_box() for name in ("Today", "Advised"))
    assert today and advised
    assert (advised["x"] > today["x"], advised["y"] > today["y"]) == (stacked, not stacked)
    assert figures.evaluate("each => each.scrollWidth <= each.clientWidth"), "all figures are seen without scrolling"
    backtest = advice.get_by_role("region", name="Backtest: payments", exact=True)
    expect(backtest.get_by_role("cell")).to_have_count(10)
    expect(advice.locator(".rmq-warning")).to_contain_text("failed its backtest")
    expect(advice.locator(".rmq-note", has_text="Hint:")).to_contain_text("jitter")
    expect(page.locator("#rmq-errors li")).to_have_count(2)
    figures.focus()
    page.keyboard.press("Tab")
    expect(backtest).to_be_focused()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["light", pytest.param("narrow", marks=pytest.mark.slow)])
def test_hostile_names_stay_text(open_page, shop, look, tmp_path, mode):
    names = [seeds.HOSTILE[each] for each in ("script", "direction", "huge")]
    rows = []
    for name in names:
        rows += insights.curve("task", name, (name, *insights.TASKS[0][1:]))
    insights.write(tmp_path, "recovery_curve", TODAY, rows)
    advice = [{**insights.ladders()[0], "queue": name, "task": task} for name in names for task in (None, name)]
    advice += [{**insights.ladders()[3], "queue": name, "task": "refused", "learn": name} for name in names]
    errors = [
        {**row, "queue": name, "task": name, "exception_type": name} for row in insights.exceptions() for name in names
    ]
    insights.write(tmp_path, "exception_advice", TODAY, errors)
    insights.write(tmp_path, "ladder_advice", TODAY, advice)
    outcome = insights.outcomes(1)[0]
    named = [{**outcome, "task": name, "queue": name, "exception_type": name} for name in names]
    insights.write(tmp_path, "tier_outcomes", TODAY, named)
    burst = {**insights.incidents(TODAY)[0], **dict.fromkeys(("queues", "tasks", "exceptions"), names)}
    insights.write(tmp_path, "incidents", TODAY, [burst])
    insights.write(tmp_path, "hourly", TODAY, insights.hours(TODAY))
    insights.report(tmp_path, TODAY)
    shop.call("load_insights", str(tmp_path))
    page = open_page(**MODES[mode])
    open_insights(page)
    expect(page.locator("#rmq-outcomes")).to_contain_text("<script>alert(")
    assert page.locator("#content script, #content img, #content [onmouseover]").count() == 0
    look(page, f"insights-hostile-{mode}")
