"""However a job ends, its verdict says so: sentences of the files next door that hold on a cluster word for word."""

from __future__ import annotations

import pytest
from flows.test_how_jobs_end import (
    test_a_deadline_that_is_met_changes_nothing,
    test_a_function_saves_its_work_at_its_deadline_and_its_retry_continues,
    test_a_job_that_fails_is_tried_again_under_its_own_id,
    test_a_segmentation_fault_leaves_the_python_stacks_in_the_log,
    test_leaving_by_a_good_exit_is_success_without_a_value,
    test_leaving_by_any_other_exit_is_a_failure_that_names_the_code,
    test_the_deadline_may_come_from_the_environment,
)
from flows.test_logs_of_jobs import (
    test_text_of_any_kind_is_shown_as_it_was_printed,
    test_the_order_of_the_two_streams_and_of_programs_is_true,
    test_the_tail_is_exactly_the_last_lines,
)
from flows.test_values_and_exceptions import (
    test_a_class_made_inside_the_function_comes_along,
    test_a_value_that_cannot_be_pickled_is_a_clear_failure_with_its_repr,
    test_a_value_whose_class_exists_only_in_the_job_stays_in_the_store,
    test_an_exception_arrives_with_its_type_its_notes_and_its_remote_traceback,
    test_an_exception_whose_class_exists_only_in_the_job_is_told_and_does_not_explode,
)
from flows.test_what_jobs_leave import (
    test_exit_handlers_run_after_the_result,
    test_threads_and_processes_that_were_ended_are_named_in_the_log,
)

pytestmark = pytest.mark.usefixtures("machine")


@pytest.fixture
def failures() -> int:
    """Let a job fail once only: Kubernetes waits 10 s before the second pod, and 20 before the third."""
    return 1


__all__ = [
    "test_a_class_made_inside_the_function_comes_along",
    "test_a_deadline_that_is_met_changes_nothing",
    "test_a_function_saves_its_work_at_its_deadline_and_its_retry_continues",
    "test_a_job_that_fails_is_tried_again_under_its_own_id",
    "test_a_segmentation_fault_leaves_the_python_stacks_in_the_log",
    "test_a_value_that_cannot_be_pickled_is_a_clear_failure_with_its_repr",
    "test_a_value_whose_class_exists_only_in_the_job_stays_in_the_store",
    "test_an_exception_arrives_with_its_type_its_notes_and_its_remote_traceback",
    "test_an_exception_whose_class_exists_only_in_the_job_is_told_and_does_not_explode",
    "test_exit_handlers_run_after_the_result",
    "test_leaving_by_a_good_exit_is_success_without_a_value",
    "test_leaving_by_any_other_exit_is_a_failure_that_names_the_code",
    "test_text_of_any_kind_is_shown_as_it_was_printed",
    "test_the_deadline_may_come_from_the_environment",
    "test_the_order_of_the_two_streams_and_of_programs_is_true",
    "test_the_tail_is_exactly_the_last_lines",
    "test_threads_and_processes_that_were_ended_are_named_in_the_log",
]
