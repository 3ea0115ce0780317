"""The page on capacity shows the output of the command."""

import re
import shlex
from itertools import pairwise

from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_rmq_delay.cli.capacity import format_number
from celery_rmq_delay.cli.main import rmq_delay
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.operations.capacity import CONSTANTS, VERSIONS, flow
from tests.support import ROOT
from tests.support.apps import bare_app
from tests.support.corpus import corpus
from tests.support.snippets import snippets

PAGE = ROOT / "docs/operate/capacity.md"
BLOCKS = snippets(PAGE)
EXAMPLES = [(ask, output) for ask, output in pairwise(BLOCKS) if ask.language == "sh"]


def paragraphs(arguments):
    context = CLIContext(bare_app(), no_color=True, workdir=None)
    result = CliRunner().invoke(rmq_delay, arguments, obj=context)
    assert result.exit_code in (0, 1), result.output
    return result.output.rstrip().split("\n\n")


@corpus("ask, output", EXAMPLES)
def test_a_block_of_output_matches_the_command_above_it(ask, output):
    words = shlex.split(ask.code)
    assert words[:4] == ["celery", "-A", "proj", "rmq-delay"]
    assert output.language == "text"
    printed = paragraphs(words[4:])
    for paragraph in output.code.rstrip().split("\n\n"):
        assert paragraph in printed


def test_there_are_examples():
    assert len(EXAMPLES) > 4
    assert len(BLOCKS) == 2 * len(EXAMPLES)


def rows(pattern):
    found = re.findall(rf"^\| `({pattern})` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    return {name: cells.split(" | ") for name, cells in found}


def is_measured(constant):
    return constant.source.startswith("measured") and constant.name != "many_queues"


def test_the_tables_have_every_constant_with_its_values_and_its_source():
    table = rows(r"\w+")
    assert table == {
        each.name: [each.what, *(f"{each.of(version):,.0f}" for version in VERSIONS)]
        if is_measured(each)
        else [each.what, format_number(each.of(VERSIONS[-1])), each.source]
        for each in CONSTANTS
        if is_measured(each) or not each.source.startswith("measured")
    }


def test_the_diagram_has_the_figures_of_the_first_example():
    diagram = (ROOT / "docs/assets/capacity.mmd").read_text()
    found = flow(5000, (0.02,), Ladder((10_000, 60_000, 600_000, 3_600_000)))
    for tier in found.tiers:
        seconds = f"{tier.delay_ms / 1000:,.0f}"
        arrivals, parked = format_number(tier.arrivals_per_s), format_number(tier.parked)
        assert f"tier {tier.tier_index}: {seconds} s<br/>{arrivals} x {seconds} = {parked}" in diagram
    assert f"{format_number(found.attempts_per_s)} attempts/s" in diagram
    assert f"{format_number(found.exhausted_per_day)} a day" in diagram
