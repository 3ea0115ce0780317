"""Write the map of the package's folders in CONTRIBUTING.md, and check their rules.

``python scripts/house.py`` writes the map from the folders' docstrings and imports. With ``--check`` it changes
nothing, and exits with 1 if the map is old, an import cycle exists, a folder with modules is no package or does not
state what it may import, two modules of a folder have one name, or too many modules are at the top of the package.
Import directions are checked by import-linter (pyproject.toml).
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "celery_rmq_delay"
GUIDE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- the map: scripts/house.py -->\n", "<!-- the end of the map -->\n"
#: Modules at the top of the package.
MOST_AT_THE_TOP = 14
#: Folders whose files are named by Django.
_BY_DJANGO = ("management", "migrations", "templatetags")
_MAY_IMPORT = "May import "


def is_named_by_django(path: Path) -> bool:
    """Whether Django names a folder, or one above it."""
    return "contrib" in path.parts and bool(set(path.parts) & set(_BY_DJANGO))


@cache
def rooms() -> dict[Path, str]:
    """Return the folders of the package that have code, with their docstrings."""
    paths = {path.parent.relative_to(PACKAGE): path for path in sorted(PACKAGE.rglob("__init__.py"))}
    return {
        folder: ast.get_docstring(ast.parse(path.read_text())) or ""
        for folder, path in paths.items()
        if folder.parts and not is_named_by_django(folder)
    }


def modules(folder: Path) -> list[Path]:
    """Return the modules of a folder and of those below it."""
    found = sorted((PACKAGE / folder).rglob("*.py"))
    return [path for path in found if path.name != "__init__.py" and not is_named_by_django(path)]


def imports() -> dict[str, set[str]]:
    """Return the modules that each module imports, also in functions and for type checking."""
    graph = grimp.build_graph(PACKAGE.name, cache_dir=None)
    return {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}


def imported(folder: Path, graph: dict[str, set[str]]) -> list[str]:
    """Return the other folders that the modules of a folder import."""
    folders = {".".join((PACKAGE.name, *path.parts)): f"`{path}`" for path in rooms()}
    inside = ".".join((PACKAGE.name, *folder.parts))
    found = {each for name in graph if f"{name}.".startswith(f"{inside}.") for each in graph[name]}
    owners = {
        max((name for name in folders if f"{each}.".startswith(f"{name}.")), key=len, default=inside) for each in found
    }
    return sorted(folders[name] for name in owners if not f"{name}.".startswith(f"{inside}."))


def table(graph: dict[str, set[str]]) -> str:
    """Return the map."""
    top = sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__")
    lines = [
        "| Folder | What is in it | Imports from |",
        "|---|---|---|",
        f"| (top) | {', '.join(f'`{name}`' for name in top)} | |",
    ]
    for folder, text in rooms().items():
        what = " ".join(text.partition(_MAY_IMPORT)[0].partition("\n\n")[0].split())
        lines.append(f"| `{folder}` | {what} | {', '.join(imported(folder, graph))} |")
    return "\n".join(lines) + "\n"


def with_map(text: str, graph: dict[str, set[str]]) -> str:
    """Return the guide with the present map."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(graph)}\n{END}{after}"


def problems(graph: dict[str, set[str]]) -> Iterator[str]:
    """Yield the violations of the rules."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"An import cycle: {' -> '.join(error.args[1])}."
    for path in sorted({path.parent for path in PACKAGE.rglob("*.py")}):
        if not (path / "__init__.py").exists():
            yield f"{path.relative_to(ROOT)} has modules and no __init__.py: import-linter does not see it."
    top = list(PACKAGE.glob("*.py"))
    if len(top) > MOST_AT_THE_TOP:
        yield f"{len(top)} modules at the top of the package: at most {MOST_AT_THE_TOP}."
    # A room is a folder at the top of the package; of `contrib` each folder is one.
    for room in sorted({Path(*folder.parts[: 2 if folder.parts[0] == "contrib" else 1]) for folder in rooms()}):
        names = Counter(path.name for path in modules(room)) if room != Path("contrib") else {}
        yield from (f"{n} modules of {room} are called {name}." for name, n in names.items() if n > 1)
    for folder, text in rooms().items():
        if _MAY_IMPORT not in text:
            yield f"{folder}/__init__.py does not state what its modules may import: add a line 'May import ...'."
    guide = GUIDE.read_text()
    if with_map(guide, graph) != guide:
        yield "The map in CONTRIBUTING.md is old: run python scripts/house.py."


def main() -> int:
    """Write the map, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; end with 1 where something is wrong")
    check, graph = parser.parse_args().check, imports()
    if not check:
        GUIDE.write_text(with_map(GUIDE.read_text(), graph))
    found = list(problems(graph))
    for each in found:
        sys.stderr.write(f"{each}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
