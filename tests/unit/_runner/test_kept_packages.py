"""What a warm pod keeps of packages: a view in which other versions are, and nothing that the task did not ask for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from servers.image_fixtures import index
from servers.wheels import Index, made_wheel, wheel_of

from kinetic._images import lock_difference, stored_layers
from kinetic._images.layers import Wheel
from kinetic._images.lock import Lock, Platform
from kinetic._images.lock_store import Locked
from kinetic._runner.pod import kept_packages
from kinetic._stores.files import FileStore
from kinetic._wire import failpoints, python_runtime
from kinetic._wire.order import Artifact

__all__ = ["index"]
HERE = Platform(f"{sys.version_info[0]}.{sys.version_info[1]}", "x86_64", "2_36")
LOOK = """
import importlib, importlib.metadata, json, os, pathlib, subprocess, sys
from kinetic._runner.pod import kept_packages
from kinetic._stores.files import FileStore
kept_packages._MOST_BYTES = int(sys.argv[4])
kept_packages.provide(FileStore(sys.argv[1]), json.loads(sys.argv[2]), pathlib.Path(sys.argv[3], "task"))
found = {}
for name in ("alpha", "beta", "space.one", "space.two"):
    try:
        found[name] = importlib.import_module(name).VERSION
    except ModuleNotFoundError:
        found[name] = None
names = ("alpha", "beta", "one", "two")
distributions = (each for each in importlib.metadata.distributions() if each.name in names)
found["installed"] = sorted(f"{each.name} {each.version}" for each in distributions)
child = "import alpha, os; print(alpha.VERSION)"
found["child"] = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout.strip()
print(json.dumps(found))
"""


class Pod:
    """The folder of a warm pod, with a store of wheels' layers; each task is an interpreter of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder / "pod", folder / "store"
        self.environ = {"KINETIC_HOME": str(folder / "home")}
        self.said = ""
        (self.folder / "task").mkdir(parents=True)

    @property
    def packages(self) -> Path:
        return self.folder / "packages"

    def all_of(self, *wheels: Wheel) -> dict[str, Any]:
        """Return what the task of a pod has whose own packages these are."""
        listed = stored_layers.ensure(Lock(HERE, wheels, (), ""), FileStore(self.store), self.environ)
        return {"layers": asdict(Artifact.within(stored_layers.page_of(listed)))}

    def difference(self, before: tuple[Wheel, ...], after: tuple[Wheel, ...]) -> dict[str, Any]:
        old, new = (Locked(Lock(HERE, wheels, (), "")) for wheels in (before, after))
        found = lock_difference.between(old, new, "cpu")
        below = self.all_of(*before)
        return lock_difference.requirements_of(found, new.lock, below, FileStore(self.store), self.environ)

    def run(self, requirements: dict[str, Any], code: int = 0, most: int = 1 << 30, **environ: str) -> Any:
        words = [sys.executable, "-c", LOOK, str(self.store), json.dumps(requirements), str(self.folder), str(most)]
        done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **environ}, check=False)
        assert done.returncode == code, done.stderr
        *said, last = done.stdout.splitlines() or [""]
        self.said = "\n".join(said)
        return json.loads(last) if last.startswith("{") else None


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


@pytest.fixture
def made(tmp_path: Path, index: Index) -> Callable[..., Wheel]:
    def make(name: str, version: str, files: dict[str, str]) -> Wheel:
        file = made_wheel(tmp_path / "index", name, version, files)
        return replace(wheel_of(file), url=index(file))

    return make


@pytest.fixture
def before(made: Callable[..., Wheel]) -> tuple[Wheel, ...]:
    return (
        made("alpha", "1.0", {"alpha.py": "VERSION = 'one'\n"}),
        made(
            "beta", "1.0", {"beta/__init__.py": "from beta.inner import VERSION\n", "beta/inner.py": "VERSION = 'b'\n"}
        ),
        made("one", "1.0", {"space/one/__init__.py": "VERSION = '1'\n"}),
    )


@pytest.fixture
def after(made: Callable[..., Wheel], before: tuple[Wheel, ...]) -> tuple[Wheel, ...]:
    changed = made("alpha", "2.0", {"alpha.py": "VERSION = 'two'\n"})
    return changed, before[2], made("two", "1.0", {"space/two/__init__.py": "VERSION = '2'\n"})


FIRST = {"alpha": "one", "beta": "b", "space.one": "1", "space.two": None, "child": "one"}
FIRST["installed"] = ["alpha 1.0", "beta 1.0", "one 1.0"]  # type: ignore[assignment]
SECOND = {"alpha": "two", "beta": None, "space.one": "1", "space.two": "2", "child": "two"}
SECOND["installed"] = ["alpha 2.0", "one 1.0", "two 1.0"]  # type: ignore[assignment]


def test_a_difference_replaces_adds_and_hides_and_the_first_environment_stays_what_it_was(
    pod: Pod, before: tuple[Wheel, ...], after: tuple[Wheel, ...]
) -> None:
    first, second = pod.all_of(*before), pod.difference(before, after)

    assert pod.run(first) == FIRST
    assert pod.run(second) == SECOND
    assert "installed what this warm pod lacks in" in pod.said
    assert pod.run(first) == FIRST
    stamps = [kept_packages.stamps(each) for each in sorted(pod.packages.iterdir())]
    assert pod.run(second) == SECOND
    assert "kept from a task before" in pod.said
    assert [kept_packages.stamps(each) for each in sorted(pod.packages.iterdir())] == stamps
    assert all(made == now for made, now in stamps)
    (pod.packages / kept_packages.name_of(second) / "site-packages" / "alpha.py").unlink()
    assert [made == now for made, now in map(kept_packages.stamps, pod.packages.iterdir())].count(False) == 1


def test_a_lock_that_the_environment_satisfies_is_a_view_of_it(pod: Pod, before: tuple[Wheel, ...]) -> None:
    found = pod.run(pod.difference(before, before[:1] + before[2:]))

    assert found == {**FIRST, "beta": None, "installed": ["alpha 1.0", "one 1.0"]}
    assert "without beta" in pod.said


@pytest.mark.nightly
def test_a_kill_while_a_difference_is_installed_leaves_nothing_half(
    pod: Pod, before: tuple[Wheel, ...], after: tuple[Wheel, ...], tmp_path: Path
) -> None:
    first, second = pod.all_of(*before), pod.difference(before, after)
    pod.run(first)

    pod.run(second, -signal.SIGKILL, **{failpoints.VARIABLE: f"worker:packages-made@{tmp_path / 'died'}"})
    left = [kept_packages.is_complete(each) for each in sorted(pod.packages.iterdir())]
    again = pod.run(second)
    kept_packages.drop_unfinished(pod.packages)

    assert sorted(left) == [False, True]
    assert again == SECOND
    assert len(list(pod.packages.iterdir())) == 2
    assert pod.run(first) == FIRST


@pytest.mark.nightly
def test_a_layer_whose_bytes_are_not_those_of_the_task_is_refused(
    pod: Pod, before: tuple[Wheel, ...], after: tuple[Wheel, ...]
) -> None:
    first, second = pod.all_of(*before), pod.difference(before, after)
    pod.run(first)
    for file in (pod.store / "data/layers").iterdir():
        if not file.name.startswith("of-"):
            data = file.read_bytes()
            file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    pod.run(second, 1)

    kept_packages.drop_unfinished(pod.packages)
    assert len(list(pod.packages.iterdir())) == 1


@pytest.mark.nightly
def test_what_was_used_longest_ago_makes_room_and_comes_back_when_it_is_wanted(
    pod: Pod, before: tuple[Wheel, ...], after: tuple[Wheel, ...], made: Callable[..., Wheel]
) -> None:
    other = made("alpha", "3.0", {"alpha.py": "VERSION = 'three'\n"})
    second, third = pod.difference(before, after), pod.difference(before, (other,))
    pod.run(second)

    found = pod.run(third, most=0)

    assert found["alpha"] == "three"
    assert {each.name for each in pod.packages.iterdir()} == {
        kept_packages.name_of(each) for each in (pod.all_of(*before), third)
    }
    assert pod.run(second) == SECOND


# -------------------------------------------------------------------------------------------- lines without a lock

VERSIONS = """
import importlib, importlib.metadata, json, pathlib, subprocess, sys
from kinetic._runner.pod import kept_packages
from kinetic._stores.files import FileStore
kept_packages.provide(FileStore(sys.argv[1]), json.loads(sys.argv[2]), pathlib.Path(sys.argv[3], "task"))
names = ("alpha", "beta", "gamma")
found = {}
for name in names:
    try:
        found[name] = [importlib.import_module(name).VERSION, importlib.metadata.version(name)]
    except ModuleNotFoundError:
        found[name] = None
child = "import importlib.util; print([name for name in ('alpha', 'beta', 'gamma') if importlib.util.find_spec(name)])"
found["child"] = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout.strip()
print(json.dumps(found))
"""


class Image:
    """The environment of an image, which only its own jobs change, and an index on this machine."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder, self.index, self.said = folder / "pod", index, ""
        self.python = folder / "image/bin/python"
        subprocess.run([_uv(), "venv", "--quiet", "--python", sys.executable, folder / "image"], check=True)
        (self.site,) = (folder / "image").glob("lib/python*/site-packages")
        (self.site / "ours.pth").write_text(f"{Path(kept_packages.__file__).parents[3]}\n")
        (self.folder / "task").mkdir(parents=True)

    def run(self, requirements: dict[str, Any], *, code: int = 0, url: str = "") -> Any:
        environ = os.environ | {"UV_DEFAULT_INDEX": url or self.index.simple, "UV_CACHE_DIR": f"{self.folder}/uv"}
        environ |= {"PATH": f"{Path(_uv()).parent}:{environ['PATH']}", "UV_HTTP_RETRIES": "0"}
        words = [self.python, "-c", VERSIONS, self.folder / "store", json.dumps(requirements), self.folder]
        done = subprocess.run(words, capture_output=True, text=True, env=environ, check=False)
        assert (done.returncode == 0) == (code == 0), done.stderr
        *said, last = done.stdout.splitlines() or [""]
        self.said = "\n".join(said) + done.stderr
        return json.loads(last) if last.startswith("{") else None

    def installed(self) -> list[str]:
        return sorted(each.name for each in self.site.glob("*.dist-info"))


def _uv() -> str:
    return str(python_runtime.find_installer())


def lines(*written: str) -> dict[str, Any]:
    return asdict(Artifact.within("".join(f"{line}\n" for line in written).encode()))


@pytest.fixture
def image(tmp_path: Path, index: Index) -> Image:
    wheels = tmp_path / "wheels"
    index(made_wheel(wheels, "alpha", "1.0", {"alpha.py": "VERSION = 'one'\n"}))
    index(made_wheel(wheels, "alpha", "2.0", {"alpha.py": "VERSION = 'two'\n"}))
    index(made_wheel(wheels, "beta", "1.0", {"beta.py": "VERSION = 'b'\n"}, needs="gamma"))
    index(made_wheel(wheels, "gamma", "1.0", {"gamma.py": "VERSION = 'g'\n"}))
    return Image(tmp_path, index)


ONE, TWO, BETA, GAMMA = ["one", "1.0"], ["two", "2.0"], ["b", "1.0"], ["g", "1.0"]


def test_lines_that_are_satisfied_ask_no_index_and_others_are_installed_beside_what_is_there(image: Image) -> None:
    own, more, other = lines("alpha==1.0"), {"lines": lines("alpha", "beta")}, {"lines": lines("alpha==2.0")}

    first = image.run(own)
    after_first, asked = image.installed(), len(image.index.asked)
    second = image.run({"lines": lines("alpha<2"), "like": own})
    assert (image.said, len(image.index.asked)) == ("", asked)
    third, third_said = image.run(more), image.said
    asked = len(image.index.asked)
    again = image.run(more)
    assert (image.said.strip(), len(image.index.asked)) == (
        "kinetic: beta 1.0, gamma 1.0: kept from a task before",
        asked,
    )
    fourth, fourth_said = image.run(other), image.said

    assert (first["alpha"], first["beta"]) == (ONE, None)
    assert second == first
    assert third == again == {"alpha": ONE, "beta": BETA, "gamma": GAMMA, "child": "['alpha', 'beta', 'gamma']"}
    assert "kinetic: installed what this warm pod lacks in" in third_said
    assert (fourth["alpha"], fourth["beta"]) == (TWO, None)
    assert "alpha 2.0 (was 1.0)" in fourth_said
    assert image.installed() == after_first == ["alpha-1.0.dist-info"]
    assert image.run(own) == first


def test_processes_of_a_task_see_nothing_that_its_lock_lacks_and_what_the_image_runs_first(image: Image) -> None:
    image.run(lines("alpha==1.0", "beta"))
    (image.site / "sitecustomize.py").write_text("import alpha; print('the own one of the image,', alpha.VERSION)\n")

    found = image.run({"layers": None, "hidden": ["beta"], "text": "without beta", "below": None})

    assert (found["alpha"], found["beta"], found["gamma"]) == (ONE, None, GAMMA)
    assert found["child"] == "the own one of the image, one\n['alpha', 'gamma']"


@pytest.mark.parametrize("begin", [(), ("alpha", "-c ")], ids=["requirement", "constraint"])
def test_hashes_of_lines_hold_for_what_is_installed_beside(image: Image, begin: tuple[str, ...]) -> None:
    image.run(lines("alpha==1.0"))
    *others, before = begin or [""]

    image.run({"lines": lines(*others, f"{before}alpha==2.0 --hash=sha256:{'0' * 64}")}, code=1)

    assert "Hash mismatch" in image.said
    assert image.installed() == ["alpha-1.0.dist-info"]


def test_lines_that_a_pod_that_was_started_again_does_not_satisfy_are_refused(image: Image) -> None:
    image.run({"lines": lines("beta"), "like": lines("alpha==1.0")}, code=1)

    assert "lacks packages that it had" in image.said
    assert image.installed() == ["alpha-1.0.dist-info"]


def test_what_is_kept_beside_an_environment_that_changed_is_made_again(image: Image) -> None:
    other = {"lines": lines("beta")}
    image.run(other)

    image.run(lines("alpha==1.0"))

    assert image.run(other)["alpha"] == ONE
    assert "installed what this warm pod lacks" in image.said


@pytest.mark.nightly
def test_an_index_that_is_away_leaves_nothing_half(image: Image) -> None:
    image.run(lines("alpha==1.0"))

    image.run({"lines": lines("beta")}, code=1, url="http://127.0.0.1:1/simple")
    kept_packages.drop_unfinished(image.folder / "packages")

    assert len(list((image.folder / "packages").iterdir())) == 1
    assert image.run({"lines": lines("beta")})["beta"] == BETA
