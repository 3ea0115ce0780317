"""People with and without permissions, and their browsers."""

from __future__ import annotations

from django.contrib.auth.models import Permission, User
from django.test import Client

#: Permissions to view each of the pages.
VIEWS = (
    "view_parkedtask",
    "view_exhaustedtask",
    "view_taskrecord",
    "view_failuregroup",
    "view_operation",
    "view_insightrun",
    "view_collectorstatus",
    "view_unreadablemessage",
)
#: Permissions for actions.
ACTS = (
    "requeue_taskrecord",
    "discard_taskrecord",
    "edit_payload_taskrecord",
    "view_payload_taskrecord",
    "change_failuregroup",
)


def superuser(name: str = "alice") -> Client:
    """Return a test client of a user with all permissions."""
    return browser(User.objects.create_superuser(name))


def staff(*permissions: str, name: str = "bob") -> Client:
    """Return a test client of a user with exactly these permissions."""
    user = User.objects.create_user(name, is_staff=True)
    found = Permission.objects.filter(content_type__app_label="rmq_delay", codename__in=permissions)
    assert found.count() == len(set(permissions))
    user.user_permissions.set(found)
    return browser(user)


def browser(user: User) -> Client:
    """Return a test client of a user who has logged in."""
    client = Client()
    client.force_login(user)
    return client
