"""A data set of Hugging Face, loaded by its own library in a process of its own and saved as a folder.

A process of its own, because the library must not meet a ``datasets.py`` of the user's project, nor the user's project
the library; and because it brings threads and 200 MB of modules that the job did not ask for.

A revision that is a full commit hash cannot change: such a data set is kept on this machine, as shipped data is.
Anything else is loaded anew for each job.
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
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from kinetic._runner.data import download_data, file_cache, shipped_data
from kinetic._runner.data.file_cache import Cache, mode_of
from kinetic._wire import digests
from kinetic._wire.order import DataRef
from kinetic._wire.task import DATA
from kinetic._wire.trees import Manifest, ManifestFile, Part, file_digest
from kinetic.errors import DataError, DataMissingError, OptionError, RunnerError

_COMMIT = re.compile(r"[0-9a-f]{40}")
_CHUNK = 1 << 20
_CODE = """
import json, sys
task = json.loads(sys.argv[1])
sys.path[:] = task["search"]
from kinetic._runner.data.hugging_face import main
main(task)
"""
_KNOWN = {"split", "config_name", "revision"}


def options(uri: str) -> dict[str, str]:
    """Take ``hf://{repo}?split=&config_name=&revision=`` apart.

    Raises:
        OptionError: A parameter is unknown, or given twice.
    """
    repo, _, query = uri.removeprefix("hf://").partition("?")
    found = {"path": unquote(repo)}
    for pair in filter(None, query.split("&")):  # not as a form would be read: a plus sign is a plus sign
        name, _, value = pair.partition("=")
        if name not in _KNOWN or name in found:
            raise _no_data_set(uri, f"{name!r} is unknown or given twice")
        found[name] = unquote(value)
    if not repo:
        raise _no_data_set(uri, "the repository is missing")
    return found


def _no_data_set(uri: str, why: str) -> OptionError:
    return OptionError(
        f"{uri!r} names no data set", why=why, next="write hf://repository?split=train&config_name=en&revision=main"
    )


def fetch_data_set(ref: DataRef, path: Path, cache: Cache, home: Path, workspace: Path | None) -> None:
    """Load a data set and save it at a path of this job's own.

    Args:
        ref: The data set.
        path: Where the folder shall lie.
        cache: What this machine keeps.
        home: The job's folder for data.
        workspace: The user's project, which the library must not see.
    """
    wanted = options(ref.uri)
    if ref.trust:
        file_cache.say(f"WARNING: {ref.uri} may run code of its own in this job, because hf_trust_remote_code=True")
    if not _COMMIT.fullmatch(wanted.get("revision", "")) or wanted["path"].startswith("/"):
        with _loaded(ref, wanted, home, workspace) as saved:
            _move(saved, path)
    else:
        _bring_pinned(ref, wanted, path, cache, home, workspace)


def _bring_pinned(
    ref: DataRef, wanted: dict[str, str], path: Path, cache: Cache, home: Path, workspace: Path | None
) -> None:
    pin = digests.of_bytes(f"{ref.uri}\n{ref.trust}".encode())
    way = download_data.choose_way(cache.parts, home, writable=ref.writable)
    for again in (True, False):
        with cache.lock(pin):
            name = cache.pinned(pin)
            manifest = cache.manifest(name) if name else None
            if manifest is None:
                with _loaded(ref, wanted, cache.parts, workspace) as saved:
                    name, manifest = _keep(saved, cache)
                cache.pin(pin, name)
        try:
            shipped_data.copy_kept(cache, manifest, name, path, home, way, _refuse)
            break
        except _DamagedError:
            if not again:
                raise
            file_cache.say(f"what this machine keeps of {ref.uri} is damaged; loading it again")
            cache.pin(pin, "")


class _DamagedError(DataError):
    """Something that was kept is not right any more, and cannot be fetched by itself."""


def _refuse(missing: list[ManifestFile]) -> None:
    raise _DamagedError("a data set that this machine keeps is damaged", why=f"{missing[0].path} is missing or changed")


def _move(saved: Path, path: Path) -> None:
    """Put what was saved in a folder that exists, and may be mounted somewhere already."""
    path.mkdir(exist_ok=True)
    for item in saved.iterdir():
        item.replace(path / item.name)


def _keep(saved: Path, cache: Cache) -> tuple[str, Manifest]:
    """Take the files of a folder into the cache, and describe them."""
    destination = shipped_data.destination_of(cache)
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
def _loaded(ref: DataRef, wanted: dict[str, str], beside: Path, workspace: Path | None) -> Iterator[Path]:
    """Load a data set into a temporary folder; whatever is left in there goes."""
    scratch = Path(tempfile.mkdtemp(prefix="hf-", dir=beside))
    try:
        task = {**wanted, "trust": ref.trust, "cache": str(scratch / "cache"), "target": str(scratch / "saved")}
        _load(ref, task, scratch, workspace)
        yield scratch / "saved"
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _load(ref: DataRef, task: dict[str, object], scratch: Path, workspace: Path | None) -> None:
    answer = scratch / "answer.json"
    search = [entry for entry in sys.path if entry and not _is_below(entry, workspace)]
    words = [sys.executable, "-I", "-c", _CODE, json.dumps({**task, "search": search, "answer": str(answer)})]
    environ = {"HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", **os.environ}
    done = subprocess.run(words, cwd=scratch, env=environ, check=False)
    if done.returncode == 0:
        return
    try:
        said = json.loads(answer.read_text())
    except (OSError, ValueError):
        said = {"kind": "died", "text": f"its process ended with {done.returncode}; see the log"}
    _raise(ref, said)


def _raise(ref: DataRef, said: dict[str, str]) -> None:
    if said["kind"] == "absent":
        raise RunnerError(
            f"{ref.uri} needs the library 'datasets', which this job's environment does not have",
            phase=DATA,
            why=said["text"],
            next='add datasets to the dependency file of the project; on this machine: pip install "kinetic-jobs[hf]"',
            code="hf-missing",
        )
    if said["kind"] == "missing":
        raise DataMissingError(
            f"there is no data set {ref.uri}",
            why=said["text"],
            next="look at its name, split, config_name and revision",
        )
    raise DataError(
        f"{ref.uri} could not be loaded", why=said["text"], next="the log of the job has the whole traceback"
    )


def _is_below(entry: str, workspace: Path | None) -> bool:
    return workspace is not None and Path(entry).is_relative_to(workspace)


_MISSING = frozenset({"DatasetNotFoundError", "DataFilesNotFoundError", "FileNotFoundError", "EmptyDatasetError"})


def main(task: dict[str, Any]) -> None:
    """Load, save, and leave an answer if that failed."""
    try:
        datasets: Any = importlib.import_module("datasets")  # the user's; no dependency of ours
    except ImportError as error:
        _answer(task, "absent", error)
    try:
        named = {name: task[name] for name in ("split", "revision") if name in task}
        trusted = {"trust_remote_code": True} if task["trust"] else {}
        loaded = datasets.load_dataset(
            task["path"], task.get("config_name"), cache_dir=task["cache"], **named, **trusted
        )
        loaded.save_to_disk(task["target"])
    except Exception as error:  # noqa: BLE001 - whatever the library raises is told to the job
        if _is_missing(error):
            _answer(task, "missing", error)
        traceback.print_exc()
        _answer(task, "failed", error)


def _is_missing(error: Exception) -> bool:
    unknown = isinstance(error, ValueError) and ("Unknown split" in str(error) or "not found" in str(error))
    return unknown or any(kind.__name__ in _MISSING for kind in type(error).__mro__)


def _answer(task: dict[str, Any], kind: str, error: BaseException) -> None:
    text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    Path(task["answer"]).write_text(json.dumps({"kind": kind, "text": text}))
    sys.exit(1)
