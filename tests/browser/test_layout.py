"""The layout of the lists: the first row is near the top, the keyboard follows the eye, folds are remembered."""

from itertools import pairwise

import pytest
from playwright.sync_api import expect

from tests.support.browser import pages
from tests.support.browser.hands import tab_to
from tests.support.browser.looks import shot

pytestmark = [pytest.mark.slow, pytest.mark.versions]

LISTS = ("failuregroup", "exhaustedtask", "parkedtask", "taskrecord")
WINDOWS = {1700: 900, 1440: 900, 1024: 768, 390: 844}
#: By the width of the window: the first row is no lower than this, also where the parts above it are.
FIRST_ROW = {1700: 450, 1440: 430, 1024: 600, 390: 800}
#: What a user meets on a list, from the top.
PARTS = ("tiles", "fold", "search", "filter", "refresh", "actions", "rows")
#: Returns [part, top, left] of each element that Tab reaches on the list, in the order of Tab.
STOPS = """() => {
    const parts = {
        tiles: '.rmq-tiles a', fold: '.rmq-summary > details > summary', search: '#changelist-search input',
        filter: '#changelist-filter summary, #changelist-filter a', refresh: '#rmq-refresh input',
        actions: '.actions select, .actions button', rows: '#result_list tbody a, #result_list tbody input',
    };
    return Array.from(document.querySelectorAll('#content-main a[href], #content-main input, #content-main select, '
        + '#content-main button, #content-main summary, .rmq-summary a[href], .rmq-summary summary'))
        .filter(each => each.checkVisibility({checkVisibilityCSS: true, contentVisibilityAuto: true})
            && each.getClientRects().length && each.type !== 'hidden')
        .map(each => {
            const part = Object.keys(parts).find(name => each.matches(parts[name]));
            const box = each.getBoundingClientRect();
            return [part || '', Math.round(box.top + scrollY), Math.round(box.left)];
        }).filter(stop => stop[0]);
}"""

IN_ROW = "#result_list .rmq-row-acts button"
#: Returns the labels of the elements that are not whole within their table and the window.
CUT_OFF = """selector => {
    const {left, right} = document.querySelector('.results').getBoundingClientRect();
    return Array.from(document.querySelectorAll(selector)).filter(each => {
        const box = each.getBoundingClientRect();
        return box.left < Math.max(left, 0) || box.right > Math.min(right, innerWidth);
    }).map(each => each.textContent);
}"""


def box(page, selector):
    """Return the place and the size of the first element that a selector names."""
    found = page.locator(selector).first.bounding_box()
    assert found is not None, selector
    return found


def first_row(page):
    """Return the distance of the first row from the top of the page."""
    return box(page, "#result_list tbody tr")["y"]


@pytest.mark.parametrize("width", WINDOWS)
def test_each_part_of_a_list_has_room_in_the_keyboards_order_with_the_first_row_near_the_top(open_page, filled, width):
    page = open_page(viewport={"width": width, "height": WINDOWS[width]})
    for name in LISTS:
        pages.open_list(page, name)
        expect(page.locator("#result_list tbody tr").first).to_be_visible()
        expect(page.locator("#rmq-refresh")).to_be_visible()
        shot(page, f"layout-{name}-{width}")
        assert pages.has_no_sideways_scroll(page), name
        assert first_row(page) <= FIRST_ROW[width], name
        assert box(page, "#toolbar")["height"] <= 90, name
        assert box(page, "#searchbar")["width"] >= 120, name
        assert box(page, "#changelist-filter")["width"] >= 80, name
        beside = 256 if width == 1700 else 0  # the column of the filters
        assert box(page, "#result_list")["width"] >= box(page, "#content-main")["width"] - beside - 1, name
        found: list[tuple[str, int, int]] = page.evaluate(STOPS)
        order = list(dict.fromkeys(part for part, _top, _left in found))
        assert order == list(PARTS), name
        tops = [min(top for part, top, _left in found if part == each) for each in PARTS]
        assert all(top <= below + 16 for top, below in pairwise(tops)), (name, tops)
        page.locator(".skip-to-content-link").focus()
        tab_to(page, "#changelist-filter summary", most=60)  # it comes before the rows


@pytest.mark.parametrize("locale", ["en", "ar"])
@pytest.mark.parametrize("width", [1024, 390])
def test_the_buttons_of_a_failure_group_are_in_sight_without_scrolling_sideways(open_page, filled, width, locale):
    page = open_page(viewport={"width": width, "height": WINDOWS[width]}, locale=locale)
    pages.open_list(page, "failuregroup")
    expect(page.locator("html")).to_have_attribute("dir", "rtl" if locale == "ar" else "ltr")
    expect(page.locator(IN_ROW).first).to_be_visible()
    shot(page, f"layout-buttons-{width}-{locale}")
    assert page.locator(IN_ROW).count() >= 8
    assert page.evaluate(CUT_OFF, IN_ROW) == []


def test_filters_open_above_the_rows_and_choose_with_the_keyboard(open_page, filled):
    page = open_page(viewport={"width": 390, "height": 844})
    pages.open_list(page, "exhaustedtask")
    page.locator("#changelist-filter .rmq-filters > summary").focus()
    page.keyboard.press("Enter")
    choice = page.locator("#changelist-filter").get_by_role("link", name="payments", exact=True)
    expect(choice).to_be_visible()
    place = choice.bounding_box()
    assert place is not None
    assert place["y"] < first_row(page)
    assert pages.has_no_sideways_scroll(page)
    choice.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#changelist-filter-extra-actions")).to_contain_text("queue: payments")


def test_the_fold_of_chart_and_queues_is_remembered_in_the_browser(page, filled):
    pages.open_list(page, "parkedtask")
    expect(page.locator(".rmq-summary .rmq-chart")).to_be_hidden()
    page.locator(".rmq-summary > details > summary").click()
    expect(page.locator(".rmq-summary .rmq-chart")).to_be_visible()
    pages.open_list(page, "exhaustedtask")
    expect(page.locator(".rmq-summary .rmq-chart")).to_be_visible()
    page.locator(".rmq-summary > details > summary").click()
    expect(page.locator(".rmq-summary .rmq-chart")).to_be_hidden()
    page.reload()
    expect(page.locator(".rmq-summary > details > summary")).to_be_visible()
    expect(page.locator(".rmq-summary .rmq-chart")).to_be_hidden()


def test_chart_queues_and_filters_open_without_javascript(open_page, filled):
    page = open_page(java_script_enabled=False)
    pages.open_list(page, "parkedtask")
    page.locator(".rmq-summary > details > summary").click()
    expect(page.locator(".rmq-summary .rmq-chart")).to_be_visible()
    expect(page.locator(".rmq-live")).to_contain_text("Delay queues hold")
    page.locator("#changelist-filter .rmq-filters > summary").click()
    expect(page.locator("#changelist-filter").get_by_role("link", name="Overdue only")).to_be_visible()
