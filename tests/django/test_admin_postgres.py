"""The tests of the pages whose queries differ between databases, on PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest

from .test_admin_actions import (  # noqa: F401 - pytest collects them here once more
    broker_down,
    client,
    test_a_confirmed_discard_is_done_logged_and_told,
    test_a_group_counts_and_links_its_open_tasks,
    test_a_whole_list_is_frozen_by_its_filter_and_late_arrivals_are_not_swept_in,
    test_acts_commit_step_by_step_in_a_project_that_wraps_requests_in_transactions,
    test_an_export_is_logged_and_redacted_for_whoever_may_not_see_secrets,
    test_restore_is_the_undo,
    test_what_somebody_else_did_meanwhile_is_skipped_and_said,
)
from .test_admin_lists import (  # noqa: F401
    test_a_filter_that_makes_no_sense_shows_nothing_instead_of_everything,
    test_a_list_takes_at_most_12_queries_however_many_rows_it_has,
    test_counts_stop_at_the_cap_and_say_so,
    test_filters_and_search_keep_what_they_say,
    test_no_search_term_breaks_a_list,
    test_tiles_and_chart_tell_what_the_tables_hold,
)


@pytest.fixture
def tables(postgres: Any) -> Any:
    """Take the place of SQLite's."""
    return postgres
