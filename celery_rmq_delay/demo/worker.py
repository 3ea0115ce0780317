"""The app as a worker and the commands find it: ``celery -A celery_rmq_delay.demo.worker``."""

from __future__ import annotations

import os

from .orders import make_app

URL, NAME = "RMQ_DELAY_DEMO_URL", "RMQ_DELAY_DEMO_NAME"

app = make_app(os.environ.get(URL, "amqp://"), os.environ.get(NAME, "rmq_delay_demo"))
