"""What images cost: found, changed by one package, built for the first time, pushed over slow lines, and imported.

The registry is a real one on this machine; lines of 20 and 100 Mbit/s are played by a proxy before it. Wheels are
made for it, of random bytes. With --real 1, the set of jax[tpu] comes from PyPI (0.5 GB), as a user would have it. With
--node 1, a job runs on a real node (`make node`), and is timed from submit to the first line of its function. With
--wait 1, the first job of three sets from PyPI: waiting for its image, beside installing at start.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from _measure import Bench, Sandbox, alternate, seconds_of

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from servers import python_base
from servers import registry as registry_server
from servers.registry import anonymous
from servers.registry_proxy import RegistryProxy, Rules
from servers.wheels import Index, made_wheel

from kinetic._images import bundled, layers, uv
from kinetic._images import lock as locks
from kinetic._images.container_registry import Registry
from kinetic._images.image import ImageBuilder
from kinetic._images.layers import Wheel
from kinetic._images.lock import Lock, Platform
from kinetic._images.lock_store import LockRequest
from kinetic._images.uplink import PATIENCE_SECONDS
from kinetic._images.wheels import WheelCache
from kinetic._stores.memory import MemoryStore

PYTHON = ".".join(platform.python_version_tuple()[:2])
HEAVY, SMALL = (40, 20, 10, 5), 30  # megabytes of the large wheels; how many small ones
TPU = ["jax[tpu]", "keras", "flax", "optax", "orbax-checkpoint", "grain", "datasets"]
IMPORTED = ["numpy", "jax", "keras", "scipy"]
SETS = {"small": ["einops", "rich", "tqdm"], "Keras": ["numpy", "jax", "keras"], "TPU": TPU}
PHASES = {
    "sent MB": "sent to the registry at 20 Mbit/s",
    "resolve s": "phases of the client: resolving, base image included",
    "fetch s": "fetching the wheel",
    "write s": "writing layers, from the first to the last",
    "send s": "sending layers, from the first to the last",
    "build s": "the whole image",
    "submit s": "until run_async returns",
    "cpu s": "CPU of the client until then, uv included",
    "schedule s": "until the pod has its node",
    "pull s": "phases of the node: pulling",
    "start s": "sandbox and container",
    "runner s": "from the first process to the first line",
}
FIRST = """
import json, os, pickle, sys, time
from pathlib import Path
from kinetic._images.image import ImageBuilder
from kinetic._images.container_registry import Login, Registry
from kinetic._images.wheels import WheelCache
host, name, source, folder, lock, base = pickle.load(sys.stdin.buffer)
begun = time.perf_counter()
target, source = (Registry(host, each, lambda again: Login()) for each in (name, source))
built = ImageBuilder(target, WheelCache(Path(folder))).build(lock, base, source)
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:")) * 1024 / 1e6
cpu = sum(os.times()[:4])
print(json.dumps([time.perf_counter() - begun, built.sent_bytes, peak, built.uri, cpu]))
"""


class First(NamedTuple):
    """How a first build went."""

    seconds: float
    sent: int  # bytes
    peak: float  # of its memory, in MB
    uri: str
    cpu: float  # seconds, its compilers included


class Place:
    """A registry with a base image, a proxy for each line, and an index of made wheels."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address = folder, address
        self.lines = {each: RegistryProxy(address, Rules(megabits=each)) for each in (0, 20, 100)}
        self.index = Index()
        with self.open("bench") as registry:
            self.base = python_base.push(registry)

    def open(self, name: str, megabits: int | None = None) -> Registry:
        """Open a repository, directly or over a line."""
        return Registry(self.address if megabits is None else self.lines[megabits].address, name, anonymous)

    def wheel(self, name: str, version: str = "1.0", size: int = 0) -> Wheel:
        """Make a wheel with a module and so many random bytes, and serve it."""
        files = {f"{name}.py": f"VERSION = {version!r}\n" + "def f(x):\n    return x\n" * 200}
        if size:
            files[f"{name}.bin"] = random.Random(name + version).randbytes(size)
        file = made_wheel(self.folder / "index", name, version, files)
        data = file.read_bytes()
        return Wheel(name, version, file.name, hashlib.sha256(data).hexdigest(), len(data), self.index(file))

    def first(self, name: str, megabits: int, lock: Lock, folder: Path) -> First:
        """Build in a process of its own."""
        import pickle

        words = self.lines[megabits].address, name, "bench", str(folder), lock, self.base
        done = subprocess.run(
            [sys.executable, "-c", FIRST], input=pickle.dumps(words), capture_output=True, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stderr.decode()[-2000:])
        return First(*json.loads(done.stdout))

    def close(self) -> None:
        """Stop all servers but the registry."""
        for each in self.lines.values():
            each.close()
        self.index.close()


def main() -> None:
    sizes = {
        "real": (0, "1: the set of jax[tpu] from PyPI, 0.5 GB"),
        "node": (0, "1: jobs on a real node, which needs root and `make node`"),
        "wait": (0, "1: a first job that waits for its image, and one that installs; from PyPI"),
    }
    bench = Bench("images", runs=5, quick_runs=3, sizes=sizes)
    if why := registry_server.build():
        bench.skip("images", why)
        bench.end()
    with tempfile.TemporaryDirectory(prefix="kinetic-bench-") as name:
        folder = Path(name)
        with registry_server.started(folder / "registry") as address:
            place = Place(folder, address)
            try:
                unchanged(bench, place)
                changed(bench, place)
                if bench.sizes["real"]:
                    real(bench, place)
                else:
                    bench.skip("the first set of jax[tpu], and imports with bytecode", "--real 1 measures both")
                if bench.sizes["wait"]:
                    waiting(bench, place)
                else:
                    bench.skip("waiting for a first image, or installing at start", "--wait 1 measures both")
            finally:
                place.close()
    if bench.sizes["node"]:
        on_a_node(bench)
    else:
        bench.skip("from submit to the first line on a real node", "--node 1 measures it")
    bench.end()


def unchanged(bench: Bench, place: Place) -> None:
    """Ask again for the image of lines that are known, as each submission does."""
    environ = {"KINETIC_HOME": str(place.folder / "home"), "HOME": str(place.folder)}
    os.environ |= {"UV_DEFAULT_INDEX": place.index.simple, "UV_CACHE_DIR": str(place.folder / "uv")}
    for name in ("alpha", "beta", *bundled.POD_PACKAGES):
        place.wheel(name)
    proxy, store = place.lines[0], MemoryStore("bench")
    with place.open("bench") as registry:
        base = f"{registry.host}/{registry.name}@{place.base.digest}"

    def ensure() -> object:
        request = LockRequest(["alpha", "beta"], PYTHON, "x86_64", store, environ)
        return bundled.ensure(request, f"{proxy.address}/bench", base=base)

    ensure()
    started: list[int] = []
    run_uv, uv.run_uv = uv.run_uv, lambda *_, **__: started.append(1)  # type: ignore[assignment,return-value]
    proxy.forget()
    try:
        took = [seconds_of(ensure) * 1e3 for _ in range(4 * bench.runs)]
    finally:
        uv.run_uv = run_uv
    count = len(took)
    bench.limit("nothing changed", took, 100, "ms")
    bench.limit("… requests to the registry", [len(proxy.requests) / count], 2, "requests")
    bench.limit("… bytes sent", [proxy.up / count], 0, "bytes")
    bench.limit("… uv started", [float(len(started))], 0, "times")


def changed(bench: Bench, place: Place) -> None:
    """Push for the first time, and again with one small package changed; heavy ones must not move."""
    heavy = [place.wheel(f"heavy{n}", size=size * 1_000_000) for n, size in enumerate(HEAVY)]
    small = [place.wheel(f"small{n}", size=600_000) for n in range(SMALL)]
    folder = place.folder / "wheels"
    seconds, sent, peak, _, _ = place.first("bench", 0, _lock([*heavy, *small]), folder)
    bench.limit(f"first build, {sent / 1e6:.0f} MB, loopback: memory of the client", [peak], 150, "MB")
    bench.limit("… seconds per 100 MB", [seconds / sent * 1e8], 30, "s")
    versions = iter(range(2, 1000))

    def change(megabits: int, cache: Path) -> tuple[float, int, int]:
        new = place.wheel("small0", f"{next(versions)}.0", size=600_000)
        line = place.lines[megabits]
        line.forget()
        place.index.asked.clear()
        with place.open("bench", megabits) as registry:
            begun = time.perf_counter()
            ImageBuilder(registry, WheelCache(cache, {})).build(_lock([*heavy, new, *small[1:]]), place.base, registry)
            took = time.perf_counter() - begun
        return took, line.up, sum("heavy" in path for path in place.index.asked)

    direct = [change(0, folder) for _ in range(bench.runs)]
    bench.limit("one package changed: our own work (loopback)", [each[0] for each in direct], 2, "s")
    bench.limit("… sent, manifests included", [each[1] / 1e6 for each in direct], 10, "MB")
    slow = [change(20, folder) for _ in range(2)]
    bench.limit("… to the image in the registry at 20 Mbit/s", [each[0] for each in slow], 10, "s")
    fresh = change(0, place.folder / "another machine")
    bench.limit("… on a machine without any wheel: heavy wheels fetched", [float(fresh[2])], 0, "wheels")
    bench.limit("… and its megabytes sent", [fresh[1] / 1e6], 10, "MB")


def real(bench: Bench, place: Place) -> None:
    """Build the set of jax[tpu] once over a line of 100 Mbit/s; import with and without its bytecode."""
    os.environ.pop("UV_DEFAULT_INDEX", None)
    platform_ = Platform(PYTHON, "x86_64", bundled.GLIBC)
    lock = locks.resolve([*TPU, "scipy", *bundled.POD_PACKAGES], platform_, lambda _: None)
    size = sum(wheel.size_bytes for wheel in lock.wheels) / 1e6
    folder = place.folder / "real"
    seconds, _, peak, uri, cpu = place.first("bench", 100, lock, folder)
    bench.limit(f"first set of jax[tpu], {len(lock.wheels)} wheels, {size:.0f} MB, at 100 Mbit/s", [seconds], 60, "s")
    bench.limit("… memory of the client", [peak], 150, "MB")
    bench.show("… CPU of the client, its compilers included", [cpu], "s")
    with place.open("bench") as registry:
        page, _ = registry.read_manifest(uri.partition("@")[2])
        bench.limit("… layers", [float(len(page["layers"]))], 60, "layers")
        root = _unpacked(registry, page, place.folder / "root")
    packages = root / layers.PREFIX / "lib" / f"python{PYTHON}" / "site-packages"
    code = f"import sys; sys.path.insert(0, {str(packages)!r}); import {', '.join(IMPORTED)}"
    library = root / "usr/local/lib" / f"python{PYTHON}"
    python = str(root / "usr/local/bin" / f"python{PYTHON}")
    environ = {
        "PATH": os.environ["PATH"],
        "KERAS_BACKEND": "jax",
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_PLATFORMS": "cpu",
    }
    assert library.is_dir()

    def importing(**more: str) -> Callable[[], float]:
        def run() -> float:
            begun = time.perf_counter()
            subprocess.run([python, "-s", "-c", code], env=environ | more, check=True, capture_output=True)
            return time.perf_counter() - begun

        return run

    took = alternate(
        bench.runs, bytecode=importing(), none=importing(PYTHONPYCACHEPREFIX=str(place.folder / "no bytecode"))
    )
    bench.ratio(f"importing {', '.join(IMPORTED)}, vs without bytecode", took["bytecode"], took["none"], 0.4, "s")


def waiting(bench: Bench, place: Place) -> None:
    """Build the first image of each set where the rule says, and install the same packages as a pod would."""
    os.environ.pop("UV_DEFAULT_INDEX", None)
    platform_ = Platform(PYTHON, "x86_64", bundled.GLIBC)
    plain = locks.resolve([*bundled.POD_PACKAGES], platform_, lambda _: None)
    for number, (name, lines) in enumerate(SETS.items()):
        lock = locks.resolve([*lines, *bundled.POD_PACKAGES], platform_, lambda _: None)
        size = sum(wheel.size_bytes for wheel in {*lock.wheels} - {*plain.wheels})
        install, cpu = _installed(place.folder / f"installed-{number}", lines)
        bench.show(f"{name}, {size / 1e6:.0f} MB: installing at start", [install], "s")
        bench.show("… CPU", [cpu], "s")
        for megabits in (20, 100):
            here = size * 1.2 / (megabits * 125_000) <= PATIENCE_SECONDS
            repository = f"wait-{number}-{megabits}"
            place.first(repository, 0, plain, place.folder / repository)  # the base, once for all images
            first = place.first(repository, megabits if here else 0, lock, place.folder / repository)
            where = "here" if here else "beside the registry, as a pod does"
            bench.show(f"… at {megabits} Mbit/s: its image, built {where}", [first.seconds], "s", [install])
            bench.show("… CPU", [first.cpu], "s")
            with place.open(repository) as registry:
                page, _ = registry.read_manifest(first.uri.partition("@")[2])
                begun = time.perf_counter()
                root = _unpacked(registry, page, place.folder / f"root-{repository}")
                pulled = time.perf_counter() - begun
            bench.show("… and pulled, one layer after the other", [first.seconds + pulled], "s", [install])
            shutil.rmtree(root)
            shutil.rmtree(place.folder / repository)


def _installed(folder: Path, lines: Sequence[str]) -> tuple[float, float]:
    """Install packages as a pod of Python's own image does: uv by pip first, no cache; return seconds and CPU."""
    folder.mkdir()
    python = getattr(sys, "_base_executable", sys.executable)
    fetch = [python, "-I", "-m", "pip", "install", "--quiet", "--no-cache-dir", "--target", str(folder / "uv"), "uv"]
    words = [str(folder / "uv/bin/uv"), "pip", "install", "--quiet", "--no-cache", "--python", python]
    begun, before = time.perf_counter(), os.times()
    subprocess.run(fetch, check=True, capture_output=True)
    subprocess.run(
        [*words, "--target", str(folder / "packages"), *lines, "obstore"],
        env=os.environ | {"UV_LINK_MODE": "copy"},
        check=True,
    )
    seconds, after = time.perf_counter() - begun, os.times()
    shutil.rmtree(folder)
    return seconds, sum(after[2:4]) - sum(before[2:4])


def on_a_node(bench: Bench) -> None:
    """Change one small package of a job whose node is warm; the client has a line of 20 Mbit/s to the registry."""
    import _image_job  # it imports the test cluster

    if why := _image_job.why_not():
        bench.skip("from submit to the first line on a real node", why)
        return
    sizes = {f"heavy{n}": size * 1_000_000 for n, size in enumerate(HEAVY)}
    sizes |= {f"small{n}": 600_000 for n in range(SMALL)}
    with Sandbox() as sandbox, _image_job.started(sandbox) as site:

        def publish(name: str, version: str) -> None:
            lines = "def f(x):\n    return x\n" * 200
            data = random.Random(name + version).randbytes(sizes[name])
            site.publish(name, {f"{name}.py": f"VERSION = {version!r}\n{lines}", f"{name}.bin": data}, version)

        for name in sizes:
            publish(name, "1.0")
        wanted = dict.fromkeys(sizes, "1.0")
        site.run(wanted, megabits=0)
        found = []
        for number in range(bench.runs):
            wanted["small0"] = f"{number + 2}.0"
            publish("small0", wanted["small0"])
            site.line.forget()
            found.append(site.run(wanted) | {"sent MB": site.line.up / 1e6})
    totals = [each["total s"] for each in found]
    bench.limit("one package changed: from submit to the first line, warm node", totals, 10, "s")
    bench.limit("… the slowest", [max(totals)], 30, "s")
    bench.limit("… the fastest", [min(totals)], 10, "s")
    for name, what in PHASES.items():
        bench.show(f"… {what}", [each.get(name, 0.0) for each in found], name.rpartition(" ")[2])


def _unpacked(registry: Registry, page: dict[str, Any], root: Path) -> Path:
    root.mkdir()
    for entry in page["layers"]:
        blob = root.parent / "blob"
        with blob.open("wb") as sink:
            registry.read_blob(entry["digest"], sink)
        subprocess.run(["tar", "-xzf", str(blob), "-C", str(root)], check=True)
        blob.unlink()
    return root


def _lock(wheels: Sequence[Wheel]) -> Lock:
    return Lock(Platform(PYTHON, "x86_64", bundled.GLIBC), tuple(sorted(wheels)), (), "")


if __name__ == "__main__":
    main()
