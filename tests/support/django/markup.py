"""Faults of a page: unclosed markup, inline code, addresses of other hosts."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
#: Elements without an end tag in HTML.
OPTIONAL = {"li", "p", "option", "tr", "td", "th", "tbody", "thead"}
ADDRESSES = {"href", "src", "action", "formaction", "data", "poster", "srcset", "cite", "background"}


class _Checker(HTMLParser):
    """Collects markup that a strict content security policy or a strict parser refuses."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.faults: list[str] = []
        self.ids: set[str] = set()
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Check one element."""
        if tag not in VOID:
            self._open.append(tag)
        given = dict(attrs)
        if len(given) != len(attrs):
            self.faults.append(f"an attribute of <{tag}> stands twice")
        if tag == "script" and not given.get("src"):
            self.faults.append("inline script")
        if tag in ("style", "iframe", "object", "embed", "base"):
            self.faults.append(f"<{tag}>")
        for name, value in attrs:
            self._check_attribute(tag, name, value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Check an element that is closed where it is opened."""
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def _check_attribute(self, tag: str, name: str, value: str) -> None:
        if name == "style" or name.startswith("on"):
            self.faults.append(f"inline {name} in <{tag}>")
        if name in ADDRESSES and not value.startswith(("/", "?", "#")) and value != "":
            self.faults.append(f"<{tag} {name}={value[:80]!r}> leaves the site")
        if name in ADDRESSES and value.startswith("//"):
            self.faults.append(f"<{tag} {name}={value[:80]!r}> leaves the site")
        if name == "id":
            if value in self.ids:
                self.faults.append(f"id {value!r} stands twice")
            self.ids.add(value)

    def handle_data(self, data: str) -> None:
        """Check that the head has no text of its own: a browser shows it on top of the page."""
        if self._open[-1:] == ["head"] and data.strip():
            self.faults.append(f"text in <head>: {data.strip()[:80]!r}")

    def handle_endtag(self, tag: str) -> None:
        """Check that an element is closed where it was opened."""
        while self._open and self._open[-1] != tag and self._open[-1] in OPTIONAL:
            self._open.pop()
        if not self._open or self._open.pop() != tag:
            self.faults.append(f"</{tag}> closes nothing that is open")

    def finish(self) -> list[str]:
        """Return all faults."""
        self.close()
        return self.faults + [f"<{tag}> stays open" for tag in self._open if tag not in OPTIONAL]


def faults(page: str) -> list[str]:
    """Return the faults of a page; empty if there are none."""
    checker = _Checker()
    checker.feed(page)
    found = checker.finish()
    if any(character in page for character in "\x00\x01\x08\x0b\x1b\x7f\x85\ufffe"):
        found.append("a control character")
    return found
