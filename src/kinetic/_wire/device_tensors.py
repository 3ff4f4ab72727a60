"""PyTorch's tensors of a GPU, opened where that GPU is not: on the CPU.

A tensor is pickled with the name of its device, and PyTorch opens it there or not at all. JAX's arrays need nothing:
they are opened on whatever device there is.

Sources: torch/storage.py, torch/_utils.py and torch/_tensor.py of PyTorch 2.11, which say what a tensor is pickled as.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
from collections.abc import Callable
from typing import IO, Any


def load(opened: Callable[[], IO[bytes]], on_moved: Callable[[], object]) -> Any:
    """Unpickle a value that was verified; if its devices are not here, once more, with its tensors on the CPU.

    Raises:
        Exception: Whatever the pickle raises at the first attempt.
    """
    try:
        return pickle.load(opened())  # noqa: S301 - verified
    except (RuntimeError, AssertionError):  # AssertionError: of a PyTorch that was built without CUDA
        if "torch" not in sys.modules:
            raise
        unpickler = _Unpickler(opened())
        try:
            value = unpickler.load()
        except Exception:  # noqa: BLE001 - the first one says what is wrong
            value = unpickler
        if value is unpickler or not unpickler.moved:
            raise
    on_moved()
    return value


class _Unpickler(pickle.Unpickler):
    moved = 0  # how many tensors

    def find_class(self, module: str, name: str) -> Any:
        function = _ON_THE_CPU.get((module, name))
        if function is None:
            return super().find_class(module, name)
        self.moved += 1
        return function


def _storage(data: bytes) -> Any:
    torch = sys.modules["torch"]
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)


def _of_another(rebuild: str, data: Any, dtype: Any, _: Any, requires_grad: bool) -> Any:
    """Rebuild a tensor of a device without storages, as those of torch_xla are."""
    return getattr(sys.modules["torch._utils"], rebuild)(data, dtype, "cpu", requires_grad)


_ON_THE_CPU: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch.storage", "_load_from_bytes"): _storage,
    **{
        ("torch._utils", name): functools.partial(_of_another, name)
        for name in ("_rebuild_device_tensor_from_numpy", "_rebuild_device_tensor_from_cpu_tensor")
    },
}
