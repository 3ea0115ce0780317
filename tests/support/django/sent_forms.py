"""The forms and links of a page, as a browser would send and follow them."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

#: Attributes that a program reads as a number.
NUMBERS = {
    "max", "min", "colspan", "rowspan", "tabindex", "maxlength", "data-seconds", "data-actions-icnt", "x", "y", "x1",
    "x2", "y1", "y2", "width", "height",
}  # fmt: skip


@dataclass
class SentForm:
    """One form: ``fields`` are sent always, one of ``buttons`` with it; ``choices`` are the options of its selects."""

    method: str
    action: str
    fields: dict[str, list[str]] = field(default_factory=dict)
    buttons: list[tuple[str, str]] = field(default_factory=list)
    choices: dict[str, list[str]] = field(default_factory=dict)
    #: The boxes that a user can tick.
    boxes: dict[str, list[str]] = field(default_factory=dict)


class PageParts(HTMLParser):
    """The forms, links and machine-readable numbers of a page."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.forms: list[SentForm] = []
        self.links: list[str] = []
        self.numbers: list[tuple[str, str, str]] = []
        self._form: SentForm | None = None
        self._by_id: dict[str, SentForm] = {}
        #: Buttons with an address of their own, and the id of their form, which may come later.
        self._elsewhere: list[tuple[SentForm, str]] = []
        self._text: str | None = None
        self._select = ""
        self.feed(page)
        self.close()
        for form, its_id in self._elsewhere:
            form.fields = self._by_id[its_id].fields

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what one element sends or leads to."""
        given = {name: value or "" for name, value in attrs}
        self.numbers += [(tag, name, value) for name, value in given.items() if name in NUMBERS]
        if tag == "progress":
            self.numbers.append((tag, "value", given["value"]))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "form":
            self._form = SentForm(given.get("method", "get"), given.get("action", ""))
            self.forms.append(self._form)
            self._by_id[given.get("id", "")] = self._form
        elif "formaction" in given:
            fields = self._form.fields if self._form else {}
            button = (given.get("name", ""), given.get("value", ""))
            self.forms.append(SentForm("post", given["formaction"], fields, [button]))
            if "form" in given:
                self._elsewhere.append((self.forms[-1], given["form"]))
        elif self._form is not None:
            self._handle_control(self._form, tag, given)

    def _handle_control(self, form: SentForm, tag: str, given: dict[str, str]) -> None:
        name, value = given.get("name", ""), given.get("value", "")
        kind = given.get("type", "text" if tag == "input" else "submit")
        if tag in ("input", "button") and kind == "submit":
            form.buttons.append((name, value))
        elif tag == "input" and kind == "checkbox":
            form.boxes.setdefault(name, []).append(value)
        elif tag == "input" and name:
            form.fields.setdefault(name, []).append(value)
        elif tag == "textarea":
            form.fields.setdefault(name, []).append("")
            self._text = name
        elif tag == "select":
            self._select = name
        elif tag == "option" and value:
            form.choices.setdefault(self._select, []).append(value)

    def handle_data(self, data: str) -> None:
        """Keep the text of a text area."""
        if self._form is not None and self._text is not None:
            self._form.fields[self._text][-1] += data

    def handle_endtag(self, tag: str) -> None:
        """End a form or a text area."""
        if tag == "form":
            self._form = None
        if tag == "textarea":
            self._text = None
