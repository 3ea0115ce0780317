"""Contents of the shop's pages: real tasks that failed in a real worker.

Each test has its own tasks, by a prefix of their ids, so that no test depends on another one.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.support.browser.shop import Shop
from tests.support.waiting import wait_for

#: Payments that an outage of the gateway exhausted, of several tests, as (beginning of the ids, how many).
OUTAGES = {"requeue": 1, "forged": 1, "keys": 1, "live": 2, "looks": 4}
#: Payments that the gateway refused for a while: a separate failure group, for the gradual requeue.
LIMITED = 300

#: A user who may see everything and do nothing.
VIEWER = "viewer"
_VIEWED = ("taskrecord", "parkedtask", "exhaustedtask", "failuregroup", "operation")

SCRIPT = "<script>alert('script')</script><img src=x onerror=\"alert('image')\">"
RIGHT_TO_LEFT = "\u202egnitset\u202c \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627"
HOSTILE = {
    "script": SCRIPT,
    "attribute": "\" onmouseover=\"alert('attribute')\" x='",
    "direction": RIGHT_TO_LEFT,
    "huge": "A" * 1_000_000,
    "template": "{{ 7*7 }}{% debug %}",
    "deep": "[" * 500 + "]" * 500,
    "nul": "before\0after",
    "surrogate": "\ud800",
}


def seed(shop: Shop) -> None:
    """Let all tasks of the tests fail, and wait until the collector has stored them."""
    shop.call("add_user", VIEWER, [f"view_{model}" for model in _VIEWED])
    for partner in ("mail", "feeds"):
        shop.call("partner_is", partner, "down")
    shop.call("gateway_answers", {"limited": 429, "stolen": 200, "": 503})
    for prefix, count in OUTAGES.items():
        shop.call("order", prefix, count)
    shop.call("order", "limited", LIMITED)
    shop.call("order", "stolen", 6, "tok_stolen")
    shop.call("send", "orders.tasks.charge", ["edit-0001"], {}, "charge-edit")
    for day in ("2026-06-01", "2026-06-02", "2026-06-03"):
        shop.call("send", "orders.tasks.sales_report", [day], {}, f"report-{day}")
    for supplier in ("north", "south", "east", "west", "<b>overseas</b>"):
        shop.call("send", "catalogue.tasks.import_prices", [supplier], {}, f"import-{supplier}")
    for name, text in HOSTILE.items():
        shop.call("send", "orders.tasks.sales_report", [text], {}, f"hostile-{name}")
    secret = {"reference": "secret-1", "card_number": "4929 1234 5678 9012", "note": "call first"}
    shop.call("send", "orders.tasks.charge", [], secret, "charge-secret")
    shop.call("write_nonsense")
    given_up = {"charge-limited": LIMITED, "charge-stolen": 6, "charge-edit": 1, "charge-secret": 1, "report-": 3}
    given_up |= {f"charge-{prefix}": count for prefix, count in OUTAGES.items()}
    given_up |= {f"hostile-{name}": 1 for name in HOSTILE}
    for prefix, count in given_up.items():
        be(shop, prefix, {"EXHAUSTED": count})
    shop.call("discard", "charge-looks-004", "the order was cancelled")
    shop.call("gateway_answers", {"late": 503}, 1)
    shop.call("order", "late", 6)
    shop.call("order", "paid", 6)
    be(shop, "charge-late", {"RECOVERED": 6})
    be(shop, "receipt-paid", {"PARKED": 6})
    be(shop, "import-", {"PARKED": 5})
    wait_for(lambda: shop.call("unreadable") == 1, "an unreadable message")
    for partner in ("mail", "feeds"):
        shop.call("partner_is", partner, "up")


def be(shop: Shop, prefix: str, states: dict[str, int]) -> None:
    """Wait until the tasks with an id prefix are in these states."""
    found: dict[str, int] = {}

    def is_so() -> bool:
        found.clear()
        found.update(shop.call("states", prefix))
        return found == states

    try:
        wait_for(is_so, pause=0.05)
    except AssertionError as error:
        raise AssertionError(f"{prefix}*: {found}, expected {states}") from error


# -- a night after a long outage: 40,000 exhausted tasks in 12 failure groups ------------------------------------------


class Cause(NamedTuple):
    """A failure group: the task, its error, and how many tasks it has exhausted."""

    task: str
    error: str
    message: str
    count: int

    @property
    def prefix(self) -> str:
        """How the ids of its tasks begin."""
        return f"night-{CAUSES.index(self):02}-"


CHARGE, RECEIPT, PRICES = "orders.tasks.charge", "orders.tasks.send_receipt", "catalogue.tasks.import_prices"
GATEWAY = Cause(CHARGE, "orders.gateway.GatewayError", "ReadTimeout: the gateway did not answer", 14_000)
DECLINED = Cause(CHARGE, "orders.gateway.InvalidCard", "The card was declined", 9_000)
MAIL = Cause(RECEIPT, "smtplib.SMTPServerDisconnected", "Connection unexpectedly closed", 8_000)
CAUSES = (
    GATEWAY,
    DECLINED,
    MAIL,
    *(Cause(PRICES, f"catalogue.feeds.Feed{name}Error", "The feed is broken", 1_000) for name in "ABCDEFGHI"),
)
