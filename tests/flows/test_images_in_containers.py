"""What was pushed runs in real containers: a runtime pulls it, and its Python finds what the wheels bring."""

from __future__ import annotations

import json
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers import podman, python_base
from servers.image_fixtures import cache, index, lock_of, registry_address, wheel
from servers.registry import anonymous

from kinetic._images import layers, verify
from kinetic._images.base_image import BaseImage
from kinetic._images.container_registry import Registry
from kinetic._images.image import ImageBuilder
from kinetic._images.layers import Wheel
from kinetic._images.wheels import WheelCache

__all__ = ["cache", "index", "lock_of", "registry_address", "wheel"]

pytestmark = pytest.mark.timeout(600)  # the first run fetches a runtime and builds a registry
PYTHON = ".".join(platform.python_version_tuple()[:2])
TAG = sys.implementation.cache_tag
LOOK = """
import importlib.metadata as metadata, json, os, shutil, subprocess, sys
import alpha, json.decoder, spaces.one, spaces.two, twin
said = lambda name: subprocess.run([name], capture_output=True, text=True, check=True).stdout.strip()
pyc = lambda module: open(module.__spec__.cached, "rb").read(8)[4]
print(json.dumps({
    "version": sys.version.split()[0],
    "prefix": sys.prefix,
    "base": sys.base_prefix,
    "environment": {name: os.environ.get(name) for name in ("VIRTUAL_ENV", "KERAS_BACKEND", "LANG")},
    "programs": [said("alpha"), said("alpha-window"), said("run-alpha")],
    "where": shutil.which("alpha"),
    "metadata": [metadata.version("alpha"), metadata.version("one"), metadata.version("two")],
    "entries": sorted(entry.name for entry in metadata.entry_points(group="console_scripts")),
    "files": sorted(str(file) for file in metadata.files("alpha") if file.suffix == ".txt"),
    "namespace": [spaces.one.NAME, spaces.two.NAME, len(spaces.__path__)],
    "data": open(sys.prefix + "/share/alpha/table.txt").read(),
    "header": os.path.exists(f"{sys.prefix}/include/site/python3.{sys.version_info[1]}/alpha/alpha.h"),
    "pure": __import__("pure_alpha").NAME,
    "twin": twin.NAME,
    "bytecode": [pyc(alpha), pyc(json.decoder)],
    "executable": sys.executable,
}))
"""
SCRIPT = "#!python\nimport alpha, sys\nprint('script', sys.prefix == sys.base_prefix)\n"


@pytest.fixture(scope="session")
def runtime(registry_address: str) -> Iterator[podman.Podman]:
    if why := podman.unavailable():
        pytest.skip(f"no container can run here: {why}")
    # A short path: in the longer one of a process of xdist, podman waited 20 s for each container all the same.
    with tempfile.TemporaryDirectory() as folder:
        yield podman.Podman(Path(folder), [registry_address])


@pytest.fixture(scope="module")
def registry(registry_address: str) -> Iterator[Registry]:
    with Registry(registry_address, "team/containers", anonymous) as opened:
        yield opened


@pytest.fixture(scope="module")
def base(registry: Registry) -> BaseImage:
    return python_base.push(registry)


@pytest.fixture
def wheels(wheel: Callable[..., Wheel]) -> list[Wheel]:
    main = "import sys\ndef main():\n    print('alpha in', sys.prefix)\ndef window():\n    print('a window')\n"
    return [
        wheel(
            "alpha",
            "1.5",
            **{
                "alpha/__init__.py": main,
                "alpha/data.txt": "inside",
                "alpha-1.5.data/scripts/run-alpha": SCRIPT,
                "alpha-1.5.data/data/share/alpha/table.txt": "a table",
                "alpha-1.5.data/headers/alpha.h": "int alpha;",
                "alpha-1.5.data/purelib/pure_alpha.py": "NAME = 'pure'\n",
                "entry": "[console_scripts]\nalpha = alpha:main\n[gui_scripts]\nalpha-window = alpha:window\n",
            },
        ),
        wheel("one", "2.0", **{"spaces/one.py": "NAME = 1\n", "twin.py": "NAME = 'of one'\n"}),
        wheel("two", "3.0", **{"spaces/two.py": "NAME = 2\n", "twin.py": "NAME = 'of two'\n"}),
    ]


def test_a_container_of_an_image_has_what_its_wheels_install(
    runtime: podman.Podman, registry: Registry, base: BaseImage, cache, wheels, lock_of
) -> None:
    plain = f"{registry.host}/{registry.name}@{base.digest}"
    assert runtime.pull(plain).returncode == 0
    first = runtime.run(plain, f"python{PYTHON}", "-c", "print('runs')")
    if first.stdout.strip() != "runs":
        pytest.skip(f"podman cannot run containers here: {first.stderr.strip()[-500:]}")

    built = ImageBuilder(registry, cache).build(lock_of(*wheels), base, registry)
    pulled = runtime.pull(built.uri)
    done = runtime.run(built.uri, "python", "-c", LOOK)

    assert pulled.returncode == 0, pulled.stderr
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    prefix = f"/{layers.PREFIX}"
    assert found == {
        "version": platform.python_version(),
        "prefix": prefix,
        "base": "/usr/local",
        "environment": {"VIRTUAL_ENV": prefix, "KERAS_BACKEND": "jax", "LANG": "C.UTF-8"},
        "programs": [f"alpha in {prefix}", "a window", "script False"],
        "where": f"{prefix}/bin/alpha",
        "metadata": ["1.5", "2.0", "3.0"],
        "entries": ["alpha"],
        "files": [
            "../../../share/alpha/table.txt",
            "alpha-1.5.dist-info/entry_points.txt",
            "alpha/data.txt",
        ],
        "namespace": [1, 2, 1],
        "data": "a table",
        "header": True,
        "pure": "pure",
        "twin": f"of {dict(built.conflicts)[f'{layers.PREFIX}/lib/python{PYTHON}/site-packages/twin.py']}",
        "bytecode": [1, 3],  # the wheel's is never compared with its source, the base's is
        "executable": f"{prefix}/bin/python",
    }


def test_a_container_of_a_changed_image_has_the_new_version_and_an_image_says_what_is_in_it(
    runtime: podman.Podman, registry: Registry, base: BaseImage, cache, wheel, lock_of, tmp_path: Path
) -> None:
    other = wheel("other")
    ImageBuilder(registry, cache).build(lock_of(wheel("alpha", "1.0"), other), base, registry)
    built = ImageBuilder(registry, cache).build(lock_of(wheel("alpha", "2.0"), other), base, registry)
    runtime.pull(built.uri)

    done = runtime.run(built.uri, "python", "-c", "import alpha, other; print(alpha.VERSION, other.VERSION)")
    if not done.stdout and "OCI" in done.stderr:
        pytest.skip(f"podman cannot run containers here: {done.stderr.strip()[-500:]}")

    assert done.stdout.split() == ["2.0", "1.0"], done.stderr
    digest = built.uri.partition("@")[2]
    states = {each.state for each in verify.verify(registry, digest, WheelCache(tmp_path / "verify", {}))}
    assert states == {"verified", "unverifiable"}
