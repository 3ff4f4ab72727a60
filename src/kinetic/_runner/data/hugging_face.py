"""A data set of Hugging Face, loaded by its own library in a separate process and saved as a folder.

In a separate process, because the library must not import a ``datasets.py`` of the user's project, nor the user's
project the library; and because it brings threads and 200 MB of modules that the job did not ask for.

A revision that is a full commit hash cannot change: such a data set is kept on this machine, as shipped data is.
Anything else is loaded again for each job.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qsl, unquote

from kinetic._runner.data import file_cache
from kinetic._runner.data.file_cache import Cache, mode_of
from kinetic._runner.data.mounted_data import JobFolders
from kinetic._runner.data.transfer import Transfer, say
from kinetic._wire import digests
from kinetic._wire.order import DataRef, Manifest, ManifestFile, Part, file_digest
from kinetic._wire.task import DATA
from kinetic.errors import DataError, DataMissingError, RunnerError

_COMMIT = re.compile(r"[0-9a-f]{40}")
_CHUNK = 1 << 20
_LOOK_SECONDS = 1.0  # between two looks at how much is there
_CODE = f"""
import json, sys
task = json.loads(sys.argv[1])
sys.path[:] = task["search"]
from {__name__} import main
main(task)
"""
_MISSING = frozenset({"DatasetNotFoundError", "DataFilesNotFoundError", "FileNotFoundError", "EmptyDatasetError"})


def fetch_data_set(ref: DataRef, path: Path, cache: Cache, here: JobFolders) -> None:
    """Load a data set and save it at a path in the job's folder for data."""
    repo, _, query = ref.uri.removeprefix("hf://").partition("?")
    wanted = {"path": unquote(repo), **dict(parse_qsl(query))}  # checked, and spelled alike, by ``_data.remote_refs``
    if ref.trust:
        say(f"WARNING: {ref.uri} may run code of its own in this job, because hf_trust_remote_code=True")
    if _COMMIT.fullmatch(wanted.get("revision", "")) and not wanted["path"].startswith("/"):
        _fetch_pinned(ref, wanted, path, cache, here)
        return
    with _loaded(ref, wanted, here.folder, here.workspace) as saved:
        path.mkdir(exist_ok=True)  # it may exist, and be mounted somewhere already
        for item in saved.iterdir():
            item.replace(path / item.name)


def _fetch_pinned(ref: DataRef, wanted: dict[str, str], path: Path, cache: Cache, here: JobFolders) -> None:
    pin = digests.of_bytes(f"{ref.uri}\n{ref.trust}".encode())
    way = file_cache.choose_way(cache.parts, here.folder, writable=ref.writable)
    for again in (True, False):
        with cache.lock(pin):
            name = cache.pinned(pin)
            manifest = cache.manifest(name) if name else None
            if manifest is None:
                with _loaded(ref, wanted, cache.parts, here.workspace) as saved:
                    name, manifest = _keep(saved, cache)
                cache.pin(pin, name)
        try:
            file_cache.copy_kept(cache, manifest, name, path, here.folder, way, _refuse)
            break
        except _DamagedError:
            if not again:
                raise
            say(f"what this machine keeps of {ref.uri} is damaged; loading it again")
            cache.pin(pin, "")


class _DamagedError(DataError):
    """Something that was kept is damaged, and cannot be fetched by itself."""


def _refuse(missing: list[ManifestFile]) -> None:
    raise _DamagedError("a data set that this machine keeps is damaged", why=f"{missing[0].path} is missing or changed")


def _keep(saved: Path, cache: Cache) -> tuple[str, Manifest]:
    destination = file_cache.destination_of(cache)
    files, empty = [], []
    for folder, folders, names in os.walk(saved):
        inside = os.path.relpath(folder, saved)
        prefix = "" if inside == "." else f"{inside}/"
        if prefix and not folders and not names:
            empty.append(inside)
        for name in sorted(names):
            files.append(file := _describe(saved, f"{prefix}{name}"))
            os.chmod(saved / file.path, mode_of(file))
            (saved / file.path).replace(destination.path(file))
    content = digests.of_bytes(b"".join(bytes.fromhex(file.digest) for file in files))
    manifest = Manifest(content, is_dir=True, files=tuple(files), folders=tuple(empty))
    page = manifest.to_bytes()
    cache.keep_page(digests.of_bytes(page), page)
    return digests.of_bytes(page), manifest


def _describe(saved: Path, inside: str) -> ManifestFile:
    digest, size = file_digest(inside), 0
    with open(saved / inside, "rb", buffering=0) as stream:
        while piece := stream.read(_CHUNK):
            digest.update(piece)
            size += len(piece)
    parts = (Part(digest.hexdigest(), 0, size),) if size else ()  # no blob: it is loaded again, never fetched
    return ManifestFile(inside, executable=False, size=size, digest=digest.hexdigest(), packed=False, parts=parts)


@contextlib.contextmanager
def _loaded(ref: DataRef, wanted: dict[str, str], beside: Path, workspace: Path) -> Iterator[Path]:
    scratch = Path(tempfile.mkdtemp(prefix="hf-", dir=beside))
    try:
        _load(ref, wanted, scratch, workspace)
        yield scratch / "saved"
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _load(ref: DataRef, wanted: dict[str, str], scratch: Path, workspace: Path) -> None:
    answer = scratch / "answer.json"
    search = [each for each in sys.path if each and not Path(each).is_relative_to(workspace)]
    task = {
        **wanted,
        "trust": ref.trust,
        "cache": str(scratch / "cache"),
        "target": str(scratch / "saved"),
        "search": search,
        "answer": str(answer),
    }
    words = [sys.executable, "-I", "-c", _CODE, json.dumps(task)]
    environ = {"HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", **os.environ}
    code = _run(words, scratch, environ, Transfer(ref.uri))
    if code == 0:
        return
    try:
        kind, why = json.loads(answer.read_text())
    except (OSError, ValueError):
        kind, why = "died", f"its process ended with {code}; see the log"
    if kind == "absent":
        raise RunnerError(
            f"{ref.uri} needs the library 'datasets', which this job's environment does not have",
            phase=DATA,
            why=why,
            next='add datasets to the dependency file of the project; on this machine: pip install "kinetic-jobs[hf]"',
            code="hf-missing",
        )
    if kind == "missing":
        hint = "check its name, split, config_name and revision"
        raise DataMissingError(f"there is no data set {ref.uri}", why=why, next=hint)
    raise DataError(f"{ref.uri} could not be loaded", why=why, next="the log of the job has the whole traceback")


def _run(words: list[str], scratch: Path, environ: dict[str, str], transfer: Transfer) -> int:
    """Run the separate process, say how much it has written where that takes long, and return its exit status."""
    written = 0
    with subprocess.Popen(words, cwd=scratch, env=environ) as process:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(_LOOK_SECONDS)
                    if code == 0:
                        transfer.end()
                    return code
                before, written = written, _size_below(scratch)
                transfer.received(written - before)
        except BaseException:
            process.kill()
            raise


def _size_below(folder: Path) -> int:
    size = 0
    for above, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # it was temporary
                size += os.lstat(os.path.join(above, name)).st_size
    return size


# -------------------------------------------------------------------------------------------- the separate process


def main(task: dict[str, Any]) -> None:

    def fail(kind: str, error: BaseException) -> NoReturn:
        text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        Path(task["answer"]).write_text(json.dumps([kind, text]))
        sys.exit(1)

    try:
        datasets: Any = importlib.import_module("datasets")  # the user's; not a dependency of ours
    except ImportError as error:
        fail("absent", error)
    try:
        named = {name: task[name] for name in ("split", "revision") if name in task}
        trusted = {"trust_remote_code": True} if task["trust"] else {}
        loaded = datasets.load_dataset(
            task["path"], task.get("config_name"), cache_dir=task["cache"], **named, **trusted
        )
        loaded.save_to_disk(task["target"])
    except Exception as error:  # noqa: BLE001 - whatever the library raises is reported to the job
        unknown = isinstance(error, ValueError) and ("Unknown split" in str(error) or "not found" in str(error))
        if unknown or any(kind.__name__ in _MISSING for kind in type(error).__mro__):
            fail("missing", error)
        import traceback

        traceback.print_exc()
        fail("failed", error)
