"""`kinetic dashboard` as a process: what it answers, to whom, live, while places come and go, and how it ends."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kinetic._dashboard import server
from kinetic._output import tracebacks
from kinetic._wire import keys

SOURCE = Path(__file__).parents[3] / "src"
JOBS = """
    import sys, time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def train(lr):
        print("\\x1b[31mred\\x1b[0m lr", lr)
        with open(f"{kinetic.output_dir()}/loss.json", "w") as file:
            file.write('{"loss": 1}')
        return {"loss": lr * 2}

    @kinetic.run(accelerator="cpu")
    def slow(path):
        import os
        print("begun", flush=True)
        while not os.path.exists(path):
            time.sleep(0.02)
        print("ended", flush=True)

    @kinetic.run(accelerator="cpu")
    def raw():
        sys.stdout.buffer.write(b"\\xff\\xfe\\xe4\\xb8 half\\xe4\\xb8")

    @kinetic.run(accelerator="cpu")
    def large(number):
        curve = [0.5] * 5000
        return [curve, {"curve": curve, "loss": 0.5, "note": "n" * 5000}, "t" * 3000, [1, 2, 3]][number]

    @kinetic.run(accelerator="cpu")
    def odd(number):
        if number % 2:
            raise ValueError("odd")
        return number
"""


def submit(project, code: str) -> str:
    """Run a script that submits something, and return what it printed."""
    project.write("theirs.py", JOBS)
    project.write("submit.py", f"from theirs import *\n{code}")
    done = project.run("submit.py")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_job_is_shown_as_the_commands_show_it_with_its_log_files_and_value(project, dashboard):
    job_id = submit(project, "job = train.run_async(0.5); job.wait(); print(job.job_id)")
    served = dashboard()

    page = served.get(f"/jobs/{job_id}")
    shown = json.loads(project.kinetic("jobs", "show", job_id, "--json").stdout)["job"]
    listed = json.loads(project.kinetic("jobs", "list", "--all", "--json").stdout)["jobs"]

    for name in ("usage", "progress"):  # these have an address of their own
        del shown[name]
    assert {name: page["job"][name] for name in shown} == shown
    assert page["explanation"]["what"] == "it succeeded, and its result is ready"
    assert [
        {name: value for name, value in job.items() if name != "place"} for job in served.get("/jobs")["jobs"]
    ] == listed
    assert served.get(f"/jobs/{job_id}/result")["value"] == {"loss": 1.0}
    assert [entry["path"] for entry in served.get(f"/jobs/{job_id}/files")["entries"]] == ["loss.json"]
    assert served.ask(f"/api/v1/jobs/{job_id}/file?path=loss.json")[2] == b'{"loss": 1}'
    status, headers, log = served.ask(f"/api/v1/jobs/{job_id}/log?start=-7")
    assert (status, log, headers["x-log-size"]) == (200, b"lr 0.5\n", str(page["job"]["log_bytes"]))


def test_changes_come_by_themselves_and_a_log_is_followed_from_a_position(project, dashboard, tmp_path):
    served = dashboard()
    events = served.events("/events")
    next(events)
    go = tmp_path / "go"

    job_id = submit(project, f"print(slow.run_async({str(go)!r}).job_id)")
    statuses: list[str] = []
    while not statuses or statuses[-1] != "RUNNING":
        statuses += [job["status"] for job in next(events)["changed"] if job["job_id"] == job_id]
    follow = served.events(f"/jobs/{job_id}/log/follow?start=2")
    first = next(follow)
    go.touch()
    rest = list(follow)
    while statuses[-1] == "RUNNING":
        statuses += [job["status"] for job in next(events)["changed"] if job["job_id"] == job_id]

    assert first == {"text": "gun\n", "bytes": 4}
    assert rest == [{"text": "ended\n", "bytes": 6}, {"ended": "SUCCEEDED"}]
    assert statuses[-1] == "SUCCEEDED"


def test_a_stream_tells_how_far_it_is_in_a_log_that_is_no_text(project, dashboard):
    job_id = submit(project, "job = raw.run_async(); job.wait(); print(job.job_id)")

    *texts, _ = dashboard().events(f"/jobs/{job_id}/log/follow?start=0")

    log = b"\xff\xfe\xe4\xb8 half\xe4\xb8"
    assert "".join(event["text"] for event in texts) == log.decode(errors="replace")
    assert sum(event["bytes"] for event in texts) == len(log)


def test_a_running_job_is_cancelled_and_one_that_has_ended_says_so(project, dashboard, wait_until):
    job_id = submit(project, "print(slow.run_async('/nowhere').job_id)")
    served = dashboard()
    wait_until(lambda: served.get(f"/jobs/{job_id}")["job"]["status"] == "RUNNING", "it runs")

    assert served.post(f"/jobs/{job_id}/cancel")["cancelled"]

    wait_until(lambda: served.get(f"/jobs/{job_id}")["job"]["status"] == "CANCELLED", "it is cancelled")
    again = served.post(f"/jobs/{job_id}/cancel")
    assert not again["cancelled"]
    assert job_id in again["told"]


def test_a_job_that_was_cancelled_has_its_reason_and_its_log(project, dashboard, wait_until):
    job_id = submit(project, "print(slow.run_async('/nowhere').job_id)")
    wait_until(lambda: "begun" in project.kinetic("jobs", "logs", job_id).stdout, "its first line")
    project.kinetic("jobs", "cancel", job_id)
    served = dashboard()

    page = served.get(f"/jobs/{job_id}")
    _, _, log = served.ask(f"/api/v1/jobs/{job_id}/log?start=0")

    assert (page["job"]["status"], page["explanation"]["what"]) == ("CANCELLED", "it was cancelled; its log is kept")
    assert log == b"begun\n"
    assert served.post(f"/jobs/{job_id}/cancel")["told"] == f"{job_id} was cancelled before"


def test_a_batch_has_rows_values_and_a_retry_that_outlives_the_dashboard(project, dashboard, wait_until):
    group = submit(project, "b = odd.run_async_map([0, 1, 2]); b.wait(); print(b.group_id)").splitlines()[-1]
    served = dashboard()

    page = served.get(f"/batches/{group}")
    values = served.get(f"/batches/{group}/values")["values"]
    assert [row["state"] for row in page["jobs"]] == ["succeeded", "failed", "succeeded"]
    assert [(each["index"], each["value"]) for each in values] == [(0, 0), (2, 2)]
    assert [each["group_id"] for each in served.get("/batches")["batches"]] == [group]

    assert served.post(f"/batches/{group}/retry")["started"]
    served.end()
    again = dashboard()
    wait_until(lambda: again.get(f"/batches/{group}")["jobs"][1]["attempt"] == 1, "it was tried again")


def test_a_retry_runs_nothing_of_the_folder_that_the_dashboard_was_started_in(project, dashboard, tmp_path):
    group = submit(project, "b = odd.run_async_map([1]); b.wait(); print(b.group_id)").splitlines()[-1]
    served = dashboard()
    (tmp_path / "click.py").write_text("open('run', 'w')")

    assert served.post(f"/batches/{group}/retry")["started"]
    assert not (tmp_path / "run").exists()


def test_a_value_of_a_batch_that_could_not_be_read_is_shown_once_it_can_be(project, dashboard, home):
    group = submit(project, "b = odd.run_async_map([0, 2]); b.wait(); print(b.group_id)").splitlines()[-1]
    served = dashboard()
    first = json.loads(project.kinetic("batch", "status", group, "--json").stdout)["jobs"][0]["job_id"]
    (result,) = home.glob(f"store/**/{first}/result.pkl")
    whole = result.read_bytes()
    result.write_bytes(b"what a disk that is going returned")

    before = served.get(f"/batches/{group}/values")["values"]
    result.write_bytes(whole)
    after = served.get(f"/batches/{group}/values")["values"]

    assert ["left_out" in each for each in before] == [True, False]
    assert [each["value"] for each in after] == [0, 2]


def test_of_large_values_a_batch_shows_plain_fields_or_the_beginning(project, dashboard):
    group = submit(project, "b = large.run_async_map(range(4)); b.wait(); print(b.group_id)").splitlines()[-1]

    curve, fields, text, small = dashboard().get(f"/batches/{group}/values")["values"]

    assert curve["repr"].startswith("[0.5, 0.5, 0.5")
    assert len(curve["repr"]) == 1001
    assert (curve["type"], "value" in curve) == ("builtins.list", False)
    assert fields["value"] == {"loss": 0.5, "note": "n" * 1000 + "…"}
    assert text["repr"] == "t" * 1000 + "…"
    assert small["value"] == [1, 2, 3]


# ------------------------------------------------------------------------------------------------------------- access


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", {"Cookie": ""}),
        ("/app.js", {"Cookie": ""}),
        ("/api/v1/jobs", {"Cookie": ""}),
        ("/api/v1/events", {"Cookie": ""}),
        ("/api/v1/jobs", {"Cookie": "kinetic_dashboard=x"}),
        ("/api/v1/jobs", {"Host": "evil.example"}),
        ("/api/v1/jobs", {"Origin": "http://evil.example"}),
        ("/api/v1/jobs", {"Sec_Fetch_Site": "cross-site"}),
    ],
)
def test_strangers_are_refused(path, headers, dashboard):
    status, given, body = dashboard().ask(path, **headers)

    assert status == 403
    assert "set-cookie" not in given
    assert body.startswith(b"kinetic dashboard: ")


def test_a_foreign_page_cannot_cancel(stored, dashboard):
    served = dashboard()

    for origin in ("", "http://evil.example", f"http://localhost:{served.port}"):
        assert served.ask(f"/api/v1/jobs/{stored.add()}/cancel", "POST", Origin=origin)[0] == 403
    assert served.ask("/api/v1/jobs/x/cancel")[0] == 405  # a link cannot, either


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS opens its own browser")
def test_a_browser_of_the_terminal_is_opened_only_if_it_was_chosen(home, tmp_path, wait_until):
    pytest.importorskip("uvicorn", reason="the extra dashboard is not installed")
    opened = tmp_path / "opened"
    (tmp_path / "www-browser").write_text(f'#!/bin/sh\necho "$1" >> {opened}\n')  # Debian's name of lynx or w3m
    (tmp_path / "www-browser").chmod(0o755)
    unset = {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"}
    server = {name: value for name, value in os.environ.items() if name not in unset}
    server |= {"PATH": f"{tmp_path}:/usr/bin:/bin", "TERM": "xterm", "PYTHONPATH": str(SOURCE)}
    words = [sys.executable, "-m", "kinetic", "dashboard", "--port", "0"]

    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=server) as one:
        said = [one.stderr.readline(), one.stderr.readline()]
        one.kill()
    not_chosen = opened.exists()
    with subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=server | {"BROWSER": "www-browser"}
    ) as two:
        wait_until(opened.exists, "the browser that was chosen")
        two.kill()

    assert "no browser was found: open the address above in one\n" in said
    assert not not_chosen


def test_it_listens_on_this_machine_only(dashboard):
    served = dashboard()
    others = {each[4][0] for each in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}

    for address in others - {"127.0.0.1"}:
        with pytest.raises(OSError), socket.create_connection((address, served.port), 1):
            pass


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_a_value_that_no_key_of_ours_sealed_is_not_opened_even_if_the_store_is_trusted(
    stored, dashboard, home, monkeypatch, tmp_path
):
    job_id = stored.add(value=Bomb())
    for key in (home / "keys").iterdir():
        key.unlink()
    monkeypatch.setenv("KINETIC_TRUST_STORE", "1")
    served = dashboard()
    assert [job["job_id"] for job in served.get("/jobs")["jobs"]] == [job_id]

    status, _, body = served.ask(f"/api/v1/jobs/{job_id}/result")

    assert status == 409
    assert json.loads(body)["error"]["code"] == "key-missing-here"
    assert not (tmp_path / "exploded").exists()


def test_a_job_without_a_value_has_no_result_to_be_found(stored, dashboard):
    job_id = stored.add("failed")

    status, _, body = dashboard().ask(f"/api/v1/jobs/{job_id}/result")

    assert (status, json.loads(body)["error"]["code"]) == (404, "result-missing")


def test_a_value_whose_bytes_were_changed_is_not_opened(stored, dashboard, tmp_path):
    job_id = stored.add(value=[1] * 50)
    path = stored.root / keys.result(job_id)
    whole, evil = path.read_bytes(), pickle.dumps(Bomb())
    path.write_bytes(evil + whole[len(evil) :])
    served = dashboard()

    status, _, body = served.ask(f"/api/v1/jobs/{job_id}/result")

    assert status == 500
    assert json.loads(body)["error"]["code"] == "integrity"
    assert not (tmp_path / "exploded").exists()


def test_names_of_arguments_that_were_changed_in_the_store_are_not_shown(project, dashboard, home):
    text = "t" * 50_000  # too much for the order
    job_id = submit(project, f"job = slow.run_async(path={text!r}); print(job.job_id); job.cancel()").split()[0]
    served = dashboard()
    before = served.get(f"/jobs/{job_id}")["arguments"]
    file = home / "store" / keys.arguments(job_id)

    changed = file.read_bytes().replace(b"path", b"evil")
    file.unlink()
    file.write_bytes(changed)

    assert before == {"positional": 0, "keywords": ["path"]}
    assert served.get(f"/jobs/{job_id}")["arguments"] is None


def test_a_file_of_a_job_is_never_a_page_of_ours(stored, dashboard):
    job_id = stored.add()
    stored.write_output(job_id, "page.html", b"<script>alert(1)</script>")
    stored.write_output(job_id, "image.svg", b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
    served = dashboard()

    for name, kind in (("page.html", "text/plain; charset=utf-8"), ("image.svg", "image/svg+xml")):
        status, headers, _ = served.ask(f"/api/v1/jobs/{job_id}/file?path={name}")
        assert (status, headers["content-type"]) == (200, kind)
        assert headers["content-security-policy"].startswith("default-src 'none'; sandbox")
    for path in ("../handle.json", "/etc/passwd", "%2e%2e/handle.json", ""):
        assert served.ask(f"/api/v1/jobs/{job_id}/file?path={path}")[0] in {400, 404}


# ------------------------------------------------------------------------------------------------- beginning and end


def test_a_page_that_lacks_a_module_after_an_upgrade_says_that_kinetic_was_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(tracebacks, "_OURS", str(tmp_path))

    answer = server._answering(lambda _: importlib.import_module("kinetic._gone"))(None)

    error = json.loads(answer.body)["error"]
    assert (answer.status_code, error["what"]) == (500, "ModuleNotFoundError: No module named 'kinetic._gone'")
    assert "was removed while this process ran. Start it again" in error["why"]


def test_ctrl_c_ends_it_at_once_although_pages_are_open(dashboard):
    served = dashboard()
    events = served.events("/events")
    next(events)

    code, err = served.end()

    assert code == 0
    assert "the dashboard has ended; no job was affected" in err
    assert "Traceback" not in err


def test_two_dashboards_run_at_once_and_do_not_take_each_others_cookies(dashboard):
    one, other = dashboard(), dashboard()

    assert one.port != other.port
    assert one.get("/jobs")["jobs"] == other.get("/jobs")["jobs"] == []
    assert one.ask("/api/v1/jobs", Cookie=other.cookie.replace(str(other.port), str(one.port)))[0] == 403


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can become another user")
@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
def test_another_user_of_this_machine_who_has_the_address_is_not_let_in(dashboard):
    served = dashboard()
    request = (
        f"GET {served.url.removeprefix(served.origin)} HTTP/1.0\r\nHost: 127.0.0.1:{served.port}\r\n"
        f"X-Forwarded-For: 127.0.0.1\r\n\r\n"
    )
    talk = 'exec 3<>"/dev/tcp/127.0.0.1/$0" && cat >&3 && cat <&3'
    for user, status in ((os.geteuid(), b"200"), (65534, b"403")):
        command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "bash", "-c", talk]

        answer = subprocess.run([*command, str(served.port)], input=request.encode(), capture_output=True, check=False)

        assert answer.stdout.split()[1] == status, answer
        assert (b"set-cookie" in answer.stdout) == (status == b"200")


def test_a_port_that_is_taken_is_refused_with_a_way_out(dashboard, project):
    served = dashboard()

    done = project.kinetic("dashboard", "--port", str(served.port))

    assert done.returncode == 2
    assert f"the port {served.port} cannot be used" in done.stderr
    assert "[port-taken]" in done.stderr


def test_without_the_extra_it_says_what_to_install(home, tmp_path):
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'uvicorn' else find(name, *more)\n"
    )
    source = Path(__file__).parents[3] / "src"
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{source}"}

    done = subprocess.run(
        [sys.executable, "-m", "kinetic", "dashboard"], env=environ, capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert 'pip install "kinetic-jobs[dashboard]"' in done.stderr
    assert "[extra-missing]" in done.stderr


def test_a_store_that_is_away_is_named_while_other_places_are_shown_and_comes_back(
    stored, dashboard, home, tmp_path, wait_until
):
    job_id = stored.add()
    away = tmp_path / "away"
    away.mkdir()
    profile = {"backend": "local", "store": f"file://{away}/store"}
    (home / "profiles.json").write_text(json.dumps({"profiles": {"team": profile}}))
    away.joinpath("store").mkdir()
    served = dashboard()
    assert [place["name"] for place in served.get("/jobs")["places"]] == ["this machine", "team"]
    events = served.events("/events")
    next(events)

    away.joinpath("store").rmdir()
    away.joinpath("store").write_text("in the way")
    event = next(event for event in events if event["problems"])
    assert [problem["place"] for problem in event["problems"]] == ["team"]
    assert event["problems"][0]["what"]
    assert [job["job_id"] for job in served.get("/jobs")["jobs"]] == [job_id]

    away.joinpath("store").unlink()
    away.joinpath("store").mkdir()
    assert next(event for event in events if not event["problems"])
