"""`kinetic jobs explain`: the cause in words, the phase, the log's end, the next command. And `show` and `list`."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from kinetic._backends.protocol import DebugAddress, Diagnosis, Observation
from kinetic._inspect import explanation, port_forward
from kinetic._jobs import find, locate, status
from kinetic._jobs.status import Snapshot
from kinetic._wire import documents
from kinetic._wire.measurements import Measurements
from kinetic._wire.progress import Progress
from kinetic.job_status import JobStatus


def parts(stdout: str) -> dict[str, str]:
    """Return the parts of what was printed, by name."""
    found: dict[str, str] = {}
    name = ""
    for line in stdout.splitlines()[1:]:
        if not line.startswith(" "):
            name = line.partition(":")[0]
            found[name] = line[7:]
        else:
            found[name] += f"\n{line[7:]}"
    return found


def test_a_failed_job_is_explained_by_its_exception_its_phase_and_the_end_of_its_log(kinetic, made_job) -> None:
    log = "".join(f"line {number}\n" for number in range(30))
    job_id = made_job("failed", cause="exception", error={"type": "ValueError", "message": "no\nmore"}, log=log)

    told = kinetic("jobs", "explain", job_id)

    assert told.exit_code == 0
    assert told.stdout.startswith(f"{job_id}: FAILED\n")
    assert parts(told.stdout) == {
        "what": "train raised ValueError: no",
        "phase": "while the function ran",
        "log": "\n".join(f"line {number}" for number in range(20, 30)),
        "next": f"kinetic jobs logs {job_id}",
    }


def test_a_job_that_was_killed_is_explained_by_the_signal(kinetic, made_job) -> None:
    job_id = made_job("failed", cause="signal", error={"message": "the job's process was ended by SIGSEGV", "log": "x"})

    told = parts(kinetic("jobs", "explain", job_id).stdout)

    assert told["what"] == "train failed: the job's process was ended by SIGSEGV"
    assert told["why"] == "the last lines of its log:\nx"  # kept in the verdict, where the log itself is gone


def test_the_log_of_a_crash_shows_the_users_frame_and_none_of_the_runner_below_it(kinetic, made_job) -> None:
    ours = ["/tmp/kinetic-pod/runners/pod/kinetic/_runner/worker/worker.py"] * 12 + ["/kinetic/runner.zip/__main__.py"]
    stack = "".join(f'  File "{file}", line 9 in work\n' for file in ["/tmp/kinetic-pod/work/page.py", *ours])
    log = f"Fatal Python error: Aborted\n\nCurrent thread (most recent call first):\n{stack}"
    error = {"message": "the job's process was ended by SIGABRT"}
    job_id = made_job("failed", cause="signal", error=error, log=log)

    told = parts(kinetic("jobs", "explain", job_id).stdout)

    assert told["log"].splitlines()[-1].strip() == 'File "/tmp/kinetic-pod/work/page.py", line 9 in work'
    assert "Fatal Python error: Aborted" in told["log"]


def test_a_job_that_never_began_is_explained_by_the_phase_and_its_reason(kinetic, made_job) -> None:
    error = {"what": "the project cannot be unpacked", "why": "no space", "type": "StoreError", "message": "x"}
    job_id = made_job("failed", cause="runner", phase="context extract", error=error, log="something\n")

    told = parts(kinetic("jobs", "explain", job_id).stdout)

    assert told["what"] == "the project cannot be unpacked"
    assert told["why"] == "no space"
    assert told["phase"] == "before the function started: unpacking the project"


@pytest.mark.parametrize(
    ("status", "what", "next_"),
    [
        ("succeeded", "it succeeded, and its result is ready", "kinetic jobs result {}"),
        ("cancelled", "it was cancelled; its log is kept", "kinetic jobs logs {}"),
        ("", "it was removed, or never launched", "kinetic jobs list --all"),
    ],
)
def test_every_end_has_its_next_command(status, what, next_, kinetic, made_job) -> None:
    job_id = made_job(status)

    told = parts(kinetic("jobs", "explain", job_id).stdout)

    assert told["what"] == what
    assert told["next"] == next_.format(job_id)


def test_as_json_it_has_the_same_parts(kinetic, made_job) -> None:
    job_id = made_job("failed", cause="exception", error={"type": "ValueError", "message": "no"}, log="a\nb\n")

    page = json.loads(kinetic("jobs", "explain", job_id, "--json").stdout)

    assert page == {
        "schema_version": 1,
        "job_id": job_id,
        "function": "train",
        "status": "FAILED",
        "what": "train raised ValueError: no",
        "why": "",
        "phase": "while the function ran",
        "log": ["a", "b"],
        "next": f"kinetic jobs logs {job_id}",
    }


def explained(handle, seen):
    return explanation._explain(handle, seen, explanation._diagnosis(handle, seen))


@pytest.fixture
def waiting(made_job, monkeypatch):
    """Return a function that explains a pending job, with a backend that says why."""
    handle = find.attach(made_job(""))

    def run(diagnosis, *, kept=True, reason=""):
        backend = SimpleNamespace(
            explain=lambda name: diagnosis and Diagnosis(f"{name} {diagnosis}", "running: a", "n")
        )
        monkeypatch.setattr(locate, "backend_of", lambda _: backend)
        monkeypatch.setattr(locate, "is_supervised", lambda: kept)
        seen = Snapshot(JobStatus.PENDING, None, Observation(handle.job_id, JobStatus.PENDING, reason=reason))
        return explained(handle, seen)

    return run


def test_a_job_that_waits_says_for_what_and_who_holds_it(waiting) -> None:
    assert waiting("waits for one of 2 slots") == explanation.Explanation(
        "waits for one of 2 slots", "running: a", next="n"
    )


def test_a_job_that_nobody_would_start_says_so(waiting) -> None:
    assert waiting("waits", kept=False).why.startswith("no supervisor is running")


def test_a_job_that_is_not_in_the_queue_yet_says_what_was_seen(waiting) -> None:
    assert waiting(None, reason="is being submitted").what == "is being submitted"


def test_a_job_of_another_machine_can_only_be_seen_from_there(made_job, monkeypatch) -> None:
    handle = find.attach(made_job(""))
    handle.host = "elsewhere"

    told = explained(handle, Snapshot(JobStatus.RUNNING))

    assert told.what == f"it is on {status.place_of(handle)}, and only there more of it can be seen"


@pytest.mark.parametrize(
    ("states", "what", "next_"),
    [
        ("w", "it waits for a debugger", "kinetic jobs debug {}"),
        ("a", "a debugger is attached to it", "kinetic jobs logs {} --follow"),
        ("ww", "hosts 0 and 1 of 2 wait for a debugger", "kinetic jobs debug {}"),
        (".w", "host 1 of 2 waits for a debugger", "kinetic jobs debug {} --host 1"),
        ("oa", "a debugger is attached to host 1 of 2", "kinetic jobs logs {} --follow"),
        ("ow.wwww.", "hosts 1 and 3 to 6 of 8 wait for a debugger", "kinetic jobs debug {} --host 1"),
        ("www.....", "hosts 0, 1 and 2 of 8 wait for a debugger", "kinetic jobs debug {}"),
        ("oo", "runs", ""),
    ],
)
def test_every_host_that_waits_for_a_debugger_is_named(states, what, next_, made_job, monkeypatch) -> None:
    handle = find.attach(made_job(""))
    handle.debug = True
    words = {"w": "waiting", "a": "attached", "o": "over"}
    found = {
        host: DebugAddress(1, state=words[each], until=1_800_000_000.0 + host)
        for host, each in enumerate(states)
        if each != "."
    }
    monkeypatch.setattr(locate, "hosts_of", lambda _: len(states))
    monkeypatch.setattr(
        port_forward, "debug_addresses", lambda _, hosts: {host: found[host] for host in hosts if host in found}
    )
    measures_nothing = dict.fromkeys(("live_usage", "live_progress"), lambda *_, **__: None)
    backend = SimpleNamespace(
        explain=lambda name: Diagnosis(f"{name} runs", "", ""), is_here=True, observe=lambda _: {}, **measures_nothing
    )
    monkeypatch.setattr(locate, "backend_of", lambda _: backend)

    told = explained(handle, Snapshot(JobStatus.RUNNING))

    assert (told.what, told.next) == (what, next_.format(handle.job_id))
    if "wait" in what:
        assert told.why.endswith(f"or at 08:00:0{states.rindex('w')} UTC")


def test_control_characters_of_a_log_do_not_reach_the_terminal(kinetic, made_job) -> None:
    job_id = made_job("failed", cause="exception", error={"type": "E", "message": ""}, log="a\x1b[2Jb\n")

    assert parts(kinetic("jobs", "explain", job_id).stdout)["log"] == "a\\x1b[2Jb"


# --------------------------------------------------------------------------------------------------------------- show


def test_show_tells_every_field_that_there_is(kinetic, made_job) -> None:
    job_id = made_job(phases={"execute": 1.5}, value_type="builtins.int", log="hello\n")

    page = json.loads(kinetic("jobs", "show", job_id, "--json").stdout)["job"]

    assert page["job_id"] == job_id
    assert page["status"] == "SUCCEEDED"
    assert page["phases_seconds"] == {"execute": 1.5}
    assert page["value_type"] == "builtins.int"
    assert page["log_bytes"] == 6
    assert page["result_bytes"] > 0
    assert page["k8s_name"] == f"kinetic-{job_id}"
    assert page["duration_seconds"] == 2.0


def test_show_as_lines_leaves_out_what_there_is_not(kinetic, made_job) -> None:
    job_id = made_job(phases={"execute": 1.5})

    lines = dict(line.split(None, 1) for line in kinetic("jobs", "show", job_id).stdout.splitlines())

    assert lines["status"] == "SUCCEEDED"
    assert lines["phases_seconds"] == "execute 1.500"
    assert "removed_at" not in lines
    assert "debug" not in lines


# ------------------------------------------------------------------------------------------------------------ filters


def listed(told) -> list[str]:
    return [job["job_id"] for job in json.loads(told.stdout)["jobs"]]


def test_jobs_are_listed_by_status_function_and_age(kinetic, made_job) -> None:
    old = made_job(days=10, function="train")
    bad = made_job("failed", days=1, function="test")
    new = made_job(function="train")

    assert listed(kinetic("jobs", "list", "--json")) == [new, bad, old]
    assert listed(kinetic("jobs", "list", "--json", "--status", "failed")) == [bad]
    assert listed(kinetic("jobs", "list", "--json", "--status", "FAILED", "--status", "succeeded")) == [new, bad, old]
    assert listed(kinetic("jobs", "list", "--json", "--function", "train")) == [new, old]
    assert listed(kinetic("jobs", "list", "--json", "--since", "7d")) == [new, bad]
    assert listed(kinetic("jobs", "list", "--json", "--older-than", "12h")) == [bad, old]
    assert listed(kinetic("jobs", "list", "--json", "--since", "7d", "--older-than", "12h")) == [bad]


def test_a_limit_counts_what_passes_the_filter(kinetic, made_job) -> None:
    bad = [made_job("failed", days=days) for days in (3, 4)]
    made_job()

    assert listed(kinetic("jobs", "list", "--json", "--status", "failed", "--limit", "1")) == bad[:1]


def test_history_is_filtered_as_well(kinetic, made_job) -> None:
    gone = made_job()
    kinetic("jobs", "cleanup", gone)
    made_job("failed")

    assert listed(kinetic("jobs", "list", "--json", "--all", "--status", "succeeded")) == [gone]


def test_when_nothing_passes_the_filter_that_is_said(kinetic, made_job) -> None:
    made_job()

    told = kinetic("jobs", "list", "--function", "other")

    assert (told.exit_code, told.stdout) == (0, "")
    assert told.stderr.startswith("There are no matching jobs")


def test_an_unknown_status_is_answered_with_those_there_are(kinetic) -> None:
    told = kinetic("jobs", "list", "--status", "done")

    assert told.exit_code == 2
    assert "succeeded" in told.stderr.lower()


def test_progress_that_reaches_the_store_after_the_verdict_is_kept_when_the_job_is_collected(kinetic, made_job) -> None:
    job_id = made_job(started=1.8e9, ended=1.8e9 + 0.01)  # too short to be measured
    file = locate.local().paths.files(job_id, 0, 0).usage
    found = Measurements(job_id, 0, 0, 1.8e9, "processes", 1.0, 1, 0, progress=Progress(2.0, 2.0, at=1.8e9))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(documents.write({"schema": documents.SCHEMA, **found.to_json()}))

    kinetic("jobs", "result", job_id, "--cleanup")

    assert json.loads(kinetic("jobs", "show", job_id, "--json").stdout)["job"]["progress"]["done"] == 2.0


def test_a_job_whose_predecessor_failed_is_named_once(kinetic, made_job) -> None:
    job_id = made_job("failed", cause="predecessor", error={"what": "cpu-prepare-1 failed, so it cannot start"})

    told = kinetic("jobs", "explain", job_id).stdout

    assert parts(told)["what"] == "cpu-prepare-1 failed, so it cannot start"


def test_a_failed_job_without_a_log_is_explained_to_who_wants_its_stacks(kinetic, made_job) -> None:
    job_id = made_job("failed", cause="predecessor", error={"message": "another failed"})

    told = kinetic("jobs", "stacks", job_id)

    assert f"next:  kinetic jobs explain {job_id}" in told.stderr
