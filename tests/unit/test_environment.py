from __future__ import annotations

import os

from tests.support.environment import clean

KEPT = {"BROKER_URL": "b", "HOME": "/root", "JAVA_HOME": "/java", "PATH": "/bin", "RMQ_DELAY_BROKER_TREES": "/trees"}
CHANGING = (
    "CELERY_BROKER_URL",
    "CELERY_RESULT_BACKEND",
    "DJANGO_SETTINGS_MODULE",
    "FLOWER_BASIC_AUTH",
    "HTTPS_PROXY",
    "PYTHONUNBUFFERED",
    "RMQ_DELAY_MANAGEMENT_URL",
    "SPARK_CONF_DIR",
    "http_proxy",
)


def test_a_test_run_takes_no_settings_and_no_proxy_from_its_environment() -> None:
    environ = KEPT | dict.fromkeys(CHANGING, "x")
    clean(environ)
    assert environ == KEPT


def test_this_run_has_none_of_them() -> None:
    assert not {*CHANGING} & {*os.environ}
