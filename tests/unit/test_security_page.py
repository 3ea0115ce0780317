"""The tests named on the page on security exist."""

import re

from tests.support import ROOT
from tests.support.corpus import corpus

PAGE = (ROOT / "docs/explanation/security.md").read_text()
NAMED = sorted(set(re.findall(r"`(?:tests/\w+/)?(test_\w+\.py)(?:::(\w+))?`", PAGE)))


def test_the_page_names_tests():
    assert len(NAMED) > 15


@corpus("file, name", NAMED)
def test_every_named_test_exists(file, name):
    found = [each for each in (ROOT / "tests").glob(f"*/{file}") if f"tests/{each.parent.name}/{file}" in PAGE]
    assert found
    assert not name or any(f"def {name}(" in each.read_text() for each in found)
