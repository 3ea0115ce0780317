"""Filters and tags of the admin's templates."""

from __future__ import annotations

from django import template
from django.forms import Media
from django.utils.safestring import SafeString, mark_safe

from ..admin import text
from ..queries import grouped

try:
    from django.utils.csp import nonce_attr
except ImportError:  # before Django 6.1, whose admin is the first with nonces

    def nonce_attr(context: template.Context, media: Media | None = None) -> SafeString:
        """Render media without a nonce."""
        return mark_safe(str(media))  # noqa: S308 - Django has escaped it


register = template.Library()
register.filter("grouped", grouped)
for each in (
    text.absolute, text.delay, text.dotted, text.duration, text.hostile, text.moment, text.operation_badge,
    text.outcome_badge, text.plain, text.reason, text.rough, text.rough_ms, text.share, text.state_badge,
):  # fmt: skip
    register.filter(each)


@register.simple_tag(takes_context=True)
def with_nonce(context: template.Context, *parts: Media | str) -> SafeString:
    """Render media, and style sheets by their paths, with the nonce of the content security policy if there is one."""
    media = Media()
    for part in parts:
        # A string in a template is marked as safe, which Media would take for a whole element.
        media += part if isinstance(part, Media) else Media(css={"all": ["" + part]})
    return nonce_attr(context, media)
