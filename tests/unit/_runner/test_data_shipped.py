"""Shipped data in the job: what was promised, verified, kept for the next job, and this job's own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from kinetic._runner.data import file_cache, mounted_data, provision, transfer
from kinetic._runner.data.file_cache import Cache, stamp_of
from kinetic._stores import open_store
from kinetic._wire import keys
from kinetic.errors import DataMissingError, IntegrityError, StoreError

FILES = {
    "a.txt": b"hello\n",
    "bin/run.sh": b"#!/bin/sh\n",
    "bin/deep/x.bin": bytes(range(256)) * 20,
    "large.bin": os.urandom(5500),
    "nothing": b"",
    "ümlaut \n.txt": b"1",
}
SHAPE = {"executable": ("bin/run.sh",), "folders": ("empty", "bin/void/deeper"), "large": ("large.bin", "nothing")}
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")


@pytest.fixture
def url():
    return f"memory://{os.urandom(6).hex()}"


@pytest.fixture(params=["files", "memory"])
def any_url(request, tmp_path, url):
    return f"file://{tmp_path}/store" if request.param == "files" else url


def provide(top, job, *refs, **more):
    here = {"folder": top / "jobs" / job / "data-0-0", "cache": top / "cache", "environ": {}, **more}
    return provision.provide(refs, mounted_data.JobFolders(**here))


def read(folder):
    """Return the files of a folder with their bytes, and what is executable, and every folder."""
    found = sorted(os.walk(folder))
    files = {
        os.path.relpath(f"{above}/{name}", folder): f"{above}/{name}" for above, _, names in found for name in names
    }
    return (
        {name: Path(path).read_bytes() for name, path in files.items()},
        {name for name, path in files.items() if os.stat(path).st_mode & 0o100},
        {os.path.relpath(above, folder) for above, _, _ in found} - {"."},
    )


def kept_file(top, name):
    """Return where the cache keeps a file of FILES."""
    digest = file_cache.file_digest(name)
    digest.update(FILES[name])
    return top / "cache" / "files" / digest.hexdigest()[:2] / f"{digest.hexdigest()}{'x' * (name == 'bin/run.sh')}"


def forget_blobs(url):
    assert open_store(url).delete("data/blobs/") > 0


class Counting:
    """A store that notes which objects were asked for."""

    local = None

    def __init__(self, url):
        self.inner, self.asked = open_store(url), []
        self.url = url

    def get(self, key, **more):
        self.asked.append(key)
        return self.inner.get(key, **more)


@pytest.fixture
def counted(url, monkeypatch):
    store = Counting(url)
    monkeypatch.setattr(
        "kinetic._runner.data.file_cache.open_store", lambda found: store if found == url else open_store(found)
    )
    return store


def blobs_in(asked):
    return [key for key in asked if key.startswith("data/blobs/")]


# ------------------------------------------------------------------------------------------------------------ arriving


def test_a_tree_arrives_with_its_bytes_its_empty_folders_and_its_executable_files(tmp_path, ship, any_url):
    ref = ship(any_url, FILES, **SHAPE)

    (path,) = provide(tmp_path, "one", ref)

    files, executable, folders = read(path)
    assert path.endswith("/one/data-0-0/0/set")
    assert files == FILES
    assert executable == {"bin/run.sh"}
    assert folders == {"bin", "bin/deep", "bin/void", "bin/void/deeper", "empty"}


def test_what_is_shipped_is_counted_while_it_arrives(tmp_path, ship, any_url, monkeypatch, capsys):
    monkeypatch.setattr(transfer, "_PAUSES", (0.0,))
    ref = ship(any_url, {"large": os.urandom(300_000), "small": b"x"}, large=("large",))

    provide(tmp_path, "one", ref)

    assert re.search(rf"kinetic: fetched {re.escape(ref.path)}: 0\.3 MB in \d+ s\n", capsys.readouterr().err)


@pytest.mark.parametrize("content", [b"", b"x = 1\n", os.urandom(3000)], ids=len)
def test_a_single_file_arrives_under_its_own_name(tmp_path, ship, any_url, content):
    large = ("config.json",) if len(content) == 3000 else ()
    ref = ship(any_url, content, name="config.json", large=large)

    (path,) = provide(tmp_path, "one", ref)

    assert os.path.basename(path) == "config.json"
    assert Path(path).read_bytes() == content
    assert os.listdir(os.path.dirname(path)) == ["config.json"]


def test_an_empty_folder_arrives(tmp_path, ship, any_url):
    (path,) = provide(tmp_path, "one", ship(any_url, {}))

    assert os.listdir(path) == []


def test_a_pack_is_fetched_once_and_a_second_job_fetches_nothing(tmp_path, ship, url, counted):
    ref = ship(url, {f"{number}.txt": b"%d" % number for number in range(100)})

    provide(tmp_path, "one", ref)
    assert len(blobs_in(counted.asked)) == 1
    counted.asked.clear()
    provide(tmp_path, "two", ref)

    assert counted.asked == []


def test_of_a_new_version_only_what_changed_is_fetched(tmp_path, ship, url, counted):
    provide(tmp_path, "one", ship(url, FILES, **SHAPE))
    counted.asked.clear()
    edited = {**FILES, "large.bin": FILES["large.bin"][:5000] + b"new"}
    forget = [entry.key for entry in open_store(url).entries("data/blobs/")]
    new = ship(url, edited, **SHAPE)
    kept = {entry.key for entry in open_store(url).entries("data/blobs/")} - set(forget)

    (path,) = provide(tmp_path, "two", new)

    assert read(path)[0] == edited
    assert kept <= set(blobs_in(counted.asked))
    assert len(blobs_in(counted.asked)) == 6  # the six chunks of the file that changed; the pack holds nothing new


def test_equal_references_share_one_copy_and_others_do_not(tmp_path, ship, url):
    ref, other = ship(url, FILES, **SHAPE), ship(url, b"1", name="one.txt")

    first, second, third = provide(tmp_path, "one", ref, other, ref)

    assert first == third != second


# ------------------------------------------------------------------------------------------------------------ verified


@pytest.mark.parametrize("victim", ["bin/deep/x.bin", "large.bin"])
@pytest.mark.parametrize("how", ["other bytes", "cut short"])
def test_bytes_that_are_not_what_was_promised_are_refused_by_name(tmp_path, ship, any_url, victim, how):
    ref = ship(any_url, FILES, **SHAPE)
    store = open_store(any_url)
    for entry in list(store.entries("data/blobs/")):
        blob = store.get(entry.key)
        at = blob.find(FILES[victim][:900])
        if at >= 0:
            store.put(entry.key, blob[: at + 5] + b"?" + blob[at + 6 :] if how == "other bytes" else blob[: at + 5])

    with pytest.raises(IntegrityError) as caught:
        provide(tmp_path, "one", ref)

    assert victim in str(caught.value) or how == "cut short"
    assert not kept_file(tmp_path, victim).exists()


def test_another_manifest_than_the_promised_one_is_refused(tmp_path, ship, any_url):
    ref, other = ship(any_url, FILES, **SHAPE), ship(any_url, {"a": b"b"})
    store = open_store(any_url)
    store.put(keys.data_manifest(ref.hash, ref.manifest), store.get(keys.data_manifest(other.hash, other.manifest)))

    with pytest.raises(IntegrityError, match="not what was submitted"):
        provide(tmp_path, "one", ref)


@pytest.mark.parametrize("gone", ["data/blobs/", "data/manifests/"])
def test_data_that_left_the_store_is_said_to_be_missing(tmp_path, ship, any_url, gone):
    ref = ship(any_url, FILES, **SHAPE)
    open_store(any_url).delete(gone)

    with pytest.raises(DataMissingError, match="not in the store anymore") as caught:
        provide(tmp_path, "one", ref)

    assert "submit" in caught.value.next


# -------------------------------------------------------------------------------------------------- what is kept


def tampered(path):
    """Change a byte and hide it as well as a program can: same size, same time of change."""
    before = path.stat()
    path.chmod(0o600)
    with open(path, "r+b") as file:
        file.write(b"?")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    path.chmod(0o444)


def cut_short(path):
    os.truncate(path, 3)


def linked_elsewhere(path):
    other = path.with_name("other")
    path.rename(other)
    path.symlink_to(other)


@pytest.mark.parametrize("victim", ["a.txt", "large.bin"])
@pytest.mark.parametrize("harm", [tampered, cut_short, os.unlink, linked_elsewhere])
def test_a_kept_file_that_was_harmed_is_fetched_anew(tmp_path, ship, url, counted, victim, harm):
    ref = ship(url, FILES, **SHAPE)
    provide(tmp_path, "one", ref)
    counted.asked.clear()
    harm(kept_file(tmp_path, victim))

    (path,) = provide(tmp_path, "two", ref)

    assert read(path)[0] == FILES
    assert len(blobs_in(counted.asked)) == (1 if victim == "a.txt" else 6)
    assert not kept_file(tmp_path, victim).is_symlink()


def test_a_kept_file_that_only_looks_different_is_read_and_not_fetched(tmp_path, ship, url):
    ref = ship(url, FILES, **SHAPE)
    provide(tmp_path, "one", ref)
    forget_blobs(url)
    for name in FILES:
        os.utime(kept_file(tmp_path, name))
        os.chmod(kept_file(tmp_path, name), 0o600)

    (path,) = provide(tmp_path, "two", ref)

    assert read(path)[0] == FILES
    assert kept_file(tmp_path, "a.txt").stat().st_mode & 0o777 == 0o444


def test_after_a_restart_of_the_machine_kept_files_are_read_again(tmp_path, ship, url, counted):
    ref = ship(url, FILES, **SHAPE)
    provide(tmp_path, "one", ref)
    counted.asked.clear()
    tampered(kept_file(tmp_path, "a.txt"))
    kept = Cache(tmp_path / "cache")
    stamps = {file.digest: stamp_of(kept.path(file)) for file in kept.manifest(ref.manifest).files}
    kept.note(ref.manifest, kept.manifest(ref.manifest).files, stamps)  # as if a power cut had eaten the bytes
    (path,) = provide(tmp_path, "two", ref)
    assert read(path)[0] != FILES  # in this boot, what was noted is believed
    page = tmp_path / "cache" / "seen" / ref.manifest
    page.write_text(json.dumps({**json.loads(page.read_text()), "boot": "another"}))

    (path,) = provide(tmp_path, "three", ref)

    assert read(path)[0] == FILES
    assert len(blobs_in(counted.asked)) == 1


@pytest.mark.parametrize("nonsense", [b"", b"{", b"[]", b'{"boot": 1}', b'{"boot": "", "stamps": 3}', b"\xff"])
def test_nonsense_in_the_notes_costs_a_look_at_the_files_and_no_more(tmp_path, ship, url, nonsense):
    ref = ship(url, FILES, **SHAPE)
    provide(tmp_path, "one", ref)
    forget_blobs(url)
    (tmp_path / "cache" / "seen" / ref.manifest).write_bytes(nonsense)

    (path,) = provide(tmp_path, "two", ref)

    assert read(path)[0] == FILES


def test_a_kept_manifest_that_was_harmed_is_fetched_anew(tmp_path, ship, url):
    ref = ship(url, FILES, **SHAPE)
    provide(tmp_path, "one", ref)
    (tmp_path / "cache" / "pages" / ref.manifest).write_text("{}")

    assert read(*provide(tmp_path, "two", ref))[0] == FILES


def test_what_nobody_used_for_a_month_goes_and_the_rest_stays(tmp_path, ship, url):
    old, new = ship(url, FILES, **SHAPE), ship(url, {"a.txt": FILES["a.txt"], "other": b"other"})
    provide(tmp_path, "one", old)
    provide(tmp_path, "two", new)
    month_ago = time.time() - 31 * 86_400
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file() and path.name != new.manifest:
            os.utime(path, (month_ago, month_ago))
    (tmp_path / "cache" / "parts" / "half").write_text("half")
    (tmp_path / "cache" / "parts" / "old-half").mkdir()
    os.utime(tmp_path / "cache" / "parts" / "old-half", (month_ago, month_ago))

    file_cache.sweep(tmp_path / "cache")

    assert os.listdir(tmp_path / "cache" / "pages") == [new.manifest]
    assert kept_file(tmp_path, "a.txt").exists()
    assert not kept_file(tmp_path, "large.bin").exists()
    assert os.listdir(tmp_path / "cache" / "parts") == ["half"]
    forget_blobs(url)
    assert read(*provide(tmp_path, "three", new))[0] == {"a.txt": FILES["a.txt"], "other": b"other"}


# -------------------------------------------------------------------------------------------------- a job's own


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("where", ["files", "memory"])
def test_what_a_job_does_to_its_copy_is_its_own_affair(tmp_path, ship, url, where, writable):
    if os.geteuid() and not writable:
        pytest.skip("the copy is a read-only link; the next tests are about those")
    ref = ship(url if where == "memory" else f"file://{tmp_path}/store", FILES, **SHAPE, writable=writable)
    one, two = *provide(tmp_path, "one", ref), *provide(tmp_path, "two", ref)
    for above, _, names in os.walk(one):
        for name in names:
            with open(f"{above}/{name}", "ab") as file:
                file.write(b"changed by a job")

    assert read(two)[0] == FILES
    assert read(*provide(tmp_path, "three", ref))[0] == FILES


LINKS = """
(path,) = provide("one", given["ref"])
kept = Cache(top / "cache")
files = kept.manifest(given["ref"]["manifest"]).files
def known():
    seen = kept.seen(given["ref"]["manifest"])
    return [stamp_of(kept.path(file)) == seen.get(file.digest) for file in files]
"""


def test_who_is_not_root_gets_links_that_cannot_be_written(top, ship, job):
    ref = ship(f"file://{top}/store", FILES, **SHAPE)
    code = """
refused = []
for file in files:
    try:
        open(f"{path}/{file.path}", "ab")
    except PermissionError:
        refused.append(file.path)
inodes = [os.stat(kept.path(file)).st_ino == os.stat(f"{path}/{file.path}").st_ino for file in files]
Path(path, "new").write_text("a folder is the job's own")
Path(path, "a.txt").unlink()
Path(path, "a.txt").write_text("and so is a name in it")
again = Path(*provide("two", given["ref"]), "a.txt").read_text()
modes = [oct(os.stat(f"{path}/{name}").st_mode & 0o777) for name in ("large.bin", "bin/run.sh")]
say([refused, inodes, known(), again, modes])
"""

    refused, inodes, known, again, modes = job(LINKS + code, {"ref": ref.to_json()}, nobody=True)

    assert sorted(refused) == sorted(FILES)
    assert all(inodes)
    assert all(known)
    assert again == "hello\n"
    assert modes == ["0o444", "0o555"]


def test_who_asked_to_write_gets_a_copy(top, ship, job):
    ref = ship(f"file://{top}/store", FILES, **SHAPE, writable=True)
    found = job(
        """
(path,) = provide("one", given["ref"])
for name in given["names"]:
    with open(f"{path}/{name}", "ab") as stream:
        stream.write(b"!")
names = [os.stat(f"{path}/{name}").st_nlink for name in given["names"]]
say([Path(*provide("two", given["ref"]), "a.txt").read_text(), names])
""",
        {"ref": ref.to_json(), "names": list(FILES)},
        nobody=True,
    )

    assert found == ["hello\n", [1] * len(FILES)]


def test_links_that_come_and_go_cost_no_second_reading(top, ship, job):
    ref = ship(f"file://{top}/store", FILES, **SHAPE)
    code = """
provide("two", given["ref"])
both = known()
releasing.release(top / "jobs/one/data-0-0", top / "cache")
one = known()
releasing.release(top / "jobs/two/data-0-0", top / "cache")
say([both, one, known(), os.path.exists(path)])
"""

    both, one, none, is_there = job(LINKS + code, {"ref": ref.to_json()}, nobody=True)

    assert all(both + one + none)
    assert not is_there


@pytest.mark.parametrize("crash", ["os.link(kept.path(files[0]), top / 'stray')", "os.unlink(Path(path, 'a.txt'))"])
def test_a_crash_between_link_and_note_costs_a_second_reading_and_no_more(top, ship, job, crash):
    ref = ship(f"file://{top}/store", FILES, **SHAPE)
    code = f"""
import shutil
{crash}
before = known()
shutil.rmtree(top / "store/data/blobs")
text = Path(*provide("two", given["ref"]), "a.txt").read_text()
say([before, text, known()])
"""

    before, text, after = job(LINKS + code, {"ref": ref.to_json()}, nobody=True)

    assert before == [False] + [True] * (len(FILES) - 1)
    assert text == "hello\n"
    assert all(after)


def test_a_link_that_a_job_forced_open_is_noticed_by_the_next(top, ship, job):
    ref = ship(f"file://{top}/store", FILES, **SHAPE)
    code = """
victim = Path(path, "a.txt")
about = victim.stat()
victim.chmod(0o644)
victim.write_text("HELLO\\n")
os.utime(victim, ns=(about.st_atime_ns, about.st_mtime_ns))
victim.chmod(0o444)
releasing.release(top / "jobs/one/data-0-0", top / "cache")
say(Path(*provide("two", given["ref"]), "a.txt").read_text())
"""

    assert job(LINKS + code, {"ref": ref.to_json()}, nobody=True) == "hello\n"


def test_links_of_the_store_itself_are_never_given_away(top, ship, job):
    ref = ship(f"file://{top}/store", b"one chunk is the whole file", name="one", large=("one",), chunk=1 << 20)
    code = """
provide("one", given["ref"])
say([path.stat().st_nlink for path in (top / "store").rglob("*") if path.is_file()])
"""

    assert set(job(code, {"ref": ref.to_json()}, nobody=True)) == {1}


# -------------------------------------------------------------------------------------------------- many, and killed

LOGGED = """
from kinetic._stores.files import FileStore
def logged(verb):
    plain = getattr(FileStore, verb)
    def instead(self, key, **more):
        if key.startswith("data/blobs/"):
            with open(top / given["log"], "a") as log:
                log.write(key + "\\n")
            if len((top / given["log"]).read_text().splitlines()) > given.get("stop", 1e9):
                os.write(1, b"stopped\\n")
                time.sleep(60)
        return plain(self, key, **more)
    setattr(FileStore, verb, instead)
logged("open")  # get opens, too
"""


def test_two_jobs_at_once_download_once_between_them(top, ship, spawn):
    ref = ship(f"file://{top}/store", FILES, **SHAPE)
    (top / "log").touch()
    code = (
        LOGGED
        + "sys.stdin.readline(); (path,) = provide(given['job'], given['ref']); say(Path(path, 'a.txt').read_text())"
    )
    both = [spawn(code, {"ref": ref.to_json(), "log": "log", "job": name}, nobody=True) for name in ("one", "two")]
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()

    said = [process.communicate() for process in both]

    assert [json.loads(out) for out, _ in said] == ["hello\n"] * 2, said
    asked = (top / "log").read_text().split()
    assert len(asked) == len(set(asked)) == 7
    assert read(top / "jobs/one/data-0-0/0/set")[0] == read(top / "jobs/two/data-0-0/0/set")[0] == FILES


@pytest.mark.parametrize("stop", [0, 1, 3, 5, 6])
def test_a_download_that_was_killed_goes_on_where_it_was(top, ship, spawn, job, stop):
    ref = ship(f"file://{top}/store", FILES, **SHAPE)
    for log in ("first", "second"):
        (top / log).touch()
    victim = spawn(
        LOGGED + "provide('one', given['ref'])", {"ref": ref.to_json(), "log": "first", "stop": stop}, nobody=True
    )
    assert victim.stdout.readline() == "stopped\n", victim.communicate()
    victim.send_signal(signal.SIGKILL)
    victim.wait()

    text = job(
        LOGGED + "say(Path(*provide('two', given['ref']), 'a.txt').read_text())",
        {"ref": ref.to_json(), "log": "second"},
        nobody=True,
    )

    again = len((top / "second").read_text().split())
    assert text == "hello\n"
    assert read(top / "jobs/two/data-0-0/0/set")[0] == FILES
    assert again <= 7 - max(0, stop - 2), "what was fetched before the end is not fetched again"  # two at a time
    halves = [name for name in os.listdir(top / "cache" / "parts") if "-" not in name]
    assert halves == [], "the half of the large file was completed; one of a small file is swept"


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@ROOT_ONLY
@pytest.mark.parametrize("large", [(), ("b",)], ids=["packed", "in chunks"])
@pytest.mark.parametrize("size", [700_000, 2_000_000], ids=["the copy is too much", "it is too much"])
def test_a_full_disk_is_said_plainly_and_not_kept_full(small_disk, ship, url, large, size):
    ref = ship(url, {"a": b"fits", "b": os.urandom(size)}, large=large, chunk=100_000)

    with pytest.raises(StoreError, match="full") as caught:
        provide(small_disk, "one", ref)

    assert caught.value.code == "workspace-full"
    assert "KINETIC_RUNTIME_DIR" in caught.value.next
    assert os.listdir(small_disk / "cache" / "parts") == []
    mounted_data.release(small_disk / "jobs/one/data-0-0", small_disk / "cache")
    assert list((small_disk / "jobs/one").iterdir()) == []


@ROOT_ONLY
def test_a_store_on_the_same_disk_is_not_copied_twice_for_root(tmp_path, ship):
    ref = ship(f"file://{tmp_path}/store", FILES, **SHAPE)

    provide(tmp_path, "one", ref)

    assert list((tmp_path / "cache" / "files").rglob("*")) == []
