"""Invalid answers of a management API: each is one `ManagementError` or a partial result."""

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_rmq_delay.exceptions import ManagementError
from celery_rmq_delay.management.client import Management
from celery_rmq_delay.management.records import Policy
from tests.support import hostile
from tests.support.corpus import corpus
from tests.support.waiting import SECONDS

SECRET = "hunter2hunter2"


class Liar(ThreadingHTTPServer):
    """Answers every request in the same way."""

    status = 200
    headers: tuple[tuple[str, str], ...] = ()
    body = b""
    #: A wrong Content-Length of the answer, if any.
    length: int | None = None
    #: The received requests.
    paths: list[str]


class Handler(BaseHTTPRequestHandler):
    server: Liar

    def _answer(self):
        liar = self.server
        liar.paths.append(self.path)
        self.send_response(liar.status)
        for name, value in liar.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(liar.body) if liar.length is None else liar.length))
        self.end_headers()
        self.wfile.write(liar.body)
        self.close_connection = True

    do_GET = do_PUT = do_DELETE = _answer  # noqa: N815 - the names are the standard library's

    def log_message(self, *_):
        """Log nothing."""


@pytest.fixture(scope="module")
def liar():
    with Liar(("127.0.0.1", 0), Handler) as server:
        server.paths = []
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(SECONDS)


CALLS: dict[str, Callable[[Management], object]] = {
    "version": Management.version,
    "queues": Management.queues,
    "queue": lambda client: client.queue("a/b"),
    "consumers": lambda client: client.consumers("q"),
    "policies": Management.policies,
    "put": lambda client: client.put_policy(Policy("p", "^q$")),
    "delete": lambda client: client.delete_policy("p"),
}


def ask(liar, call, body, status=200, **more):
    """Send one request; return the error, or an empty text. Any other exception fails."""
    liar.body, liar.status = body, status
    liar.headers, liar.length = more.get("headers", ()), more.get("length")
    with Management(f"http://127.0.0.1:{liar.server_port}", "/", "ann", SECRET, timeout=20) as client:
        try:
            CALLS[call](client)
        except ManagementError as error:
            assert SECRET not in str(error)
            assert "127.0.0.1" in str(error)
            return str(error)
    return ""


queue = st.fixed_dictionaries(
    {"name": hostile.json_values | st.just("q")},
    optional=dict.fromkeys(
        ("type", "arguments", "policy", "effective_policy_definition", "messages_dlx", "consumer_details", "durable"),
        hostile.json_values,
    ),
)
policy = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("name", "pattern", "definition", "priority", "apply-to"), hostile.json_values),
)
answers = (hostile.json_values | st.lists(queue, max_size=3) | queue | st.lists(policy, max_size=3)).map(
    lambda value: json.dumps(value).encode("utf-8", "surrogatepass")
) | st.binary(max_size=60)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(CALLS)), answers, st.sampled_from([200, 200, 200, 201, 301, 400, 401, 403, 404, 500]))
def test_every_answer_is_read_or_one_error(liar, call, body, status):
    ask(liar, call, body, status)


@corpus("call", ["version", "queues", "queue", "consumers", "policies"])
@corpus(
    "body, more",
    [
        (b"[" * 100_000, {}),
        (b'{"rabbitmq_version": "4.0"', {}),
        (b'[{"name": "q"}]', {"length": 1_000}),
        (b"\xff\xfe", {"headers": (("Content-Type", "application/json; charset=klingon"),)}),
        (b"{}", {"headers": (("Content-Encoding", "gzip"),)}),
        (b"<html>", {"headers": (("Content-Type", "text/html"),)}),
        (b"9" * 10_000, {}),
        (b"null", {}),
    ],
)
def test_invalid_answers_raise_one_error(liar, call, body, more):
    assert ask(liar, call, body, **more)


@corpus("call", sorted(CALLS))
def test_no_redirect_is_followed_with_the_password(liar, call):
    liar.paths.clear()
    assert "302" in ask(liar, call, b"", 302, headers=(("Location", f"http://127.0.0.1:{liar.server_port}/stolen"),))
    assert not [path for path in liar.paths if "stolen" in path]
