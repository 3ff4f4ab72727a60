"""Images of real wheels in a real registry: built, found again, changed by one package, unpacked and run."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import pickle
import platform
import random
import subprocess
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from servers.registry import anonymous

from kinetic._images import bytecode, image, layers, verify
from kinetic._images.container_registry import Registry
from kinetic._images.image import ImageBuilder
from kinetic._images.layers import Wheel
from kinetic._images.lock import Platform
from kinetic._images.wheels import WheelCache
from kinetic.errors import AccessDeniedError, ImageBuildError

pytestmark = pytest.mark.timeout(180)  # the first test builds the registry
PYTHON = ".".join(platform.python_version_tuple()[:2])
PLATFORM = Platform(PYTHON, "x86_64", "2_36")


def unpacked(registry: Registry, uri: str, folder: Path) -> Path:
    """Unpack all layers of an image, one above the other, as a container runtime does."""
    page, _ = registry.read_manifest(uri.partition("@")[2])
    config = json.loads(registry.small_blob(page["config"]["digest"]))
    for entry, diff_id in zip(page["layers"], config["rootfs"]["diff_ids"], strict=True):
        sink = io.BytesIO()
        registry.read_blob(entry["digest"], sink)
        done = subprocess.run(["gzip", "-dc"], input=sink.getvalue(), capture_output=True, check=True)
        assert f"sha256:{hashlib.sha256(done.stdout).hexdigest()}" == diff_id
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(folder, filter="tar")
    return folder


def test_an_image_has_its_base_its_wheels_their_programs_and_bytecode(
    registry, base, cache, wheel, tmp_path, lock_of
) -> None:
    lock = lock_of(wheel("alpha", **{"alpha/__init__.py": "def main():\n    print('alpha runs')\n", "alpha/x.txt": "x",
                                     "entry": "[console_scripts]\nalpha = alpha:main\n"}), wheel("beta"))  # fmt: skip

    built = ImageBuilder(registry, cache).build(lock, base, registry)

    root = unpacked(registry, built.uri, tmp_path / "root")
    packages = root / layers.PREFIX / "lib" / f"python{PYTHON}" / "site-packages"
    assert (root / "etc/base").read_text() == "base"
    assert (packages / "beta.py").read_text() == "VERSION = '1.0'\n"
    assert (packages / "__pycache__" / f"beta.{sys.implementation.cache_tag}.pyc").exists()
    assert (root / layers.PREFIX / "bin/alpha").stat().st_mode & 0o111
    assert json.loads((root / image.LOCK_FILE).read_text())["wheels"][0]["name"] == "alpha"
    code = f"""
import sys; sys.path.insert(0, {str(packages)!r})
import alpha, importlib.metadata
alpha.main()
print(alpha.__spec__.cached, importlib.metadata.version("beta"))
"""
    found = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[0] == "alpha runs"
    assert found.stdout.splitlines()[1].endswith(f"alpha/__pycache__/__init__.{sys.implementation.cache_tag}.pyc 1.0")


def test_an_image_that_is_there_costs_one_request_and_no_wheel(registry, base, cache, wheel, lock_of) -> None:
    lock = lock_of(wheel("alpha"))
    first = ImageBuilder(registry, cache).build(lock, base, registry)
    before = registry.requests

    again = ImageBuilder(registry, WheelCache(cache.folder / "none", {})).build(lock, base, registry)

    assert again.uri == first.uri
    assert (again.sent_bytes, again.built_layers) == (0, 0)
    assert registry.requests - before == 1


def test_another_machine_builds_an_image_with_the_same_layers_of_wheels(
    registry, base, cache, wheel, tmp_path, lock_of
) -> None:
    lock = lock_of(wheel("alpha"), wheel("beta"))
    ImageBuilder(registry, cache).build(lock, base, registry)
    wheels = [part for part in image.parts_of(lock, base) if part.kind == "wheels"]
    digests = [registry.read_manifest(f"layer-{part.key}")[0]["layers"][0]["digest"] for part in wheels]

    with Registry(registry.host, f"{registry.name}-elsewhere", anonymous) as other:
        ImageBuilder(other, WheelCache(tmp_path / "elsewhere", {})).build(lock, base, registry)
        found = [other.read_manifest(f"layer-{part.key}")[0]["layers"][0]["digest"] for part in wheels]

    assert found == digests


def test_a_changed_package_sends_its_own_layers_and_fetches_its_own_wheel(
    registry, base, cache, wheel, lock_of
) -> None:
    names = [f"package{number}" for number in range(12)]
    large = wheel("large", **{"large.bin": bytes(range(256)) * 40_000, "large.py": ""})
    before = lock_of(large, *map(wheel, names))
    ImageBuilder(registry, cache).build(before, base, registry)
    after = lock_of(large, wheel("package0", "2.0"), *map(wheel, names[1:]))
    builder = ImageBuilder(registry, cache)

    kinds = sorted(part.kind for part in builder.missing(after, base))
    built = builder.build(after, base, registry)

    assert kinds == ["bytecode", "lock", "wheels"]
    assert built.built_layers == 3
    assert built.sent_bytes < 100_000


def test_a_build_that_was_killed_leaves_no_tag_and_the_next_one_sends_what_is_missing(
    registry, base, cache, wheel, monkeypatch, lock_of
) -> None:
    lock = lock_of(wheel("alpha"), wheel("beta"))
    builder = ImageBuilder(registry, cache)
    monkeypatch.setattr(builder, "_put_image", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        builder.build(lock, base, registry)

    assert builder.find(lock, base) is None
    monkeypatch.undo()
    built = builder.build(lock, base, registry)
    assert (built.sent_bytes, built.built_layers) == (0, 0)


def test_bytecode_of_the_base_is_added_by_clients_with_its_very_python_and_used_by_all(
    registry, base, cache, wheel, lock_of, tmp_path, monkeypatch
) -> None:
    release = {"Env": [f"PYTHON_VERSION={platform.python_version()}"]}
    base = dataclasses.replace(base, config=base.config | release)
    first = ImageBuilder(registry, cache).build(lock_of(wheel("alpha")), base, registry)
    root = unpacked(registry, first.uri, tmp_path / "root")
    monkeypatch.setattr(image.platform, "python_version", lambda: f"{PYTHON}.99")
    other = ImageBuilder(registry, cache).build(lock_of(wheel("beta")), base, registry)

    compiled = f"usr/local/lib/python{PYTHON}/json/__pycache__/decoder.{sys.implementation.cache_tag}.pyc"
    assert (root / compiled).read_bytes()[4] == 3  # compared with its source, by hash
    assert not [*root.rglob("test_*.pyc")]
    kinds = [registry.read_manifest(each.uri.partition("@")[2])[0]["layers"][1]["digest"] for each in (first, other)]
    assert kinds[0] == kinds[1]
    states = [each.contents for each in verify.verify(registry, other.uri.partition("@")[2], cache)]
    assert states[:3] == ["base image", "bytecode of the base image", "the environment"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], "/usr/local/nvidia/lib64"),
        (["LD_LIBRARY_PATH=/usr/local/cuda/lib64"], "/usr/local/cuda/lib64:/usr/local/nvidia/lib64"),
        (["LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/a"], "/a:/usr/local/nvidia/lib64"),
    ],
)
def test_programs_in_the_image_find_the_driver_of_a_gpu_where_gke_mounts_it(
    registry, base, cache, wheel, lock_of, given, expected
) -> None:
    base = dataclasses.replace(base, config=base.config | {"Env": [*base.config.get("Env", ()), *given]})

    built = ImageBuilder(registry, cache).build(lock_of(wheel("alpha")), base, registry)

    page, _ = registry.read_manifest(built.uri.partition("@")[2])
    config = json.loads(registry.small_blob(page["config"]["digest"]))["config"]
    assert dict(line.split("=", 1) for line in config["Env"])["LD_LIBRARY_PATH"] == expected


def test_a_client_with_another_python_builds_without_bytecode_of_the_base(
    registry, base, cache, wheel, lock_of
) -> None:
    base = dataclasses.replace(base, config=base.config | {"Env": [f"PYTHON_VERSION={PYTHON}.99"]})
    builder = ImageBuilder(registry, cache)
    lock = lock_of(wheel("alpha"))

    built = builder.build(lock, base, registry)

    assert "library" in {part.kind for part in image.parts_of(lock, base)}
    assert built.built_layers == len(image.parts_of(lock, base)) - 1
    assert builder.missing(lock, base) == []


def test_no_layer_is_empty_and_no_two_are_equal(registry, base, cache, wheel, lock_of) -> None:
    nothing_to_compile = [wheel(f"data{number}", **{f"data{number}.txt": "same"}) for number in range(24)]

    built = ImageBuilder(registry, cache).build(lock_of(*nothing_to_compile), base, registry)

    page, _ = registry.read_manifest(built.uri.partition("@")[2])
    config = json.loads(registry.small_blob(page["config"]["digest"]))
    diff_ids = config["rootfs"]["diff_ids"]
    assert len(set(diff_ids)) == len(diff_ids) == len(page["layers"])
    assert config["config"]["Labels"][image.KINDS_LABEL].split() == [
        "base",
        "environment",
        *["wheels"] * layers.SHARED_LAYERS,
        "lock",
    ]


def test_a_large_set_of_wheels_stays_below_sixty_layers_heavy_ones_first(base, lock_of) -> None:
    wheels = [Wheel(f"w{n}", "1", "", f"{n:064}", 100_000 * n, "") for n in range(300)]

    parts = image.parts_of(lock_of(*wheels), dataclasses.replace(base, config={"Env": [f"PYTHON_VERSION={PYTHON}.1"]}))

    assert len(parts) <= 61
    assert [part.kind for part in parts[:3]] == ["library", "environment", "wheels"]
    assert [part.wheels[0].name for part in parts[2:4]] == ["w299", "w298"]


def test_a_small_package_that_changes_leaves_every_layer_of_large_ones_where_a_node_has_it(base, lock_of) -> None:
    large = [Wheel(f"large{n}", "1", "", f"{n:064}", 10_000_000 + n, "") for n in range(5)]
    small = [Wheel(f"small{n}", "1", "", f"{n + 100:064}", 1000, "") for n in range(30)]
    changed = dataclasses.replace(small[0], sha256="f" * 64)

    before = [part.key for part in image.parts_of(lock_of(*large, *small), base)]
    after = [part.key for part in image.parts_of(lock_of(*large, changed, *small[1:]), base)]

    same = next(number for number, keys in enumerate(zip(before, after, strict=True)) if len(set(keys)) > 1)
    kept = image.parts_of(lock_of(*large, *small), base)[:same]
    assert {wheel.name for part in kept if part.kind == "bytecode" for wheel in part.wheels} == {w.name for w in large}


def test_all_bytecode_may_be_compiled_before_the_first_layer_is_sent(
    registry, base, cache, wheel, lock_of, monkeypatch
) -> None:
    """Neither may wait for the other: places for layers that are sent are not taken by a compiler."""
    lock = lock_of(*(wheel(f"package{number}") for number in range(12)))
    left, all_began = [len(layers.group_for_bytecode(lock.wheels))], threading.Event()
    compile_wheels, put_blob = bytecode.compile_wheels, Registry.put_blob

    def note(*words: Any) -> None:
        left[0] -= 1
        if not left[0]:
            all_began.set()
        compile_wheels(*words)

    def wait(*words: Any, **more: Any) -> bool:
        assert all_began.wait(60)
        return put_blob(*words, **more)

    monkeypatch.setattr(bytecode, "compile_wheels", note)
    monkeypatch.setattr(Registry, "put_blob", wait)

    built = ImageBuilder(registry, cache).build(lock, base, registry)

    assert left == [0]
    assert built.built_layers > image.SIDE_BY_SIDE


def test_two_clients_that_build_at_once_make_one_image(registry, base, wheel, lock_of, tmp_path) -> None:
    lock = lock_of(*(wheel(f"package{number}") for number in range(10)))
    together = threading.Barrier(2)

    def build(number: int) -> str:
        with Registry(registry.host, registry.name, anonymous) as own:
            builder = ImageBuilder(own, WheelCache(tmp_path / f"client{number}", {}))
            assert builder.find(lock, base) is None
            together.wait()
            return builder.build(lock, base, own).uri

    with ThreadPoolExecutor(2) as pool:
        uris = list(pool.map(build, range(2)))

    assert uris[0] == uris[1]
    assert {
        state.state for state in verify.verify(registry, uris[0].partition("@")[2], WheelCache(tmp_path / "v", {}))
    } == {
        "verified",
        "unverifiable",
    }


def test_a_build_that_fails_ends_what_it_began(registry, base, cache, wheel, lock_of, monkeypatch) -> None:
    broken = wheel("broken")
    lock = lock_of(wheel("alpha"), dataclasses.replace(broken, url=broken.url.replace("broken", "absent")))
    before = {*threading.enumerate()}  # of other tests

    with pytest.raises(ImageBuildError, match="could not be fetched"):
        ImageBuilder(registry, cache).build(lock, base, registry)

    assert not [each for each in threading.enumerate() if each.name.startswith("kinetic-") and each not in before]
    assert {file.suffix for file in cache.folder.iterdir()} <= {".whl", ".zip"}


def test_a_wheel_that_lost_its_bytes_with_the_power_is_fetched_again(cache, wheel, index) -> None:
    locked = wheel("alpha")
    cache.fetch([locked])
    cache.path_of(locked).write_bytes(b"")

    cache.fetch([locked])

    assert cache.path_of(locked).stat().st_size == locked.size_bytes


def test_what_a_killed_build_left_is_removed_a_day_later(cache, wheel) -> None:
    cache.fetch([wheel("alpha")])
    left = [cache.folder / "kinetic-layer-1", cache.folder / f"{'0' * 64}.whl.ab", cache.folder / f"{'0' * 64}.zip.9"]
    left[0].mkdir()
    (left[0] / "layer").write_bytes(b"x")
    for each in left:
        each.touch()
        os.utime(each, (0, 0))

    cache.fetch([wheel("beta")])

    assert len([*cache.folder.iterdir()]) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
@pytest.mark.parametrize("size", ["100k", "5m"])  # too small for the wheel, and for its layer
def test_a_full_disk_is_said_and_nothing_half_written_is_believed_later(
    registry, base, wheel, lock_of, tmp_path, size: str
) -> None:
    large = wheel("large", **{"large.bin": random.Random(7).randbytes(3_000_000)})
    lock = lock_of(large)
    (tmp_path / "disk").mkdir()
    code = f"""
import pickle, sys
from pathlib import Path
from typing import Any
from kinetic._images.image import ImageBuilder
from kinetic._images.container_registry import Login, Registry
from kinetic._images.wheels import WheelCache
from kinetic.errors import ImageBuildError
lock, base = pickle.load(sys.stdin.buffer)
cache = WheelCache(Path({str(tmp_path / "disk")!r}), {{}}, sleep=lambda _: None)
registry = Registry({registry.host!r}, {registry.name!r}, lambda again: Login())
try:
    ImageBuilder(registry, cache).build(lock, base, registry)
except ImageBuildError as error:
    print(error.code, len(cache.missing(lock.wheels)), sorted(file.suffix for file in cache.folder.iterdir()))
    print(error.what, "|", error.why, "|", error.next)
"""
    shell = f'mount -t tmpfs -o size={size} none "$1" && exec "$2" -c "$3"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", shell, "sh", str(tmp_path / "disk"), sys.executable, code],
        input=pickle.dumps((lock, base)),
        capture_output=True,
        check=False,
    )
    if b"unshare" in done.stderr or b"mount:" in done.stderr:
        pytest.skip(f"no disk can be mounted here: {done.stderr.decode()}")

    assert not done.stderr
    first, second = done.stdout.decode().splitlines()
    assert first == {"100k": "wheel-cache-full 1 []", "5m": "wheel-cache-full 0 ['.whl', '.zip']"}[size]
    assert "the disk is full" in second
    assert "df -h" in second
    assert ImageBuilder(registry, WheelCache(tmp_path / "room", {})).build(lock, base, registry).sent_bytes > 3_000_000


def test_a_wheel_that_is_not_the_one_of_the_lock_is_refused(registry, base, cache, wheel, lock_of) -> None:
    good = wheel("alpha")
    other = wheel("beta")

    with pytest.raises(ImageBuildError, match="could not be fetched") as caught:
        ImageBuilder(registry, cache).build(
            lock_of(Wheel(*{**good.__dict__, "url": other.url}.values())), base, registry
        )

    assert "do not have the hash of the lock" in str(caught.value)


def test_a_wheel_behind_a_login_names_the_ways_to_log_in(cache, wheel, index) -> None:
    locked = wheel("alpha")
    index.login = ("ann", "secret")

    with pytest.raises(AccessDeniedError, match="wants a login"):
        cache.fetch([locked])

    netrc = cache.folder.parent / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password secret\n")
    WheelCache(cache.folder, {"NETRC": str(netrc)}).fetch([locked])
    assert cache.path_of(locked).exists()


def test_a_small_change_on_a_machine_without_wheels_fetches_no_heavy_one(
    registry, base, cache, wheel, lock_of, index, tmp_path
) -> None:
    blob = random.Random(1).randbytes(layers.OWN_LAYER_BYTES + 1)
    heavy = [wheel(f"heavy{n}", **{f"heavy{n}.bin": blob + bytes([n]), f"heavy{n}.py": "x = 1"}) for n in range(3)]
    small = [wheel(f"small{n}") for n in range(4)]
    ImageBuilder(registry, cache).build(lock_of(*heavy, *small), base, registry)
    index.asked.clear()

    built = ImageBuilder(registry, WheelCache(tmp_path / "empty", {})).build(
        lock_of(*heavy, *small, wheel("added")), base, registry
    )

    assert not [path for path in index.asked if "heavy" in path]
    assert built.sent_bytes < 100_000
