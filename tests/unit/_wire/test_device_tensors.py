"""Values with tensors of a device that is not here are opened on the CPU; every other error stays what it was."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

from kinetic._wire import device_tensors

# The parts of PyTorch that a pickled tensor names; of a machine that has no GPU.
TORCH = {
    "torch/__init__.py": """
        from torch import _utils, storage

        def load(file, map_location=None, weights_only=True):
            device, data = file.read().split(b" ")
            assert not weights_only
            if map_location is None and device == b"cuda:0":
                raise RuntimeError("Attempting to deserialize object on a CUDA device")
            return (map_location or device.decode()), data
    """,
    "torch/storage.py": """
        import io, torch

        def _load_from_bytes(data):
            return torch.load(io.BytesIO(data), weights_only=False)
    """,
    "torch/_utils.py": """
        def _rebuild_device_tensor_from_numpy(data, dtype, device, requires_grad):
            if device.startswith("xla"):
                raise AssertionError("not built with it")
            return device, data
    """,
}
OPENING = """
    import functools, io, pickle, sys, torch
    from kinetic._wire import device_tensors

    class Storage:
        def __init__(self, *args):
            self.args = args
        def __reduce__(self):
            return torch.storage._load_from_bytes, self.args

    class OfXla:
        def __reduce__(self):
            return torch._utils._rebuild_device_tensor_from_numpy, (b"n", None, "xla:0", False)

    class Refuses:
        def __reduce__(self):
            return exec, ("raise RuntimeError('of the user')",)

    moved = []
    def opened(value):
        data = pickle.dumps(value)
        return device_tensors.load(lambda: io.BytesIO(data), lambda: moved.append(len(moved)))
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a program beside such a PyTorch, and returns what it printed."""
    for name, text in TORCH.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))

    def go(text):
        words = [sys.executable, "-c", textwrap.dedent(OPENING) + textwrap.dedent(text)]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return go


def test_tensors_of_a_device_that_is_not_here_are_opened_on_the_cpu_and_that_is_said_once(run) -> None:
    out = run("print(opened({'a': Storage(b'cuda:0 1'), 'b': [Storage(b'cpu 2'), OfXla()]}), moved)")

    assert out == ["{'a': ('cpu', b'1'), 'b': [('cpu', b'2'), ('cpu', b'n')]} [0]"]


def test_tensors_of_a_device_that_is_here_stay_where_they_were(run) -> None:
    assert run("print(opened([Storage(b'mps 1')]), moved)") == ["[('mps', b'1')] []"]


def test_an_error_that_has_nothing_to_do_with_devices_is_what_it_was(run) -> None:
    out = run("""
        for value in (Refuses(), [Storage(b'cpu 1'), Refuses()], [Storage(b'cuda:0 1'), Refuses()]):
            try:
                opened(value)
            except RuntimeError as error:
                print(error, moved)
    """)

    assert out == ["of the user []", "of the user []", "Attempting to deserialize object on a CUDA device []"]


def test_without_pytorch_a_pickle_is_opened_once() -> None:
    tries = []

    def opened():
        tries.append(1)
        return io.BytesIO(pickle.dumps(Refuses()))

    with pytest.raises(RuntimeError, match="of the user"):
        device_tensors.load(opened, list)

    assert len(tries) == (2 if "torch" in sys.modules else 1)


class Refuses:
    """Its pickle raises when it is opened."""

    def __reduce__(self):
        return exec, ("raise RuntimeError('of the user')",)


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed here")
def test_a_model_of_the_real_pytorch_on_a_gpu_that_is_not_here_is_opened_on_the_cpu() -> None:
    code = """
        import io, pickle, torch
        from kinetic._wire import device_tensors

        model = torch.nn.Linear(3, 2)
        tag, torch.serialization.location_tag = torch.serialization.location_tag, lambda storage: "cuda:63"
        data = pickle.dumps({"state": model.state_dict(), "model": model})
        torch.serialization.location_tag = tag
        moved = []
        found = device_tensors.load(lambda: io.BytesIO(data), lambda: moved.append(1))
        pairs = (found["state"]["weight"], model.weight), (found["model"].bias, model.bias)
        weight = found["model"].weight
        print([torch.equal(one, other) for one, other in pairs], weight.device, weight.requires_grad, moved)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)

    assert done.stdout.split("\n")[0] == "[True, True] cpu True [1]", done.stderr
