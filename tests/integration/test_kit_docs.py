"""The examples of the how-to pages about tests of retries."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import metadata
from urllib.parse import urlsplit

import pytest
import yaml
from packaging.requirements import Requirement

from tests.support import ROOT
from tests.support.corpus import corpus
from tests.support.snippets import snippets, write
from tests.support.waiting import SECONDS

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs/test/test-your-retries.md"
BROKER_PAGE = ROOT / "docs/test/test-with-a-private-broker.md"
CI_PAGE = ROOT / "docs/test/test-in-ci.md"
FILES = [snippet.title for snippet in snippets(PAGE) if snippet.language == "python"]
WITH_BROKER = {"test_with_broker.py": 2, "test_with_process.py": 1}
URL = r"amqp://guest:guest@127\.0\.0\.1:\d+//"
WITHOUT = {"test_charge.py": 3, "test_outage.py": 3, "test_with_unittest.py": 1}


def run(folder, *arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "BROKER_URL"} | variables
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_block_of_the_page_is_a_file_that_runs():
    assert sorted(FILES) == sorted(["shop.py", *WITHOUT, *WITH_BROKER])


def test_examples_that_need_no_broker_pass_without_one(tmp_path):
    write(PAGE, tmp_path, *FILES)
    output = run(tmp_path, "--rabbitmq", "/no/such/server", *WITHOUT)
    assert f"{sum(WITHOUT.values())} passed" in output


def test_examples_that_need_a_broker_pass_on_one(managed, tmp_path):
    write(PAGE, tmp_path, *FILES)
    urls = ("--broker-url", managed.url, "--management-url", str(managed.management_url))
    output = run(tmp_path, *urls, *WITH_BROKER)
    assert f"{sum(WITH_BROKER.values())} passed" in output


def test_a_worker_process_of_the_page_leaves_the_queues_of_broker_url_alone(managed, tmp_path):
    write(PAGE, tmp_path, *FILES)
    variables = {"BROKER_URL": managed.vhost("team"), "RMQ_DELAY_MANAGEMENT_URL": str(managed.management_url)}
    try:
        assert "1 passed" in run(tmp_path, "test_with_process.py", **variables)
        assert managed.rabbitmqctl("list_queues", "-p", "team", "--silent").strip() == ""
    finally:
        managed.delete_vhost("team")


SCRIPTS = {
    "private.py": rf"{URL}\nname\n/\n\n",
    "From a shell": rf"export BROKER_URL={URL} RMQ_DELAY_MANAGEMENT_URL=http://guest:guest@127\.0\.0\.1:\d+\n.*",
}


@pytest.mark.slow
@corpus("name", SCRIPTS)
def test_a_script_that_starts_a_broker_prints_its_address(name, tmp_path):
    code = {snippet.title: snippet.code for snippet in snippets(BROKER_PAGE)}
    code["From a shell"] = next(each.code for each in snippets(BROKER_PAGE) if each.code.startswith("python -c"))
    command = [sys.executable, "-c", code[name]]
    if name != "private.py":
        command = ["sh", "-c", code[name].replace("python", shlex.quote(sys.executable), 1)]
    done = subprocess.run(command, cwd=tmp_path, input="\n", capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(SCRIPTS[name], done.stdout), done.stdout
    assert list(tmp_path.iterdir()) == []


# -- the page about CI ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A job of a CI service: its containers, environment and commands."""

    name: str
    images: tuple[str, ...]
    hosts: tuple[str, ...]
    variables: Mapping[str, str]
    commands: tuple[str, ...]
    text: str


def github_jobs(snippet):
    for name, job in yaml.safe_load(snippet.code)["jobs"].items():
        services = job.get("services", {})
        assert {port for each in services.values() for port in each["ports"]} in (set(), {"5672:5672", "15672:15672"})
        yield Job(
            f"{snippet.title}:{name}",
            tuple(each["image"] for each in services.values()),
            ("localhost",),  # the steps run on the machine, with published ports
            job.get("env", {}),
            tuple(step["run"] for step in job["steps"] if "run" in step),
            " ".join(each["options"] for each in services.values()),
        )


def gitlab_jobs(snippet):
    for name, job in yaml.safe_load(snippet.code).items():
        services = job.get("services", [])
        yield Job(
            f"{snippet.title}:{name}",
            tuple(each["name"] for each in services),
            tuple(each["alias"] for each in services),
            job.get("variables", {}),
            tuple(job["script"]),
            "",
        )


JOBS = [
    job for snippet in snippets(CI_PAGE) for job in (gitlab_jobs if "gitlab" in snippet.title else github_jobs)(snippet)
]
WITH_SERVICE = [job for job in JOBS if job.images]
EXTRAS = metadata("celery-rmq-delay").get_all("Provides-Extra")


def test_the_page_has_a_job_with_a_service_and_one_without_for_each_ci():
    assert [bool(job.images) for job in JOBS] == [True, False, True, False]


@corpus("job", JOBS)
def test_a_ci_job_installs_what_its_tests_need(job):
    (install,) = (command for command in job.commands if command.startswith("pip install "))
    requirements = [Requirement(each) for each in shlex.split(install)[2:] if not each.endswith((".txt", "-r"))]
    (ours,) = (each for each in requirements if each.name == "celery-rmq-delay")
    assert {each.name for each in requirements} == {"pytest", "celery-rmq-delay"}
    assert ours.extras <= {*EXTRAS}
    assert ("management" in ours.extras) == bool(job.images)
    assert any("rabbitmq-server" in command for command in job.commands) == (not job.images)
    assert all(image.startswith("rabbitmq:") and image.endswith("-management") for image in job.images)


@corpus("job", JOBS)
def test_a_ci_job_uses_variables_of_the_plugin_and_the_host_of_its_service(job):
    assert [*job.variables] == (["BROKER_URL"] if job.images else [])
    for url in job.variables.values():
        parts = urlsplit(url)
        assert (parts.hostname in job.hosts, parts.port, parts.username) == (True, 5672, "guest")


def test_the_health_command_of_a_service_succeeds(managed):
    (command,) = {found for job in JOBS for found in re.findall(r'--health-cmd "(.+?)"', job.text)}
    program, *arguments = shlex.split(command)
    managed._tool(program, "-n", managed.node, *arguments, timeout=SECONDS)


@pytest.mark.parametrize("job", WITH_SERVICE, ids=lambda job: job.name)
def test_the_commands_of_a_ci_job_succeed_with_its_variables(job, managed, tmp_path):
    """The service is here on another host and on other ports than those of a container."""

    def here(text):
        text = re.sub(rf"@({'|'.join(job.hosts)}):5672", f"@127.0.0.1:{managed.port}", text)
        text = re.sub(rf"//({'|'.join(job.hosts)}):15672", f"//127.0.0.1:{managed.settings.management_port}", text)
        return text.replace("listener/5672", f"listener/{managed.port}")

    write(BROKER_PAGE, tmp_path, "test_payments.py")
    variables = {name: here(value) for name, value in job.variables.items()}
    variables |= {"RMQ_DELAY_MANAGEMENT_URL": str(managed.management_url), "CI": "true"}
    for command in job.commands:
        if command.startswith(("python", "curl")):
            python = shlex.quote(sys.executable)
            line = re.sub(r"^python\b", python, here(command))
            done = subprocess.run(
                line,
                shell=True,
                cwd=tmp_path,
                env={**os.environ, **variables},
                capture_output=True,
                text=True,
                timeout=240,
            )
            assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
