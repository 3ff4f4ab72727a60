"""The process that loads a data set of Hugging Face; see hugging_face.py, which starts it."""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from pathlib import Path
from typing import Any

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
