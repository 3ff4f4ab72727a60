"""Volumes and views: data at the path that was promised, for this job only; or a link; or an error that helps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from kinetic._runner.data import mounted_data

PRIVATE = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--mount", "true"]
HAS_MOUNTS = subprocess.run(PRIVATE, check=False, capture_output=True).returncode == 0
NEEDS_MOUNTS = pytest.mark.skipif(not HAS_MOUNTS, reason="no private mounts are to be had here")
EVERYBODY = pytest.mark.parametrize(
    "nobody", [False, True] if os.geteuid() == 0 else [True], ids=["root", "nobody"][-2 if os.geteuid() == 0 else -1 :]
)

FILES = {"a.txt": b"hello", "sub/b.txt": b"there"}
PORTABLE = {"KINETIC_PORTABLE": "1"}
TREE = """
def tree(path):
    files = [f"{above}/{name}" for above, _, names in os.walk(path) for name in names]
    return {os.path.relpath(file, path): Path(file).read_text() for file in files}
def fails(*arguments, **more):
    try:
        provide(*arguments, **more)
    except KineticError as error:
        say([type(error).__name__, error.code, error.why, error.next])
"""


@pytest.fixture
def url(top):
    return f"file://{top}/store"


@pytest.fixture
def volume(ship, url):
    def make(mount, content=FILES, **more):
        return ship(url, content, mount=str(mount), **more).to_json()

    return make


# --------------------------------------------------------------------------------------------------- private mounts


@NEEDS_MOUNTS
@EVERYBODY
def test_a_volume_is_at_its_path_for_the_job_only(top, job, volume, nobody):
    path = f"/kinetic-{os.urandom(4).hex()}"
    code = TREE + "(path,) = provide('one', given); Path(path, 'new').write_text('1'); say([path, tree(path)])"

    shown, seen = job(code, volume(path), nobody=nobody)

    assert shown == path
    assert seen == {"a.txt": "hello", "sub/b.txt": "there", "new": "1"}
    assert not os.path.lexists(path)


@NEEDS_MOUNTS
@EVERYBODY
def test_a_single_file_lies_inside_its_volume(top, job, volume, nobody):
    given = volume(top / "mnt" / "config", b"x = 1", name="config.json")
    code = TREE + "(path,) = provide('one', given); say([path, tree(given['mount'])])"

    assert job(code, given, nobody=nobody) == [f"{top}/mnt/config/config.json", {"config.json": "x = 1"}]
    assert not (top / "mnt").exists()


@NEEDS_MOUNTS
@EVERYBODY
def test_volumes_may_lie_in_one_another_and_beside_what_is_there(top, job, volume, nobody):
    (top / "mnt").mkdir()
    (top / "mnt" / "precious").write_text("precious")
    given = [
        volume(top / "mnt" / "data" / "inner", {"i": b"inner"}),
        volume(top / "mnt" / "data", {"o": b"outer"}),
        volume(top / "other" / "deep", {"d": b"deep"}),
        volume(top / "other" / "deeper", {"e": b"deeper"}),
    ]
    code = TREE + "paths = provide('one', *given); say([paths, tree(top / 'mnt'), tree(top / 'other')])"

    paths, mnt, other = job(code, given, nobody=nobody)

    assert paths == [ref["mount"] for ref in given]
    assert mnt == {"precious": "precious", "data/o": "outer", "data/inner/i": "inner"}
    assert other == {"deep/d": "deep", "deeper/e": "deeper"}
    assert os.listdir(top / "mnt") == ["precious"]
    assert not (top / "other").exists()


@NEEDS_MOUNTS
@EVERYBODY
def test_a_folder_of_the_user_is_covered_and_never_written(top, job, volume, nobody):
    (top / "mine").mkdir()
    (top / "mine" / "precious").write_text("precious")
    code = TREE + "(path,) = provide('one', given); Path(path, 'new').write_text('1'); say(tree(path))"

    assert job(code, volume(top / "mine"), nobody=nobody) == {"a.txt": "hello", "sub/b.txt": "there", "new": "1"}
    assert os.listdir(top / "mine") == ["precious"]


@NEEDS_MOUNTS
@EVERYBODY
def test_two_jobs_at_once_have_the_same_path_and_not_the_same_data(top, spawn, volume, nobody):
    path = f"/kinetic-{os.urandom(4).hex()}"
    code = (
        TREE
        + """
(path,) = provide(given["job"], given["ref"], environ=dict(os.environ, KINETIC_JOB_ID=given["job"]))
say("there")
sys.stdin.readline()
say(tree(path))
"""
    )
    jobs = [
        spawn(code, {"job": name, "ref": volume(path, {"f": name.encode()})}, nobody=nobody) for name in ("one", "two")
    ]
    for process in jobs:
        assert process.stdout.readline() == '"there"\n', process.communicate()

    said = [json.loads(process.communicate("go\n")[0]) for process in jobs]

    assert said == [{"f": "one"}, {"f": "two"}]


@NEEDS_MOUNTS
@EVERYBODY
def test_one_copy_serves_an_argument_and_a_volume(top, job, ship, url, volume, nobody):
    given = [ship(url, FILES).to_json(), volume(top / "mnt")]
    code = (
        TREE
        + "one, two = provide('one', *given); say([tree(one) == tree(two), os.stat(one).st_ino == os.stat(two).st_ino])"
    )

    assert job(code, given, nobody=nobody) == [True, True]


@NEEDS_MOUNTS
@EVERYBODY
@pytest.mark.parametrize("is_dir", [True, False])
@pytest.mark.parametrize("as_volume", [True, False])
def test_a_view_shows_the_files_of_the_user_and_protects_them(top, job, nobody, is_dir, as_volume):
    (top / "mine").mkdir()
    (top / "mine" / "f").write_text("live")
    uri = top / "mine" if is_dir else top / "mine" / "f"
    given = {
        "kind": "view",
        "uri": str(uri),
        "path": "./mine",
        "name": uri.name,
        "is_dir": is_dir,
        "mount": str(top / "mnt") if as_volume else "",
        "fuse": True,
    }
    code = """
(path,) = provide("one", given)
file = Path(path, "f") if given["is_dir"] else Path(path)
(top / "mine/f").write_text("lively")
try:
    file.write_text("written by the job")
except OSError as error:
    say([path, file.read_text(), error.strerror])
"""

    path, text, error = job(code, given, nobody=nobody)

    assert path == (f"{top}/mnt{'' if is_dir else '/f'}" if as_volume else f"{top}/jobs/one/data-0-0/0/{uri.name}")
    assert (text, error) == ("lively", "Read-only file system")
    assert (top / "mine" / "f").read_text() == "lively"


# ------------------------------------------------------------------------------------------------------------- links


@EVERYBODY
def test_without_mounts_a_volume_is_a_link_that_goes_with_the_job(top, job, volume, nobody):
    code = (
        TREE
        + """
(path,) = provide("one", given)
before = [tree(path), os.path.islink(path)]
releasing.release(top / "jobs/one/data-0-0", top / "cache")
say(before + [os.path.lexists(path)])
"""
    )

    found = job(code, volume(top / "mnt" / "data"), nobody=nobody, environ=PORTABLE)

    assert found == [{"a.txt": "hello", "sub/b.txt": "there"}, True, False]


@EVERYBODY
def test_a_link_and_the_folders_made_for_it_go_with_the_job(top, job, volume, nobody):
    given = volume(top / "mnt" / "deep" / "data")
    job("say(provide('one', given))", given, nobody=nobody, environ=PORTABLE)
    assert os.path.islink(top / "mnt" / "deep" / "data")

    job("releasing.release(top / 'jobs/one/data-0-0', top / 'cache'); say(1)", nobody=nobody)

    assert not os.path.lexists(top / "mnt")
    assert list((top / "jobs" / "one").iterdir()) == []


@EVERYBODY
def test_a_volume_root_moves_volumes_there(top, job, volume, nobody):
    environ = {"KINETIC_VOLUME_ROOT": f"{top}/root"}
    code = TREE + "(path,) = provide('one', given); say([path, tree(path), open('/proc/self/mountinfo').read()])"

    path, seen, mounted = job(code, volume("/data/set"), nobody=nobody, environ=environ)

    assert path == f"{top}/root/data/set"
    assert seen == {"a.txt": "hello", "sub/b.txt": "there"}
    assert path not in mounted
    assert not os.path.lexists("/data")


def test_a_volume_root_that_is_no_absolute_path_is_refused(job, volume):
    kind, code, why, _ = job(TREE + "fails('one', given)", volume("/data"), environ={"KINETIC_VOLUME_ROOT": "volumes"})

    assert (kind, code) == ("DataError", "volume")
    assert "KINETIC_VOLUME_ROOT='volumes'" in why


@EVERYBODY
@pytest.mark.parametrize("there", ["a folder with files", "an empty folder", "a file", "a link of somebody"])
def test_a_path_that_is_taken_is_an_error_with_the_call_that_works(top, job, volume, nobody, there):
    taken = top / "mine"
    if "folder" in there:
        taken.mkdir()
    if there == "a folder with files":
        (taken / "precious").write_text("precious")
    if there == "a file":
        taken.write_text("precious")
    if there == "a link of somebody":
        taken.symlink_to("/etc")
    before = [os.path.islink(taken), taken.is_dir() and len(os.listdir(taken))]

    kind, code, why, following = job(
        TREE + "fails('one', given, function='train')", volume(taken, name="my set"), nobody=nobody, environ=PORTABLE
    )

    assert (kind, code) == ("DataError", "volume")
    assert "there is a" in why
    assert "train(..., data=kinetic.Data('./my set'))" in following
    assert [os.path.islink(taken), taken.is_dir() and len(os.listdir(taken))] == before


def test_where_no_link_can_be_made_the_error_says_why_not(top, job, volume):
    if os.geteuid():
        pytest.skip("somebody else is needed, who owns the folder")
    (top / "roots").mkdir(mode=0o755)
    code = TREE + "fails('one', given)"
    given = volume("/kinetic-no-link-here/data")

    kind, _, why, _ = job(code, given, nobody=True, environ=PORTABLE)

    assert kind == "DataError"
    assert "Permission denied" in why
    assert "KINETIC_PORTABLE" in why


@NEEDS_MOUNTS
@EVERYBODY
@pytest.mark.parametrize("mount", ["/", "{top}", "{cwd}", "/proc", "/usr" if os.path.exists("/usr") else "/"])
def test_a_volume_that_would_hide_the_job_itself_is_refused(top, job, volume, nobody, mount):
    path = mount.format(top=top, cwd=top / "work")
    if path == "/usr":
        path = os.path.dirname(os.path.dirname(os.path.realpath(os.path.realpath(os.sys.executable))))

    kind, code, why, _ = job(TREE + "fails('one', given)", volume(path), nobody=nobody)

    assert (kind, code) == ("DataError", "volume")
    assert "which the job needs" in why


@NEEDS_MOUNTS
def test_a_folder_that_programs_write_into_is_not_covered(top, job, volume):
    path = f"/tmp/kinetic-{os.urandom(4).hex()}"
    code = (
        TREE
        + """
(path,) = provide("one", given)
Path(path + "-beside").write_text("still possible")
say([tree(path), os.path.islink(path)])
"""
    )

    seen, is_link = job(code, volume(path))

    assert seen == {"a.txt": "hello", "sub/b.txt": "there"}
    assert is_link
    assert Path(f"{path}-beside").read_text() == "still possible"
    os.unlink(path)
    os.unlink(f"{path}-beside")


@EVERYBODY
def test_a_second_job_waits_for_the_path_until_the_first_is_over_however_it_ends(top, spawn, volume, nobody):
    code = (
        TREE
        + """
(path,) = provide(given["job"], given["ref"], environ=dict(os.environ, KINETIC_JOB_ID=given["job"]))
say(tree(path))
sys.stdin.readline()
"""
    )
    first = spawn(code, {"job": "one", "ref": volume(top / "mnt", {"f": b"one"})}, nobody=nobody, environ=PORTABLE)
    assert json.loads(first.stdout.readline()) == {"f": "one"}
    second = spawn(code, {"job": "two", "ref": volume(top / "mnt", {"f": b"two"})}, nobody=nobody, environ=PORTABLE)
    lines = [second.stderr.readline(), second.stderr.readline()]
    assert any(f"waiting for another job that has its data at {top}/mnt" in line for line in lines), lines
    assert (top / "mnt" / "f").read_text() == "one"

    first.send_signal(signal.SIGKILL)

    assert json.loads(second.stdout.readline()) == {"f": "two"}
    assert (top / "mnt" / "f").read_text() == "two"


@EVERYBODY
def test_hosts_of_a_slice_share_a_link_once_the_data_is_there(top, spawn, volume, nobody):
    code = (
        TREE
        + """
where = dict(folder=top / "jobs/slice" / f"data-0-{given['host']}", environ=dict(os.environ, KINETIC_JOB_ID="slice"))
(path,) = provide("slice", given["ref"], **where)
say(tree(path))
sys.stdin.readline()
"""
    )
    hosts = [
        spawn(code, {"host": host, "ref": volume(top / "mnt")}, nobody=nobody, environ=PORTABLE) for host in range(3)
    ]

    seen = [json.loads(host.stdout.readline()) for host in hosts]

    assert seen == [{"a.txt": "hello", "sub/b.txt": "there"}] * 3


LINKS = """
from kinetic._runner.data import mounted_data
set_owner, owner, looks = mounted_data._set_owner, mounted_data._owner, []

def slowly(*words):
    say("has the lock")
    sys.stdin.readline()
    set_owner(*words)

def look(descriptor):
    found = owner(descriptor)
    looks.append(found)
    if len(looks) == 1:
        say(found)
    return found

home = top / f"jobs/slice/data-0-{given}"
home.mkdir(parents=True)
if given == 0:
    mounted_data._set_owner = slowly
else:
    mounted_data._owner = look
where = dict(cache=top / "cache", home=home, owner="slice 0", instead="")
ours = mounted_data.put_link(str(top / "mnt"), top / "source", **where)
mounted_data._set_owner = set_owner
mounted_data.share_links()
say(ours)
sys.stdin.readline()
"""


def test_a_host_that_looks_before_the_first_one_has_written_whose_the_link_is_shares_it(top, spawn) -> None:
    def said(host):
        return json.loads(host.stdout.readline())

    first = spawn(LINKS, 0)
    assert said(first) == "has the lock"
    second = spawn(LINKS, 1)
    assert said(second) == ""
    first.stdin.write("\n")
    first.stdin.flush()

    assert (said(first), said(second)) == (True, False)


@EVERYBODY
def test_without_mounts_a_view_is_a_link_and_that_is_said(top, spawn, nobody):
    (top / "mine").mkdir()
    (top / "mine" / "f").write_text("live")
    given = {"kind": "view", "uri": str(top / "mine"), "path": "./mine", "name": "mine", "is_dir": True, "fuse": True}
    code = """
(path,) = provide("one", given)
say([Path(path, "f").read_text(), os.path.islink(path)])
releasing.release(top / "jobs/one/data-0-0", top / "cache")
"""

    out, err = spawn(code, given, nobody=nobody, environ=PORTABLE).communicate()

    assert json.loads(out) == ["live", True]
    assert "./mine is shown to the job by a link and is not write-protected" in err
    assert (top / "mine" / "f").read_text() == "live"
    assert list((top / "jobs" / "one").iterdir()) == []


def test_a_view_of_something_that_is_gone_is_missing(top, job):
    given = {"kind": "view", "uri": str(top / "gone"), "path": "./gone", "name": "gone", "is_dir": True}

    assert job(TREE + "fails('one', given)", given)[0] == "DataMissingError"


def test_a_link_that_somebody_replaced_is_not_removed(tmp_path):
    home = tmp_path / "jobs" / "one" / "data-0-0"
    home.mkdir(parents=True)
    (tmp_path / "cache" / "links").mkdir(parents=True)
    (tmp_path / "mnt").symlink_to("/etc")
    (home / mounted_data.LINKS_PAGE).write_text(
        json.dumps([str(tmp_path / "mnt"), str(tmp_path)]) + "\nnonsense\n1\n[2]\n"
    )

    mounted_data.remove_links(home, tmp_path / "cache")

    assert os.readlink(tmp_path / "mnt") == "/etc"


def test_a_folder_that_two_links_share_goes_with_the_last_of_them(tmp_path):
    home, top = tmp_path / "jobs/one/data-0-0", tmp_path / "volumes"
    home.mkdir(parents=True)
    (tmp_path / "cache/links").mkdir(parents=True)
    for name in ("data", "deep/er"):
        mounted_data._make_link(str(top / name), home / "0", home, "")

    mounted_data.remove_links(home, tmp_path / "cache")

    assert not top.exists()


def test_a_link_is_made_though_another_job_removes_the_folder_that_both_use(tmp_path, monkeypatch):
    home, target = tmp_path / "jobs/one/data-0-0", tmp_path / "volumes/data"
    home.mkdir(parents=True)
    (tmp_path / "cache/links").mkdir(parents=True)
    link, tries = os.symlink, []

    def once_too_late(source, beside):
        tries.append(beside)
        if len(tries) == 1:
            target.parent.rmdir()
        link(source, beside)

    monkeypatch.setattr(os, "symlink", once_too_late)
    mounted_data._make_link(str(target), home / "0", home, "")

    assert os.readlink(target) == str(home / "0")
    mounted_data.remove_links(home, tmp_path / "cache")
    assert not target.parent.exists()
