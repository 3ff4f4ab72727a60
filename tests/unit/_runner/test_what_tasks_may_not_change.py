"""What a task leaves in a warm pod is removed; in name spaces of a test's own, since a container's are not at hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kinetic._runner.pod import cleanup

CLEANING = """
    import ctypes, os, sys
    from pathlib import Path
    from kinetic._runner.pod import cleanup

    own, code, other = map(Path, sys.argv[1:])
    libc = ctypes.CDLL(None, use_errno=True)
    cleaner = cleanup.Cleaner(own, str(code), libc, is_container=False)
"""


def clean(tmp_path: Path, task: str, *words: str) -> str:
    """Have a process do what a task may do, clean up after it, and return what it says."""
    own = tmp_path / "own"
    (own / "runners" / "pod").mkdir(parents=True)
    (own / "runners" / "pod" / "module.py").write_text("NUMBER = 1")
    (tmp_path / "other").mkdir()
    program = textwrap.dedent(CLEANING) + textwrap.dedent(task)
    folders = map(str, (own, own / "runners" / "pod", tmp_path / "other"))
    done = subprocess.run(
        [*words, sys.executable, "-c", program, *folders], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def may_mount() -> bool:
    trial = ["unshare", "--mount", "true"]
    return (
        shutil.which("unshare") is not None and subprocess.run(trial, capture_output=True, check=False).returncode == 0
    )


@pytest.mark.skipif(not may_mount(), reason="this user may not mount")
def test_mounts_of_a_task_are_removed_the_innermost_first(tmp_path: Path) -> None:
    said = clean(
        tmp_path,
        """
        for name in (b"one", b"one/deep", b"bound here"):
            path = os.fsencode(other) + b"/" + name
            os.mkdir(path)
            if name.startswith(b"bound"):
                assert libc.mount(os.fsencode(own), path, None, 4096, None) == 0
            else:
                assert libc.mount(b"none", path, b"tmpfs", 0, None) == 0
        held = open(other / "one" / "deep" / "held", "w")
        before = sum(str(other) in line for line in open("/proc/mounts"))
        print(before, repr(cleaner.clean(())), sum(str(other) in line for line in open("/proc/mounts")))
        """,
        "unshare",
        "--mount",
    )

    assert said == "3 '' 0"


def test_what_is_put_into_the_folder_of_the_pod_is_removed_unless_it_is_its_own(tmp_path: Path) -> None:
    said = clean(
        tmp_path,
        """
        (own / "inbox" / "7").mkdir(parents=True)
        (own / "task").mkdir()
        (own / "link").symlink_to("/etc")
        (own / "runners" / "pod" / "__pycache__").mkdir()
        (own / "runners" / "pod" / "__pycache__" / "module.pyc").write_text("planted")
        print(repr(cleaner.clean((), kept=["task"])), sorted(os.listdir(own)), os.listdir(code))
        """,
    )

    assert said == "'' ['runners', 'task'] ['module.py']"
    assert os.path.isdir("/etc")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("(code / 'module.py').write_text('NUMBER = 2')", "it changed the code of kinetic"),
        ("(code / 'more.py').write_text('')", "it changed the code of kinetic"),
        ("(code / 'package').symlink_to('/tmp')", "it changed the code of kinetic"),
        (
            "path = code / 'module.py'; path.write_text('NUMBER = 3'); os.utime(path, (1, 1))",
            "it changed the code of kinetic",
        ),
        ("own.rename(other / 'away'); own.mkdir()", "it replaced the folder"),
        ("os.getuid() or os.setuid(65_534); os.nice(3)", "it changed the priority of process"),
        (
            "import resource; os.getuid() or os.setuid(65_534); resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99))",
            "it changed the limits of process",
        ),
    ],
)
def test_what_cannot_be_brought_back_is_named(tmp_path: Path, change: str, says: str) -> None:
    said = clean(tmp_path, f"{change}\nprint(cleaner.clean(()))")

    assert said.startswith(says)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may raise a priority")
def test_what_the_next_task_inherits_from_processes_of_the_pod_is_as_the_pod_had_it(tmp_path: Path) -> None:
    said = clean(
        tmp_path,
        """
        import resource, subprocess
        def handed_down(pid):
            texts = [Path(f"/proc/{pid}/{name}").read_text() for name in ("oom_score_adj", "coredump_filter")]
            limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            processors = sorted(os.sched_getaffinity(pid))
            return texts, limits, processors, os.getpriority(0, pid), os.sched_getscheduler(pid)

        server = subprocess.Popen(["sleep", "60"])
        before = [handed_down(pid) for pid in (os.getpid(), server.pid)]
        for pid in (os.getpid(), server.pid):
            os.sched_setaffinity(pid, {max(os.sched_getaffinity(pid))})
            os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
            os.setpriority(0, pid, 9)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (99, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))
            Path(f"/proc/{pid}/oom_score_adj").write_text("700")
            Path(f"/proc/{pid}/coredump_filter").write_text("0x7f")
        changed = [handed_down(pid) for pid in (os.getpid(), server.pid)]
        print(repr(cleaner.clean({server.pid})), [handed_down(pid) for pid in (os.getpid(), server.pid)] == before)
        print(all(one != other for pair in zip(before, changed) for one, other in zip(*pair)))
        server.kill()
        """,
    )

    assert said == "'' True\nTrue"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not enter every folder")
def test_a_folder_without_permissions_is_removed(tmp_path: Path) -> None:
    said = clean(
        tmp_path,
        """
        own.chmod(0o777)
        os.chdir(own)  # the folders above are closed to others
        os.setuid(65_534)
        os.makedirs("closed/deep")
        Path("closed/deep/file").write_text("")
        for name in ("closed/deep", "closed"):
            os.chmod(name, 0)
        print(repr(cleanup._remove("closed")), os.listdir())
        """,
    )

    assert said == "None ['runners']"


@pytest.mark.parametrize("name", ["sitecustomize.py", "there.py"])
def test_a_module_put_or_changed_beside_those_of_python_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "there.py").write_text("NUMBER = 1")
    monkeypatch.setattr(cleanup.sysconfig, "get_path", lambda _: str(tmp_path))
    before = cleanup._loaded([])

    (tmp_path / name).write_text("NUMBER = 2")
    os.utime(tmp_path / name, (1, 1))

    now = cleanup._loaded([])
    assert {path for path in now if now[path] != before.get(path)} == {str(tmp_path / name)}


@pytest.mark.parametrize(("where", "name"), [("image", "sitecustomize.py"), ("lib", "libssl.so.3")])
def test_a_module_or_library_put_into_a_folder_of_the_image_s_search_path_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, name: str
) -> None:
    names = own, code, image, volume, libraries = [
        tmp_path / each for each in ("own", "own/code", "image", "volume", "lib")
    ]
    for folder in names:
        folder.mkdir()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{libraries}:")
    monkeypatch.setattr(sys, "path", [str(code), str(image), str(volume), *sys.path])
    monkeypatch.setattr(cleanup.processes, "mounts", lambda: [("1", "/"), ("2", str(volume))])
    monkeypatch.setattr(cleanup, "_TEMPORARY", ())
    monkeypatch.setenv("HOME", str(own))
    cleaner = cleanup.Cleaner(own, str(code), None, is_container=True)

    (volume / "of_another_pod.py").write_text("")
    before = cleaner._check_loaded(installs=False)
    (tmp_path / where / name).write_text("")

    assert before == ""
    said = cleaner._check_loaded(installs=False)
    assert said == f"it changed {tmp_path / where / name}, which the next job could load"
