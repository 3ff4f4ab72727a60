"""Files into a bucket and back: through a store of ours, and through Google's own client, against the same server.

The server is the one of the tests, in a process of its own on this machine: it takes its share of the processors, and
there is no distance to it. Figures say what a client costs, not what a network does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import warnings
from functools import partial
from pathlib import Path
from typing import Any, Self

from _measure import Bench, alternate, seconds_of

ROOT = Path(__file__).parents[1]
THREADS = 16  # as many as a store of ours uses for a cloud
PROCESSES = 4  # what Google's client did best with on two processors; eight, its default, was slower


def main() -> None:
    bench = Bench("many small files and one large one, in Cloud Storage's protocol", runs=3, quick_runs=1)
    try:
        from google.cloud import storage  # noqa: F401 - whether it is there
    except ImportError as error:
        return bench.skip("all of it", f"{error}; it is in the dependency group `test`")
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name, Server() as server:
        os.environ["STORAGE_EMULATOR_HOST"] = server.url
        folder = Path(name)
        _small(bench, folder, 200 if bench.quick else 1_000)
        _large(bench, folder, (64 if bench.quick else 512) << 20)
    return bench.end()


class Server:
    """The server of the tests, in a process of its own, with one bucket."""

    def __enter__(self) -> Self:
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
        command = [sys.executable, "-m", "servers.gcs"]
        self._process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        page = urllib.request.Request(f"{self.url}/storage/v1/b", data=b'{"name": "bucket"}', method="POST")
        with urllib.request.urlopen(page):
            return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def _small(bench: Bench, folder: Path, count: int) -> None:
    from google.cloud.storage import transfer_manager

    from kinetic._stores import open_store, parallel

    source = folder / "small"
    source.mkdir()
    names = [f"{number:05}" for number in range(count)]
    for name in names:
        (source / name).write_bytes(os.urandom(4096))
    store, bucket = open_store("gs://bucket/ours"), _bucket()
    threads = {"worker_type": transfer_manager.THREAD, "max_workers": THREADS}
    processes = {"worker_type": transfer_manager.PROCESS, "max_workers": PROCESSES}

    def up(kind: dict[str, Any]) -> float:
        uploads = transfer_manager.upload_many_from_filenames
        return seconds_of(lambda: _all_well(uploads(bucket, names, source_directory=str(source), **kind)))

    def down(kind: dict[str, Any]) -> float:
        downloads = transfer_manager.download_many_to_path
        with Target(folder) as target:
            return seconds_of(lambda: _all_well(downloads(bucket, names, destination_directory=str(target), **kind)))

    def ours_down() -> float:
        with Target(folder) as target:
            return seconds_of(
                lambda: list(parallel.in_parallel(store, [partial(store.fetch, name, target / name) for name in names]))
            )

    ours_up = alternate(
        bench.runs,
        ours=lambda: seconds_of(
            lambda: list(parallel.in_parallel(store, [partial(store.put, name, source / name) for name in names]))
        ),
        threads=lambda: up(threads),
        processes=lambda: up(processes),
    )
    bench.ratio(f"{count} x 4 KB up; vs its {THREADS} threads", ours_up["ours"], ours_up["threads"], 0.25, "s")
    bench.ratio(f"{count} x 4 KB up; vs its {PROCESSES} processes", ours_up["ours"], ours_up["processes"], 0.4, "s")
    back = alternate(bench.runs, ours=ours_down, threads=lambda: down(threads), processes=lambda: down(processes))
    bench.ratio(f"{count} x 4 KB down; vs its {THREADS} threads", back["ours"], back["threads"], 0.25, "s")
    bench.ratio(f"{count} x 4 KB down; vs its {PROCESSES} processes", back["ours"], back["processes"], 0.4, "s")


def _large(bench: Bench, folder: Path, size: int) -> None:

    from kinetic._stores import open_store

    source = folder / "large"
    piece = os.urandom(1 << 20)
    with source.open("wb") as file:
        for _ in range(size >> 20):
            file.write(piece)
    store, bucket = open_store("gs://bucket/ours"), _bucket()
    blob = bucket.blob("large")
    up = alternate(
        bench.runs,
        ours=lambda: seconds_of(lambda: store.put("large", source)),
        created=lambda: seconds_of(lambda: store.delete("large") and store.put("large", source, if_absent=True)),
        google=lambda: seconds_of(lambda: blob.upload_from_filename(source)),
    )
    mebibytes = size >> 20
    bench.ratio(f"{mebibytes} MiB up", up["ours"], up["google"], 1, "s")
    bench.ratio(f"{mebibytes} MiB up, only if absent", up["created"], up["google"], None, "s")
    with Target(folder) as target:
        down = alternate(
            bench.runs,
            ours=lambda: seconds_of(lambda: store.fetch("large", target / "ours")),
            google=lambda: seconds_of(lambda: blob.download_to_filename(target / "theirs")),
        )
    bench.ratio(f"{mebibytes} MiB down", down["ours"], down["google"], 1, "s")


class Target:
    """An empty folder for what comes down."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "target"

    def __enter__(self) -> Path:
        self._path.mkdir()
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path)


def _bucket() -> Any:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage
    from requests.adapters import HTTPAdapter

    client = storage.Client(project="p", credentials=AnonymousCredentials())
    client._http.mount("http://", HTTPAdapter(pool_maxsize=THREADS))  # noqa: SLF001 - its ten connections are too few for its threads
    return client.bucket("bucket")


def _all_well(results: list[Any]) -> None:
    """Raise what the transfer manager only returns."""
    for result in results:
        if isinstance(result, Exception):
            raise result


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
