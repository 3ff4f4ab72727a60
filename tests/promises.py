"""What kinetic promises, and the end-to-end tests that prove it: of all flows, `make test` runs these.

CONTRIBUTING.md has the same table; tests/architecture/test_promises_have_tests.py keeps the two and the tests in step.
A test is named by its file and its function, without parameters.
"""

from __future__ import annotations

FLOWS = "tests/flows"

PROMISES: dict[str, tuple[str, ...]] = {
    "A call returns what the function returned": (
        f"{FLOWS}/test_attach_from_another_process.py::test_a_blocking_call_returns_the_value_and_leaves_only_history",
    ),
    "A call raises what the function raised, with the traceback from inside the job": (
        f"{FLOWS}/test_attach_from_another_process.py::test_a_blocking_call_raises_the_functions_own_exception_with_its_remote_traceback",
    ),
    "The README works, typed in word by word": (f"{FLOWS}/test_docs_snippets.py::test_the_readme_does_what_it_says",),
    "A job outlives its client, and any process finds it again": (
        f"{FLOWS}/test_attach_from_another_process.py::test_another_process_attaches_sees_it_running_and_collects",
        f"{FLOWS}/homes/test_sessions.py::test_a_job_goes_on_when_the_whole_session_that_submitted_it_is_killed",
    ),
    "A result outlives every process and the machine's own state": (
        f"{FLOWS}/test_attach_from_another_process.py::test_a_result_is_collected_after_everything_of_the_machine_is_gone",
    ),
    "A log can be followed from anywhere, each line once and in order": (
        f"{FLOWS}/test_attach_from_another_process.py::test_a_second_process_follows_the_log_each_line_once_in_order_until_the_end",
    ),
    "Ctrl-C detaches and never ends a job": (
        f"{FLOWS}/test_killed_at_any_step.py::test_ctrl_c_in_a_blocking_call_says_how_to_follow_and_to_cancel_and_the_job_goes_on",
    ),
    "A kill at any step loses nothing that was computed": (
        f"{FLOWS}/test_killed_at_any_step.py::test_a_supervisor_that_is_killed_takes_its_worker_and_all_grandchildren_along",
        f"{FLOWS}/test_killed_at_any_step.py::test_a_reboot_ends_what_ran_and_starts_what_waited",
    ),
    "Nothing that was changed in a store is opened": (
        f"{FLOWS}/test_attach_from_another_process.py::test_a_result_of_which_one_bit_changed_is_refused_and_nothing_is_unpickled",
    ),
    "A cancelled job ends, with its children, and says so": (
        f"{FLOWS}/test_many_jobs_at_once.py::test_cancelling_a_running_job_ends_it_and_says_so",
    ),
    "A deadline ends a job, and its log shows where it was": (
        f"{FLOWS}/test_many_jobs_at_once.py::test_a_deadline_ends_a_job_with_the_stacks_in_its_log",
    ),
    "No two jobs hold one GPU": (
        f"{FLOWS}/test_many_jobs_at_once.py::test_no_two_jobs_hold_one_gpu_and_a_small_job_does_not_overtake_a_large_one",
    ),
    "Any function, method or class runs unchanged": (
        f"{FLOWS}/test_what_can_run.py::test_functions_methods_and_whatever_can_be_called_run_from_a_module",
        f"{FLOWS}/test_what_can_run.py::test_the_scripts_own_functions_and_classes_run_and_come_back_as_themselves",
    ),
    "Captured values never lie in the store": (
        f"{FLOWS}/test_surroundings_of_jobs.py::test_a_captured_value_is_in_no_byte_of_the_store_and_nowhere_once_the_job_is_gone",
    ),
    "The command line submits, shows and collects": (
        f"{FLOWS}/test_kinetic_run.py::test_an_undecorated_function_runs_and_its_log_and_value_are_printed",
        f"{FLOWS}/commands/test_results.py::test_a_result_is_printed_and_everything_is_kept",
        f"{FLOWS}/commands/test_job_list.py::test_a_job_is_listed_with_its_status_and_its_place",
    ),
    "Libraries are imported before the job begins, which notices nothing else of that": (
        f"{FLOWS}/test_preloaded_libraries.py::test_a_call_finds_imported_what_the_function_imported_before_and_is_a_child_like_any",
        f"{FLOWS}/test_preloaded_libraries.py::test_a_job_does_not_find_what_another_version_of_a_library_was",
    ),
    "Any command is a job, and its exit code is the result": (
        f"{FLOWS}/test_command_jobs.py::test_a_command_runs_in_the_sent_project_with_its_environment_data_and_outputs",
        f"{FLOWS}/test_command_jobs.py::test_the_exit_code_of_the_command_is_that_of_kinetic_run",
    ),
    "The end of a job is reported once, whatever process dies": (
        f"{FLOWS}/test_notifications.py::test_a_detached_job_tells_a_webhook_once_when_its_client_is_long_dead",
    ),
    "A batch gives its results in order, tries failed inputs again, and is cancelled as one": (
        f"{FLOWS}/test_batches.py::test_results_come_in_the_order_of_the_inputs_or_in_that_of_their_ends",
        f"{FLOWS}/test_batches.py::test_an_input_is_tried_again_and_the_attempt_that_counts_is_delivered_once",
        f"{FLOWS}/test_batches.py::test_cancelling_drops_what_is_queued_and_ends_what_runs_and_tries_nothing_again",
    ),
    "A batch whose client died continues where it stopped": (
        f"{FLOWS}/test_batches_resumed.py::test_another_process_takes_over_what_was_not_submitted_and_runs_nothing_twice",
    ),
    "A job starts when the jobs before it have succeeded, and gets their values": (
        f"{FLOWS}/test_chained_jobs.py::test_a_function_gets_values_in_the_place_of_handles_and_the_client_never_opens_them",
        f"{FLOWS}/test_chained_jobs.py::test_a_chain_goes_on_without_the_process_that_submitted_it",
    ),
    "A job shows how far it is, and what it uses": (
        f"{FLOWS}/test_progress.py::test_progress_is_shown_while_a_job_runs_and_kept_when_it_was_collected",
        f"{FLOWS}/test_usage.py::test_cpu_and_memory_are_true_while_a_job_runs_afterwards_from_another_process_and_once_it_was_collected",
    ),
    "A save runs the function again": (
        f"{FLOWS}/test_dev.py::test_each_save_runs_the_function_again_and_an_error_waits_for_the_next_save",
    ),
    "A program that one job compiled is not compiled by the next": (
        f"{FLOWS}/test_programs_compiled_once.py::test_a_job_finds_what_another_compiled_unless_that_is_turned_off",
    ),
    "Data is sent once and is a path in the job": (
        f"{FLOWS}/test_data.py::test_data_is_found_anywhere_in_the_arguments_and_is_a_path_in_the_job",
        f"{FLOWS}/test_data.py::test_unchanged_data_is_not_sent_again",
    ),
    "Volumes appear at their path, for the job alone": (
        f"{FLOWS}/test_volumes.py::test_volumes_and_arguments_arrive_and_nothing_of_them_stays",
    ),
    "Output files and checkpoints outlive the job": (
        f"{FLOWS}/test_outputs.py::test_what_a_job_wrote_outlives_result_cleanup_disk_and_time",
    ),
    "A slice of several hosts is one JAX program": (
        f"{FLOWS}/test_slices.py::test_one_host_has_its_chips_as_virtual_devices",
    ),
    "A debugger stops inside the job, on the line that the editor shows": (
        f"{FLOWS}/test_debugger.py::test_a_breakpoint_set_by_its_local_path_is_hit_and_the_result_arrives",
    ),
    "A job that hangs says where": (
        f"{FLOWS}/commands/test_stacks_and_shells.py::test_a_job_that_hangs_in_c_says_where_and_no_call_of_its_own_is_interrupted",
    ),
    "A pod brings its value into the store, and the next pod takes over from one that was taken away": (
        f"{FLOWS}/pods/test_pod_runner.py::test_a_pod_brings_the_value_into_the_store_and_ends_with_0",
        f"{FLOWS}/pods/test_preemption.py::test_the_next_pod_is_the_next_attempt",
    ),
    "Jobs of two versions of kinetic share a home": (
        f"{FLOWS}/test_upgrades.py::test_either_version_cancels_and_removes_the_others_jobs",
    ),
}

TESTS = frozenset(test for tests in PROMISES.values() for test in tests)
