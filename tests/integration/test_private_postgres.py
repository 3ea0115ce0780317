"""The private PostgreSQL: started, stopped, killed and removed."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
import pytest

from celery_rmq_delay.testing.servers.host import is_free
from tests.support.servers.postgres import PrivatePostgres
from tests.support.waiting import wait_for

HOLDER = """
import sys
from tests.support.servers.postgres import PrivatePostgres
postgres = PrivatePostgres()
postgres.start()
print(postgres.pid, postgres.port, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def database(own_postgres):
    """The URL of a database, which is dropped with the connections to it."""
    yield own_postgres.create_database("a shop/ü")
    own_postgres.start()
    own_postgres.drop_database("a shop/ü")


def run(url, statement):
    with psycopg.connect(url) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_committed_rows_survive_a_stop_and_a_kill(own_postgres, database, ending):
    run(database, "CREATE TABLE kept AS SELECT 1 AS number")
    with psycopg.connect(database) as client:
        getattr(own_postgres, ending)()
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")
    assert own_postgres.pid is None
    assert is_free(own_postgres.port)
    own_postgres.start()
    assert run(database, "SELECT number FROM kept") == [(1,)]


def test_nothing_is_left_when_the_owner_is_killed(own_postgres):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with holder:
        assert holder.stdout is not None
        pid, port = map(int, holder.stdout.readline().split())
        folder = Path(Path(f"/proc/{pid}/cmdline").read_text().split("\0")[2]).parent
        assert folder.is_dir()
        os.kill(holder.pid, signal.SIGKILL)
    wait_for(lambda: not folder.exists(), "the removal of the directory")
    assert not Path(f"/proc/{pid}").exists()
    assert is_free(port)


def test_nothing_is_left_when_the_owner_is_killed_while_the_files_are_made():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)  # for the user that makes them
        starting = subprocess.Popen(
            [sys.executable, "-c", HOLDER], env={**os.environ, "TMPDIR": folder}, stdout=subprocess.PIPE
        )
        with starting:
            wait_for(lambda: list(Path(folder).glob("postgres-*/data/base")), "the first files")
            starting.kill()
        wait_for(lambda: not list(Path(folder).iterdir()), "their removal")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as another user")
def test_the_folder_for_temporary_files_may_be_one_that_only_root_enters(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with PrivatePostgres() as postgres:
        assert run(postgres.url, "SELECT 1") == [(1,)]
