"""Upgrading kinetic under live jobs: each job ends with the code it was submitted with, and nobody loses it.

An "installed" kinetic is a copy of our sources in a folder of its own, and an upgrade replaces that folder as pip does.
A small upgrade writes fields into every page that the older one has never heard of; a large one raises the schema.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from flows.conftest import last_json

import kinetic
from kinetic._jobs import locate, wait
from kinetic._stores.memory import MemoryStore
from kinetic._wire import documents, keys, outcomes
from kinetic._wire.order import Artifact, Order
from kinetic._wire.outcomes import AttemptNote, Outcome
from kinetic._wire.records import HISTORY, REQUIRED
from kinetic.errors import IntegrityError

SOURCE = Path(__file__).parents[2] / "src" / "kinetic"
OLD, NEW = "0.1.0+old", "0.2.0+new"

JOBS = """
    import os
    import sys
    import time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def tell(notes, until=""):
        import kinetic._runner, kinetic._version
        with open(notes, "a") as file:
            file.write(os.environ["KINETIC_JOB_ID"] + "\\n")
        print("begun", flush=True)
        while until and not os.path.exists(until):
            time.sleep(0.01)
        from kinetic._wire import failpoints as steps  # whatever the runner imports late, it finds
        print("the end")
        return {
            "version": kinetic._version.__version__,
            "runner": getattr(kinetic._runner, "GENERATION", 1),
            "supervisor": os.environ["KINETIC_SUPERVISOR"],
        }
"""

# What a small upgrade changes: (file, what is there, what comes instead). A text that is gone fails the test's set-up.
SMALL = [
    ("_runner/__init__.py", "", "GENERATION = 2\n"),
    ("_jobs/submit.py", '"machine": os.uname().nodename,\n', '"machine": os.uname().nodename, "mood": "good",\n'),
    (
        "_wire/order.py",
        "    deadline: float | None = None  # seconds the function may run\n",
        '    deadline: float | None = None  # seconds the function may run\n    mood: str = "good"\n',
    ),
    (
        "_wire/outcomes.py",
        '    key_id: str = ""  # which key seals it\n',
        '    key_id: str = ""  # which key seals it\n    mood: str = "good"\n',
    ),
    (
        "_wire/outcomes.py",
        '    python: str = ""  # version of the interpreter\n',
        '    python: str = ""  # version of the interpreter\n    mood: str = "good"\n',
    ),
    (
        "_wire/task.py",
        "    mark: str = \"\"  # stem of the mark's key, for a batch's child\n",
        '    mark: str = ""  # stem of the mark\'s key, for a batch\'s child\n    mood: str = "good"\n',
    ),
    (
        "_wire/records.py",
        "    output_dir: str | None = None\n",
        '    output_dir: str | None = None\n    mood: str = "good"\n',
    ),
    ("_jobs/locate.py", '{"removed": time.time(),', '{"removed": time.time(), "mood": "good",'),
]
LARGE = [*SMALL, ("_wire/documents.py", f"\nSCHEMA = {documents.SCHEMA} ", f"\nSCHEMA = {documents.SCHEMA + 1} ")]


class Installed:
    """A kinetic in a folder of its own, and clients that use it."""

    def __init__(self, folder: Path, project: Any) -> None:
        self.folder, self.project = folder, project
        self.python, self.path = sys.executable, str(folder)
        self.install(OLD, [])

    def install(self, version: str, changes: list[tuple[str, str, str]]) -> None:
        """Put a version in the place of what is there."""
        beside = self.folder.with_name(f"{self.folder.name}.new")
        shutil.copytree(SOURCE, beside / "kinetic", ignore=shutil.ignore_patterns("__pycache__"))
        (beside / "kinetic" / "_version.py").write_text(f'"""The version."""\n\n__version__ = "{version}"\n')
        for name, there, instead in changes:
            path = beside / "kinetic" / name
            text = path.read_text()
            assert there in text, f"{name} does not hold {there!r} any more"
            path.write_text(text.replace(there, instead, 1) if there else text + instead)
        if self.folder.exists():
            self.folder.rename(self.folder.with_name(f"{self.folder.name}.old"))
        beside.rename(self.folder)
        shutil.rmtree(self.folder.with_name(f"{self.folder.name}.old"), ignore_errors=True)

    def start(self, code: str) -> subprocess.Popen[str]:
        head = "import json, os, sys, time\nimport kinetic\nfrom jobs import *\n"
        script = self.project.write(f"client-{abs(hash(code)):x}.py", head + code)
        return subprocess.Popen(
            [self.python, str(script)],
            cwd=self.project.root,
            env={**os.environ, "PYTHONPATH": self.path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str) -> Any:
        """Run a client to its good end, and return what it said as JSON on its last line."""
        return self.told(code)[0]

    def told(self, code: str) -> tuple[Any, str]:
        """Run a client to its good end, and return its JSON and what it said to the human."""
        client = self.start(code)
        out, err = client.communicate(timeout=60)
        assert client.returncode == 0, err
        return last_json(out), err

    def kinetic(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kinetic", *words],
            cwd=self.project.root,
            env={**os.environ, "PYTHONPATH": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


class Site:
    """One home, a way to hold jobs up, and what they noted."""

    def __init__(self, home: Path, project: Any) -> None:
        self.home, self.until, self.notes = home, home.parent / "go", home.parent / "notes"
        self.project = project
        project.write("jobs.py", JOBS)

    def call(self, *, held: bool) -> str:
        return f"tell.run_async({str(self.notes)!r}, {str(self.until) if held else ''!r})"

    def submit(self, installed: Installed, count: int = 1, *, held: bool = True) -> list[str]:
        """Submit jobs from one client, held up or not, and return their ids."""
        calls = f"[{self.call(held=held)} for _ in range({count})]"
        return list(installed.run(f"print(json.dumps([job.job_id for job in {calls}]))"))

    def begun(self) -> list[str]:
        return self.notes.read_text().split() if self.notes.exists() else []

    def ask(self, question: str, *values: Any) -> list[Any]:
        (path,) = self.home.glob("run/*/queue.db")
        with closing(sqlite3.connect(path, timeout=10)) as db, db:
            return db.execute(question, values).fetchall()

    def runner_of(self, job: str) -> str:
        """Return the folder of the code that a job's supervisor runs, from the template in its row."""
        ((template,),) = self.ask("SELECT template FROM templates JOIN jobs USING (template_id) WHERE job_id = ?", job)
        return str(Path(json.loads(template)["arguments"][-1]).parent)


@pytest.fixture
def site(home: Path, project: Any, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")  # so that a job waits
    return Site(home, project)


@pytest.fixture
def installed(site: Site, tmp_path: Path) -> Installed:
    return Installed(tmp_path / "site-packages", site.project)


COLLECT = "print(json.dumps([kinetic.attach(job).result(timeout=40, cleanup=False) for job in {jobs!r}]))"


@pytest.mark.parametrize("changes", [SMALL, LARGE], ids=["small", "large"])
def test_a_job_that_runs_and_one_that_waits_end_with_the_code_they_were_submitted_with(
    site: Site, installed: Installed, wait_until: Callable[..., None], changes: list[tuple[str, str, str]]
) -> None:
    runs, waits = site.submit(installed, 2)
    wait_until(site.begun, "the first job", 20)

    installed.install(NEW, changes)
    follower = installed.start(f"kinetic.attach({runs!r}).logs(follow=True)")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "begun\n"
    seen = installed.run(f"print(json.dumps([kinetic.attach(job).status().value for job in {[runs, waits]!r}]))")
    (later,) = site.submit(installed, held=False)
    site.until.touch()
    first, second, third = installed.run(COLLECT.format(jobs=[runs, waits, later]))

    assert seen == ["RUNNING", "PENDING"]
    assert [(value["version"], value["runner"]) for value in (first, second, third)] == [(OLD, 1), (OLD, 1), (NEW, 2)]
    assert site.begun() == [runs, waits, later]
    assert first["supervisor"] == second["supervisor"] != third["supervisor"]
    assert site.runner_of(runs) == site.runner_of(waits) != site.runner_of(later)
    assert follower.communicate(timeout=20)[0] == "the end\n"


def test_a_client_that_waits_while_kinetic_is_replaced_under_it_gets_its_value(
    site: Site, installed: Installed, wait_until: Callable[..., None]
) -> None:
    client = installed.start(f"print(json.dumps({site.call(held=True)}.result(timeout=40)))")
    wait_until(site.begun, "the job", 20)

    installed.install(NEW, LARGE)
    site.until.touch()
    out, err = client.communicate(timeout=50)

    assert client.returncode == 0, err
    assert json.loads(out)["version"] == OLD
    assert installed.run("print(json.dumps([job.job_id for job in kinetic.list_jobs()]))") == []


def test_clients_that_have_waited_need_no_file_of_kinetic_more_and_others_are_told_that_it_is_gone(
    site: Site, installed: Installed, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., None]
) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "4")
    gone, go = site.home.parent / "gone", f"{str(site.notes)!r}, {str(site.until)!r}"
    call = installed.start(f"print(json.dumps(tell({go})))")
    batch = installed.start(f"print(json.dumps(list(tell.run_async_map([({go})]).results())))")
    until_gone = f"while not os.path.exists({str(gone)!r}):\n    time.sleep(0.01)\n"
    late = [
        installed.start(f"job = tell.run_async({go})\n{until_gone}job.result()"),
        installed.start(f"batch = tell.run_async_map([({go})])\n{until_gone}batch.results()"),
        installed.start(f"{until_gone}kinetic.list_jobs()"),
    ]
    wait_until(lambda: len(site.begun()) == 4, "four jobs", 20)
    time.sleep(wait._LONG_SECONDS + 1.5)

    installed.folder.rename(installed.folder.with_name("old"))
    gone.touch()
    site.until.touch()
    (value, _), (values, _), *told = (each.communicate(timeout=50) for each in (call, batch, *late))

    assert last_json(value)["version"] == OLD
    assert [each["version"] for each in json.loads(values)] == [OLD]
    for _, error in told:
        assert "ImportError" in error or "ModuleNotFoundError" in error
        assert "failed" not in error
        assert f"kinetic {OLD} was removed while this process ran. Start it again" in error


def test_two_versions_at_once_share_one_queue_in_order_and_read_each_others_jobs(
    site: Site, installed: Installed, tmp_path: Path
) -> None:
    newer = Installed(tmp_path / "newer", site.project)
    newer.install(NEW, SMALL)
    order = [site.submit(each)[0] for each in (installed, newer, installed, newer)]

    listed = [
        each.run("print(json.dumps(sorted(job.job_id for job in kinetic.list_jobs())))") for each in (installed, newer)
    ]
    site.until.touch()
    by_old = installed.run(COLLECT.format(jobs=order))
    by_new = newer.run(COLLECT.format(jobs=order))

    assert listed == [sorted(order)] * 2
    assert by_old == by_new
    assert [value["version"] for value in by_old] == [OLD, NEW, OLD, NEW]
    assert site.begun() == order
    old_supervisors, new_supervisors = ({value["supervisor"] for value in by_old[start::2]} for start in (0, 1))
    assert not old_supervisors & new_supervisors


def test_jobs_whose_environment_is_gone_wait_for_it_and_hold_back_no_others(
    site: Site, installed: Installed, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    other, environment, packages = _environment(site, tmp_path)
    (runs,) = site.submit(installed)
    wait_until(site.begun, "the first job", 20)
    (waits,) = site.submit(other)

    environment.rename(tmp_path / "moved")
    (later,) = site.submit(installed)
    site.until.touch()
    installed.run(COLLECT.format(jobs=[runs, later]))
    listed, explained = installed.kinetic("jobs", "list"), installed.kinetic("jobs", "explain", waits)
    (tmp_path / "moved").rename(environment)
    (packages / "cloudpickle").rename(tmp_path / "cloudpickle")  # an environment that is made again has them last
    again = [installed.kinetic("jobs", "list") for _ in range(2)][-1]
    (tmp_path / "cloudpickle").rename(packages / "cloudpickle")
    installed.run(COLLECT.format(jobs=[waits]))

    assert f"waits for its Python, {other.python}, which is gone" in listed.stdout
    assert f"waits for its Python's packages: {packages / 'cloudpickle' / '__init__.py'} is gone" in again.stdout
    assert "supervisor" not in listed.stderr
    assert "make that environment again, or cancel the job" in explained.stdout
    assert "supervisor" not in explained.stdout
    assert site.begun() == [runs, later, waits]


def test_a_batch_that_was_pickled_by_another_cloudpickle_is_not_resumed_and_the_error_says_what_to_install(
    site: Site, installed: Installed, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    one = f"({str(site.notes)!r}, {str(site.until)!r})"
    driver = installed.start(f"print(tell.run_async_map([{one}, {one}], max_concurrent=1).group_id, flush=True)")
    assert driver.stdout is not None
    group = driver.stdout.readline().strip()
    wait_until(site.begun, "the first child", 20)
    driver.kill()
    driver.communicate()
    newer = Installed(tmp_path / "newer", site.project)
    package = newer.folder / "cloudpickle"
    shutil.copytree(Path(cloudpickle.__file__).parent, package)
    text = (package / "__init__.py").read_text()
    (package / "__init__.py").write_text(text.replace(cloudpickle.__version__, "9.9.9"))

    refused = newer.kinetic("batch", "resume", group)
    site.until.touch()
    resumed = f"kinetic.attach_batch({group!r}, resume=True).results(timeout=40)"
    values = installed.run(f"print(json.dumps({resumed}))")

    own = cloudpickle.__version__
    assert f"its pickles were made by cloudpickle {own}, and this is cloudpickle 9.9.9" in refused.stderr
    assert f'after pip install "cloudpickle=={own}": kinetic batch resume {group}' in refused.stderr
    assert [value["version"] for value in values] == [OLD, OLD]


def test_a_job_whose_environment_goes_while_a_supervisor_of_it_runs_waits_until_it_is_back(
    site: Site, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    other, environment, _ = _environment(site, tmp_path)
    runs, waits = site.submit(other, 2)
    wait_until(site.begun, "the first job", 20)

    environment.rename(tmp_path / "moved")  # as it is for seconds where it is made again
    site.until.touch()
    wait_until(lambda: site.ask("SELECT job_id FROM jobs WHERE state = 'ended'"), "the end of the first job", 20)
    listed = [other.kinetic("jobs", "list").stdout for _ in range(2)][-1]
    begun = site.begun()
    (tmp_path / "moved").rename(environment)
    values = other.run(COLLECT.format(jobs=[runs, waits]))

    assert begun == [runs]
    assert f"waits for its Python, {other.python}, which is gone" in listed
    assert [value["version"] for value in values] == [OLD, OLD]


def _environment(site: Site, tmp_path: Path) -> tuple[Installed, Path, Path]:
    """Make an environment with a kinetic of its own; return that, its folder, and the one of its packages."""
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    found = Installed(tmp_path / "other", site.project)
    found.python = str(environment / "bin" / "python")
    packages = Path(sysconfig.get_path("purelib", vars=dict.fromkeys(("base", "platbase"), str(environment))))
    shutil.copytree(Path(cloudpickle.__file__).parent, packages / "cloudpickle")
    return found, environment, packages


def test_either_version_cancels_and_removes_the_others_jobs(site: Site, installed: Installed, tmp_path: Path) -> None:
    newer = Installed(tmp_path / "newer", site.project)
    newer.install(NEW, SMALL)
    of_old, of_new = site.submit(installed)[0], site.submit(newer)[0]

    newer.run(f"kinetic.attach({of_old!r}).cancel()\nprint(1)")
    installed.run(f"kinetic.attach({of_new!r}).cleanup()\nprint(1)")

    assert site.ask("SELECT job_id FROM jobs") == []
    for each in (installed, newer):
        told = each.kinetic("jobs", "list", "--all")
        assert told.returncode == 0, told.stderr
        assert of_old in told.stdout
        assert of_new in told.stdout


def test_an_older_version_refuses_a_newer_schema_plainly_and_the_newer_one_still_collects(
    site: Site, installed: Installed, tmp_path: Path
) -> None:
    newer = Installed(tmp_path / "newer", site.project)
    newer.install(NEW, LARGE)
    of_new, of_old = site.submit(newer)[0], site.submit(installed)[0]

    refused = installed.run(
        f"try:\n    kinetic.attach({of_new!r})\n"
        f"except kinetic.errors.IntegrityError as error:\n    print(json.dumps([error.code, str(error)]))"
    )
    listed, warned = installed.told("print(json.dumps([job.job_id for job in kinetic.list_jobs()]))")
    site.until.touch()
    values = newer.run(COLLECT.format(jobs=[of_new, of_old]))

    assert refused[0] == "schema"
    assert f"the record {of_new}/handle.json was written by another version of kinetic" in refused[1]
    assert (
        f"its schema is {documents.SCHEMA + 1}; this version reads {documents.SCHEMA - 1} and {documents.SCHEMA}"
        in refused[1]
    )
    assert "pip install --upgrade kinetic-jobs" in refused[1]
    assert listed == [of_old]
    assert (
        f"1 unverified job is not listed: {of_new}: written by another version of kinetic; its schema is "
        f"{documents.SCHEMA + 1}; this version reads {documents.SCHEMA - 1} and {documents.SCHEMA};"
        " pip install --upgrade kinetic-jobs" in warned
    )
    assert [value["version"] for value in values] == [NEW, OLD]


def test_a_column_that_a_newer_version_added_to_the_queue_disturbs_nobody(
    site: Site, installed: Installed, wait_until: Callable[..., None]
) -> None:
    runs, waits = site.submit(installed, 2)
    wait_until(site.begun, "the first job", 20)

    for table in ("jobs", "supervisors", "templates"):
        site.ask(f"ALTER TABLE {table} ADD COLUMN mood TEXT NOT NULL DEFAULT 'good'")
    (later,) = site.submit(installed)
    site.until.touch()
    values = installed.run(COLLECT.format(jobs=[runs, waits, later]))

    assert [value["version"] for value in values] == [OLD] * 3
    assert site.begun() == [runs, waits, later]


def test_a_queue_of_a_newer_version_is_refused_and_what_runs_and_waits_is_not_lost(
    site: Site, installed: Installed, wait_until: Callable[..., None]
) -> None:
    runs, waits = site.submit(installed, 2)
    wait_until(site.begun, "the first job", 20)
    ((version,),) = site.ask("PRAGMA user_version")

    site.ask("PRAGMA user_version = 99")
    refused, told = (installed.kinetic("jobs", "list"), installed.start(site.call(held=False)))
    _, submitting = told.communicate(timeout=30)
    rows = site.ask("SELECT job_id FROM jobs ORDER BY seq")
    site.ask(f"PRAGMA user_version = {version}")
    site.until.touch()
    values = installed.run(COLLECT.format(jobs=[runs, waits]))

    assert refused.returncode != 0
    assert told.returncode != 0
    for text in (refused.stderr, submitting):
        assert "the queue of this machine cannot be used" in text
        assert "a newer kinetic wrote it: version 99, this one knows 1" in text
        assert "pip install --upgrade kinetic-jobs" in text
    assert rows == [(runs,), (waits,)]
    assert sorted(path.name for path in (site.home / "store").glob("cpu-*")) == sorted([runs, waits])
    assert [value["version"] for value in values] == [OLD, OLD]


# --------------------------------------------------------------------------------------------------- page by page


KEY = documents.job_key(bytes(range(32)), "job", "memory://")
HANDLE = {**dict.fromkeys(REQUIRED, ""), "job_id": "job"}


def _record(store: MemoryStore) -> Callable[[], object]:
    store.put(keys.record("job"), locate.seal_record(HANDLE, {"machine": "here"}, KEY))
    return lambda: documents.open_page(locate.RECORD, store, keys.record("job"), KEY)["machine"]


def _order(store: MemoryStore) -> Callable[[], object]:
    from kinetic._wire import digests

    store.put(keys.order("job"), Order("job", "here", Artifact.within(b"f"), Artifact.within(b"a")).to_bytes())

    def read() -> object:
        data = store.get(keys.order("job"))
        return Order.from_bytes(data, sha256=digests.of_bytes(data)).function_name

    return read


def _note(store: MemoryStore) -> Callable[[], object]:
    store.put(keys.attempt("job", 0), AttemptNote("job", 0, "here", 1.0, "runner", "3.11").to_bytes(KEY))
    return lambda: outcomes.read_note(store, "job", 0, KEY).machine


def _outcome(store: MemoryStore) -> Callable[[], object]:
    store.put("result", Outcome("job", outcomes.FAILED, value_type="here").footer(KEY))

    def read() -> object:
        data = store.get("result")
        return outcomes.read(len(data), lambda start, length: data[start : start + length], KEY).value_type

    return read


def _history(store: MemoryStore) -> Callable[[], object]:
    locate.write_page(store, {"job_id": "job", "status": "here"}, KEY)

    def read() -> object:
        return documents.open_page(HISTORY, store, keys.history("job"), KEY)["status"]

    return read


@pytest.mark.parametrize("page", [_record, _order, _note, _outcome, _history])
def test_every_page_of_the_version_before_is_read_and_each_refusal_names_the_version_that_reads_it(
    page: Callable[[MemoryStore], Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    this = documents.SCHEMA
    read = {}
    for version in (this - 2, this - 1, this, this + 1):
        with monkeypatch.context() as patch:
            patch.setattr(documents, "SCHEMA", version)
            read[version] = page(MemoryStore(f"version-{version}"))

    assert read[this - 1]() == read[this]() == "here"
    with pytest.raises(IntegrityError, match="was written by another version of kinetic") as caught:
        read[this + 1]()

    assert caught.value.code == "schema"
    assert caught.value.next == "pip install --upgrade kinetic-jobs"
    with pytest.raises(IntegrityError, match="was written by an older version of kinetic") as caught:
        read[this - 2]()
    assert caught.value.next == f'in an environment of its own: pip install "kinetic-jobs<{kinetic.__version__}"'
