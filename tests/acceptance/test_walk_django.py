"""From `startproject` to a filled admin, by the code and commands of the quickstart and of the admin's tutorial."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest

from tests.support import ROOT
from tests.support.snippets import append, snippets, start_project, write
from tests.support.waiting import SECONDS, wait_for

pytestmark = pytest.mark.slow

QUICKSTART, ADMIN = ROOT / "docs/start/quickstart.md", ROOT / "docs/admin/first-steps.md"
PERMISSIONS = ROOT / "docs/operate/permissions.md"
#: Prints the texts of the admin's lists as a superuser sees them.
SHOW = """
import re
from django.contrib.auth import get_user_model
from django.test import Client
client = Client(headers={"host": "localhost"})
client.force_login(get_user_model().objects.get())
for name in ("failuregroup", "exhaustedtask", "parkedtask"):
    page = client.get(f"/admin/rmq_delay/{name}/")
    assert page.status_code == 200, page.status_code
    print(name, re.sub(r"<[^>]+>|\\s+", " ", page.content.decode()))
"""


class Project:
    """A Django project in a folder, made as the documentation has it."""

    def __init__(self, folder, broker):
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},
            "BROKER_URL": broker,
            "DJANGO_SUPERUSER_PASSWORD": "only for this test",
        }

    def run(self, *command):
        """Run a command in the folder; return its outputs."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def manage(self, *arguments):
        return self.run(sys.executable, "manage.py", *arguments)

    @contextmanager
    def running(self, *arguments):
        """Run a command until the end of the block, which ends it cleanly."""
        with subprocess.Popen([sys.executable, *arguments], cwd=self.folder, env=self.environment) as process:
            try:
                yield
                assert process.poll() is None, f"{arguments} ended with {process.returncode}"
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=SECONDS)


def commands(page, program):
    """Return the command lines of a page that begin with ``program``, without comments."""
    lines = [line.partition("  #")[0].strip() for each in snippets(page) if each.language == "sh"
             for line in each.code.splitlines()]  # fmt: skip
    return [line for line in lines if line.startswith(program)]


def with_admin(folder, broker):
    """Return the project of the quickstart, with the admin of the tutorial."""
    start_project(folder)
    write(QUICKSTART, folder, "proj/celery.py", "proj/__init__.py", "payments/tasks.py")
    append(QUICKSTART, folder, "proj/settings.py")
    append(ADMIN, folder, "proj/settings.py")
    return Project(folder, broker)


@pytest.fixture
def project(tmp_path, rmq_vhost):
    return with_admin(tmp_path, rmq_vhost)


def test_a_new_django_project_gets_a_filled_admin(project):
    assert commands(ADMIN, "python manage.py")[:3] == [
        "python manage.py migrate",
        "python manage.py check",
        "python manage.py createsuperuser",
    ]
    project.manage("migrate")
    assert "no issues" in project.manage("check")
    project.manage("createsuperuser", "--noinput", "--username", "alice", "--email", "alice@example.org")
    (worker,) = commands(QUICKSTART, "celery -A proj worker")
    (calls,) = commands(QUICKSTART, "python manage.py shell")

    with ExitStack() as stack:
        stack.enter_context(project.running("-m", *worker.split()))
        for command in commands(ADMIN, "python manage.py rmq_delay"):
            stack.enter_context(project.running(*command.split()[1:]))
        project.manage("shell", "-c", calls.partition('-c "')[2].rstrip('"'))

        def shown():
            lines = project.manage("shell", "-c", SHOW).splitlines()
            pages = (line.partition(" ") for line in lines if "task " in line or "group " in line)
            return {name: text for name, _, text in pages}

        def is_filled():
            pages = shown()
            groups, parked = pages["failuregroup"], pages["parkedtask"]
            return "InvalidCard" in groups and "ConnectionError" in groups and "payments.tasks.charge" in parked

        wait_for(is_filled, "two failure groups and a parked task in the admin")
        status = project.run(sys.executable, "-m", *commands(QUICKSTART, "celery -A proj rmq-delay")[0].split())

    assert "payments" in status


def test_the_groups_of_the_page_about_permissions_have_them_in_a_new_database(tmp_path):
    project = with_admin(tmp_path, "amqp://unused.invalid//")
    write(PERMISSIONS, tmp_path, "payments/migrations/0001_groups.py")
    project.manage("migrate")
    count = "from django.contrib.auth.models import Group; "
    count += "print({group.name: group.permissions.count() for group in Group.objects.order_by('pk')})"
    assert "{'support': 6, 'on call': 8, 'payments': 10}" in project.manage("shell", "-c", count)
    newest = sorted((ROOT / "celery_rmq_delay/contrib/django/migrations").glob("0*.py"))[-1].stem
    assert f'("rmq_delay", "{newest}")' in PERMISSIONS.read_text()
