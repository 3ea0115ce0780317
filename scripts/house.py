"""The map of the house in CONTRIBUTING.md, made of the folders' docstrings; and checks of the house's rules.

``python scripts/house.py`` writes the map. With ``--check`` it changes nothing, and ends with 1 where the map is old,
too many modules are at the top of the package, a package of the house has two modules of one name, or a folder does
not say what it may import. Import directions are import-linter's (pyproject.toml).
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "celery_rmq_delay"
GUIDE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- the map: scripts/house.py -->\n", "<!-- the end of the map -->\n"
#: Modules at the top of the package.
MOST_AT_THE_TOP = 14
#: Folders whose files are named by Django.
_BY_DJANGO = ("management", "migrations", "templatetags")
_MAY_IMPORT = "May import "


def rooms() -> Iterator[tuple[Path, str]]:
    """Yield each folder of the package that has code, with its docstring."""
    for path in sorted(PACKAGE.rglob("__init__.py")):
        folder = path.parent.relative_to(PACKAGE)
        if folder.parts and not set(folder.parts) & set(_BY_DJANGO):
            yield folder, ast.get_docstring(ast.parse(path.read_text())) or ""


def modules(folder: Path) -> list[Path]:
    """Return the modules of a folder and of those below it."""
    found = sorted((PACKAGE / folder).rglob("*.py"))
    return [path for path in found if path.name != "__init__.py" and not set(path.parts) & set(_BY_DJANGO)]


def table() -> str:
    """Return the map."""
    top = sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__")
    lines = [
        "| Folder | What is in it | May import |",
        "|---|---|---|",
        f"| (top) | {', '.join(f'`{name}`' for name in top)} | |",
    ]
    for folder, text in rooms():
        what, _, rest = text.partition(_MAY_IMPORT)
        may = rest.partition("\n\n")[0].replace("\n", " ").strip().rstrip(".")
        lines.append(f"| `{folder}` | {' '.join(what.partition(chr(10) * 2)[0].split())} | {may} |")
    return "\n".join(lines) + "\n"


def with_map(text: str) -> str:
    """Return the guide with the map of now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def problems() -> Iterator[str]:
    """Yield what is against the rules."""
    top = list(PACKAGE.glob("*.py"))
    if len(top) > MOST_AT_THE_TOP:
        yield f"{len(top)} modules at the top of the package: at most {MOST_AT_THE_TOP}."
    # A room is a folder at the top of the package; of `contrib` each folder is one.
    for room in sorted({Path(*folder.parts[: 2 if folder.parts[0] == "contrib" else 1]) for folder, _ in rooms()}):
        names = Counter(path.name for path in modules(room)) if room != Path("contrib") else {}
        yield from (f"{n} modules of {room} are called {name}." for name, n in names.items() if n > 1)
    for folder, text in rooms():
        if _MAY_IMPORT not in text:
            yield f"{folder}/__init__.py does not say what its modules may import: add a line 'May import ...'."
    if with_map(GUIDE.read_text()) != GUIDE.read_text():
        yield "The map in CONTRIBUTING.md is old: run python scripts/house.py."


def main() -> int:
    """Write the map, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; end with 1 where something is wrong")
    if not parser.parse_args().check:
        GUIDE.write_text(with_map(GUIDE.read_text()))
    found = list(problems())
    for each in found:
        sys.stderr.write(f"{each}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
