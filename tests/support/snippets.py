"""The code in the documentation."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from tests.support import ROOT
from tests.support.waiting import SECONDS

_FENCE = re.compile(r"^( *)```(\w+)(?: title=\"(.+?)\")?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """A fenced block, also one in a list; ``title`` is the name of the file that it shows, if any."""

    page: str
    line: int
    language: str
    title: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return the README and all pages of the documentation."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def snippets(page: Path) -> list[Snippet]:
    text = page.read_text()
    return [
        Snippet(
            page=str(page.relative_to(ROOT)),
            line=text.count("\n", 0, found.start()) + 1,
            language=found.group(2),
            title=found.group(3) or "",
            code=dedent(found.group(4)),
        )
        for found in _FENCE.finditer(text)
    ]


def append(page: Path, folder: Path, title: str) -> None:
    """Add what ``page`` shows as the end of the file ``title`` to that file in ``folder``."""
    (code,) = (snippet.code for snippet in snippets(page) if snippet.title == f"{title}, at the end")
    with (folder / title).open("a") as file:
        file.write(f"\n{code}")


def start_project(folder: Path) -> None:
    """Run the commands of the quickstart that create a Django project."""
    page = ROOT / "docs/start/quickstart.md"
    (code,) = (snippet.code for snippet in snippets(page) if "startproject" in snippet.code)
    for line in code.splitlines():
        words = line.replace("django-admin", "python -m django").replace("python", sys.executable, 1)
        subprocess.run(words.split(), cwd=folder, check=True, timeout=SECONDS)


def write(page: Path, folder: Path, *titles: str) -> None:
    """Write the files that ``page`` shows under ``titles`` into ``folder``."""
    shown = {snippet.title: snippet.code for snippet in snippets(page)}
    for title in titles:
        path = folder / title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(shown[title])


def section(page: Path, heading: str) -> list[Snippet]:
    """Return the fenced blocks under one heading of the second level."""
    lines = page.read_text().splitlines()
    first = lines.index(f"## {heading}") + 1
    last = next((number for number, line in enumerate(lines[first:], first + 1) if line[:3] == "## "), len(lines) + 1)
    return [snippet for snippet in snippets(page) if first < snippet.line < last]
