"""The base of all admin pages: read-only, and each action is checked against the user's permissions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partialmethod, wraps
from inspect import isclass
from typing import Any, TypeVar

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import unquote
from django.core.exceptions import BadRequest, PermissionDenied
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst

from ..conf import conf
from ..models import ExhaustedTask, FailureGroup, InsightRun, Operation, ParkedTask, TaskRecord, TaskState
from ..queries import Capped, capped_counts
from ..services.actors import Actor
from .changelist import RefusedFilterError, SafeChangeList
from .text import EMPTY, plain

Row = TypeVar("Row", bound=Model)
View = TypeVar("View", bound=Callable[..., HttpResponse])

#: The states on the list of exhausted tasks, with those that an operation sets.
EXHAUSTED_STATES = (
    TaskState.EXHAUSTED,
    TaskState.UNKNOWN,
    TaskState.REQUEUING,
    TaskState.REQUEUED,
    TaskState.DISCARDED,
)
#: The states on the list of parked tasks.
PARKED_STATES = (TaskState.PARKED, TaskState.RUNNING)
#: The permissions that actions and pages check, by the names that they use.
PERMISSIONS = {
    "requeue": "rmq_delay.requeue_taskrecord",
    "discard": "rmq_delay.discard_taskrecord",
    "edit_payload": "rmq_delay.edit_payload_taskrecord",
    "view_payload": "rmq_delay.view_payload_taskrecord",
    "annotate": "rmq_delay.change_failuregroup",
}
#: Django's checkbox of a row. Its widget has a template, which costs a quarter of a row's time.
_CHECKBOX = '<input type="checkbox" name="{}" value="{}" class="action-select" aria-label="{}">'
#: What Django's bar of dates and its filters of fields put behind the name of a field.
_DATE_LOOKUPS = ("__year", "__month", "__day")
_FIELD_LOOKUPS = ("", "__exact", "__isnull", "__in", "__gte", "__lt")
TABS = (FailureGroup, ExhaustedTask, ParkedTask, TaskRecord, Operation, InsightRun)


@dataclass(frozen=True)
class Button:
    """A button that sends ``name`` and ``value`` to ``url``, which asks for a confirmation where one is needed."""

    url: str
    name: str
    value: str
    label: str
    css: str = "button"
    #: The ids of the rows that it selects; without them, all rows of the URL's filters.
    rows: tuple[int, ...] = ()


class CappedPaginator(Paginator):  # type: ignore[type-arg] # Django 5.2 cannot be subscripted
    """A paginator that counts up to ``COUNT_CAP`` rows: a list of a million rows opens like one of a hundred."""

    @cached_property
    def capped(self) -> Capped:
        """The count, which may have stopped at the cap."""
        queryset: Any = self.object_list
        return capped_counts(conf().count_cap, rows=queryset)["rows"]

    @cached_property
    def count(self) -> int:
        """The number of rows that the pages show."""
        return min(self.capped.number, self.capped.limit)


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Read-only pages of a model. Changes go through actions and extra views, each with its own permission."""

    list_per_page = 50
    show_full_result_count = False
    paginator = CappedPaginator
    list_max_show_all = 0
    empty_value_display = EMPTY
    show_facets = admin.ShowFacets.NEVER

    class Media:
        css = {"all": ("rmq_delay/pages.css",)}
        js = ("rmq_delay/refresh.js", "rmq_delay/copy.js", "rmq_delay/fold.js")

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission

    def allows(self, request: HttpRequest, what: str) -> bool:
        """Return whether the user has one of `PERMISSIONS`."""
        user: Any = request.user
        return bool(user.is_active and user.has_perm(PERMISSIONS[what]))

    # Django calls these for actions.
    has_requeue_permission = partialmethod(allows, what="requeue")
    has_discard_permission = partialmethod(allows, what="discard")
    has_edit_payload_permission = partialmethod(allows, what="edit_payload")
    has_view_payload_permission = partialmethod(allows, what="view_payload")
    has_annotate_permission = partialmethod(allows, what="annotate")

    def action_checkbox(self, obj: Model) -> SafeString:
        """Return the checkbox of a row; its label for screen readers is shortened and has no control characters."""
        label = f"Select this for an action: {plain(obj, 120)}"
        return format_html(_CHECKBOX, helpers.ACTION_CHECKBOX_NAME, str(obj.pk), label)

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow the filters of the page and those of a subclass; any other lookup could scan the whole table."""
        dates = {f"{self.date_hierarchy}{part}" for part in _DATE_LOOKUPS} if self.date_hierarchy else ()
        return lookup in dates or any(lookup in _lookups(each) for each in self.list_filter)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        found: Any = super().get_changelist_instance(request)
        found.title = capfirst(str(self.opts.verbose_name_plural))
        if found.refused:
            text = f"No rows are shown: this list cannot apply the filter {found.refused}."
            shown = format_html('<bdi>{}</bdi> <a href="{}">Clear all filters</a>', text, request.path)
            messages.error(request, shown)
        return found

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[SafeChangeList]:
        return SafeChangeList

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list, or run an action. A forbidden action is refused here; Django would ignore it.

        The status is 400 if a filter cannot be applied: then the list has no rows, and no action is run.
        """
        if request.method == "POST":
            self._refuse_forged(request)
        try:
            answer = super().changelist_view(request, {"rmq_tabs": self.tabs(request), **(extra_context or {})})
        except RefusedFilterError as error:
            context = self.page_context(request, "Nothing was changed", refused=str(error), back=request.path)
            return TemplateResponse(request, "admin/rmq_delay/refused.html", context, status=400)
        shown = (getattr(answer, "context_data", None) or {}).get("cl")
        if shown is not None and shown.refused:
            answer.status_code = 400
        return answer

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if request.method != "GET" or not self.has_view_permission(request):
            raise PermissionDenied
        return self.row_page(request, object_id)

    def row_page(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Return the page of a row; the user may view it. Raises `Http404` if there is no such row."""
        raise NotImplementedError

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show Django's history of a row, with a shortened title without control characters."""
        number = row_number(object_id)
        row = self.get_object(request, str(number))
        return super().history_view(request, str(number), {"title": plain(row, 120), **(extra_context or {})})

    def _refuse_forged(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied
        allowed_actions = self.get_actions(request)
        asked = {name for name in request.POST.getlist("action") if name}
        if not allowed_actions or asked - set(allowed_actions):
            raise PermissionDenied
        for each in request.POST.getlist(helpers.ACTION_CHECKBOX_NAME):
            if not is_number(each):
                raise BadRequest(f"{each[:40]!r} is not the id of a row.")

    def tabs(self, request: HttpRequest) -> list[dict[str, Any]]:
        """Return the links between the lists that the user may see."""
        return [
            {"title": model._meta.verbose_name_plural, "url": url, "here": model is self.model}
            for model in TABS
            if (url := self.page_url(request, model, "changelist")) is not None
        ]

    def page_url(self, request: HttpRequest, model: type[Model], page: str, *args: object) -> str | None:
        """Return the URL of another model's page on this site; None if the user may not see it."""
        other = self.admin_site._registry.get(model)
        if other is None or not other.has_view_permission(request):
            return None
        try:
            return _url(other, page, *args)
        except NoReverseMatch:
            return None

    def here(self, page: str, *args: object) -> str:
        """Return the URL of a page of this model."""
        return _url(self, page, *args)

    def row_url(self, name: str, view: Callable[..., HttpResponse], needs: str | None = None) -> URLPattern:
        """Return the URL pattern of an extra view of one row, for POSTs of users with a permission; `here` reverses it.

        A GET leads to the page of the row: the login sends one after a POST without a session.
        """

        @wraps(view)
        def posted(request: HttpRequest, object_id: str) -> HttpResponse:
            if request.method not in ("GET", "HEAD", "POST"):
                return HttpResponseNotAllowed(["POST"])
            if not self.has_view_permission(request):
                raise PermissionDenied
            if request.method == "POST":
                if needs and not self.allows(request, needs):
                    raise PermissionDenied
                return view(request, object_id)
            number = row_number(object_id)
            problem = (
                "Nothing was done: your session had ended, or this page was opened without its button. "
                "If you still want it, do it again here."
            )
            messages.warning(request, problem)
            return HttpResponseRedirect(self.here("change", number))

        full_name = f"{self.opts.app_label}_{self.opts.model_name}_{name}"
        return path(f"<path:object_id>/{name}/", self.admin_site.admin_view(posted), name=full_name)

    def page_context(self, request: HttpRequest, title: str, **more: Any) -> dict[str, Any]:
        """Return the template context of a custom page that looks like one of Django's."""
        request.current_app = self.admin_site.name
        return {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.opts,
            "media": self.media,
            "rmq_tabs": self.tabs(request),
            **more,
        }

    def record_url(self, request: HttpRequest, record: TaskRecord) -> str | None:
        """Return the URL of the most specific page of a task that the user may see."""
        is_parked = record.state == TaskState.PARKED
        for model in (ParkedTask, TaskRecord) if is_parked else (ExhaustedTask, TaskRecord, ParkedTask):
            url = self.page_url(request, model, "change", record.pk)
            if url is not None and belongs(record, model):
                return url
        return None


#: The columns that `belongs` reads, beside the state.
BELONGING = ("parked_at", "exhausted_at", "generation")


def belongs(record: TaskRecord, model: type[Model]) -> bool:
    """Return whether a task is on the pages of a model: whether it is, or once was, parked or exhausted."""
    if model is ParkedTask:
        return record.parked_at is not None
    if model is ExhaustedTask:
        return record.exhausted_at is not None or record.generation > 0 or record.state in EXHAUSTED_STATES
    return True


def _url(pages: Any, page: str, *args: object) -> str:
    name = f"admin:{pages.opts.app_label}_{pages.opts.model_name}_{page}"
    return reverse(name, args=args, current_app=pages.admin_site.name)


def with_query(url: str, query: str) -> str:
    """Return a URL with a query string, which may be empty."""
    return f"{url}?{query}" if query else url


def outside_transactions(view: View) -> View:
    """Exempt a view from ``ATOMIC_REQUESTS``: the operations that it runs commit step by step."""
    for alias in settings.DATABASES:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


def row_number(object_id: str | None) -> int:
    """Return the row id in a URL. Raises `Http404` for anything else."""
    found = unquote(object_id or "")
    if not is_number(found):
        raise Http404
    return int(found)


def found(rows: QuerySet[Row], object_id: str | None) -> Row:
    """Return the row with the id in a URL. Raises `Http404` if there is none."""
    row = rows.filter(pk=row_number(object_id)).first()
    if row is None:
        raise Http404
    return row


def is_number(value: str) -> bool:
    """Return whether a text can be the id of a row."""
    return value.isascii() and value.isdigit() and len(value) < 19


def _lookups(entry: Any) -> set[str]:
    """Return the parameters of an entry of ``list_filter``: a class, a field, or a field and a class."""
    if isclass(entry):
        own: Any = entry
        return {own.parameter_name, *getattr(own, "more_parameters", ())}
    field = entry if isinstance(entry, str) else entry[0]
    return {f"{field}{part}" for part in _FIELD_LOOKUPS}


def column(heading: str, show: Callable[[Any], object]) -> Any:
    """Return a column of a list, for the body of its class: ``show`` returns what it has of a row."""
    return staticmethod(admin.display(description=heading)(show))


def actor(request: HttpRequest) -> Actor:
    """Return the user who sent a request."""
    user: Any = request.user
    return Actor(user, user.get_username())


def log(request: HttpRequest, message: str, *rows: Model) -> None:
    """Add an entry to the history of each of these rows, in Django's admin log."""
    user: Any = request.user
    LogEntry.objects.log_actions(user.pk, rows, CHANGE, message)


def log_operation(request: HttpRequest, operation: Operation) -> None:
    """Add one entry for an operation. Its tasks are in `OperationItem`, from which their histories show it."""
    text = f"{operation.get_kind_display()} (operation {operation.pk})"
    log(request, f"{text}: {operation.reason}" if operation.reason else text, operation)
