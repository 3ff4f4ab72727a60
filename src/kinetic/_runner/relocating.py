"""Relocating: code that came by value says that its file is the client's; in a debug job it says where that lies here.

A debugger looks for breakpoints by file. Functions of a script travel by value, with the client's path in them, and
their file lies in the job as well: then that is the one to name, so that one mapping of folders holds for everything.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

_MAKER = ("cloudpickle.cloudpickle", "_make_function")  # how it makes each function that came by value


def mover(plan: Mapping[str, Any], folder: Path) -> Callable[[bytes], Any] | None:
    """Return what opens a pickle and moves the code in it, or None where nothing shipped.

    Args:
        plan: How the project lay on the client.
        folder: Where it lies here.
    """
    root = str(plan.get("root") or "").rstrip("/")
    if not root:
        return None
    return lambda data: _Opener(data, root, str(folder)).load()


class _Opener(pickle.Unpickler):
    def __init__(self, data: bytes, root: str, folder: str) -> None:
        super().__init__(io.BytesIO(data))
        self._root, self._folder = root, folder

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        found = super().find_class(module_name, global_name)
        if (module_name, global_name) != _MAKER:
            return found

        def make(code: object, *rest: Any) -> Any:
            return found(self._moved(code) if isinstance(code, CodeType) else code, *rest)

        return make

    def _moved(self, code: CodeType) -> CodeType:
        constants = tuple(self._moved(each) if isinstance(each, CodeType) else each for each in code.co_consts)
        inside = code.co_filename.removeprefix(self._root + "/")
        here = os.path.join(self._folder, inside)
        file = here if inside != code.co_filename and os.path.isfile(here) else code.co_filename
        return code.replace(co_filename=file, co_consts=constants)
