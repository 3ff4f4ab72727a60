"""The project's files in the job: what was promised, or an error that names the file."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import subprocess
import threading
import time
import zlib

import pytest

from kinetic._blobs import sender
from kinetic._project.archive import ship
from kinetic._project.root import Plan
from kinetic._runner.worker import workspace
from kinetic._runner.worker.workspace import Unpacked, unpack, written_since
from kinetic._stores.files import FileStore
from kinetic._stores.memory import MemoryStore
from kinetic._wire import keys, order
from kinetic._wire.order import Artifact
from kinetic.errors import IntegrityError, KeyMissingError, StoreError

FILES = {
    "a.py": b"print(1)\n",
    "pkg/__init__.py": b"",
    "pkg/model.py": b"x = 1\n" * 500,
    "large.bin": b"0123456789" * 600_000,
}


@pytest.fixture(params=["files", "memory"])
def store(request, tmp_path):
    return FileStore(tmp_path / "store") if request.param == "files" else MemoryStore("workspace")


@pytest.fixture
def shipped(store, tmp_path):
    for path, content in FILES.items():
        (tmp_path / "project" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / path).write_bytes(content)
    (tmp_path / "project" / "a.py").chmod(0o700)
    (tmp_path / "project" / "empty").mkdir()
    return ship(Plan(tmp_path / "project", "", None, ("",)), store, cache=tmp_path / "cache", environ={})


def project_of(store, path, content, *, compressed=False, size=None):
    """Store a project of one file as anybody may who can write to the store; return its page and its blobs."""
    parts = (order.Part("", 0, len(content) if size is None else size),)
    file = order.ManifestFile(path, executable=False, size=parts[0].length, digest="", packed=True, parts=parts)
    page = order.Manifest("0" * 64, is_dir=True, files=(file,)).to_bytes([""])
    blob = hashlib.sha256(content + page).hexdigest() + order.COMPRESSED * compressed
    store.put(keys.data_blob(blob), zlib.compress(content + page) if compressed else content + page)
    return Artifact(hashlib.sha256(page).hexdigest(), len(page), key=keys.data_blob(blob), start=len(content)), [blob]


def damage(store, blob, old, new):
    data = store.get(keys.data_blob(blob))
    assert old in data
    store.put(keys.data_blob(blob), data.replace(old, new, 1))


def test_files_folders_and_rights_arrive(store, shipped, tmp_path):
    unpacked = unpack(store, shipped.manifest, shipped.packs, tmp_path / "work")

    found = {str(path.relative_to(tmp_path / "work")): path for path in (tmp_path / "work").rglob("*")}
    assert {name: path.read_bytes() for name, path in found.items() if path.is_file()} == FILES
    assert found["empty"].is_dir()
    assert found["a.py"].stat().st_mode & 0o111 == 0o111
    assert found["large.bin"].stat().st_mode & 0o111 == 0
    assert {path: stamp[0] for path, stamp in unpacked.stamps.items()} == {path: len(FILES[path]) for path in FILES}


def test_nothing_else_is_left_beside_the_workspace(store, shipped, tmp_path):
    unpack(store, shipped.manifest, shipped.packs, tmp_path / "jobs" / "work")

    assert os.listdir(tmp_path / "jobs") == ["work"]


def test_a_damaged_blob_is_named_and_not_used(store, shipped, tmp_path):
    damage(store, shipped.packs[-1], FILES["large.bin"][:5000], b"0123456780" * 500)

    with pytest.raises(IntegrityError, match=r"not what was submitted") as caught:
        unpack(store, shipped.manifest, shipped.packs, tmp_path / "work")

    assert shipped.packs[-1] in str(caught.value)
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("cut", [300, 100_000])
def test_a_damaged_chunk_of_a_large_file_is_noticed(store, tmp_path, monkeypatch, cut):
    monkeypatch.setattr(sender, "SMALL_BYTES", 1000)
    monkeypatch.setattr(sender, "CHUNK_BYTES", cut)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "large.bin").write_bytes(os.urandom(100_000))
    shipped = ship(Plan(tmp_path / "project", "", None, ("",)), store, cache=tmp_path / "cache", environ={})
    store.put(keys.data_blob(shipped.packs[0]), bytes(cut))

    with pytest.raises(IntegrityError, match=r"'large\.bin' is not what was submitted"):
        unpack(store, shipped.manifest, shipped.packs, tmp_path / "work")


def test_a_missing_blob_is_an_error_that_says_so(store, shipped, tmp_path):
    store.delete(keys.data_blob(shipped.packs[0]))

    with pytest.raises(KeyMissingError):
        unpack(store, shipped.manifest, shipped.packs, tmp_path / "work")


def test_another_manifest_than_the_promised_one_is_refused(store, shipped, tmp_path):
    other = dataclasses.replace(shipped.manifest, start=shipped.manifest.start + 1)

    with pytest.raises(IntegrityError, match="not what was submitted"):
        unpack(store, other, shipped.packs, tmp_path / "work")


@pytest.mark.parametrize("name", ["../evil.py", "/etc/evil", "..", ".", "", "a/../../evil", "nul\0"])
def test_a_name_that_leads_out_of_the_workspace_is_refused(store, tmp_path, name):
    page, packs = project_of(store, name, b"content")

    with pytest.raises(IntegrityError):
        unpack(store, page, packs, tmp_path / "work")

    assert not list(tmp_path.rglob("evil*"))


def test_a_size_that_the_blob_does_not_have_is_refused(store, tmp_path):
    page, packs = project_of(store, "a.py", b"content", size=7000)

    with pytest.raises(IntegrityError, match=r"'a\.py' is not what was submitted"):
        unpack(store, page, packs, tmp_path / "work")


def test_a_file_that_lies_there_already_is_not_written_over_nor_followed(store, shipped, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.py").symlink_to(tmp_path / "victim")

    with pytest.raises(StoreError, match="cannot be written"):
        unpack(store, shipped.manifest, shipped.packs, tmp_path / "work")

    assert not (tmp_path / "victim").exists()


def test_a_compressed_pack_arrives_as_well(store, tmp_path):
    page, packs = project_of(store, "a.txt", b"text " * 1000, compressed=True)

    unpack(store, page, packs, tmp_path / "work")

    assert (tmp_path / "work" / "a.txt").read_bytes() == b"text " * 1000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk_is_said_plainly(store, shipped, tmp_path):
    (tmp_path / "small").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path / "small")]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(StoreError, match="workspace is full") as caught:
            unpack(store, shipped.manifest, shipped.packs, tmp_path / "small" / "work")
    finally:
        subprocess.run(["umount", str(tmp_path / "small")], check=True)

    assert caught.value.code == "workspace-full"


def handed_on(store, project, folder, before):
    """Unpack a project as the next job does, which has the folder of the one before."""
    folder.rename(folder.with_name("left"))
    return unpack(
        store, project.manifest, project.packs, folder, folder=str(folder.with_name("left")), left=before.left
    )


def known(store, project, folder) -> Unpacked:
    """Take a folder over until its state counts: its files must be some milliseconds old."""
    found = unpack(store, project.manifest, project.packs, folder)
    while not found.left.state or found.left.young:
        found = handed_on(store, project, folder, found)
    return found


def without_blobs(store, project):
    """Remove the blobs of a project: whoever wants to read one of them fails."""
    for blob in project.packs:
        store.delete(keys.data_blob(blob))


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def files_of(folder):
    return {
        str(path.relative_to(folder)): (path.stat().st_ino, path.stat().st_ctime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def edited(store, shipped, tmp_path):
    """The same project after an edit, with a file of several chunks: in more than one blob."""
    (tmp_path / "project" / "a.py").write_bytes(b"print(2)\n")
    (tmp_path / "project" / "chunked.bin").write_bytes(os.urandom(9 << 20))
    project = Plan(tmp_path / "project", "", None, ("",))
    found = ship(project, store, cache=tmp_path / "cache", environ={})
    assert len(found.packs) > 1
    return found


def test_a_folder_that_was_left_as_it_was_is_taken_and_then_known_without_reading_it(store, edited, tmp_path):
    work = tmp_path / "work"
    first = known(store, edited, work)
    without_blobs(store, edited)

    second = handed_on(store, edited, work, first)

    assert second == first
    assert written_since(work, second) == []


@pytest.mark.parametrize("is_known", [True, False])
def test_after_an_edit_only_what_was_edited_is_written(store, edited, tmp_path, is_known):
    work = tmp_path / "work"
    first = known(store, edited, work) if is_known else unpack(store, edited.manifest, edited.packs, work)
    before = files_of(work)
    for name in ("a", "pkg/model"):
        bytecode = work / os.path.dirname(name) / "__pycache__" / f"{os.path.basename(name)}.cpython-311.pyc"
        bytecode.parent.mkdir(exist_ok=True)
        bytecode.touch()
    project = tmp_path / "project"
    (project / "a.py").write_bytes(b"print(3)\n")
    (project / "empty").rmdir()
    (project / "empty").write_bytes(b"a file now")
    (project / "large.bin").unlink()
    (project / "large.bin").mkdir()
    (project / "large.bin" / "new.py").touch()
    (project / "pkg" / "__init__.py").chmod(0o755)
    after = ship(Plan(project, "", None, ("",)), store, cache=tmp_path / "cache", environ={})

    found = handed_on(store, after, work, first)

    kept = {"chunked.bin", "pkg/model.py"}
    assert {path for path, file in files_of(work).items() if before.get(path) == file} == kept
    assert not list(work.rglob("a.cpython-311.pyc"))
    assert (work / "pkg" / "__pycache__" / "model.cpython-311.pyc").exists()
    expected = contents(project) | {"pkg/__pycache__/model.cpython-311.pyc": b""}
    assert contents(work) == expected
    assert (work / "pkg" / "__init__.py").stat().st_mode & 0o777 == 0o755
    assert written_since(work, found) == []
    assert known_again(store, after, work, found) == found.stamps


def known_again(store, project, folder, found):
    """Return the stamps that the next jobs find, until nothing is compared any more."""
    while not found.left.state or found.left.young:
        found = handed_on(store, project, folder, found)
    return found.stamps


def test_a_folder_of_another_project_is_not_touched(store, edited, tmp_path):
    work, other = tmp_path / "work", tmp_path / "other"
    first = known(store, edited, work)
    page, packs = project_of(store, "a.py", b"another project")

    found = unpack(store, page, packs, other, folder=str(work), left=first.left)

    assert contents(other) == {"a.py": b"another project"}
    assert found.left.is_of(page, packs)
    assert "chunked.bin" in contents(work)


def test_a_folder_that_is_gone_is_made(store, edited, tmp_path):
    first = known(store, edited, tmp_path / "work")

    unpack(store, edited.manifest, edited.packs, tmp_path / "new", folder=str(tmp_path / "nowhere"), left=first.left)

    assert contents(tmp_path / "new") == contents(tmp_path / "work")


def test_a_folder_that_another_umask_made_is_made_anew(store, edited, tmp_path):
    work = tmp_path / "work"
    first = known(store, edited, work)
    before = os.umask(0o077)
    try:
        handed_on(store, edited, work, first)
    finally:
        os.umask(before)

    assert (work / "pkg" / "model.py").stat().st_mode & 0o777 == 0o600
    assert (work / "pkg").stat().st_mode & 0o777 == 0o700


def same_size_and_time(work):
    about = (work / "a.py").stat()
    (work / "a.py").write_text("print(3)\n")
    os.utime(work / "a.py", ns=(about.st_atime_ns, about.st_mtime_ns))


def moved_back(work):
    (work / "copy").write_bytes((work / "a.py").read_bytes())
    (work / "copy").chmod(0o755)
    (work / "copy").replace(work / "a.py")


def linked_for_a_while(work):
    os.link(work / "a.py", work / "other")
    (work / "other").unlink()


def linked_elsewhere(work):
    os.link(work / "a.py", work.with_name("other"))


def a_link(work):
    (work / "more").symlink_to(work / "a.py")


def another_file(work):
    (work / "empty" / "more").touch()


def another_folder(work):
    (work / "more" / "below").mkdir(parents=True)


def another_mode(work):
    (work / "a.py").chmod(0o640)


def another_mode_of_a_folder(work):
    (work / "pkg").chmod(0o750)


def no_right_to_write(work):
    work.chmod(0o500)


CHANGES = (
    *(same_size_and_time, moved_back, linked_for_a_while, linked_elsewhere, a_link, another_file, another_folder),
    *(another_mode, another_mode_of_a_folder, no_right_to_write),
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_folder_in_which_anything_was_done_is_compared_and_put_right(store, edited, tmp_path, change):
    work = tmp_path / "work"
    expected = {path: (path.stat().st_mode, path.is_dir()) for path in sorted(tmp_path.glob("project/**/*"))}
    first = known(store, edited, work)
    modes = {path: path.stat().st_mode for path in sorted(work.rglob("*"))}
    change(work)

    found = handed_on(store, edited, work, first)

    assert len(modes) == len(expected)
    assert {path: path.stat().st_mode for path in sorted(work.rglob("*"))} == modes
    assert work.stat().st_mode & 0o700 == 0o700
    assert contents(work) == contents(tmp_path / "project")
    assert written_since(work, found) == []
    work.with_name("other").unlink(missing_ok=True)
    shutil.rmtree(work.with_name("work-unused"), ignore_errors=True)
    change(work)
    without_blobs(store, edited)
    with pytest.raises(KeyMissingError):
        handed_on(store, edited, work, found)


def test_files_too_large_to_compare_are_made_anew(store, edited, tmp_path, monkeypatch):
    work = tmp_path / "work"
    before = unpack(store, edited.manifest, edited.packs, work)
    monkeypatch.setattr(workspace, "_MOST_READ", 1 << 20)
    unknown = before._replace(left=before.left._replace(state=""))

    found = handed_on(store, edited, work, unknown)

    assert found.stamps["chunked.bin"] != before.stamps["chunked.bin"]
    assert found.stamps["chunked.bin"][2] == (work / "chunked.bin").stat().st_ino


def test_files_that_are_too_young_are_compared_and_the_others_are_not(store, edited, tmp_path):
    work = tmp_path / "work"
    first = known(store, edited, work)
    os.utime(work / "a.py", (time.time() + 3600, time.time() + 3600))
    first = handed_on(store, edited, work, first)
    assert first.left.young == ("a.py",)
    same_size_and_time(work)

    found = handed_on(store, edited, work, first)

    assert (work / "a.py").read_text() == "print(2)\n"
    assert found.left.young == ("a.py",)


def test_what_the_job_wrote_is_named_and_nothing_else(store, shipped, tmp_path):
    work = tmp_path / "work"
    unpacked = unpack(store, shipped.manifest, shipped.packs, work)
    assert written_since(work, unpacked) == []

    (work / "model.keras").write_bytes(b"weights")
    (work / "empty" / "log.txt").write_text("")
    (work / "a.py").write_text("print(2)\n")  # as long as before
    (work / "pkg" / "model.py").unlink()
    (work / "pkg" / "__pycache__").mkdir()
    (work / "pkg" / "__pycache__" / "model.pyc").touch()
    (work / "large.bin").replace(work / "renamed.bin")
    (work / "link").symlink_to("nowhere")

    assert written_since(work, unpacked) == ["a.py", "empty/log.txt", "link", "model.keras", "renamed.bin"]


def test_reading_and_changing_rights_are_no_writing(store, shipped, tmp_path):
    unpacked = unpack(store, shipped.manifest, shipped.packs, tmp_path / "work")
    (tmp_path / "work" / "a.py").read_bytes()
    (tmp_path / "work" / "a.py").chmod(0o600)

    assert written_since(tmp_path / "work", unpacked) == []


def test_a_workspace_that_is_gone_has_no_new_files(store, shipped, tmp_path):
    unpacked = unpack(store, shipped.manifest, shipped.packs, tmp_path / "work")
    (tmp_path / "work").rename(tmp_path / "elsewhere")

    assert written_since(tmp_path / "work", unpacked) == []


def test_a_project_whose_only_blob_was_read_with_its_manifest_starts_no_thread(tmp_path, monkeypatch):
    store = MemoryStore("one pack")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.py").write_bytes(b"print(1)\n")
    shipped = ship(Plan(tmp_path / "project", "", None, ("",)), store, cache=tmp_path / "cache", environ={})
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail(f"{self.name} was started"))

    unpack(store, shipped.manifest, shipped.packs, tmp_path / "work")

    assert (tmp_path / "work" / "a.py").read_bytes() == b"print(1)\n"
