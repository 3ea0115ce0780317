"""Filters of the admin's templates."""

from __future__ import annotations

from django import template

from ..queries import grouped

register = template.Library()
register.filter("grouped", grouped)
