"""The main actions without a mouse."""

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.support.browser import pages, seeds
from tests.support.browser.hands import tab_to

pytestmark = pytest.mark.slow

#: Describes the element with the focus: its HTML, and how its outline and that colour differ from what is behind it;
#: null where it has no focus. Transparent backgrounds are those of an element around it.
FOCUS = """() => {
    const each = document.activeElement;
    if (each === document.body || !each.closest('#content')) {
        return null;
    }
    const parts = colour => colour.match(/[\\d.]+/g).map(Number);
    const light = colour => parts(colour).slice(0, 3).map(value => value / 255)
        .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
        .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
    let behind = each.parentElement;
    while (behind && (parts(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) {
        behind = behind.parentElement;
    }
    const style = getComputedStyle(each);
    const [low, high] = [light(style.outlineColor), light(getComputedStyle(behind || document.body).backgroundColor)]
        .sort((one, other) => one - other);
    return {html: each.outerHTML.slice(0, 120), style: style.outlineStyle, width: parseFloat(style.outlineWidth),
        contrast: (high + 0.05) / (low + 0.05)};
}"""


def stops(page, most=200):
    """Press Tab through the contents of a page; return `FOCUS` at each stop."""
    page.locator(".skip-to-content-link").focus()
    page.keyboard.press("Enter")
    found: list[dict[str, Any]] = []
    for _ in range(most):
        page.keyboard.press("Tab")
        stop = page.evaluate(FOCUS)
        if stop is None:
            break
        found.append(stop)
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_element_with_the_focus_has_an_outline_that_stands_out(open_page, filled, scheme):
    page = open_page(color_scheme=scheme)
    pages.open_list(page, "exhaustedtask", "?queue=payments&q=charge-looks")
    for fold in (".rmq-summary > details > summary", ".rmq-filters > summary"):
        page.locator(fold).click()
    found = stops(page)
    pages.open_list(page, "failuregroup", "?open=any")
    found += stops(page)
    pages.open_task(page, filled, "charge-looks-001")
    found += stops(page)
    page.get_by_role("button", name="Requeue", exact=True).click()
    expect(page.locator("input[name=confirm]")).to_be_visible()
    found += stops(page)
    pages.open_list(page, "operation", "?kind=discard")
    page.locator("#result_list tbody tr").last.locator("th a").click()
    expect(page.locator("#rmq-items")).to_be_visible()
    found += stops(page)
    assert len(found) > 100
    weak = [each for each in found if each["style"] != "solid" or each["width"] < 2 or each["contrast"] < 3]
    assert weak == []


def test_the_skip_link_leads_past_the_navigation(page, filled):
    for name in ("failuregroup", "exhaustedtask", "operation", "unreadablemessage"):
        pages.open_list(page, name)
        for open_row in (False, True):
            if open_row:
                page.locator("#result_list tbody tr").first.locator("th a").click()
                expect(page.locator("#content-main")).not_to_have_class("module filtered")
            page.keyboard.press("Tab")
            expect(page.locator(".skip-to-content-link")).to_be_focused()
            page.keyboard.press("Enter")
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.closest('#content') !== null"), name


def test_tabs_filters_and_pages_state_which_one_is_current(page, filled):
    pages.open_list(page, "exhaustedtask", "?queue=payments&p=2")
    page.locator(".rmq-filters > summary").click()
    current = page.locator("#content [aria-current]:visible")
    assert {"Exhausted tasks", "payments", "2"} <= {text.strip() for text in current.all_inner_texts()}
    chosen = page.locator("#changelist-filter li.selected a")
    assert chosen.count() == page.locator("#changelist-filter li a[aria-current=true]").count() > 3


@pytest.mark.parametrize("width", [1280, 1700])
def test_folds_state_whether_they_are_open(open_page, filled, width):
    page = open_page(viewport={"width": width, "height": 900})
    tools = page.context.new_cdp_session(page)

    def expanded(selector):
        """Return what a screen reader announces."""
        found = tools.send("Runtime.evaluate", {"expression": f"document.querySelector({selector!r})"})
        tree = tools.send("Accessibility.getPartialAXTree", {"objectId": found["result"]["objectId"]})
        (value,) = [each["value"]["value"] for each in tree["nodes"][0]["properties"] if each["name"] == "expanded"]
        return bool(value)

    pages.open_list(page, "exhaustedtask")
    for fold, contents in ((".rmq-summary", ".rmq-summary .rmq-chart"), (".rmq-filters", ".rmq-each-filter")):
        summary = f"{fold} summary"
        if width == 1700 and fold == ".rmq-filters":  # beside the table there is no fold
            expect(page.locator(summary).first).to_be_hidden()
            expect(page.locator(contents)).to_be_visible()
            continue
        assert expanded(summary) is page.locator(contents).is_visible(), fold
        page.locator(summary).first.focus()
        page.keyboard.press("Enter")
        assert expanded(summary) is page.locator(contents).is_visible(), fold


def test_a_row_is_ticked_and_its_task_read_and_requeued_with_the_keyboard_alone(page, filled):
    pages.open_list(page, "exhaustedtask", "?q=charge-keys-001")
    key = pages.key(filled, "charge-keys-001")
    tab_to(page, f"input.action-select[value='{key}']")
    page.keyboard.press("Space")
    expect(page.locator(f"input.action-select[value='{key}']")).to_be_checked()
    tab_to(page, f"#result_list a[href*='/{key}/change/']")
    page.keyboard.press("Enter")
    expect(pages.state(page)).to_have_text("Exhausted")
    tab_to(page, ".rmq-trace summary")
    page.keyboard.press("Enter")
    expect(page.locator(".rmq-trace details[open]")).to_have_count(1)
    page.reload()
    tab_to(page, "button[value=requeue]")
    page.keyboard.press("Enter")
    expect(page.get_by_text("1 task", exact=True)).to_be_visible()
    tab_to(page, "textarea[name=reason]")
    page.keyboard.type("no mouse at hand")
    tab_to(page, "input[name=confirm]")
    page.keyboard.press("Enter")
    pages.shows(page, "1 requeued")
    seeds.be(filled, "charge-keys-001", {"RECOVERED": 1})
