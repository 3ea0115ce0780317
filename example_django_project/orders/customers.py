"""Generated customers: always the same ones for a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TypedDict

#: Cards by the gateway's answer: charged, declined permanently, or failed as long as the bank is away.
GOOD, DECLINED, BANK_AWAY = "tok_visa", "tok_stolen", "tok_bank_away"
_WEIGHTS = {GOOD: 95, DECLINED: 3, BANK_AWAY: 2}


class Customer(TypedDict):
    """The arguments of `orders.services.place_order`."""

    reference: str
    email: str
    card: str
    amount: str


def customers(count: int | None, *, run: str, seed: int = 1) -> Iterator[Customer]:
    """Yield ``count`` orders to place; None: without a limit. ``run`` makes their references unique."""
    chance = random.Random(seed)
    number = 0
    while count is None or number < count:
        number += 1
        yield Customer(
            reference=f"{run}-{number:04}",
            email=f"customer{number}@example.org",
            card=chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0],
            amount=f"{chance.randint(100, 20_000) / 100:.2f}",
        )
