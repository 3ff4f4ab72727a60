"""A project's way into a store: whole, deterministic, and nothing twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kinetic
from kinetic._blobs import fetch, file_tree, sender
from kinetic._project import archive, ignore
from kinetic._project.archive import ship
from kinetic._project.root import Plan
from kinetic._runner.worker.workspace import unpack
from kinetic._stores.files import FileStore
from kinetic._stores.memory import MemoryStore
from kinetic._wire import folders, keys
from kinetic.errors import ProjectRootError

FILES = {"a.py": "print(1)\n", "pkg/__init__.py": "", "pkg/model.py": "x = 1\n" * 500, "pkg/deep/er.txt": "deep"}


@pytest.fixture
def project(tmp_path):
    return fill(tmp_path / "project", FILES)


@pytest.fixture(params=["files", "memory"])
def store(request, tmp_path):
    return FileStore(tmp_path / "store") if request.param == "files" else MemoryStore("archive")


@pytest.fixture
def send(project, store, tmp_path):
    """Ship the project."""

    def sent(*, root=project, to=store, cache=tmp_path / "cache", environ=None, exclude=()):
        return ship(Plan(root, "", None, ("",)), to, cache=cache, environ=environ or {}, exclude=exclude)

    return sent


@pytest.fixture
def calm(monkeypatch):
    """Trust files however new they are: for tests about what is remembered, which would otherwise have to wait."""
    monkeypatch.setattr(folders, "_RECENT_NS", 0)
    monkeypatch.setattr(archive, "_MANY", 0)


def fill(root, files):
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    return root


def contents(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def everything(store):
    return {entry.key: entry.size for entry in store.entries("")}


def test_what_was_shipped_comes_back(send, store, tmp_path):
    shipped = send()

    unpack(store, shipped.manifest, shipped.packs, tmp_path / "work")

    assert contents(tmp_path / "work") == FILES
    assert (shipped.files, shipped.bytes) == (4, sum(map(len, FILES.values())))
    assert shipped.sent_bytes == sum(everything(store).values())
    assert shipped.notes == ()


def test_equal_files_make_an_equal_tree_on_every_machine_and_clock(send, tmp_path, store):
    twin = fill(tmp_path / "elsewhere" / "copy", dict(reversed(FILES.items())))
    for path in twin.rglob("*"):
        os.utime(path, (0, 0))

    one = send()
    two = send(root=twin, to=MemoryStore("other"), cache=tmp_path / "other-cache")

    assert one.tree == two.tree
    assert one.packs == two.packs


def test_the_digest_of_a_tree_is_a_promise_that_later_versions_keep(send):
    assert send().tree == "dafc885ca06ab35b4a9780d07f4a1a70c5ae91d4123a86b1527089f571788e51"


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "a.py").write_text("print(2)\n"),
        lambda root: (root / "a.py").chmod(0o755),
        lambda root: (root / "a.py").rename(root / "b.py"),
        lambda root: (root / "pkg" / "empty").mkdir(),
        lambda root: (root / "pkg" / "deep" / "er.txt").unlink(),
    ],
)
def test_every_change_that_a_job_could_feel_makes_another_tree(send, project, change):
    before = send().tree
    change(project)

    assert send().tree != before


def test_rights_that_git_does_not_keep_either_make_no_other_tree(send, project):
    before = send().tree
    (project / "a.py").chmod(0o600)
    (project / "pkg").chmod(0o700)

    assert send().tree == before


def test_nothing_changed_sends_nothing_and_reads_nothing(send, store, tmp_path, calm, monkeypatch):
    first = send()
    before = everything(store)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")}
    monkeypatch.setattr(sender.Sender, "_read", None)  # whoever reads a file fails

    again = send()

    assert (again.tree, again.packs, again.sent_bytes) == (first.tree, first.packs, 0)
    assert everything(store) == before
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")} == stamps


def test_an_edit_sends_one_small_pack_more(send, store, project, tmp_path):
    fill(project, {f"data/{number}.txt": os.urandom(500).hex() for number in range(100)})
    first = send()
    (project / "pkg" / "model.py").write_text("x = 2\n")

    second = send()
    unpack(store, second.manifest, second.packs, tmp_path / "work")

    assert second.packs[:-1] == first.packs
    assert second.sent_bytes < 3000  # the new file, and the manifest of 104 files
    assert contents(tmp_path / "work") == contents(project)


def test_going_back_to_what_was_there_before_sends_nothing_but_the_way_back(send, project):
    first = send()
    (project / "a.py").write_text("print(2)\n")
    send()
    (project / "a.py").write_text("print(1)\n")

    third = send()

    assert third.tree == first.tree


def test_twenty_edits_in_twenty_folders_send_little_of_a_large_project(send, project):
    text = Path(os.__file__).read_text()
    for number in range(1000):
        fill(
            project, {f"folder{number // 50}/module_{number}.py": f"# {number}\n{text[number * 5 : number * 5 + 6000]}"}
        )
    first = send()
    for folder in range(20):
        with (project / f"folder{folder}" / f"module_{folder * 50}.py").open("a") as file:
            file.write("# edited\n")

    second = send()

    assert first.sent_bytes > 6_000_000
    assert second.sent_bytes < 100_000


def test_the_same_content_in_many_files_is_sent_once(send, project, store):
    body = os.urandom(50_000).hex()
    fill(project, {f"copies/{number}.txt": body for number in range(20)})

    assert send().sent_bytes < 110_000


def test_empty_folders_and_rights_travel(send, store, project, tmp_path):
    (project / "runs" / "empty").mkdir(parents=True)
    (project / "a.py").chmod(0o755)
    shipped = send()

    unpack(store, shipped.manifest, shipped.packs, tmp_path / "work")

    assert (tmp_path / "work" / "runs" / "empty").is_dir()
    assert os.access(tmp_path / "work" / "a.py", os.X_OK) or os.geteuid() == 0
    assert (tmp_path / "work" / "a.py").stat().st_mode & 0o111
    assert not (tmp_path / "work" / "pkg" / "model.py").stat().st_mode & 0o111


def test_small_packs_are_compressed_and_large_ones_are_not(send, project, store, monkeypatch):
    small = send()
    assert small.sent_bytes < 3000 < len(FILES["pkg/model.py"]) * 2

    monkeypatch.setattr(sender, "COMPRESS_BELOW", 1000)
    (project / "pkg" / "model.py").write_text("y = 1\n" * 500)
    large = send()

    assert large.sent_bytes > 3000


def test_a_file_larger_than_memory_should_hold_goes_through_in_pieces(send, project, store, tmp_path, monkeypatch):
    monkeypatch.setattr(sender, "SMALL_BYTES", 1000)
    monkeypatch.setattr(sender, "CHUNK_BYTES", 1 << 20)
    body = os.urandom(3 << 20)
    (project / "large.bin").write_bytes(body)
    (project / "twin.bin").write_bytes(body)
    shipped = send()

    unpack(store, shipped.manifest, shipped.packs, tmp_path / "work")

    assert (tmp_path / "work" / "large.bin").read_bytes() == body
    assert (tmp_path / "work" / "twin.bin").read_bytes() == body
    assert shipped.sent_bytes < len(body) + 10_000


def test_packs_are_split_before_they_grow_too_large(send, project, store, tmp_path, monkeypatch):
    monkeypatch.setattr(sender, "PACK_BYTES", 200_000)
    monkeypatch.setattr(sender, "COMPRESS_BELOW", 10_000)
    fill(project, {f"data/{number}.txt": os.urandom(25_000).hex() for number in range(20)})
    shipped = send()

    unpack(store, shipped.manifest, shipped.packs, tmp_path / "work")

    assert len(shipped.packs) >= 5
    assert max(everything(store).values()) < 260_000
    assert contents(tmp_path / "work") == contents(project)


@pytest.mark.usefixtures("calm")  # files too new to be trusted have packs of their own beside those that count
def test_many_small_packs_are_written_anew_as_one(send, project, store, tmp_path):
    largest = 0
    for number in range(60):
        (project / f"module{number}.py").write_text(f"print({number})\n")
        shipped = send()
        largest = max(largest, len(shipped.packs))

    unpack(store, shipped.manifest, shipped.packs, tmp_path / "work")

    assert 10 < largest <= 20
    assert contents(tmp_path / "work") == contents(project)


def test_a_pack_that_was_deleted_behind_the_cache_is_sent_again(send, store, tmp_path, project):
    first = send()
    (project / "a.py").write_text("print(2)\n")
    send()
    store.delete(keys.data_blob(first.packs[0]))

    again = send()
    unpack(store, again.manifest, again.packs, tmp_path / "work")

    assert again.sent_bytes > 0
    assert contents(tmp_path / "work") == contents(project)


def test_a_pack_that_was_cut_short_in_the_store_is_replaced(send, store, tmp_path, calm):
    first = send()
    key = keys.data_blob(first.packs[0])
    store.put(key, store.get(key)[:-10])

    again = send()
    unpack(store, again.manifest, again.packs, tmp_path / "work")

    assert again.packs == first.packs
    assert contents(tmp_path / "work") == FILES


def test_another_store_gets_everything(send, tmp_path):
    send()
    other = FileStore(tmp_path / "other")

    shipped = send(to=other)
    unpack(other, shipped.manifest, shipped.packs, tmp_path / "work")

    assert contents(tmp_path / "work") == FILES


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('"kinetic-cache":1', '"kinetic-cache":99'),
        lambda text: text.replace("project", "another"),
        lambda text: json.dumps({**json.loads(text), "digests": ["x"]}),
        lambda text: json.dumps({**json.loads(text), "digests": {"x": 3}}),
        lambda text: json.dumps({**json.loads(text), "stores": {"x": 3}}),
        lambda text: "[" * 100_000,
    ],
)
def test_a_damaged_or_foreign_cache_is_built_anew(send, store, tmp_path, damage):
    first = send()
    [page] = (tmp_path / "cache").glob("*.json")
    page.write_text(damage(page.read_text()))

    again = send()

    assert again.tree == first.tree
    unpack(store, again.manifest, again.packs, tmp_path / "work")
    assert contents(tmp_path / "work") == FILES


def test_a_lost_or_damaged_index_is_no_harm(send, store, tmp_path, project):
    send()
    [index] = (tmp_path / "cache").glob("*.contents")
    index.write_bytes(index.read_bytes()[:-1] + b"!")
    (project / "a.py").write_text("print(2)\n")

    again = send()
    unpack(store, again.manifest, again.packs, tmp_path / "work")

    assert contents(tmp_path / "work") == contents(project)


def test_the_cache_does_not_grow_for_ever(send, project, tmp_path, monkeypatch):
    monkeypatch.setattr(sender.Contents, "_MOST", 10)
    for number in range(30):
        (project / "module.py").write_text(f"print({number})\n")
        send()

    [index] = (tmp_path / "cache").glob("*.contents")
    assert index.stat().st_size < 2000
    assert len(list((tmp_path / "cache").iterdir())) == 3


def test_a_cache_that_cannot_be_written_is_no_harm(send, tmp_path):
    (tmp_path / "file").touch()

    assert send(to=FileStore(tmp_path / "other"), cache=tmp_path / "file" / "cache").files == 4


def test_a_same_size_edit_right_after_hashing_is_seen(send, project, store, tmp_path):
    for number in range(30):
        (project / "a.py").write_text(f"print({number:02})\n")

        shipped = send()
        unpack(store, shipped.manifest, shipped.packs, tmp_path / f"work{number}")

        assert contents(tmp_path / f"work{number}")["a.py"] == f"print({number:02})\n"


def test_a_same_size_edit_that_keeps_its_time_is_seen(send, project):
    before = send()
    old = (project / "a.py").stat()
    (project / "a.py").write_text("print(7)\n")
    os.utime(project / "a.py", ns=(old.st_atime_ns, old.st_mtime_ns))

    assert send().tree != before.tree


def test_a_file_that_never_holds_still_ships_as_it_was_with_a_note(send, project, store, tmp_path, monkeypatch):
    log = project / "growing.log"
    log.write_text("start\n")
    really = sender._read_up_to

    def read_and_grow(descriptor, size):
        data = really(descriptor, size)
        if data.startswith(b"start"):
            with log.open("a") as file:
                file.write("more\n")
        return data

    monkeypatch.setattr(sender, "_read_up_to", read_and_grow)
    shipped = send()
    monkeypatch.undo()

    unpack(store, shipped.manifest, shipped.packs, tmp_path / "work")
    assert "growing.log" in shipped.notes[0]
    assert "as they were at that moment" in shipped.notes[0]
    assert log.read_text().startswith((tmp_path / "work" / "growing.log").read_text())


@pytest.mark.parametrize("whole", [1000, 1 << 20])
def test_files_that_are_edited_all_the_while_never_arrive_under_a_wrong_digest(
    send, project, store, tmp_path, monkeypatch, whole
):
    monkeypatch.setattr(sender, "SMALL_BYTES", whole)
    writer = (
        "import sys, itertools\n"
        "for n in itertools.count():\n"
        "    for name in sys.argv[1:]:\n"
        "        with open(name, 'r+b', buffering=0) as file:\n"
        "            file.write(b'%08d' % n * 4000)\n"
    )
    targets = [project / f"busy{number}.bin" for number in range(3)]
    for target in targets:
        target.write_bytes(b"0" * 32000)
    process = subprocess.Popen([sys.executable, "-c", writer, *map(str, targets)])
    try:
        shipments = [send() for _ in range(20)]
    finally:
        process.kill()
        process.wait()

    for number, shipped in enumerate(shipments):
        unpack(store, shipped.manifest, shipped.packs, tmp_path / f"work{number}")  # verifies every digest


def test_a_file_that_vanishes_after_the_walk_is_skipped_with_a_reason(send, project, store, tmp_path, monkeypatch):
    really = file_tree.open_regular

    def vanish_and_open(*arguments):
        (project / "pkg" / "model.py").unlink(missing_ok=True)
        return really(*arguments)

    monkeypatch.setattr(file_tree, "open_regular", vanish_and_open)
    shipped = send()

    unpack(store, shipped.manifest, shipped.packs, tmp_path / "work")
    assert "skipped pkg/model.py: cannot be read: No such file or directory" in shipped.notes
    assert "pkg/model.py" not in contents(tmp_path / "work")
    assert shipped.files == 3


def test_a_file_that_turns_into_a_pipe_after_the_walk_does_not_hold_us(send, project, monkeypatch):
    true_open = ignore.Project.open

    def change_and_open(self, file):
        if file.path.endswith("a.py") and os.path.isfile(file.path):
            os.unlink(file.path)
            os.mkfifo(file.path)
        return true_open(self, file)

    monkeypatch.setattr(ignore.Project, "open", change_and_open)

    assert any("a.py" in note for note in send().notes)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_skipped_with_a_reason(send, project):
    (project / "a.py").chmod(0)

    assert any("skipped a.py: cannot be read" in note for note in send().notes)


def test_a_project_above_two_gigabytes_is_refused_before_anything_is_read(send, project, monkeypatch):
    (project / "large.bin").touch()
    os.truncate(project / "large.bin", (2 << 30) + 1)
    monkeypatch.setattr(sender.Sender, "_read", None)

    with pytest.raises(ProjectRootError, match="too large"):
        send()


def test_secrets_stay_out_with_one_line_that_names_them(send, project):
    fill(project, {".env": "KEY", "certs/tls.key": "KEY", ".env.example": "KEY="})

    shipped = send()

    assert shipped.files == 5
    [note] = shipped.notes
    assert ".env" in note
    assert "certs/tls.key" in note
    assert "!.env" in note


def test_a_large_project_is_remarked_upon_with_lines_that_would_leave_the_largest_out(send, project):
    fill(project, {f"big/{name}": "x" * 300_000 for name in ("a*.bin", "b.bin", "c.bin", "d.bin", "#e.bin", "f ")})
    environ = {"KINETIC_CONTEXT_SIZE_WARN_MB": "1.5"}

    [note] = send(environ=environ).notes
    lines = [line.removeprefix("    ") for line in note.splitlines()[1:]]
    (project / ".kineticignore").write_text("\n".join(lines))

    assert len(lines) == 5
    after = send(environ=environ)
    assert after.notes == ()
    assert after.files == len(FILES) + 2  # the sixth, and the ignore file


def test_that_remark_leaves_the_small_files_of_a_project_with_one_large_file_alone(send, project):
    fill(project, {"data.bin": "x" * 2_000_000, "train.py": "import model\n", "model.py": "size = 3\n"})

    [note] = send(environ={"KINETIC_CONTEXT_SIZE_WARN_MB": "1.5"}).notes

    assert "the largest: data.bin (2.0 MB). " in note
    assert note.splitlines()[1:] == ["    /data.bin"]


@pytest.mark.parametrize(("limit", "notes"), [("0", 0), ("-1", 0), ("many", 1), ("", 0)])
def test_the_limit_of_that_remark_can_be_switched_off_and_a_wrong_one_is_named(send, limit, notes):
    assert len(send(environ={"KINETIC_CONTEXT_SIZE_WARN_MB": limit}).notes) == notes


def test_the_note_about_the_root_arrives(project, store, tmp_path):
    plan = Plan(project, "", None, ("",), notes=("the current directory ships",))

    assert ship(plan, store, cache=tmp_path / "cache", environ={}).notes == ("the current directory ships",)


SHIP = """
import sys
from pathlib import Path
from kinetic._project.archive import ship
from kinetic._project.root import Plan
from kinetic._stores.files import FileStore
root, store, cache = map(Path, sys.argv[1:])
print("ready", flush=True)
sys.stdin.readline()
print(ship(Plan(root, "", None, ("",)), FileStore(store), cache=cache).tree, flush=True)
"""


def start(*arguments):
    environ = {**os.environ, "PYTHONPATH": str(Path(kinetic.__file__).parents[1])}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", SHIP, *map(str, arguments)]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environ)


def test_two_processes_that_ship_the_same_project_at_once_do_not_disturb_each_other(project, tmp_path):
    fill(project, {f"data/{number}.txt": os.urandom(20_000).hex() for number in range(200)})
    processes = [start(project, tmp_path / "store", tmp_path / "cache") for _ in range(4)]
    for process in processes:
        process.stdout.readline()
    found = [process.communicate("go\n")[0].strip() for process in processes]

    store = FileStore(tmp_path / "store")
    again = ship(Plan(project, "", None, ("",)), store, cache=tmp_path / "cache", environ={})

    assert set(found) == {again.tree}
    assert len(everything(store)) == len(again.packs)
    assert list((tmp_path / "store" / ".tmp").iterdir()) == []


def test_killing_it_in_the_middle_leaves_no_half_pack_and_the_next_one_goes_through(project, tmp_path):
    fill(project, {f"data/{number}.txt": os.urandom(50_000).hex() for number in range(300)})
    store = FileStore(tmp_path / "store")
    for delay in (0.0, 0.01, 0.02, 0.04, 0.08):
        process = start(project, tmp_path / "store", tmp_path / "cache")
        process.stdout.readline()
        process.stdin.write("go\n")
        process.stdin.flush()
        time.sleep(delay)  # wherever that may be; the property holds at every moment
        process.send_signal(signal.SIGKILL)
        process.communicate()
        for entry in store.entries("data/blobs/"):
            fetch.read_blob(store, entry.key.removeprefix("data/blobs/"), "it")

    shipped = ship(Plan(project, "", None, ("",)), store, cache=tmp_path / "cache", environ={})
    unpack(store, shipped.manifest, shipped.packs, tmp_path / "work")

    assert contents(tmp_path / "work") == contents(project)


def test_a_store_that_fails_leaves_no_scratch_behind(send, tmp_path):
    class Broken(FileStore):
        def put(self, *args, **options):
            raise RuntimeError("no")

    store = Broken(tmp_path / "store")

    with pytest.raises(RuntimeError, match="no"):
        send(to=store)

    assert list(store.scratch().iterdir()) == []
    assert not ignore.is_environment(str(tmp_path))
