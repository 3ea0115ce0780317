"""The browser, the shop and the watch over both."""

import pytest

from tests.support.waiting import wait_for


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("console.error('a bad sign')", "a bad sign"),
        ("setTimeout(() => alert('a dialog'))", "a dialog"),
        ("setTimeout(() => { throw new Error('an uncaught error') })", "an uncaught error"),
        ("location = 'http://elsewhere.test/'", "request to another host"),
        ("document.body.append(Object.assign(document.createElement('style'), {textContent: 'p {}'}))", "Policy"),
    ],
)
def test_errors_on_a_page_are_found(page, watch, script, found):
    page.goto("/admin/")
    assert watch.problems == []
    page.evaluate(f"() => {{ {script} }}")

    def is_found():
        page.wait_for_timeout(20)
        return any(found in problem for problem in watch.problems)

    wait_for(is_found, found)
    watch.expect(".")
    assert watch.problems == []


def test_an_expected_error_that_does_not_happen_is_a_problem(watch):
    watch.expect("status of 403")
    assert watch.problems == ["expected, but not seen: status of 403"]


def test_errors_in_the_shops_process_are_reported(shop):
    with pytest.raises(AssertionError, match="KeyError: 'unknown'"):
        shop.call("partner_is", "unknown", "down")
