"""Whole jobs that read data: volumes that only they see, copies that are gone afterwards, whoever was killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from servers.gcs import GcsServer


@pytest.fixture
def mount():
    """Return a path below / that does not exist, and see that it does not afterwards."""
    path = f"/kinetic-{os.urandom(4).hex()}"
    yield path
    assert not os.path.lexists(path)


@pytest.fixture
def data(project):
    project.write("set/a.txt", "hello")
    project.write("set/sub/b.txt", "there")
    (project.root / "set" / "empty").mkdir()
    return project.root / "set"


def left_of_jobs(home):
    """Return what jobs have left of their data, without what is kept for the next one."""
    return [*home.glob("run/*/jobs/*/data-*")]


STAY = """
    import os
    import sys
    import time
    from pathlib import Path

    import kinetic

    @kinetic.run(accelerator="cpu", volumes={{"{mount}": kinetic.Data("set")}})
    def stay(marks):
        import subprocess

        child = subprocess.Popen(["sleep", "60"])
        Path(marks, "child").write_text(str(child.pid))
        Path(marks, "seen").write_text(Path("{mount}/a.txt").read_text())
        Path(marks, "beginning").write_text(str(os.getpid()) + " " + str(os.getppid()))
        Path(marks, "beginning").rename(Path(marks, "begun"))
        child.wait()

    if __name__ == "__main__":
        print(stay.run_async(sys.argv[1]).job_id)
"""


def test_volumes_and_arguments_arrive_and_nothing_of_them_stays(project, home, mount, data, wait_until):
    project.write(
        "script.py",
        f"""
        import os
        import kinetic

        volumes = {{"{mount}": kinetic.Data("set"), "{mount}-one": kinetic.Data("set/a.txt")}}

        @kinetic.run(accelerator="cpu", volumes=volumes)
        def read(folder, more):
            return (
                sorted(os.listdir("{mount}")), os.listdir("{mount}-one"), sorted(os.listdir(folder)),
                open(more["file"]).read(), os.path.basename(os.getcwd()),
            )

        if __name__ == "__main__":
            print(read(kinetic.Data("set"), {{"file": kinetic.Data("set/a.txt")}}))
            hides = read.with_options(volumes={{"/proc": kinetic.Data("set")}}).run_async("", {{}})
            print(hides.exception().code)  # as the pages on volumes and on errors have it
            hides.cleanup()
        """,
    )

    done = project.run("script.py")

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\nvolume\n")
    assert done.stdout.startswith("(['a.txt', 'empty', 'sub'], ['a.txt'], ['a.txt', 'empty', 'sub'], 'hello', ")
    wait_until(lambda: not left_of_jobs(home), "the end of what the job read")


@pytest.mark.parametrize("portable", [False, True], ids=["mounts", "links"])
@pytest.mark.parametrize("victim", ["worker", "supervisor"])
def test_whoever_is_killed_nothing_stays_of_a_volume(
    project, home, data, wait_until, monkeypatch, tmp_path, portable, victim
):
    mount = tmp_path / "mnt" / "data"
    if portable:
        monkeypatch.setenv("KINETIC_PORTABLE", "1")
    (tmp_path / "marks").mkdir()
    project.write("script.py", STAY.format(mount=mount))
    job_id = project.run("script.py", str(tmp_path / "marks")).stdout.strip()
    wait_until((tmp_path / "marks" / "begun").exists, "the beginning of the job", 20)
    worker, supervisor = map(int, (tmp_path / "marks" / "begun").read_text().split())
    child = int((tmp_path / "marks" / "child").read_text())
    assert (tmp_path / "marks" / "seen").read_text() == "hello"
    assert mount.exists() == portable

    os.kill(worker if victim == "worker" else supervisor, signal.SIGKILL)

    status = [*project_status(project, job_id)]
    assert status == ["FAILED"]
    wait_until(lambda: not os.path.lexists(mount) and not left_of_jobs(home), "the end of what the job read")
    wait_until(lambda: not Path(f"/proc/{child}/cmdline").exists(), "the end of the job's child")
    assert not (tmp_path / "mnt").exists()


def project_status(project, job_id):
    """Return how a job ended; asking is what recovers the jobs of a dead supervisor."""
    code = f"""
import kinetic
job = kinetic.attach({job_id!r})
try:
    job.result(cleanup=False, timeout=20)
except Exception:
    pass
print(job.status().value)
"""
    return project.run("-c", code).stdout.split()


def test_a_cancelled_job_in_a_place_of_its_own_ends_with_its_children(project, home, data, mount, wait_until, tmp_path):
    (tmp_path / "marks").mkdir()
    project.write("script.py", STAY.format(mount=mount))
    job_id = project.run("script.py", str(tmp_path / "marks")).stdout.strip()
    wait_until((tmp_path / "marks" / "begun").exists, "the beginning of the job", 20)
    child = int((tmp_path / "marks" / "child").read_text())

    project.run("-c", f"import kinetic; kinetic.attach({job_id!r}).cancel()")

    wait_until(lambda: not Path(f"/proc/{child}/cmdline").exists(), "the end of the job's child")
    wait_until(lambda: not left_of_jobs(home), "the end of what the job read")


def test_every_host_of_a_slice_sees_a_volume_of_its_own(project, data, mount):
    project.write(
        "script.py",
        f"""
        import os
        import kinetic

        @kinetic.run(accelerator="tpu-v5litepod-16", volumes={{"{mount}": kinetic.Data("set", fuse=False)}})
        def read(shared):
            import time
            from pathlib import Path

            host = os.environ["KINETIC_HOST_INDEX"]
            Path("{mount}", "written-by-" + host).touch()
            part = Path(shared + host)
            part.write_text(repr(sorted(os.listdir("{mount}"))))
            part.rename(Path(shared, host))  # whole, for whoever looks
            while len(os.listdir(shared)) < 4:
                time.sleep(0.01)
            return sorted(Path(shared, name).read_text() for name in os.listdir(shared))

        if __name__ == "__main__":
            import tempfile

            print(read(tempfile.mkdtemp()))
        """,
    )

    done = project.run("script.py")

    assert done.returncode == 0, done.stderr
    for host in range(4):
        assert f"['a.txt', 'empty', 'sub', 'written-by-{host}']" in done.stdout


def test_data_that_leaves_the_store_fails_the_job_before_the_function_begins(project, home, tmp_path, monkeypatch):
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")
    project.write(
        "script.py",
        """
        import os
        import sys
        import time
        from pathlib import Path

        import kinetic

        @kinetic.run(accelerator="cpu")
        def hold(path):
            while os.path.exists(path):
                time.sleep(0.01)

        @kinetic.run(accelerator="cpu")
        def read(folder):
            return folder

        if __name__ == "__main__":
            held = sys.argv[1]
            blobs = Path(os.environ["KINETIC_HOME"], "store", "data", "blobs")
            first = hold.run_async(held)
            of_the_project = {*blobs.iterdir()}
            second = read.run_async(kinetic.Data(sys.argv[2]))  # queued behind it
            for blob in {*blobs.iterdir()} - of_the_project:
                blob.unlink()
            os.unlink(held)
            try:
                second.result()
            except kinetic.errors.RunnerError as error:
                print(error.phase, error)
        """,
    )
    (project.root / "held").touch()
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.txt").write_text("not in the project")

    done = project.run("script.py", str(project.root / "held"), str(tmp_path / "set"))

    assert done.stdout.startswith("data download "), done.stdout + done.stderr
    assert "submit the job again" in done.stdout


NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="private mounts without root depend on the kernel's settings")


@pytest.fixture
def gcs():
    server = GcsServer().start()
    yield server
    server.close()


@NEEDS_ROOT
def test_a_volume_is_a_mount_even_where_the_store_of_the_jobs_has_threads(project, data, mount, gcs, monkeypatch):
    gcs.bucket("jobs-of-a-test")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    monkeypatch.setenv("KINETIC_STORE", "gs://jobs-of-a-test")

    said = project.out(
        f"""
        import os
        import kinetic

        @kinetic.run(accelerator="cpu", volumes={{"{mount}": kinetic.Data("set")}})
        def look():
            return os.path.ismount("{mount}"), sorted(os.listdir("{mount}"))

        if __name__ == "__main__":
            print(look())
        """
    )

    assert said.splitlines()[-1] == "(True, ['a.txt', 'empty', 'sub'])"


def test_links_go_with_their_job_however_quickly_it_is_collected(project, data, tmp_path, monkeypatch, wait_until):
    top = tmp_path / "volumes"
    monkeypatch.setenv("KINETIC_VOLUME_ROOT", str(top))

    said = project.out(
        """
        import os
        import kinetic

        top = os.environ["KINETIC_VOLUME_ROOT"]

        @kinetic.run(accelerator="cpu", volumes={"/data": kinetic.Data("set"), "/deep/er": kinetic.Data("set/a.txt")})
        def look():
            top = os.environ["KINETIC_VOLUME_ROOT"]
            return os.listdir(top + "/data"), os.listdir(top + "/deep/er")

        if __name__ == "__main__":
            for _ in range(8):
                found = look()  # its folder is removed here, while its supervisor puts things in order there
            print(sorted(found[0]), found[1])
        """
    )

    assert said.splitlines()[-1] == "['a.txt', 'empty', 'sub'] ['a.txt']"
    wait_until(lambda: not top.exists() or not [*top.iterdir()], "the end of all links")


@pytest.mark.parametrize("links", [False, True], ids=["mounts", "links"])
def test_a_job_that_begins_again_finds_its_volume_and_its_data_as_they_were(
    project, home, data, mount, tmp_path, monkeypatch, wait_until, links
):
    library = tmp_path / "site-packages" / "of_theirs"
    library.mkdir(parents=True)
    for number in range(60):
        (library / f"part{number}.py").touch()
    parts = ", ".join(f"part{number}" for number in range(60))
    (library / "__init__.py").write_text(f"import os\nfrom of_theirs import {parts}\nPID = os.getpid()\n")
    monkeypatch.setenv("PYTHONPATH", str(library.parent))
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")  # one supervisor does all jobs
    if links:
        monkeypatch.setenv("KINETIC_VOLUME_ROOT", str(tmp_path / "volumes"))

    said = project.out(
        f"""
        import os, time
        import kinetic

        @kinetic.run(accelerator="cpu", volumes={{"{mount}": kinetic.Data("set")}})
        def look(setting, folder):
            volume = os.environ.get("KINETIC_VOLUME_ROOT", "") + "{mount}"
            found = sorted(os.listdir(volume)), sorted(os.listdir(folder))
            open(folder + "/new", "w").close()
            if setting:
                os.environ["OF_THEIRS"] = setting
            import of_theirs
            return of_theirs.PID != os.getpid(), found

        if __name__ == "__main__":
            limit = time.monotonic() + 60
            while not look("", kinetic.Data("set"))[0]:
                assert time.monotonic() < limit
            job = look.run_async("other", kinetic.Data("set"))
            job.wait()
            print("begins again" in job.logs())
            print(job.result())
        """
    )

    all_of_it = ["a.txt", "empty", "sub"]
    assert said.splitlines()[-2:] == ["True", str((False, (all_of_it, all_of_it)))]
    wait_until(lambda: not left_of_jobs(home), "the end of what the job read")
