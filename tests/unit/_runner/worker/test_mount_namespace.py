"""A place of the job's own: seen by it and its children, by nobody else, and gone with them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kinetic._runner.worker import mount_namespace, process_setup
from kinetic._stores import obstore_client

PRIVATE = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--mount", "true"]
if subprocess.run(PRIVATE, check=False, capture_output=True).returncode:
    pytest.skip("no private mounts are to be had here", allow_module_level=True)

EVERYBODY = pytest.mark.parametrize(
    "nobody", [False, True] if os.geteuid() == 0 else [True], ids=lambda x: "nobody" if x else "root"
)

SHOW = """
def show(source, target, read_only=False):
    staging = top / "staging"
    staging.mkdir(exist_ok=True)
    refused = mounts.mount_privately([mounts.Mount(str(source), str(target), read_only)], str(staging))
    assert not refused, refused
def shell(command):
    import subprocess
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout
"""


@pytest.fixture
def missing():
    """Return a path below / that does not exist."""
    path = f"/kinetic-{os.urandom(4).hex()}"
    yield path
    assert not os.path.lexists(path)


@pytest.fixture
def source(top):
    (top / "source").mkdir()
    (top / "source" / "f").write_text("shown")
    return top / "source"


def mounted(*paths):
    """Return what is mounted here at or from any of these paths."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if any(str(path) in line for path in paths)]


@EVERYBODY
@pytest.mark.parametrize("below", ["", "/deep/er"])
def test_a_path_that_does_not_exist_is_there_for_the_job_only(job, missing, source, nobody, below):
    before = sorted(os.listdir("/"))
    code = f"show(top / 'source', '{missing}{below}'); say([shell('cat {missing}{below}/f'), sorted(os.listdir('/'))])"

    seen, top_level = job(SHOW + code, nobody=nobody)

    assert seen == "shown"
    assert top_level == sorted([*before, missing[1:]])
    assert not os.path.lexists(missing)
    assert mounted(missing, source) == []


@EVERYBODY
def test_everything_else_is_as_it_was(job, top, missing, source, nobody):
    code = f"""
import tempfile
(top / "open").write_text("")
stream = open(top / "open", "a")
before = [os.getcwd(), os.getpid(), os.getuid(), os.getgid(), os.environ.get("HOME")]
show(top / "source", "{missing}")
after = [os.getcwd(), os.getpid(), os.getuid(), os.getgid(), os.environ.get("HOME")]
stream.write("through a file that was open before")
stream.close()
Path("new").write_text("through the working folder")
Path(tempfile.gettempdir(), "kinetic-" + top.name).write_text("through /tmp")
Path("{missing}/new").write_text("through the mount")
os.rename("new", top / "renamed")
open("/dev/null", "w").write("x")
root = sorted(os.listdir("/"))
proc = os.readlink("/proc/self") == str(os.getpid())
say([before == after, proc, shell("id -u; pwd"), len(open("/dev/urandom", "rb").read(3)),
     all(os.path.exists(name) for name in ("/proc/self/status", "/sys/kernel", "/usr/bin/env", "/bin/sh"))])
"""

    same, proc, said, random, there = job(SHOW + code, nobody=nobody)

    in_tmp = Path(tempfile.gettempdir(), f"kinetic-{top.name}")
    assert (same, proc, random, there) == (True, True, 3, True)
    assert said.split()[1] == str(top / "work")
    assert (top / "open").read_text() == "through a file that was open before"
    assert (top / "renamed").read_text() == "through the working folder"
    assert (source / "new").read_text() == "through the mount"
    assert in_tmp.read_text() == "through /tmp"
    in_tmp.unlink()


@EVERYBODY
def test_a_folder_that_exists_is_covered_and_never_written(job, top, source, nobody):
    (top / "mine").mkdir()
    (top / "mine" / "precious").write_text("precious")
    code = "show(top / 'source', top / 'mine'); (top / 'mine' / 'new').write_text('new'); say(os.listdir(top / 'mine'))"

    assert sorted(job(SHOW + code, nobody=nobody)) == ["f", "new"]
    assert os.listdir(top / "mine") == ["precious"]
    assert sorted(os.listdir(source)) == ["f", "new"]


@EVERYBODY
def test_what_would_be_lost_with_a_shadow_cannot_be_written(job, top, source, nobody):
    (top / "mine" / "sub").mkdir(parents=True)
    (top / "mine" / "file").write_text("old")
    (top / "mine" / "link").symlink_to("file")
    code = """
show(top / "source", top / "mine" / "data" / "set")
errors = []
for name in ("mine/new", "mine/data/new"):
    try:
        (top / name).write_text("lost")
    except OSError as error:
        errors.append(error.strerror)
(top / "mine/sub/new").write_text("kept")
(top / "mine/link").write_text("new")
say([errors, (top / "mine/data/set/f").read_text(), sorted(os.listdir(top / "mine"))])
"""

    errors, seen, names = job(SHOW + code, nobody=nobody)

    assert errors == ["Read-only file system"] * 2
    assert (seen, names) == ("shown", ["data", "file", "link", "sub"])
    assert (top / "mine" / "sub" / "new").read_text() == "kept"
    assert (top / "mine" / "file").read_text() == "new"
    assert sorted(os.listdir(top / "mine")) == ["file", "link", "sub"]


@EVERYBODY
def test_a_read_only_view_cannot_be_written_not_even_by_root(job, top, source, nobody):
    (top / "view").mkdir()
    (top / "one").write_text("file")
    (top / "view-of-one").touch()
    code = """
show(top / "source", top / "view", True)
show(top / "one", top / "view-of-one", True)
errors = []
for path in ("view/f", "view/new", "view-of-one"):
    try:
        (top / path).write_text("written")
    except OSError as error:
        errors.append(error.strerror)
(top / "source/f").write_text("by its owner")
say([errors, (top / "view/f").read_text(), (top / "view-of-one").read_text()])
"""

    errors, folder, file = job(SHOW + code, nobody=nobody)

    assert set(errors) == {"Read-only file system"}
    assert len(errors) == 3
    assert (folder, file) == ("by its owner", "file")


@EVERYBODY
def test_nothing_is_left_of_a_job_that_was_killed(spawn, top, missing, source, nobody):
    victim = spawn(
        SHOW + f"show(top / 'source', '{missing}'); say(os.listdir('{missing}')); time.sleep(60)", nobody=nobody
    )
    assert json.loads(victim.stdout.readline()) == ["f"]

    victim.send_signal(signal.SIGKILL)
    victim.wait()

    assert mounted(missing, top) == []
    assert not os.path.lexists(missing)
    assert os.listdir(top / "staging") == []
    assert os.listdir(source) == ["f"]


@EVERYBODY
def test_modes_still_mean_something_inside(job, top, source, nobody):
    (source / "f").chmod(0o444)
    code = """
show(top / "source", top / "missing")
try:
    (top / "missing/f").write_text("x")
    say("written")
except OSError as error:
    say(error.strerror)
"""

    assert job(SHOW + code, nobody=nobody) == ("Permission denied" if nobody else "written")


@EVERYBODY
def test_who_shows_still_dies_with_its_parent(spawn, top, missing, source, nobody):
    code = f"""
import ctypes, signal
libc = ctypes.CDLL(None)
ear, mouth = os.pipe()
child = os.fork()
if child == 0:
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)
    show(top / "source", "{missing}")
    os.write(mouth, b"!")
    time.sleep(60)
    os._exit(0)
os.close(mouth)
os.read(ear, 1)
say(child)
time.sleep(60)
"""
    parent = spawn(SHOW + code, nobody=nobody)
    child = int(parent.stdout.readline())
    watched = os.pidfd_open(child)

    parent.send_signal(signal.SIGKILL)

    with open(watched, closefd=True):
        poll = select.poll()  # not select.select: that takes no descriptor over 1023
        poll.register(watched)
        assert poll.poll(10_000)


@EVERYBODY
def test_its_supervisor_can_see_and_end_its_children(spawn, top, missing, source, nobody):
    code = f"""
import subprocess
import sys
import tempfile
show(top / "source", "{missing}")
child = subprocess.Popen(["sleep", "60"], env={{"MARK": "of-the-supervisor"}})
say(child.pid)
child.wait()
say(child.returncode)
"""
    process = spawn(SHOW + code, nobody=nobody)
    child = int(process.stdout.readline())

    shown = Path(f"/proc/{child}/environ")
    until = time.monotonic() + 10
    while not (environ := shown.read_bytes()) and time.monotonic() < until:
        time.sleep(0.001)  # a program that has just begun shows nothing yet
    os.kill(child, signal.SIGKILL)

    assert b"MARK=of-the-supervisor" in environ
    assert json.loads(process.stdout.readline()) == -signal.SIGKILL


@EVERYBODY
def test_the_thread_that_flushes_the_log_makes_room_and_comes_back(job, top, missing, source, nobody):
    code = f"""
import os
from kinetic._runner.worker import process_setup as output
output.keep_flushing()
show(top / "source", "{missing}")
say(len(os.listdir("/proc/self/task")))
"""

    assert job(SHOW + code, nobody=nobody) == 2


REFUSALS = {
    "another thread runs": (
        "import threading; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "threads",
    ),
    "a system without": ("os.environ['KINETIC_PORTABLE'] = '1'", "KINETIC_PORTABLE"),
    "a source that does not exist": ("import shutil; shutil.rmtree(top / 'source')", "No such file"),
    "a kernel that refuses to unshare": ("mounts._NEWNS = 1 << 6", "Invalid argument"),
    "a container whose root may do nothing": (
        "import ctypes; mounts._drop_capabilities(ctypes.CDLL(None)); mounts._NEWNS |= 64 * (os.geteuid() > 0)",
        "",
    ),
    "a kernel that only pretends": ("mounts._NEWNS = 0", "namespaces are not supported here"),
    "a kernel that refuses in the middle": ("mounts._MOVE = mounts._RDONLY", ""),
}


@EVERYBODY
@pytest.mark.parametrize(("spoil", "said"), REFUSALS.values(), ids=list(REFUSALS))
def test_a_refusal_leaves_everything_as_it_was(job, top, source, nobody, spoil, said):
    code = f"""
def spaces():
    own = [os.readlink(f"/proc/self/ns/{{kind}}") for kind in ("mnt", "user")]
    return [*own, os.getcwd(), open("/proc/self/uid_map").read()]
before = spaces()
(top / "mine").mkdir()
(top / "staging").mkdir()
{spoil}
refused = mounts.mount_privately([mounts.Mount(str(top / "source"), str(top / "mine/missing"))], str(top / "staging"))
say([refused, before == spaces(), os.listdir(top / "mine"), os.listdir(top / "staging")])
"""

    refused, same, mine, staging = job(code, nobody=nobody)

    assert refused
    assert said in refused
    assert (same, mine, staging) == (True, [], [])


def test_without_a_flushing_thread_none_is_started():
    with process_setup.without_flusher():
        pass

    assert process_setup._flushers == []


def test_the_deepest_folder_above_a_path(tmp_path):
    assert mount_namespace.above(f"{tmp_path}/a/b") == str(tmp_path)
    assert mount_namespace.above("/kinetic-is-not-there/at/all") == "/"


CHROOT = """
set -e
mount -t tmpfs none "$1"
for entry in /*; do
    if [ -L "$entry" ]; then cp -P "$entry" "$1$entry"
    elif [ -d "$entry" ]; then mkdir "$1$entry"; mount --rbind "$entry" "$1$entry"; fi
done
exec chroot "$1" "$2" -c "$3" "$4"
"""
IN_CHROOT = """
import os, sys
from kinetic._runner.worker import mount_namespace
root = os.stat("/").st_dev
print(mount_namespace.mount_privately([mount_namespace.Mount("/usr", "/missing-in-a-chroot", True)], sys.argv[1]))
print(os.stat("/").st_dev == root)
"""


def test_in_a_chroot_mounts_are_refused_as_the_job_would_leave_it(tmp_path):
    root, staging = tmp_path / "root", tmp_path / "staging"
    root.mkdir()
    staging.mkdir()
    words = ["sh", "-c", CHROOT, "sh", str(root), sys.executable, IN_CHROOT, str(staging)]

    done = subprocess.run([*PRIVATE[:-1], *words], capture_output=True, text=True, check=False, cwd="/")

    answer, stayed = done.stdout.splitlines() or [done.stderr, ""]
    assert answer == "the root folder is not that of the mount namespace, as in a chroot"
    assert stayed == "True"


def test_threads_of_a_store_in_the_cloud_are_not_waited_for(tmp_path, monkeypatch):
    paused = []
    over = threading.Event()
    monkeypatch.setattr(obstore_client, "_first_process", os.getpid())
    monkeypatch.setattr(mount_namespace, "time", SimpleNamespace(sleep=paused.append))
    thread = threading.Thread(target=over.wait)
    thread.start()

    refused = mount_namespace.mount_privately([mount_namespace.Mount("/tmp", "/mnt")], str(tmp_path))

    over.set()
    thread.join()
    assert refused == "threads run in this process already"
    assert len(paused) <= 1
