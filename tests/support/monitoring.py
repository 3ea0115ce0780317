"""The dashboard and the rules that come with the package, and a private Prometheus that evaluates them."""

import json
from typing import Any

import yaml

from tests.support import ROOT

FOLDER = ROOT / "celery_rmq_delay/contrib/django/monitoring"


def alerts() -> list[dict[str, Any]]:
    """Return the alert rules."""
    groups = yaml.safe_load((FOLDER / "prometheus-rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    """Return the dashboard."""
    found: dict[str, Any] = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    return found


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard, in their order."""
    found: list[dict[str, Any]] = dashboard()["panels"]
    return found


def expression(target: dict[str, Any], *, rate_interval: str = "5m") -> str:
    """Return a panel's query, with Grafana's variables replaced: all queues, and this interval for rates."""
    text: str = target["expr"].replace("$__rate_interval", rate_interval).replace("$queue", ".*")
    assert "$" not in text
    return text
