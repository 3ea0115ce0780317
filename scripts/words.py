"""Old words: ends with 1 where one of them stands in code, tests or documentation, and prints the word to use.

``python scripts/words.py``; `make lint` runs it. A word is here because it was once used for something that has a name
of its own in the field, or in this package.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: What is found, and what to write.
WORDS = {
    r"\w*rungs?": "tier, or tier_index for its number",
    r"\w*suspect(s|ed)?\w*": "quarantine queue; a quarantined task",
    r"mend(s|ed|ing)?": "hint of an error, fix of a finding",
    r"climb(s|ed|ing)?": "advance to the next tier",
    r"stand-?ins?": "standby exchange",
    r"\w*spells?\w*": "failure episode",
}
#: The words themselves, and what is not ours or not text.
_SKIPPED = ("CHANGELOG.md", "scripts/words.py", ".svg", ".png", ".json", ".lock")
_NOT_THESE = r"misspel\w*|spelling|spelled|spelt|wrung|strung"


def main() -> int:
    """Look for the old words in all files of the checkout."""
    wanted = {re.compile(rf"(?<![^\W_])({word})(?![^\W_])", re.IGNORECASE): better for word, better in WORDS.items()}
    ours = re.compile(_NOT_THESE, re.IGNORECASE)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    found = 0
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if name.endswith(_SKIPPED) or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            for pattern, better in wanted.items():
                for match in pattern.finditer(line):
                    if not ours.fullmatch(match[0]):
                        found += 1
                        sys.stderr.write(f"{name}:{number}: {match[0]!r}: write {better}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
