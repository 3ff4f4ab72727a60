"""Environments built by the real uv: what is in them, that they are built once, and whole or not at all."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from servers.wheels import Index, made_wheel

from kinetic._images import isolated_environment, lock_store, uv
from kinetic._project import dependencies
from kinetic._project.root import Plan
from kinetic._stores.files import FileStore
from kinetic._wire import python_runtime
from kinetic.errors import AccessDeniedError, ImageBuildError

SOURCE = Path(__file__).parents[2] / "src"
PACKAGE = "roman"  # tiny, pure, needed by nothing that we use
LINE = "roman==5.0"
KINETIC = [sys.executable, "-m", "kinetic"]

BUILD = """
import os
import sys
from pathlib import Path
from kinetic._images import isolated_environment as environments
from kinetic._stores.files import FileStore
from kinetic._wire import python_runtime as fingerprint

def say(text):
    print(text, file=sys.stderr, flush=True)

cache = Path(sys.argv[1])
found = environments.ready(
    sys.argv[2:],
    cache=cache,
    python=fingerprint.python_version(),
    say=say,
    store=FileStore(cache.parent / "store"),
    environ={**os.environ, "KINETIC_HOME": str(cache.parent / "home")},
)
print(found.python)
"""

# A package whose build waits while a file is there, so that a test can act in the middle of an installation.
SLOW = """
import os, pathlib, time, zipfile

HOLD, BEGUN = pathlib.Path({hold!r}), pathlib.Path({begun!r})
FILES = {{
    "slow_kinetic.py": "value = 7\\n",
    "slow_kinetic-1.dist-info/METADATA": "Metadata-Version: 2.1\\nName: slow-kinetic\\nVersion: 1\\n",
    "slow_kinetic-1.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    "slow_kinetic-1.dist-info/RECORD": "",
}}

def build_wheel(folder, config_settings=None, metadata_directory=None):
    with BEGUN.open("a") as file:
        file.write("x")
    while HOLD.exists():
        time.sleep(0.01)
    name = "slow_kinetic-1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for path, text in FILES.items():
            wheel.writestr(path, text)
    return name
"""


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "environments"


@pytest.fixture
def slow(tmp_path, monkeypatch):
    """Make a package that is slow to build, and return its line and the two files that steer it."""
    folder, hold, begun = tmp_path / "slow", tmp_path / "hold", tmp_path / "begun"
    folder.mkdir()
    hold.touch()
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "slow-kinetic"\nversion = "1"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (folder / "backend.py").write_text(SLOW.format(hold=str(hold), begun=str(begun)))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    yield f"slow-kinetic @ file://{folder}", hold, begun
    hold.unlink(missing_ok=True)  # whoever still builds comes to an end


def ready(cache, lines, **more):
    found = isolated_environment.ready(
        lines,
        cache=cache,
        python=python_runtime.python_version(),
        say=lambda _: None,
        store=FileStore(cache.parent / "store"),
        environ={**os.environ, "KINETIC_HOME": str(cache.parent / "home")},
        **more,
    )
    return found.python


def run_in(python, code):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, env=clean)


def start(cache, *lines):
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    words = [sys.executable, "-c", BUILD, str(cache), *lines]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_what_the_project_declares_is_there_and_what_the_client_has_is_not(cache, tmp_path):
    assert importlib.util.find_spec(PACKAGE) is None
    (tmp_path / "requirements.txt").write_text(f"{LINE}  # exact\n")
    found = dependencies.find(Plan(tmp_path, "", None, ("",)))

    python = ready(cache, found.lines, source=found.source)

    here = run_in(python, f"import {PACKAGE}, sys; print({PACKAGE}.toRoman(7), *sys.version_info[:2])")
    assert here.stdout.split() == ["VII", *map(str, sys.version_info[:2])], here.stderr
    assert "ModuleNotFoundError" in run_in(python, "import pytest").stderr


def test_the_login_in_the_address_of_an_index_is_used_and_stored_nowhere(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("INDEX_PASSWORD", "hunter2")
    index = Index()
    index(made_wheel(tmp_path, "alpha", "1.0", {"alpha.py": "value = 7"}))
    index.login = ("ann", "hunter2")
    lines = [f"--extra-index-url {index.simple.replace('://', '://ann:${INDEX_PASSWORD}@')}", "alpha"]
    try:
        python = ready(cache, lines)
        found = run_in(python, "import alpha; print(alpha.value)").stdout

        index.login = ("ann", "changed")
        for folder in (cache, tmp_path / "uv-cache"):
            shutil.rmtree(folder)
        with pytest.raises(AccessDeniedError) as refused:
            ready(cache, lines)
    finally:
        index.close()

    assert found == "7\n"
    assert refused.value.code == "index-login"
    assert not any(b"hunter2" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


@pytest.mark.parametrize("has_lock", [True, False])
def test_a_login_comes_from_the_keyring_where_the_project_says_so(cache, tmp_path, monkeypatch, has_lock):
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("KINETIC_HOME", str(cache.parent / "home"))
    keyring = tmp_path / "bin" / "keyring"
    keyring.parent.mkdir()
    keyring.write_text("#!/bin/sh\necho hunter2\n")
    keyring.chmod(0o755)
    monkeypatch.setenv("PATH", f"{keyring.parent}:{os.environ['PATH']}")
    index, project = Index(), tmp_path / "project"
    index.login = ("ann", "hunter2")
    index(made_wheel(tmp_path, "alpha", "1.0", {"alpha.py": "value = 7"}))
    project.mkdir()
    wanted = 'requires-python = ">=3.11"\ndependencies = ["alpha"]\n[tool.uv]\nkeyring-provider = "subprocess"\n'
    place = f'[[tool.uv.index]]\nname = "acme"\nurl = "{index.simple.replace("://", "://ann@")}"\n'
    (project / "pyproject.toml").write_text(f'[project]\nname = "theirs"\nversion = "1"\n{wanted}{place}')
    try:
        if has_lock:
            subprocess.run([*uv.uv_command(), "lock", "--quiet"], cwd=project, check=True)
        export = functools.partial(lock_store.exported, environ=os.environ)
        found = dependencies.find(Plan(project, "", None, ("",)), export=export, base=False)
        python = ready(cache, found.lines, source=found.source)
    finally:
        index.close()

    assert run_in(python, "import alpha; print(alpha.value)").stdout == "7\n"


def test_a_package_that_uv_has_is_not_fetched_again_for_the_next_environment(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    index = Index()  # as many mirrors, it does not say for how long an answer holds
    alpha, beta = (made_wheel(tmp_path, name, "1.0", {f"{name}.py": "value = 7"}) for name in ("alpha", "beta"))
    index(alpha)
    index(beta)
    index.has_metadata = True
    line = f"--extra-index-url {index.simple}"
    try:
        subprocess.run([uv.uv_command()[0], "venv", "--quiet", str(tmp_path / "theirs")], check=True)
        install = [*uv.uv_command(), "pip", "install", "--quiet", "--python", str(tmp_path / "theirs"), "alpha"]
        subprocess.run([*install, *line.split()], check=True)  # of the user
        asked = len(index.asked)
        python = ready(cache, [line, "alpha", "beta"])
        ready(cache, [line, "alpha", "beta", LINE])
        later = index.asked[asked:]
    finally:
        index.close()

    assert run_in(python, "import alpha, beta; print(alpha.value, beta.value)").stdout == "7 7\n"
    assert f"/{alpha.name}" not in later
    assert later.count(f"/{beta.name}") == 1


def test_two_processes_that_need_the_same_environment_build_it_once(cache, slow, wait_until):
    line, hold, begun = slow
    first = start(cache, line)
    wait_until(begun.exists, "the build", seconds=30)
    second = start(cache, line)
    assert second.stderr.readline() == "waiting for another kinetic process that builds the same environment\n"

    hold.unlink()
    (one, said), (other, _) = first.communicate(timeout=60), second.communicate(timeout=60)

    assert (first.returncode, second.returncode) == (0, 0), said
    assert one == other
    assert begun.read_text() == "x"
    assert "uv: Installed 1 package" in said
    assert run_in(one.strip(), "import slow_kinetic; print(slow_kinetic.value)").stdout == "7\n"


def test_an_environment_whose_builder_was_killed_is_built_again(cache, slow, wait_until):
    line, hold, begun = slow
    first = start(cache, line)
    wait_until(begun.exists, "the build", seconds=30)

    first.kill()
    first.communicate(timeout=60)
    (left,) = [path for path in cache.iterdir() if path.is_dir()]
    assert not (left / "complete").exists()
    hold.unlink()
    python = ready(cache, [line])

    assert python.is_relative_to(left)
    assert run_in(python, "import slow_kinetic; print(slow_kinetic.value)").stdout == "7\n"
    assert ready(cache, [line]) == python


def test_a_package_that_there_is_not_is_told_with_its_line_and_is_looked_for_again(cache, tmp_path):
    source = tmp_path / "requirements.txt"
    source.write_text(f"# ours\n{LINE}\n{PACKAGE}>=99999\n")

    for _ in range(2):
        with pytest.raises(ImageBuildError) as caught:
            ready(cache, [LINE, f"{PACKAGE}>=99999"], source=source)

        what, why, *_, next_ = str(caught.value).splitlines()
        assert what.startswith(f"the requirements of {source} have no solution for Python ")
        assert why.startswith("why:   error: No solution found")
        assert "99999" in caught.value.why
        assert next_.endswith(f"line 3 ({PACKAGE}>=99999)")
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


# As that of flash-attn, it imports at its build what it does not say that it needs then.
UNDECLARED = """
import os, zipfile
import alpha

ABOUT = "native-1.0.dist-info"
NAMES = {"METADATA": "Metadata-Version: 2.1\\nName: native\\nVersion: 1.0\\n", "RECORD": ""}
NAMES["WHEEL"] = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "native-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("native.py", f"built_with = {alpha.value!r}, {os.environ.get('LEVEL')!r}")
        for path, text in NAMES.items():
            wheel.writestr(f"{ABOUT}/{path}", text)
    return name
"""
# "7.0" is the older one: the newest is 8.0.
AS_WHEN_IT_RUNS = """
extra-build-dependencies = { native = [{ requirement = "alpha", match-runtime = true }] }
extra-build-variables = { native = { LEVEL = "3" } }
[[tool.uv.dependency-metadata]]
name = "native"
version = "1.0"
"""


@pytest.mark.parametrize(
    ("table", "built"),
    [
        ('extra-build-dependencies = { native = ["alpha"] }\n', "('8.0', None)"),
        (AS_WHEN_IT_RUNS, "('7.0', '3')"),
        ('no-build-isolation-package = ["native"]\ndependency-metadata = [{ name = "native" }]\n', "('7.0', None)"),
    ],
)
@pytest.mark.parametrize("has_lock", [True, False])
def test_a_package_without_a_wheel_is_built_as_uv_builds_it_for_the_project(
    cache, tmp_path, monkeypatch, table, built, has_lock
):
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("KINETIC_HOME", str(cache.parent / "home"))
    source, project = tmp_path / "native-1.0", tmp_path / "project"
    source.mkdir()
    project.mkdir()
    (source / "backend.py").write_text(UNDECLARED)
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (source / "pyproject.toml").write_text(f'[project]\nname = "native"\nversion = "1.0"\n{system}')
    with tarfile.open(tmp_path / "native-1.0.tar.gz", "w:gz") as packed:
        packed.add(source, source.name)
    index = Index()
    index(tmp_path / "native-1.0.tar.gz")
    for version in ("7.0", "8.0"):
        index(made_wheel(tmp_path, "alpha", version, {"alpha.py": f"value = {version!r}"}))
    wanted = 'requires-python = ">=3.11"\ndependencies = ["alpha==7.0", "native"]\n'
    settings = f'[[tool.uv.index]]\nurl = "{index.simple}"\n[tool.uv]\n{table}'
    (project / "pyproject.toml").write_text(f'[project]\nname = "theirs"\nversion = "1"\n{wanted}{settings}')
    try:
        if has_lock:
            subprocess.run([*uv.uv_command(), "lock", "--quiet"], cwd=project, check=True)
        export = functools.partial(lock_store.exported, environ=os.environ)
        found = dependencies.find(Plan(project, "", None, ("",)), export=export, base=False)

        python = ready(cache, found.lines, source=found.source)
    finally:
        index.close()

    assert run_in(python, "import native; print(native.built_with)").stdout.strip() == built


def test_hashes_hold_beside_packages_that_have_none(cache):
    wrong = f"{LINE} --hash=sha256:{'0' * 64}"

    with pytest.raises(ImageBuildError, match="is not the file that the requirements name"):
        ready(cache, [wrong], base=["six==1.16.0"])


def wheel(folder, name, *requires, files=None):
    """Build a package by hand, and return its file."""
    stem = f"{name.replace('-', '_')}-1"
    path = folder / f"{stem}-py3-none-any.whl"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    with zipfile.ZipFile(path, "w") as file:
        for inside, text in (files or {f"{name.replace('-', '_')}.py": ""}).items():
            file.writestr(inside, text)
        file.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{needs}")
        file.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{stem}.dist-info/RECORD", "")
    return path


def test_a_stranger_of_our_name_is_not_installed_even_where_another_package_wants_it(cache, tmp_path):
    wheel(tmp_path, "kinetic", files={"kinetic/__init__.py": "raise SystemExit('not ours')"})
    wheel(tmp_path, "kinetic-jobs", files={"kinetic/__init__.py": ""})
    theirs = wheel(tmp_path, "theirs", "kinetic>=1", "kinetic_jobs[gke]")

    python = ready(cache, ["--no-index", f"--find-links {tmp_path}", str(theirs)])

    done = run_in(python, "import theirs, importlib.util as u; print(u.find_spec('kinetic'))")
    assert (done.stdout, done.stderr) == ("None\n", "")


@pytest.mark.parametrize("name", ["UV_CONSTRAINT", "UV_OVERRIDE"])
def test_a_file_of_versions_that_a_variable_names_counts_as_it_is_now(cache, tmp_path, monkeypatch, name):
    file = tmp_path / "versions.txt"
    monkeypatch.setenv(name, str(file))
    found = []

    for version in ("1.16.0", "1.15.0"):
        file.write_text(f"six=={version}\n")
        python = ready(cache, ["six"])
        found.append(run_in(python, "import six; print(six.__version__)").stdout.strip())

    assert found == ["1.16.0", "1.15.0"]


def test_the_lock_of_a_project_is_read_whatever_variables_name_another_one(tmp_path, monkeypatch):
    for name, package in (("ours", "six"), ("other", "idna")):
        (tmp_path / name).mkdir()
        table = f'[project]\nname = "{name}"\nversion = "1"\nrequires-python = ">=3.11"\n'
        (tmp_path / name / "pyproject.toml").write_text(f'{table}dependencies = ["{package}"]\n')
        subprocess.run([*uv.uv_command(), "lock", "--quiet"], cwd=tmp_path / name, check=True)
    monkeypatch.setenv("UV_PROJECT", str(tmp_path / "other"))
    monkeypatch.setenv("UV_NO_SOURCES", "1")  # no option that goes with --frozen

    assert [line.partition("==")[0] for line in uv.export_lock(tmp_path / "ours") if "==" in line] == ["six"]


def test_a_lock_keeps_its_hashes_and_a_file_that_is_another_one_is_not_installed(cache, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "ours"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["roman==5.0"]\n'
    )
    subprocess.run([*uv.uv_command(), "lock", "--quiet"], cwd=project, check=True)
    text = (project / "uv.lock").read_text()

    lines = dependencies.find(Plan(project, "", None, ("",)), export=uv.export_lock).lines
    (project / "uv.lock").write_text(re.sub(r"sha256:[0-9a-f]{64}", f"sha256:{'0' * 64}", text))
    changed = dependencies.find(Plan(project, "", None, ("",)), export=uv.export_lock).lines

    assert all(f"--hash=sha256:{digest}" in lines[0] for digest in re.findall(r"sha256:([0-9a-f]{64})", text))
    with pytest.raises(ImageBuildError, match="is not the file that the requirements name"):
        ready(cache, changed, base=["six==1.16.0"])


def test_a_file_called_uv_in_the_project_is_never_run(tmp_path, monkeypatch):
    (tmp_path / "uv.py").write_text("open('was-run', 'w')")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "ours"\nversion = "1"\ndependencies = []\n')
    real = uv.uv_command()
    subprocess.run([*real, "lock", "--quiet"], cwd=tmp_path, check=True)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    assert uv.export_lock(tmp_path, []) == []
    assert not (tmp_path / "was-run").exists()


def test_a_lock_is_read_without_the_network_and_without_groups_that_nobody_wants(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "theirs"\nversion = "1"\nrequires-python = ">=3.11"\n'
        'dependencies = ["six>=1"]\n[dependency-groups]\ndev = ["idna"]\n'
        f'[project.optional-dependencies]\nx = ["{PACKAGE}"]\n'
    )
    locked = subprocess.run([*uv.uv_command(), "lock"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert locked.returncode == 0, locked.stderr
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "empty"))  # and what it knows from locking is out of its reach

    plain = dependencies.find(Plan(tmp_path, "", None, ("",)), export=uv.export_lock)
    more = dependencies.find(Plan(tmp_path, "", None, ("",)), wanted=dependencies.Wanted(["x"]), export=uv.export_lock)

    assert plain.kind == "lock"
    assert [line.partition("==")[0] for line in plain.lines] == ["six"]
    assert [line.partition("==")[0] for line in more.lines] == [PACKAGE, "six"]
    with_group = dependencies.Wanted(groups=["dev"])
    found = dependencies.find(Plan(tmp_path, "", None, ("",)), wanted=with_group, export=uv.export_lock)
    assert [line.partition("==")[0] for line in found.lines] == ["idna", "six"]


def test_the_lock_of_a_script_decides_its_versions(tmp_path, monkeypatch):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "kinetic"))
    export = functools.partial(lock_store.exported, environ=os.environ)
    script = tmp_path / "train.py"
    script.write_text('# /// script\n# requires-python = ">=3.11"\n# dependencies = ["six<1.17"]\n# ///\n')
    locking = [*uv.uv_command(), "lock", "--quiet", "--script", str(script)]
    subprocess.run(locking, cwd=tmp_path, check=True)

    def lines():
        found = dependencies.find(Plan(tmp_path, "", None, ("",)), script=str(script), export=export)
        return [line.partition(" ")[0] for line in found.lines]

    script.write_text(script.read_text().replace("<1.17", ""))
    before = lines()
    (tmp_path / "train.py.lock").unlink()
    script.write_text(script.read_text().replace("six", "six<1.16"))
    subprocess.run(locking, cwd=tmp_path, check=True)

    assert (before, lines()) == (["six==1.16.0"], ["six==1.15.0"])


def test_extras_that_a_project_declares_as_conflicts_are_told_as_such(tmp_path):
    extras = "[project.optional-dependencies]\ncpu = []\ngpu = []\n"
    conflicts = '[tool.uv]\nconflicts = [[{ extra = "cpu" }, { extra = "gpu" }]]\n'
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "x"\nversion = "1"\n{extras}{conflicts}')
    subprocess.run([*uv.uv_command(), "lock", "--quiet", "--offline"], cwd=tmp_path, check=True)

    with pytest.raises(ImageBuildError) as caught:
        uv.export_lock(tmp_path, ["cpu", "gpu"])

    assert caught.value.what == f"{tmp_path / 'uv.lock'} does not have these extras and groups together"
    assert caught.value.next == f"name one of them only in [tool.kinetic] of {tmp_path / 'pyproject.toml'}"


def test_a_lock_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "theirs"\nversion = "1"\ndependencies = []\n')
    (tmp_path / "uv.lock").write_text("version = 'none'\n")

    with pytest.raises(ImageBuildError) as caught:
        uv.export_lock(tmp_path, [])

    assert caught.value.what == f"{tmp_path / 'uv.lock'} cannot be read"
    assert "uv.lock" in caught.value.why
    assert caught.value.next == f"cd {tmp_path} && uv lock"


JOB = """
    # /// script
    # requires-python = "PYTHON"
    # dependencies = ["roman==5.0"]
    # ///
    import os
    import sys
    import kinetic

    @kinetic.run(accelerator="cpu", capture_env_vars=["KERAS_BACKEND"])
    def look(year):
        import roman

        return roman.toRoman(year), sys.prefix, os.environ["KERAS_BACKEND"], os.environ["JAX_PLATFORMS"]

    if __name__ == "__main__":
        for _ in range(2):
            print(*look(2026))
"""


def test_jobs_run_in_an_environment_built_from_the_metadata_of_their_script(project, home, monkeypatch):
    monkeypatch.setenv("KINETIC_LOCAL_ENV", "isolated")
    monkeypatch.setenv("KINETIC_BASE_PACKAGES", "0")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    project.write("train.py", JOB.replace("PYTHON", ">=3.11"))

    done = project.run("train.py")

    assert done.returncode == 0, done.stderr
    (roman, prefix, *frameworks), other = (line.split() for line in done.stdout.splitlines())
    assert roman == "MMXXVI"
    assert frameworks == ["torch", "cpu"]  # what the user captured wins over what a cluster sets
    assert other == [roman, prefix, *frameworks]
    assert Path(prefix).is_relative_to(home)
    assert done.stderr.count("kinetic: building an environment for Python") == 1
    assert f"kinetic: uv:  + {LINE}" in done.stderr


def test_a_project_that_is_installed_on_the_client_finds_its_own_metadata_in_another_environment(
    project, tmp_path, monkeypatch
):
    monkeypatch.setenv("KINETIC_LOCAL_ENV", "isolated")
    monkeypatch.setenv("KINETIC_BASE_PACKAGES", "0")
    pyproject = '[project]\nname = "my.theirs"\ndynamic = ["version"]\ndependencies = []\n'
    for name, place in (("my_theirs-1.5", ""), ("Member-2", "packages/a%20member"), ("other-3", "../other")):
        about = tmp_path / "site-packages" / f"{name}.dist-info"
        about.mkdir(parents=True)
        fields = "Metadata-Version: 2.1\nName: {}\nVersion: {}\n".format(*name.split("-"))
        (about / "METADATA").write_text(f"{fields}\nA long description.\n")
        (about / "entry_points.txt").write_text(f"[theirs.plugins]\n{name.split('-')[0]} = theirs.plugin:Plugin\n")
        if place:
            page = {"url": f"file://{project.root}/{place}", "dir_info": {"editable": True}}
            (about / "direct_url.json").write_text(json.dumps(page))
    project.write("pyproject.toml", pyproject)
    project.write(
        "src/theirs/__init__.py", "from importlib.metadata import version\n__version__ = version('my-theirs')"
    )
    project.write("src/theirs/plugin.py", "class Plugin:\n    pass\n")
    project.write(
        "src/theirs/train.py",
        """
        import sys
        from importlib.metadata import entry_points
        import kinetic
        from theirs import __version__

        @kinetic.run(accelerator="cpu")
        def look():
            found = entry_points(group="theirs.plugins")
            return __version__, sorted(each.name for each in found), {each.load().__name__ for each in found}

        if __name__ == "__main__":
            print(look())
        """,
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site-packages"), str(project.root / "src")]))

    done = project.run("src/theirs/train.py")
    words = ["-m", "kinetic", "run", "--", "python", "-c", "import theirs; print(theirs.__version__)"]
    command = project.execute(sys.executable, *words)

    assert done.stdout == "('1.5', ['Member', 'my_theirs'], {'Plugin'})\n", done.stderr
    assert command.stdout == "1.5\n", command.stderr


def test_a_package_that_the_file_does_not_name_is_told_before_the_job_lacks_it(project, tmp_path, monkeypatch):
    monkeypatch.setenv("KINETIC_LOCAL_ENV", "isolated")
    monkeypatch.setenv("KINETIC_BASE_PACKAGES", "0")
    installed = tmp_path / "site-packages"
    for file, text in {
        "pixels/__init__.py": "",
        "image_tools-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: image-tools\nVersion: 1\n",
        "image_tools-1.dist-info/RECORD": "pixels/__init__.py,,\n",
    }.items():
        (installed / file).parent.mkdir(parents=True, exist_ok=True)
        (installed / file).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(installed))
    project.write("requirements.txt", "")
    project.write(
        "train.py",
        """
        import kinetic
        import pixels

        @kinetic.run(accelerator="cpu")
        def look():
            return pixels.__name__

        if __name__ == "__main__":
            look()
        """,
    )

    done = project.run("train.py")

    file = project.root / "requirements.txt"
    assert (
        "kinetic: warning: the environment of the job will lack what is installed here: pixels (imported by look)\n"
        f"why:   {file} does not bring image-tools\nnext:  add image-tools to {file}\n"
    ) in done.stderr
    assert "look did not begin: ModuleNotFoundError: No module named 'pixels' [runner]" in done.stderr
    assert "next:  name its package in requirements.txt or pyproject.toml" in done.stderr


def test_the_record_of_a_job_names_its_lock(project, monkeypatch):
    monkeypatch.setenv("KINETIC_LOCAL_ENV", "isolated")
    monkeypatch.setenv("KINETIC_BASE_PACKAGES", "0")
    submitting = JOB.replace("PYTHON", ">=3.11").replace("print(*look(2026))", "look.run_async(2026)")
    project.write("train.py", submitting.replace("range(2)", "range(1)"))

    done = project.run("train.py")
    shown = subprocess.run([*KINETIC, "jobs", "show", "@last"], capture_output=True, text=True, check=True)
    page = subprocess.run([*KINETIC, "jobs", "show", "@last", "--json"], capture_output=True, text=True, check=True)

    assert done.returncode == 0, done.stderr
    assert "1 package, with roman 5.0" in shown.stdout
    lock = json.loads(page.stdout)["job"]["lock"]
    assert (lock["packages"], lock["named"]) == ({"roman": "5.0"}, ["roman"])
    assert "sha256" in lock["pylock"]


def test_a_project_that_declares_nothing_finds_jax_and_keras_in_its_environment(project, monkeypatch):
    monkeypatch.setenv("KINETIC_LOCAL_ENV", "isolated")
    project.write("train.py", ALONE)

    done = project.run("train.py")

    assert done.stdout == "jax True\n", done.stderr
    assert "base packages: jax, keras\n" in done.stderr


ALONE = """
    import kinetic

    @kinetic.run(accelerator="tpu-v5e-1")
    def look():
        import keras, sys
        return keras.backend.backend(), sys.prefix != sys.base_prefix

    if __name__ == "__main__":
        print(*look())
"""


def test_a_script_that_wants_another_python_is_refused_before_anything_is_built(project, home, monkeypatch):
    monkeypatch.setenv("KINETIC_LOCAL_ENV", "isolated")
    project.write("train.py", JOB.replace("PYTHON", ">=3.99"))

    done = project.run("train.py")

    ours = done.stderr[done.stderr.rindex("kinetic.errors.") :].splitlines()
    assert done.returncode == 1
    assert f"train.py wants Python >=3.99, and the job would run in Python {python_runtime.python_version()}" in ours[0]
    assert [line.split(":")[0] for line in ours[1:]] == ["why", "next", "where"]
    assert not [*home.glob("run/*/environments")]
    assert not [*home.glob("store/cpu-*")]
