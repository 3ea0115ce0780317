"""The payment gateway's HTTP API."""

from functools import cache

import httpx
from django.conf import settings


class GatewayError(Exception):
    """The gateway could not be reached, or did not process the charge: try again."""


class InvalidCard(Exception):  # noqa: N818 - named after what happened
    """The card was declined permanently: do not try again."""


@cache
def _client() -> httpx.Client:
    """Return the client of this process, created at first use so that processes do not share connections."""
    return httpx.Client(
        base_url=settings.PAYMENT_GATEWAY_URL,
        timeout=httpx.Timeout(1.0, connect=0.5),
        limits=httpx.Limits(max_connections=10, max_keepalive_connections=2, keepalive_expiry=5),
        headers={"user-agent": "shop"},
    )


def charge(*, reference: str, card: str, amount: str) -> str:
    """Charge a card and return the charge's id.

    The reference is the idempotency key: even if a request or an answer was lost before, the card is charged once.
    Raises `InvalidCard` or `GatewayError`.
    """
    try:
        response = _client().post(
            "/charges", json={"card": card, "amount": amount}, headers={"idempotency-key": reference}
        )
        if response.status_code == httpx.codes.PAYMENT_REQUIRED:
            raise InvalidCard(response.json()["error"])
        response.raise_for_status()
        charge_id: str = response.json()["id"]
    except httpx.HTTPError as error:
        raise GatewayError(f"{type(error).__name__}: {error}") from error
    return charge_id
