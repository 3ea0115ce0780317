"""A private Prometheus that reads collectors and loads the rules that come with the package."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import httpx

from celery_rmq_delay.exceptions import ServerNotFoundError
from celery_rmq_delay.testing.servers.host import free_port
from celery_rmq_delay.testing.servers.process import KeptProcess, PrivateServer, wait_until_ready
from tests.support.monitoring import FOLDER
from tests.support.waiting import BUSY, SECONDS


class PrivatePrometheus(PrivateServer):
    """A Prometheus on 127.0.0.1 that reads ``targets`` (``HOST:PORT``) once a second; a context manager.

    :raises ServerNotFoundError: when none is installed.
    """

    def __init__(self, *targets: str) -> None:
        found = shutil.which("prometheus")
        if found is None:
            raise ServerNotFoundError(
                "No prometheus was found in PATH. Install it (Debian: apt-get install prometheus)."
            )
        self.server, self.targets, self.port = found, targets, free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        home = Path(tempfile.mkdtemp(prefix="prometheus-"))
        log, config = home / "output.txt", home / "prometheus.yml"
        job = {"job_name": "celery-rmq-delay", "static_configs": [{"targets": self.targets}]}
        often = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        rules = [str(FOLDER / "prometheus-rules.yml")]
        config.write_text(json.dumps({"global": often, "rule_files": rules, "scrape_configs": [job]}))  # JSON is YAML
        options = (
            f"--config.file={config}",
            f"--storage.tsdb.path={home}/data",
            f"--web.listen-address=127.0.0.1:{self.port}",
        )
        self._process = KeptProcess([self.server, *options], env={}, output=log, remove=home)
        self._process.start()
        wait_until_ready(self._is_ready, self._process, what=self.server, timeout=SECONDS, logs=[log])

    def stop(self) -> None:
        if self._process is not None:
            self._process.close()
        self._process = None

    def ask(self, path: str, **parameters: str | float) -> Any:
        """Return the ``data`` of an answer of ``/api/v1/PATH``; fail on an error."""
        with httpx.Client(base_url=self.url, timeout=BUSY, trust_env=False) as client:
            answer = client.get(f"/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def series(self, expression: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """Return the series of an expression: each has the labels in ``metric``, and pairs of time and text."""
        found: list[dict[str, Any]] = self.ask("query_range", query=expression, start=start, end=end, step=step)[
            "result"
        ]
        return found

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=BUSY, trust_env=False).is_success
        except httpx.TransportError:
            return False
