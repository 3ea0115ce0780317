"""The shared shop, which is replaced when it is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery_rmq_delay.testing import PrivateBroker
from tests.support.browser import seeds
from tests.support.browser.shop import Shop
from tests.support.losses import Losses


class SharedShop:
    """A shop that is started when a test wants it, and again where one of its processes has ended meanwhile.

    A lost one fails the test that used it, and is one of the ``losses``; it fails no test after it. On a private broker
    each shop has a vhost of its own.
    """

    def __init__(self, broker: Any, redis: Any, new_folder: Callable[[], Path], losses: Losses) -> None:
        self._broker, self._redis, self._new_folder, self._losses = broker, redis, new_folder, losses
        self._shop: Shop | None = None
        self._is_filled = False

    def shop(self) -> Shop:
        """Return the running shop, or a new one."""
        self._forget_lost()
        if self._shop is None:
            broker = self._broker
            url = broker.vhost("browser") if isinstance(broker, PrivateBroker) else broker.url
            self._shop = Shop(url, self._redis.url, self._new_folder()).__enter__()
        return self._shop

    def filled(self) -> Shop:
        """Return it with a collector and an operator, its pages filled; see `seeds`."""
        shop = self.shop()
        if not self._is_filled:
            shop.start("collector", "rmq_delay_collect")
            shop.start("operator", "rmq_delay_operate")
            seeds.seed(shop)
            self._is_filled = True
        return shop

    def close(self) -> None:
        """End the shop."""
        self._forget_lost()
        if self._shop is not None:
            self._end(self._shop)

    def _forget_lost(self) -> None:
        if self._shop is not None and (ended := self._shop.ended()):
            self._losses.add(f"The shop's {' and '.join(ended)} ended", self._shop.logs())
            self._end(self._shop)

    def _end(self, shop: Shop) -> None:
        self._shop, self._is_filled = None, False
        shop.__exit__()
        if isinstance(self._broker, PrivateBroker):
            self._broker.delete_vhost("browser")
