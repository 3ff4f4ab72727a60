"""The single cases of spec/ground.md, section 14, and the test that has each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
UP, DOWN, COMMANDS = "unit/_cluster/test_up.py", "unit/_cluster/test_down.py", "flows/commands/test_kinetic_up.py"
CASES = {
    "billing off": (UP, "test_billing_that_is_off_stops_before_anything_is_made"),
    "SERVICE_DISABLED for 3 min after enabling": (
        UP,
        "test_apis_that_need_three_minutes_and_an_account_that_needs_one_are_waited_for",
    ),
    "foreign consumer": (UP, "test_requests_count_against_the_project_where_the_login_has_another"),
    "SA invisible 60 s": (UP, "test_apis_that_need_three_minutes_and_an_account_that_needs_one_are_waited_for"),
    "identity pool missing": (UP, "test_the_bucket_is_bound_after_the_first_cluster_has_made_the_identity_pool"),
    "policy etag race": (UP, "test_another_writer_of_the_policy_keeps_its_binding"),
    "two `up` at once": (UP, "test_two_at_once_make_one_of_each"),
    "bucket name taken": (UP, "test_a_bucket_name_that_is_taken_is_reported"),
    "network of our name without our mark": (UP, "test_what_has_our_name_and_not_our_mark_is_named_and_not_touched"),
    "organisation policy": (UP, "test_an_organization_policy_is_named_with_a_way_around_it"),
    "quota 0": (UP, "test_a_quota_of_0_is_too_small_one_that_is_unset_is_unknown_and_minus_1_has_no_limit"),
    "quota unset": (UP, "test_a_quota_of_0_is_too_small_one_that_is_unset_is_unknown_and_minus_1_has_no_limit"),
    "quota -1": (UP, "test_a_quota_of_0_is_too_small_one_that_is_unset_is_unknown_and_minus_1_has_no_limit"),
    "missingZones": (UP, "test_zones_that_do_not_answer_stop_it"),
    "second `up` = 0 writes": (UP, "test_a_second_up_writes_nothing_and_reads_little"),
    "`--dry-run` = 0 writes": (COMMANDS, "test_a_dry_run_writes_nothing_and_is_one_document_as_json"),
    "`down` of a joined cluster": (DOWN, "test_a_joined_cluster_stays_and_what_was_made_for_it_goes"),
    "names at limits": (UP, "test_the_longest_names_fit"),
    "Ctrl-C at each wait": (UP, "test_ctrl_c_at_any_wait_and_run_again_the_end_is_the_same"),
    "no terminal without `--yes`": (
        COMMANDS,
        "test_without_a_terminal_and_yes_the_plan_is_printed_and_nothing_is_written",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_single_case_has_its_test(case: str) -> None:
    file, name = CASES[case]

    assert re.search(rf"^def {name}\(", (TESTS / file).read_text(), re.MULTILINE)
