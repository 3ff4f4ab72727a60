"""What a debugger shall stop in: the code that the user wrote, whatever stands around it."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kinetic._runner.worker import debug_server
from kinetic._wire import python_runtime
from kinetic.errors import RunnerError


def test_a_job_that_has_no_debugpy_and_cannot_install_it_says_what_to_do(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.setattr(debug_server, "find_spec", lambda _: None)
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))

    with pytest.raises(RunnerError, match="no debugpy in this job, and it could not be installed") as raised:
        debug_server._require(SimpleNamespace(folder=tmp_path / "work-0-0"))

    assert raised.value.code == "no-debugger"
    assert "to the image" in raised.value.next
    assert f"fetching debugpy=={python_runtime.INSTALLER_VERSIONS['debugpy']}" in capfd.readouterr().out


TAKEN = """
import socket
from kinetic._runner.worker import debug_server as debugging
from kinetic._wire import inspection as debug
with socket.create_server(("127.0.0.1", 0)) as other:
    debug.PORT = other.getsockname()[1]
    found = debugging._listen(True, "token")
    socket.create_connection(("127.0.0.1", found)).close()
    print(found != debug.PORT)
"""


def test_a_port_that_is_taken_in_the_pod_is_replaced_by_a_free_one_without_a_word() -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(debug_server.__file__).parents[3])}

    done = subprocess.run(
        [sys.executable, "-c", TAKEN], env=environ, capture_output=True, text=True, check=False, timeout=60
    )

    assert (done.stdout, done.stderr) == ("True\n", "")


def plain(x):
    return x


def decorated(function):
    @functools.wraps(function)
    def around(*args):
        return function(*args)

    return around


class Trainer:
    def fit(self, x):
        return x

    def __call__(self, x):
        return x


class Model:
    def __init__(self, x):
        self.x = x


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (plain, plain.__code__),
        (functools.partial(functools.partial(plain), 1), plain.__code__),
        (decorated(decorated(plain)), plain.__code__),
        (Trainer().fit, Trainer.fit.__code__),
        (Trainer(), Trainer.__call__.__code__),
        (Model, Model.__init__.__code__),
        (len, None),
    ],
)
def test_the_code_of_the_user_is_found_below_what_stands_around_it(function, code) -> None:
    assert debug_server._code_of(function) is code
