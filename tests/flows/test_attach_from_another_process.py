"""A job belongs to nobody's process: any other one finds it, follows it, collects it, and trusts nothing unverified."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flows.conftest import last_json
from waiting import until

LINES = 300

JOBS = """
    import os
    import sys
    import time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def talk(until, lines):
        for number in range(lines):
            print(f"line {number:04}")
            if number % 50 == 0:
                time.sleep(0.05)
        sys.stdout.flush()
        while until and not os.path.exists(until):
            time.sleep(0.01)
        print("the end")
        return {"lines": lines}

    @kinetic.run(accelerator="cpu")
    def fail(kind):
        if kind == "own":
            from errors_of_mine import Mine
            raise Mine("for a reason", 7)
        raise ValueError(f"no {kind}")

    class Trap:
        \"\"\"Leaves a sign when it is unpickled.\"\"\"

        def __init__(self, sign):
            self.sign = sign

        def __reduce__(self):
            return spring, (self.sign,)

    def spring(sign):
        open(sign, "w").close()
        return "sprung"

    @kinetic.run(accelerator="cpu")
    def trap(sign, bulk=0):
        return Trap(sign), bytes(bulk)

    @kinetic.run(accelerator="cpu")
    def takes(argument):
        return "ran"
"""

ERRORS = """
    class Mine(Exception):
        def __init__(self, why, code):
            super().__init__(why)
            self.code = code
"""


class Pair:
    """Two processes over one home: one that submits, and another one."""

    def __init__(self, project: Any, home: Path) -> None:
        self.project, self.home = project, home
        self.until = home.parent / "go"
        self.sign = home.parent / "sprung"
        project.write("jobs.py", JOBS)
        project.write("errors_of_mine.py", ERRORS)

    def run(self, code: str, *words: str) -> Any:
        """Run code in a process of its own, and return what it said as JSON on its last line."""
        done = self.project.run(self.write(code).name, *words)
        assert done.returncode == 0, done.stderr
        return last_json(done.stdout)

    def start(self, code: str, *words: str) -> Any:
        return self.project.start(self.write(code).name, *words)

    def write(self, code: str) -> Path:
        head = "import json, os, sys, time\nimport kinetic\n"
        path: Path = self.project.write(f"client-{abs(hash(code)):x}.py", head + code)
        return path

    def submit(self, call: str) -> str:
        return str(self.run(f"from jobs import *\nprint(json.dumps({call}.job_id))"))

    def fate(self, job_id: str, result: str = "result(timeout=30, cleanup=False)") -> list[Any]:
        """Attach and collect in another process: [error's name or None, value or message, was our code imported]."""
        return list(
            self.run(
                f"""
try:
    found = [None, kinetic.attach("{job_id}").{result}]
except Exception as error:
    found = [type(error).__name__, str(error) + "".join(getattr(error, "__notes__", []))]
print(json.dumps([*found, "jobs" in sys.modules]))
"""
            )
        )

    @property
    def store(self) -> Path:
        return self.home / "store"

    def wait_for(self, job_id: str, wait_until: Callable[..., None]) -> None:
        wait_until((self.store / job_id / "result.pkl").exists, "the result", 20)


@pytest.fixture(params=["fast", "portable"])
def pair(request: pytest.FixtureRequest, project: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    if request.param == "portable":
        monkeypatch.setenv("KINETIC_PORTABLE", "1")
    return Pair(project, home)


def test_a_blocking_call_returns_the_value_and_leaves_only_history(pair: Pair) -> None:
    value, status = pair.run(
        """
from jobs import talk
value = talk("", 3)
print(json.dumps([value, [handle.job_id for handle in kinetic.list_jobs()]]))
"""
    )

    assert value == {"lines": 3}
    assert status == []
    assert len([*pair.store.glob("history/*.json")]) == 1
    assert [path.name for path in pair.store.iterdir() if path.name.startswith("cpu-")] == []


def test_a_blocking_call_raises_the_functions_own_exception_with_its_remote_traceback(pair: Pair) -> None:
    name, words, code, notes = pair.run(
        """
from jobs import fail
from errors_of_mine import Mine
try:
    fail("own")
except Mine as error:
    print(json.dumps([type(error).__name__, str(error), error.code, error.__notes__]))
"""
    )

    assert (name, words, code) == ("Mine", "for a reason", 7)
    assert "Remote traceback" in notes[0]
    assert 'raise Mine("for a reason", 7)' in notes[0]


def test_another_process_attaches_sees_it_running_and_collects(pair: Pair) -> None:
    job = pair.submit(f"talk.run_async({str(pair.until)!r}, 3)")

    seen, value, after = pair.run(
        f"""
handle = kinetic.attach("{job}")
while not handle.running():
    time.sleep(0.01)
seen = [handle.status().value, [each.status().value for each in kinetic.list_jobs()]]
open({str(pair.until)!r}, "w").close()
print(json.dumps([seen, handle.result(timeout=30), handle.status().value]))
"""
    )

    assert seen == ["RUNNING", ["RUNNING"]]
    assert value == {"lines": 3}
    assert after == "NOT_FOUND"


def test_a_handle_as_plain_data_is_enough_for_another_process(pair: Pair) -> None:
    plain = pair.run("from jobs import talk\nprint(json.dumps(talk.run_async('', 2).to_dict()))")

    value = pair.run(f"print(json.dumps(kinetic.JobHandle.from_dict({plain!r}).result(timeout=30)))")

    assert value == {"lines": 2}


def test_a_second_process_follows_the_log_each_line_once_in_order_until_the_end(pair: Pair) -> None:
    job = pair.submit(f"talk.run_async({str(pair.until)!r}, {LINES})")
    follower = pair.start(f'kinetic.attach("{job}").logs(follow=True)')
    pair.run(
        f"""
handle = kinetic.attach("{job}")
while "line {LINES - 1:04}" not in handle.tail(1):
    time.sleep(0.02)
print(1)
"""
    )
    assert follower.poll() is None

    pair.until.touch()
    followed, told = follower.communicate(timeout=30)

    assert follower.returncode == 0, told
    assert followed.splitlines() == [f"line {number:04}" for number in range(LINES)] + ["the end"]
    assert pair.run(f'print(json.dumps(kinetic.attach("{job}").logs()))') == followed


def test_a_result_is_collected_after_everything_of_the_machine_is_gone(
    pair: Pair, wait_until: Callable[..., None], request: pytest.FixtureRequest
) -> None:
    job = pair.submit("talk.run_async('', 3)")
    pair.wait_for(job, wait_until)
    _wait_for_the_end(pair, job)
    _end_supervisors(request, pair.home)
    shutil.rmtree(pair.home / "run")

    status, log, value = pair.run(
        f"""
handle = kinetic.attach("{job}")
print(json.dumps([handle.status().value, handle.tail(1), handle.result(timeout=10)]))
"""
    )

    assert (status, log, value) == ("SUCCEEDED", "the end", {"lines": 3})


def test_a_job_whose_machine_state_is_gone_while_it_ran_has_failed_and_says_so_at_once(
    pair: Pair, request: pytest.FixtureRequest
) -> None:
    job = pair.submit(f"talk.run_async({str(pair.until)!r}, 3)")
    pair.run(f"handle = kinetic.attach('{job}')\nwhile not handle.running(): time.sleep(0.01)\nprint(1)")
    _end_supervisors(request, pair.home)
    shutil.rmtree(pair.home / "run")

    begun = time.monotonic()
    status, (error, message, _) = pair.run(f'print(json.dumps(kinetic.attach("{job}").status().value))'), pair.fate(job)

    assert status == "FAILED"
    assert error == "ResultMissingError"
    assert "its process ended without a result" in message
    assert time.monotonic() - begun < 10


def test_a_second_home_with_the_same_store_needs_the_key_and_then_collects(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., None], request: pytest.FixtureRequest
) -> None:
    job = pair.submit("talk.run_async('', 3)")
    pair.wait_for(job, wait_until)
    other = pair.home.parent / "other"
    with monkeypatch.context() as patch:
        patch.setenv("KINETIC_HOME", str(other))
        patch.setenv("KINETIC_STORE", f"file://{pair.store}")
        patch.setenv("KINETIC_MACHINE_ID", "elsewhere")

        refused = pair.fate(job)
        patch.setenv("KINETIC_TRUST_STORE", "1")
        trusted = pair.fate(job)
        patch.delenv("KINETIC_TRUST_STORE")
        shutil.copytree(pair.home / "keys", other / "keys", dirs_exist_ok=True)
        collected = pair.fate(job)

    assert refused[0] == "CredentialsError"
    assert "kinetic key import" in refused[1]
    assert trusted[:2] == [None, {"lines": 3}]
    assert collected[:2] == [None, {"lines": 3}]
    _end_supervisors(request, other)


def test_a_job_that_runs_on_another_host_is_never_called_failed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    job = pair.submit(f"talk.run_async({str(pair.until)!r}, 3)")
    pair.run(f"handle = kinetic.attach('{job}')\nwhile not handle.running(): time.sleep(0.01)\nprint(1)")

    with monkeypatch.context() as patch:
        patch.setenv("KINETIC_MACHINE_ID", "elsewhere")
        seen = pair.run(f'print(json.dumps(kinetic.attach("{job}").status().value))')
        pair.until.touch()
        fate = pair.fate(job)

    assert seen == "RUNNING"
    assert fate[:2] == [None, {"lines": 3}]


def test_without_the_key_nothing_is_opened(pair: Pair, wait_until: Callable[..., None]) -> None:
    job = pair.submit(f"trap.run_async({str(pair.sign)!r})")
    pair.wait_for(job, wait_until)
    (pair.home / "keys").rename(pair.home / "keys-elsewhere")

    error, message, unpickled = pair.fate(job)

    assert error == "CredentialsError"
    assert "key" in message
    assert not unpickled
    assert not pair.sign.exists()


@pytest.mark.parametrize("bulk", [0, 20 << 20], ids=["small", "large"])
def test_a_result_of_which_one_bit_changed_is_refused_and_nothing_is_unpickled(
    pair: Pair, bulk: int, wait_until: Callable[..., None]
) -> None:
    job = pair.submit(f"trap.run_async({str(pair.sign)!r}, {bulk})")
    pair.wait_for(job, wait_until)
    result = pair.store / job / "result.pkl"
    for place in (result.stat().st_size // 2 if bulk else 10, -40, -4):  # the pickle, its sealed page, the last word
        whole = result.read_bytes()
        _flip(result, place)

        error, message, unpickled = pair.fate(job)
        result.write_bytes(whole)

        assert (place, error) == (place, "IntegrityError"), message
        assert not unpickled
        assert not pair.sign.exists()
    pair.run(f'kinetic.attach("{job}").result(cleanup=False)\nprint(1)')
    assert pair.sign.exists()  # so the trap was armed


def test_a_record_that_was_changed_is_refused(pair: Pair, wait_until: Callable[..., None]) -> None:
    job = pair.submit(f"trap.run_async({str(pair.sign)!r})")
    pair.wait_for(job, wait_until)
    record = pair.store / job / "handle.json"
    record.write_bytes(record.read_bytes().replace(b'"func_name":"trap"', b'"func_name":"trip"'))

    error, message, unpickled = pair.fate(job)

    assert (error, "wrong seal" in message) == ("IntegrityError", True)
    assert not unpickled
    assert not pair.sign.exists()


def test_an_order_that_was_changed_is_refused_by_the_runner(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")
    first, job = pair.run(
        f"from jobs import *\n"
        f"jobs = [talk.run_async({str(pair.until)!r}, 1), takes.run_async(Trap({str(pair.sign)!r}))]\n"
        f"print(json.dumps([job.job_id for job in jobs]))"
    )
    order = pair.store / job / "order.json"
    order.write_bytes(order.read_bytes().replace(b'"hosts":1', b'"hosts":2'))
    pair.until.touch()

    error, message, _ = pair.fate(job)

    assert error == "RunnerError"
    assert "order" in message
    assert not pair.sign.exists()
    assert pair.fate(first)[0] is None


def test_a_result_of_another_job_is_refused(pair: Pair, wait_until: Callable[..., None]) -> None:
    one, two = pair.submit("talk.run_async('', 1)"), pair.submit("talk.run_async('', 2)")
    pair.wait_for(one, wait_until)
    pair.wait_for(two, wait_until)
    shutil.copyfile(pair.store / two / "result.pkl", pair.store / one / "result.pkl")

    error, _, _ = pair.fate(one)

    assert error == "IntegrityError"


def test_a_result_collected_elsewhere_is_gone_here_and_says_so_at_once(pair: Pair) -> None:
    job = pair.submit("talk.run_async('', 3)")
    handle = pair.run(f'print(json.dumps(kinetic.attach("{job}").to_dict()))')
    collected = pair.fate(job, "result(timeout=30)")

    again = pair.run(
        f"""
handle = kinetic.JobHandle.from_dict({handle!r})
begun = time.monotonic()
try:
    handle.result()
except Exception as error:
    print(json.dumps([type(error).__name__, handle.status().value, time.monotonic() - begun]))
"""
    )

    assert collected[:2] == [None, {"lines": 3}]
    assert again[:2] == ["ResultMissingError", "NOT_FOUND"]
    assert again[2] < 1
    assert pair.fate(job)[0] == "ResultMissingError"  # it can be attached: its log is kept


def test_two_processes_that_collect_at_once_both_end_and_one_has_the_value(pair: Pair) -> None:
    job = pair.submit(f"talk.run_async({str(pair.until)!r}, 3)")
    code = f"""
handle = kinetic.attach("{job}")
print("attached", flush=True)
try:
    print(json.dumps(handle.result(timeout=30)))
except kinetic.errors.KineticError as error:
    print(json.dumps(type(error).__name__))
"""
    both = [pair.start(code), pair.start(code)]
    for each in both:
        assert each.stdout.readline() == "attached\n"

    pair.until.touch()
    told = [each.communicate(timeout=30) for each in both]

    assert [each.returncode for each in both] == [0, 0], told
    values = [json.loads(out) for out, _ in told]
    assert {"lines": 3} in values
    assert all(value in ({"lines": 3}, "ResultMissingError", "KeyMissingError") for value in values)


def _flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def _wait_for_the_end(pair: Pair, job: str) -> None:
    """Wait until the supervisor is done with a job: its log is in the store."""
    logs = pair.store / job / "logs"
    until(lambda: [path for path in logs.rglob("*") if path.is_file()], "the log in the store", seconds=60)


def _end_supervisors(request: pytest.FixtureRequest, home: Path) -> None:
    request.config.pluginmanager.get_plugin(os.fspath(Path(__file__).with_name("conftest.py"))).end_supervisors(home)


def test_an_id_is_enough_for_a_job_that_was_sent_to_another_store_than_the_usual_one(
    project: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(project, home)
    (home / "index").mkdir()
    (home / "index" / "damaged.place").write_bytes(b"\xff")
    monkeypatch.setenv("KINETIC_STORE", f"file://{home.parent}/other")
    submit = "from jobs import *\nbatch = talk.run_async_map([['', 1]], name='evening')\nbatch.wait()\n"
    job_id, group_id = pair.run(submit + "print(json.dumps([takes.run_async(1).job_id, batch.group_id]))")
    monkeypatch.delenv("KINETIC_STORE")

    words = ["@last", job_id[:-3]], [group_id[:-2], "@last", "evening"]
    seen = [_told(pair, "jobs", "status", word) for word in words[0]]
    seen += [_told(pair, "batch", "status", word) for word in words[1]]
    collected = pair.run(f"print(json.dumps(kinetic.attach({job_id!r}).result()))")
    batch = pair.run("print(json.dumps(kinetic.attach_batch('evening').results()))")
    status = pair.run(f"print(json.dumps(kinetic.attach({job_id!r}).status().value))")
    newer = pair.run("from jobs import *\nprint(json.dumps(takes.run_async(1).job_id))")

    assert seen == [job_id] * 2 + [group_id] * 3
    assert (collected, batch, status) == ("ran", [{"lines": 1}], "NOT_FOUND")
    assert _told(pair, "jobs", "status", "@last") == newer


def test_an_id_is_enough_for_a_job_that_was_sent_before_a_setting_named_another_store(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = "from jobs import *\nbatch = talk.run_async_map([['', 1]], name='evening')\nbatch.wait()\n"
    job_id, group_id = pair.run(submit + "print(json.dumps([takes.run_async(1).job_id, batch.group_id]))")
    monkeypatch.setenv("KINETIC_STORE", f"file://{pair.home.parent}/other")

    listed = pair.project.kinetic("jobs", "list")
    seen = [_told(pair, "jobs", "status", word) for word in ("@last", job_id[:-3])]
    seen += [_told(pair, "batch", "status", word) for word in (group_id[:-2], "@last", "evening")]
    collected = pair.run(f"print(json.dumps(kinetic.attach({job_id!r}).result()))")
    newer = pair.run("from jobs import *\nprint(json.dumps(takes.run_async(1).job_id))")
    pair.run(f"print(json.dumps(kinetic.attach({job_id!r}).cleanup()))")
    removed = pair.project.kinetic("jobs", "status", job_id)
    pair.run(f"print(json.dumps(kinetic.attach_batch({group_id!r}).cleanup()))")
    removed_batch = pair.project.kinetic("batch", "status", group_id)

    assert f"{job_id} was removed" in removed.stderr
    assert f"looked in file://{pair.home.parent}/other and file://{pair.home}/store;" in removed_batch.stderr
    assert f"jobs were also sent to file://{pair.store}" in listed.stderr
    assert (seen, collected) == ([job_id] * 2 + [group_id] * 3, "ran")
    assert _told(pair, "jobs", "status", "@last") == newer


def test_where_all_jobs_of_the_last_store_were_removed_the_newest_is_said_to_be_removed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.run("from jobs import *\nprint(json.dumps(takes.run_async(1).result()))")
    monkeypatch.setenv("KINETIC_STORE", f"file://{pair.home.parent}/other")

    pair.project.kinetic("jobs", "cleanup", "@last")
    told = pair.project.kinetic("jobs", "status", "@last").stderr
    listed = pair.project.kinetic("jobs", "list", "--all").stderr

    assert "there are no jobs except removed ones" in told
    assert f"KINETIC_STORE=file://{pair.store} kinetic jobs list --all" in listed


def test_what_colleagues_keep_in_the_same_store_is_named_only_where_nothing_was_found(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    submits = """from jobs import *
job, batch = takes.with_options(name="alone").run_async(1), takes.run_async_map([1], name="sweep")
batch.wait()
print(json.dumps([job.wait() and job.job_id, batch.group_id]))"""
    colleague = pair.home.parent / "colleague"
    with monkeypatch.context() as patch:
        patch.setenv("KINETIC_HOME", str(colleague))
        patch.setenv("KINETIC_STORE", f"file://{pair.store}")
        patch.setenv("KINETIC_MACHINE_ID", "elsewhere")
        pair.run(submits)
    _end_supervisors(request, colleague)
    nothing = [pair.project.kinetic(what, "status", name) for what in ("jobs", "batch") for name in ("sweep", "@last")]
    job_id, group_id = pair.run(submits)
    words = [("jobs", "alone"), ("jobs", "@last"), ("batch", "sweep"), ("batch", "@last")]
    found = [pair.project.kinetic(what, "status", name) for what, name in words]
    listed = pair.project.kinetic("jobs", "list")

    assert all("unverified" in each.stderr for each in nothing), [each.stderr for each in nothing]
    assert [each.stderr.count("unverified jobs") for each in nothing[:2]] == [1, 1]
    assert [each.stderr for each in found] == [""] * 4
    assert [each.stdout.partition(":")[0] for each in found[::2]] == [job_id, group_id]
    assert "unverified" in listed.stderr


def _told(pair: Pair, *words: str) -> str:
    """Return the id with which the answer of a command begins."""
    done = pair.project.kinetic(*words)
    assert done.returncode == 0, done.stderr
    return re.split(r"[: ]", done.stdout, maxsplit=1)[0]


def test_a_name_stands_for_the_only_job_that_has_it_also_once_it_was_collected(project: Any, home: Path) -> None:
    pair = Pair(project, home)
    submit = "from jobs import *\nnamed = takes.with_options(name={!r})\nprint(json.dumps(named.run_async(1).job_id))"
    job_id = pair.run(submit.format("Night run"))

    live = _told(pair, "jobs", "wait", "Night run")
    result = pair.run("print(json.dumps(kinetic.attach('Night run').result()))")
    collected = _told(pair, "jobs", "status", "Night run")
    second = pair.run(submit.format("Night run"))
    several = project.kinetic("jobs", "cancel", "Night run")
    none = project.kinetic("jobs", "cancel", "Night")

    assert (live, result, collected) == (job_id, "ran", job_id)
    assert (several.returncode, several.stdout) == (2, "")
    assert "2 jobs have the name 'Night run'" in several.stderr
    assert f"why:   newest first: {second}, {job_id}\n" in several.stderr
    assert "next:  use the id of one of them     to see them: kinetic jobs list --all\n" in several.stderr
    assert none.returncode == 2
    assert "'Night' cannot be a job id [option]\nwhy:   no job has this name; an id has " in none.stderr
    with pytest.raises(AssertionError, match="cannot be a job id"):
        _told(pair, "jobs", "status", "")
