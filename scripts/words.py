"""Check that no discarded word is in code, tests or documentation: exits with 1 and prints the word to use.

``python scripts/words.py``; `make lint` runs it. Each word was once used for something that has a name in the field, or
in this package.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: Patterns of discarded words, and what to write.
WORDS = {
    r"\w*rungs?": "tier, or tier_index for its number",
    r"\w*suspect(s|ed)?\w*": "quarantine queue; a quarantined task",
    r"mend(s|ed|ing)?": "hint of an error, fix of a finding",
    r"climb(s|ed|ing)?": "advance to the next tier",
    r"stand-?ins?": "standby exchange",
    r"\w*spells?\w*": "failure episode",
    r"tells?|told|telling": "report, emit, log, return, notify",
    r"hears?|heard|unheard": "receive; reply",
    r"says?|said|saying": "state, show, name, specify",
    r"(give|gives|given|gave)[ _]back": "requeue a message, detach an adopted queue, return a value",
    r"\w*peek\w*|look(s|ed|ing)?[ _]at": "inspect, read, check",
    r"exhausts?|exhausting": "the task is exhausted; move the message to the exhausted queue",
    r"anew": "again",
    r"for[ _]ever": "without a limit",
    r"(?<![`\"'@])(any|every|no|some)body(?!@)|whoever": "a subject: a user, a worker, a process",
    r"foreign(?! ?key)": "of another producer; with other arguments",
}
#: Files with the words themselves, and files that are not text.
_SKIPPED = ("scripts/words.py", ".svg", ".png", ".json", ".lock")
_BUILT = ("__pycache__", "build", "dist", "site", "test-artifacts")
_NOT_THESE = r"misspel\w*|spellcheck|spelling|spelled|spelt|wrung|strung"
#: Between the words of a name such as OneWord.
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def listed() -> list[str]:
    """Return the files that git keeps; in an unpacked sdist, those that are neither hidden nor built."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
        return found.stdout.splitlines()
    paths = [path.relative_to(ROOT) for path in sorted(ROOT.rglob("*"))]
    return [str(path) for path in paths if not any(part in _BUILT or part[0] == "." for part in path.parts)]


def main() -> int:
    """Search all files of the checkout."""
    wanted = {re.compile(rf"(?<![^\W_])({word})(?![^\W_])", re.IGNORECASE): better for word, better in WORDS.items()}
    ours = re.compile(_NOT_THESE, re.IGNORECASE)
    found = 0
    for name in listed():
        path = ROOT / name
        if name.endswith(_SKIPPED) or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            words = _CAMEL_CASE.sub(" ", line)
            for pattern, better in wanted.items():
                for match in pattern.finditer(words):
                    if not ours.fullmatch(match[0]):
                        found += 1
                        sys.stderr.write(f"{name}:{number}: {match[0]!r}: write {better}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
