"""When an environment is built, under which name it is kept, and what is said when it cannot be built.

uv is played by a small script that notes how it was called; tests/flows builds with the real one.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from pathlib import Path

import pytest

from kinetic._images import isolated_environment, uv
from kinetic._images import lock as locks
from kinetic._stores.files import FileStore
from kinetic._wire import python_runtime
from kinetic.errors import ImageBuildError, OptionError

DAY = 24 * 3600.0

FAKE = """\
#!{python}
import json, os, pathlib, sys

words = sys.argv[1:]
record = {{"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}}
if words[0] == "venv":
    pathlib.Path("bin").mkdir()
    pathlib.Path("bin/python").symlink_to(sys.executable)
elif words[:2] == ["pip", "compile"]:
    words[0] = "compile"
    lines = pathlib.Path("requirements.txt").read_text().split()
    record["lines"], record["mode"] = lines, pathlib.Path("requirements.txt").stat().st_mode & 0o777
    them = [line.partition("==") for line in lines if not line.startswith("-")]
    archive = 'archive = {{ url = "https://index/a.zip", hashes = {{ sha256 = "%s" }} }}' % ("0" * 64)
    text = "".join(f'[[packages]]\\nname = "{{name}}"\\nversion = "{{at}}"\\n{{archive}}\\n' for name, _, at in them)
    text = text.replace('version = ""', f'version = "{{os.environ.get("FAKE_NEWEST", "1.0")}}"')
    pathlib.Path("pylock.kinetic.toml").write_text('lock-version = "1.0"\\n' + text)
elif words[0] == "pip":
    record["lock"] = pathlib.Path(words[-1]).read_text()
with open({log!r}, "a") as log:
    log.write(json.dumps(record) + "\\n")
if os.environ.get("FAKE_UV") == words[0]:
    print(os.environ["FAKE_UV_WORDS"], file=sys.stderr)
    sys.exit(2)
print("did", words[0])
"""


class Uv:
    """A stand-in for uv on PATH."""

    def __init__(self, folder, monkeypatch):
        self.log = folder / "log"
        self.monkeypatch = monkeypatch
        program = folder / "bin" / "uv"
        program.parent.mkdir()
        program.write_text(FAKE.format(python=sys.executable, log=str(self.log)))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent))

    def fails(self, word, words):
        self.monkeypatch.setenv("FAKE_UV", word)
        self.monkeypatch.setenv("FAKE_UV_WORDS", words)

    def newest(self, version):
        self.monkeypatch.setenv("FAKE_NEWEST", version)

    def works(self):
        self.monkeypatch.delenv("FAKE_UV")

    @property
    def calls(self):
        import json

        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    @property
    def verbs(self):
        return [call["words"][0] for call in self.calls]


@pytest.fixture
def fake(tmp_path, monkeypatch):
    return Uv(tmp_path, monkeypatch)


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "environments"


def ready(cache, lines=("six==1.16.0",), *, python="3.11.7", say=lambda _: None, upgrade="", **more):
    environ = {"KINETIC_HOME": str(cache.parent / "home"), "KINETIC_UPGRADE": upgrade}
    store = FileStore(cache.parent / "store")
    found = isolated_environment.ready(lines, cache=cache, python=python, say=say, store=store, environ=environ, **more)
    return found.python


def refused(act):
    with pytest.raises(ImageBuildError) as caught:
        act()
    return caught.value


# ----------------------------------------------------------------------------------------------------------- the choice


@pytest.mark.parametrize(
    ("environ", "choice"),
    [
        ({}, "same"),
        ({"KINETIC_LOCAL_ENV": ""}, "same"),
        ({"KINETIC_LOCAL_ENV": "same"}, "same"),
        ({"KINETIC_LOCAL_ENV": "isolated"}, "isolated"),
    ],
)
def test_jobs_run_in_the_same_interpreter_unless_an_environment_is_wanted(environ, choice):
    assert isolated_environment.wanted(environ) == choice


@pytest.mark.parametrize("value", ["Isolated", "1", "yes", " isolated"])
def test_any_other_choice_is_refused(value):
    with pytest.raises(OptionError) as caught:
        isolated_environment.wanted({"KINETIC_LOCAL_ENV": value})

    assert str(caught.value).splitlines() == [
        f"KINETIC_LOCAL_ENV={value!r} is not valid [option]",
        "why:   same: jobs run in the interpreter that submits them; isolated: in an environment built for them",
        "next:  export KINETIC_LOCAL_ENV=isolated, or unset it",
    ]


# ------------------------------------------------------------------------------------------------------------- building


def test_an_environment_is_built_from_the_base_interpreter_in_its_own_place(fake, cache):
    python = ready(cache, base=["jax"])

    resolve, create, install = fake.calls
    assert python == Path(create["folder"]) / "bin" / "python"
    assert python.is_relative_to(cache)
    assert create["words"][-3:] == ["--python", os.path.realpath(sys._base_executable), "."]
    assert install["words"][:2] == ["pip", "install"]
    assert install["words"][-4:] == ["--python", str(python), "--requirement", "pylock.kinetic.toml"]
    assert resolve["lines"] == ["six==1.16.0", "jax"]
    assert resolve["mode"] == 0o600  # an index address may hold a password
    assert "six" in install["lock"]
    assert Path(create["folder"]).stat().st_mode & 0o777 == 0o700


def test_a_program_that_has_python_inside_gets_the_python_below_its_environment(fake, cache, monkeypatch):
    base = os.path.realpath(sys.executable)
    for name in ("executable", "_base_executable"):
        monkeypatch.setattr(sys, name, "/usr/bin/true")  # as in uWSGI

    ready(cache)

    assert fake.calls[1]["words"][-3:] == ["--python", base, "."]


def test_nothing_is_installed_where_nothing_is_declared(fake, cache):
    assert ready(cache, []).exists()
    assert fake.verbs == ["venv"]


def test_settings_that_would_send_uv_elsewhere_are_taken_from_it_and_the_users_index_is_not(fake, cache, monkeypatch):
    for name in (
        "VIRTUAL_ENV",
        "UV_PROJECT",
        "UV_PYTHON",
        "UV_TARGET",
        "UV_SYSTEM_PYTHON",
        "PYTHONHOME",
        "UV_DEFAULT_INDEX",
    ):
        monkeypatch.setenv(name, "" if name == "PYTHONHOME" else "elsewhere")

    ready(cache)

    environment = fake.calls[1]["environment"]
    assert not uv._MISLEADING & environment.keys()
    assert environment["UV_DEFAULT_INDEX"] == "elsewhere"
    assert environment["UV_PYTHON_DOWNLOADS"] == "never"


def test_relative_paths_in_variables_of_uv_mean_the_folder_of_the_user(fake, cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"UV_CONSTRAINT": "a.txt /b.txt", "UV_FIND_LINKS": "wheels,https://host/all.html"}
    given |= {"UV_CONFIG_FILE": "u v.toml", "SSL_CERT_FILE": "all.pem"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)

    ready(cache)

    assert {name: fake.calls[0]["environment"][name] for name in given} == {
        "UV_CONSTRAINT": f"{tmp_path}/a.txt /b.txt",
        "UV_FIND_LINKS": f"{tmp_path}/wheels,https://host/all.html",
        "UV_CONFIG_FILE": f"{tmp_path}/u v.toml",
        "SSL_CERT_FILE": f"{tmp_path}/all.pem",
    }


def test_what_happens_is_said_line_by_line(fake, cache, tmp_path):
    said = []

    ready(cache, say=said.append, source=tmp_path / "requirements.txt")

    assert said[:5] == [
        f"resolving the packages of {tmp_path / 'requirements.txt'} for this machine",
        "uv: did compile",
        f"building an environment for Python 3.11.7 from {tmp_path / 'requirements.txt'}; it is kept for later jobs",
        "uv: did venv",
        "uv: did pip",
    ]
    assert said[5].startswith("built the environment in ")


# ------------------------------------------------------------------------------------------------------------ the cache


def test_a_second_use_builds_nothing_and_says_nothing(fake, cache):
    said = []
    first = ready(cache)

    second = ready(cache, ["  six==1.16.0\t"], say=said.append)

    assert second == first
    assert fake.verbs == ["compile", "venv", "pip"]
    assert said == []


@pytest.mark.parametrize(
    "change",
    [
        {"lines": ["six==1.17.0"]},
        {"lines": ["six==1.16.0", "idna"]},
        {"base": ["jax"]},
        {"python": "3.12.1"},
    ],
    ids=str,
)
def test_another_need_gets_another_environment(fake, cache, change):
    first = ready(cache)

    assert ready(cache, **change) != first
    assert first.exists()


@pytest.mark.parametrize(("name", "value"), [("_base_executable", "/usr/bin/env"), ("abiflags", "t")])
def test_another_interpreter_gets_another_environment(cache, monkeypatch, name, value):
    lock = locks.Lock(locks.here("3.11"), (), (), "")
    before = isolated_environment._digest(lock)
    monkeypatch.setattr(sys, name, value)

    assert isolated_environment._digest(lock) != before


def test_other_lines_with_the_same_lock_share_an_environment(fake, cache):
    assert ready(cache, [], base=["six==1.16.0"]) == ready(cache, ["six==1.16.0"])


def test_an_upgrade_resolves_again_and_leaves_the_old_environment_to_the_jobs_that_use_it(fake, cache, monkeypatch):
    first = ready(cache, ["six"])
    fake.newest("2.0")

    assert ready(cache, ["six"]) == first
    assert ready(cache, ["six"], upgrade="1") != first
    assert first.exists()


def test_the_lock_is_in_the_store_for_other_machines_and_the_cluster(fake, cache):
    ready(cache)
    shutil.rmtree(cache.parent / "home" / "cache")

    ready(cache)

    assert fake.verbs.count("compile") == 1


def test_a_patch_release_of_python_keeps_the_environment(fake, cache):
    assert ready(cache, python="3.11.7") == ready(cache, python="3.11.9")


@pytest.mark.parametrize("spoil", ["complete", "python", "folder"])
def test_an_environment_that_is_not_whole_is_built_again(fake, cache, spoil):
    python = ready(cache)
    place = python.parents[2]
    if spoil == "complete":
        (place / "complete").unlink()
    elif spoil == "python":  # the Python that it was made from is gone
        python.unlink()
        python.symlink_to("/nowhere/python")
    else:
        shutil.rmtree(python.parents[1])

    again = ready(cache)

    assert again != python
    assert again.exists()
    assert sorted(path.name for path in place.iterdir()) == sorted(["complete", "used", again.parents[1].name])


def test_threads_that_need_the_same_environment_build_it_once(fake, cache):
    found = []
    threads = [threading.Thread(target=lambda: found.append(ready(cache))) for _ in range(4)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 4
    assert len(set(found)) == 1
    assert fake.verbs == ["compile", "venv", "pip"]


# ------------------------------------------------------------------------------------------------------------- failures

UNSATISFIABLE = """\
Using Python 3.11.7 environment at: here
error: No solution found when resolving dependencies
  cause: Because nosuch-package was not found in the package registry and you want no.such-thing and
         nosuch-package==9, we can conclude that your requirements are unsatisfiable."""


def test_a_failure_is_told_in_three_parts_with_the_line_to_look_at(fake, cache, tmp_path):
    source = tmp_path / "requirements.txt"
    source.write_text("# nosuch\nsix==1.16.0\nNoSuch_Package==9  # hm\n--pre\n")
    fake.fails("pip", UNSATISFIABLE)

    error = refused(lambda: ready(cache, ["six==1.16.0", "NoSuch_Package==9", "--pre"], source=source))

    assert str(error).splitlines() == [
        f"the isolated environment for {source} could not be built [image-build]",
        "why:   error: No solution found when resolving dependencies",
        "         cause: Because nosuch-package was not found in the package registry and you want no.such-thing and",
        "                nosuch-package==9, we can conclude that your requirements are unsatisfiable.",
        f"next:  check {source}: line 3 (NoSuch_Package==9)",
    ]


def test_a_full_disk_is_not_the_fault_of_the_package_that_was_being_installed(fake, cache, tmp_path):
    fake.fails(
        "pip",
        "error: Failed to install: six-1.16.0-py2.py3-none-any.whl (six==1.16.0)\n"
        "  cause: failed to copy file: No space left on device (os error 28)",
    )

    error = refused(lambda: ready(cache, ["six==1.16.0"], source=tmp_path / "requirements.txt"))

    assert error.next == f"free some space on the disk: df -h {cache}"


def test_a_failure_that_names_no_line_names_the_file(fake, cache, tmp_path):
    fake.fails("pip", "error: the disk is full")

    assert refused(lambda: ready(cache, source=tmp_path / "uv.lock")).next == f"check {tmp_path / 'uv.lock'}"
    assert refused(lambda: ready(cache)).next == "check the dependencies of the project"


def test_a_line_is_named_where_the_file_cannot_be_read(fake, cache, tmp_path):
    fake.fails("pip", "error: six is broken.")

    assert refused(lambda: ready(cache, source=tmp_path / "gone")).next == f"check {tmp_path / 'gone'}: six==1.16.0"


def test_a_failure_is_not_kept(fake, cache):
    fake.fails("pip", "error: not now")
    refused(lambda: ready(cache))
    refused(lambda: ready(cache))
    assert fake.verbs == ["compile", "venv", "pip", "venv", "pip"]
    assert {path.suffix for path in cache.iterdir()} == {".lock"}

    fake.works()

    assert ready(cache).exists()


def test_an_interpreter_that_makes_no_environment_is_told(fake, cache):
    fake.fails("venv", "error: Querying Python failed")

    error = refused(lambda: ready(cache))

    assert error.what == "the isolated environment could not be created"
    assert error.why == "error: Querying Python failed"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "uv ended with status 2 without a message"),
        (["a", "b", "c", "d", "e", "f", "g"], "c\n       d\n       e\n       f\n       g"),
        (["noise", "  × No solution found", "  ╰─▶ Because"], "  × No solution found\n         ╰─▶ Because"),
        (["error: x", "", *"abcdefghijklmn"], "\n       ".join(["error: x", *"abcdefghijk", "…"])),
    ],
)
def test_the_telling_lines_of_uv(words, reason):
    assert uv.UvResult(2, words).reason == reason


def test_a_cache_that_cannot_be_written_is_told(fake, cache):
    cache.write_text("a file in its place")

    error = refused(lambda: ready(cache))

    assert error.what == "the isolated environment could not be built"
    assert str(cache) in error.next


# ----------------------------------------------------------------------------------------------------------- finding uv


def test_uv_may_be_a_package_of_this_interpreter(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))

    assert uv.uv_command() == [str(Path(sys.executable).with_name("uv"))]


def test_without_uv_the_way_to_it_is_told(cache, monkeypatch, tmp_path):
    said = []
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(python_runtime, "_candidates", lambda: iter(()))

    error = refused(lambda: ready(cache, say=said.append))

    assert str(error).splitlines() == [
        "uv is needed to resolve and install packages, and it is not installed [image-build]",
        f"why:   it is neither on PATH nor installed for {sys.executable}",
        "next:  pip install uv",
    ]
    assert said == []


# -------------------------------------------------------------------------------------------------------- what is stale


def test_an_environment_is_stale_thirty_days_after_its_last_use(fake, cache):
    old, used_again = ready(cache, ["old"]), ready(cache, ["used"])
    now = os.stat(old.parents[2] / "used").st_mtime
    os.utime(old.parents[2] / "used", (now - 31 * DAY, now - 31 * DAY))
    os.utime(used_again.parents[2] / "used", (now - 31 * DAY, now - 31 * DAY))

    ready(cache, ["used"])

    assert isolated_environment.stale(cache, now) == [old.parents[2]]
    assert isolated_environment.stale(cache, now - 2 * DAY) == []


def test_what_a_killed_builder_left_is_stale_as_well(cache):
    left = cache / (24 * "a")
    left.mkdir(parents=True)
    now = os.stat(left).st_mtime

    assert isolated_environment.stale(cache, now + 29 * DAY) == []
    assert isolated_environment.stale(cache, now + 31 * DAY) == [left]


def test_without_a_cache_nothing_is_stale(cache):
    assert isolated_environment.stale(cache, 1e12) == []


def test_a_stale_environment_that_was_removed_is_built_again(fake, cache):
    python = ready(cache)
    shutil.rmtree(python.parents[2])

    assert ready(cache).exists()
