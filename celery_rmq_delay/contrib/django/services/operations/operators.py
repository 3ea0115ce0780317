"""The status of the processes that run background operations."""

from __future__ import annotations

import logging
import time
import uuid
from datetime import datetime, timedelta

from .....fence import process_name
from ...models import OperatorStatus
from ...transactions import DATABASE_AWAY
from .. import clock
from .lease import STALE_AFTER

logger = logging.getLogger(__name__)

#: Seconds between two heartbeats.
_BEAT_EVERY = 10.0
#: Rows of processes that were killed are deleted after so long.
_FORGOTTEN_AFTER = timedelta(days=1)


def count_running(now: datetime) -> int:
    """Return how many processes of ``rmq_delay_operate`` have sent a heartbeat within the last minute."""
    return OperatorStatus.objects.filter(heartbeat_at__gt=now - STALE_AFTER).count()


class Presence:
    """The row of this process, from the first heartbeat to the end of the block."""

    def __init__(self) -> None:
        # Containers can share a host name, and have the same process ids.
        self._name, self._began, self._due = f"{process_name()}:{uuid.uuid4().hex[:8]}", clock.now(), 0.0

    def __enter__(self) -> Presence:
        return self

    def beat(self) -> None:
        """Renew the heartbeat if it is time."""
        if time.monotonic() < self._due:
            return
        now = clock.now()
        OperatorStatus.objects.filter(heartbeat_at__lt=now - _FORGOTTEN_AFTER).delete()
        OperatorStatus.objects.update_or_create(
            name=self._name,
            defaults={"heartbeat_at": now},
            create_defaults={"heartbeat_at": now, "started_at": self._began},
        )
        self._due = time.monotonic() + _BEAT_EVERY

    def __exit__(self, *_: object) -> None:
        try:
            OperatorStatus.objects.filter(name=self._name).delete()
        except DATABASE_AWAY:
            logger.warning("The row of this process stays: its heartbeat ends", exc_info=True)
