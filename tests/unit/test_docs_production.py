"""The unit, the files and the commands of docs/operate/production-workers.md."""

import configparser
import json
import shlex

import yaml
from celery.bin.celery import celery

from tests.support import ROOT
from tests.support.corpus import corpus
from tests.support.snippets import snippets

PAGE = ROOT / "docs/operate/production-workers.md"
SNIPPETS = {snippet.language: snippet for snippet in snippets(PAGE) if snippet.title}


def unit():
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.read_string(SNIPPETS["ini"].code)
    return parser


def worker_arguments(snippet):
    """Return what follows `celery` in the command that starts a worker."""
    if snippet.language == "ini":
        return shlex.split(unit()["Service"]["ExecStart"])[1:]
    (command,) = (line.removeprefix("CMD ") for line in snippet.code.splitlines() if line.startswith("CMD "))
    return json.loads(command)[1:]


@corpus("language", ["ini", "dockerfile"])
def test_the_worker_of_the_page_has_only_options_that_celery_knows(language):
    arguments = worker_arguments(SNIPPETS[language])
    assert arguments[:3] == ["-A", "shop", "worker"]
    worker = celery.commands["worker"]
    context = worker.make_context("worker", arguments[3:], resilient_parsing=True)
    assert not context.args
    assert {option for option in arguments[3:] if option.startswith("--")} <= {
        option for parameter in worker.params for option in parameter.opts
    }


def test_both_supervisors_stop_a_worker_warm_and_give_it_the_same_time():
    service = unit()["Service"]
    assert (service["KillMode"], service["KillSignal"], service["Restart"]) == ("mixed", "SIGTERM", "always")
    pod = yaml.safe_load(SNIPPETS["yaml"].code)["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == int(service["TimeoutStopSec"]) > 35
    assert "livenessProbe" not in pod["containers"][0]
