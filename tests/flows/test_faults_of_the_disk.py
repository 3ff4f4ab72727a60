"""A disk that fails once, or takes half of what is written, loses no value and is called by its name."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PRELOADED = r"""
/* Fail the first link() to a name that ends as KINETIC_TEST_ENDING says: with EIO, once for all processes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(const char *name) {
    const char *ending = "result.pkl", *mark = "@MARK@";
    size_t length = strlen(name), wanted = strlen(ending);
    if (length < wanted || strcmp(name + length - wanted, ending)) return 0;
    int descriptor = open(mark, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (descriptor < 0) return 0;
    close(descriptor);
    errno = EIO;
    return 1;
}

int link(const char *from, const char *to) {
    if (fails(to)) return -1;
    return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "link"))(from, to);
}

int linkat(int a, const char *from, int b, const char *to, int flags) {
    if (fails(to)) return -1;
    return ((int (*)(int, const char *, int, const char *, int))dlsym(RTLD_NEXT, "linkat"))(a, from, b, to, flags);
}
"""


@pytest.fixture
def failing_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the first link to a result fail in every process that is started from now on; return the sign of it."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("there is no C compiler here to make a disk fail with")
    mark, source, library = tmp_path / "failed", tmp_path / "fault.c", tmp_path / "fault.so"
    source.write_text(PRELOADED.replace("@MARK@", str(mark)))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    return mark


def test_a_value_whose_result_could_not_be_linked_once_is_delivered(project: Any, failing_link: Path) -> None:
    out = project.out(
        """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def train():
            return 42

        print(train.run_async().result(timeout=60))
        """
    )

    assert failing_link.exists(), "no link was made to fail"
    assert out == "42\n"


RAW = """
    import errno
    import os
    import kinetic

    @kinetic.run(accelerator="cpu")
    def train(number=0):
        return 1

    def batch():
        return train.with_options(on_done="true").run_async_map([1], max_concurrent=None)

    def fail_at(name, part, number):
        real, count = getattr(os, name), 0

        def faulty(*words, **more):
            nonlocal count
            count += part in str(words[0])
            if part in str(words[0]) and count == number + 1:
                raise OSError(errno.EIO, "Input/output error", str(words[0]))
            return real(*words, **more)

        setattr(os, name, faulty)
        return lambda: setattr(os, name, real)

    if __name__ == "__main__":
        train.run_async().result()
        batch().results()
        for name in ("open", "mkdir", "replace", "stat", "unlink"):
            of_a_batch = ("/notifications/", "/groups/") if name in {"open", "replace"} else ()
            for part in ("/jobs/", "/supervisors/", *of_a_batch):
                for number in range(3):
                    undo = fail_at(name, part, number)
                    try:
                        train.run_async() if part in {"/jobs/", "/supervisors/"} else batch()
                        found = "submitted"
                    except kinetic.errors.KineticError as error:
                        undo()
                        found = f"told: {error.what} {getattr(error, '__notes__', '')}"
                    except OSError as error:
                        found = f"raw: {error}"
                    finally:
                        undo()
                    print(name, part, number, found)
"""


def test_a_submission_translates_what_the_disk_says(project: Any) -> None:
    told = project.out(RAW).splitlines()

    assert [line for line in told if "raw:" in line] == []
    assert any("told: the job could not be queued" in line for line in told)
    assert any("told: the job could not be queued" in line for line in told if "/notifications/" in line)
    assert any("kinetic batch resume" in line for line in told if "/groups/" in line)
    assert len(told) == 42


SHORT = """
    import os
    import resource
    import sys
    from pathlib import Path
    from kinetic._backends.local import runtime_files as launching
    from kinetic._stores.files import FileStore
    from kinetic._wire import folders

    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # of a write across it, the kernel takes a part
    here = Path(sys.argv[1])
    for name, write in {
        "a private file": lambda: launching.write_private(here / "page", bytes(5000)),
        "a file of a cache": lambda: folders.write_whole(here / "cached", bytes(5000)),
        "an object": lambda: FileStore(here / "store").put("key", bytes(5000)),
    }.items():
        try:
            write()
            print(name, "was cut short and nobody said so")
        except Exception as error:
            print(name, type(error).__name__)
    print(sorted(path.name for path in here.rglob("*") if path.is_file()))
"""


def test_what_is_written_in_part_is_an_error_and_leaves_nothing(project: Any, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()

    told = project.out(SHORT, str(tmp_path / "here")).splitlines()

    assert told == ["a private file OSError", "a file of a cache OSError", "an object StoreUnreachableError", "[]"]


def test_a_job_whose_key_is_cut_short_runs_nothing_and_says_so(
    project: Any, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")
    out = project.out(
        """
        import pathlib
        import sys
        import time
        import kinetic

        @kinetic.run(accelerator="cpu")
        def wait(go):
            while not pathlib.Path(go).exists():
                time.sleep(0.01)

        @kinetic.run(accelerator="cpu")
        def train(path):
            open(path, "w").close()

        if __name__ == "__main__":
            go, ran, home = sys.argv[1:]
            first, second = wait.run_async(go), train.run_async(ran)
            (key,) = pathlib.Path(home).glob(f"run/*/jobs/{second.job_id}/key")
            key.write_bytes(key.read_bytes()[:20])
            open(go, "w").close()
            try:
                second.result(timeout=60)
            except kinetic.errors.KineticError as error:
                print(error)
        """,
        str(tmp_path / "go"),
        str(tmp_path / "ran"),
        str(home),
    )

    assert "the key of this job is damaged" in out
    assert not (tmp_path / "ran").exists()
