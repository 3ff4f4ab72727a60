"""GPUs by a library that is compiled here with NVML's own names, and TPU chips by what a gRPC server once answered."""

from __future__ import annotations

import ast
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import nvml
import pytest
from waiting import until

from kinetic._runner.supervisor.device_metrics import Busy, DeviceReader, Nvml, RuntimeMetrics
from kinetic._wire.measurements import Device

# What grpcio 1.76 answered to these very requests (port 0, its own proto), 2026-11-23: settings, a window, the
# acknowledgement of ours, a ping with 8 random bytes, headers, data, trailers.
_BEFORE = (
    b"\x00\x00\x18\x04\x00\x00\x00\x00\x00\x00\x04\x00@\x00\x00\x00\x05\x00@\x00\x00\x00\x06\x00\x00@\x00\xfe\x03\x00\x00\x00\x01"
    b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00?\x00\x01\x00\x00\x00\x04\x01\x00\x00\x00\x00"
    b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00)\x00\x00\x08\x06\x00\x00\x00\x00\x00\xab\xbc\x8f\xbe\xd9Q\xa4\x84"
)
_HEAD = (
    b"\x00\x00N\x01\x04\x00\x00\x00\x01\x88@\x0ccontent-type\x10application/grpc"
    b"@\x14grpc-accept-encoding\x17identity, deflate, gzip"
)
_TRAILERS = b"\x00\x00\x1e\x01\x05\x00\x00\x00\x01@\x0bgrpc-status\x010\x00\x0cgrpc-message\x00"
ANSWERS = {
    b"tpu.runtime.hbm.memory.total.bytes": _BEFORE
    + _HEAD
    + b'\x00\x00a\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\\\nZ\n"tpu.runtime.hbm.memory.total.bytes'
    + b"\x1a\x19\n\x0f\n\tdevice-id\x12\x02\x18\x00\x1a\x06\x10\x80\x80\x80\x80@"
    + b"\x1a\x19\n\x0f\n\tdevice-id\x12\x02\x18\x01\x1a\x06\x10\x80\x80\x80\x80@"
    + _TRAILERS,
    b"tpu.runtime.hbm.memory.usage.bytes": _BEFORE
    + _HEAD
    + b'\x00\x00a\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\\\nZ\n"tpu.runtime.hbm.memory.usage.bytes'
    + b"\x1a\x19\n\x0f\n\tdevice-id\x12\x02\x18\x00\x1a\x06\x10\x80\x80\x80\x80\x0c"
    + b"\x1a\x19\n\x0f\n\tdevice-id\x12\x02\x18\x01\x1a\x06\x10\x80\x80\x80\x80\x04"
    + _TRAILERS,
    b"tpu.runtime.tensorcore.dutycycle.percent": _BEFORE
    + _HEAD
    + b"\x00\x00m\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00h\nf\n(tpu.runtime.tensorcore.dutycycle.percent"
    + b"\x1a\x1c\n\x0f\n\tdevice-id\x12\x02\x18\x00\x1a\t\t\x00\x00\x00\x00\x00\xe0U@"
    + b"\x1a\x1c\n\x0f\n\tdevice-id\x12\x02\x18\x01\x1a\t\t\x00\x00\x00\x00\x00\x00\x00\x00"
    + _TRAILERS,
    b"tpu.runtime.unknown": _BEFORE
    + b"\x00\x00@\x01\x05\x00\x00\x00\x01\x88@\x0ccontent-type\x10application/grpc"
    + b"@\x0bgrpc-status\x015\x00\x0cgrpc-message\x02no",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(nvml.built(tmp_path_factory.mktemp("nvml")))


def test_every_gpu_of_a_machine_is_read_and_what_one_does_not_tell_is_none(library: str) -> None:
    gpus = Nvml(None, [library])

    assert gpus.find() == (Device("gpu", "First GPU", 80 << 30), Device("gpu", "Second GPU", 80 << 30))
    assert gpus.read() == ((97.0, 70 << 30), (None, 5 << 30))
    gpus.close()


@pytest.mark.parametrize(("visible", "names"), [("1", ["Second GPU"]), ("GPU-second,0", ["Second GPU", "First GPU"])])
def test_of_several_gpus_those_of_the_job_are_read(visible: str, names: list[str], library: str) -> None:
    gpus = Nvml(visible, ["libnvidia-none.so.1", library])

    assert [device.name for device in gpus.find()] == names
    gpus.close()


def test_a_machine_without_the_library_or_the_driver_or_that_gpu_has_none(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="libnvidia-none"):
        Nvml(None, ["libnvidia-none.so.1"])
    with pytest.raises(OSError, match="error 2"):
        Nvml("7", [library])
    monkeypatch.setenv("NO_DRIVER", "1")
    with pytest.raises(OSError, match="nvmlInit_v2: error 9"):
        Nvml(None, [library])


@pytest.mark.parametrize(
    ("environ", "seconds", "told"),
    [({}, 40, {"1": 5 << 30, "0": 70 << 30}), ({"DRIVER_HANGS": "1"}, 0.1, {}), ({"NO_DRIVER": "1"}, 40, {})],
    ids=["driver", "one that hangs", "none"],
)
def test_how_much_memory_programs_use_is_told_where_the_driver_says_it_soon(
    environ: dict[str, str], seconds: float, told: dict[str, int], library: str
) -> None:
    read = f"device_metrics.used_bytes(['1', '0'], {seconds})"
    code = f"import threading; from kinetic._runner.supervisor import device_metrics; {read}; print({read})"
    code += "; assert threading.active_count() <= 2"  # one that hangs is not asked again
    environ = {**os.environ, **environ, "LD_LIBRARY_PATH": str(Path(library).parent)}

    said = subprocess.run([sys.executable, "-c", code], env=environ, stdout=-1, text=True, check=True, timeout=50)

    assert ast.literal_eval(said.stdout) == told


# ----------------------------------------------------------------------------------------------------------------- TPUs


@pytest.fixture
def libtpu() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_serve, args=(server,), daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def _serve(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(5)
            _answer(connection)


def _answer(connection: socket.socket) -> None:
    """Check a request frame by frame, as RFC 9113 has it, and answer what was recorded."""
    assert _exactly(connection, 24) == b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    frames = []
    while not frames or frames[-1][1] != 0:
        head = _exactly(connection, 9)
        length, kind, flags, stream = (
            int.from_bytes(head[:3], "big"),
            head[3],
            head[4],
            struct.unpack(">I", head[5:])[0],
        )
        frames.append((_exactly(connection, length), kind, flags, stream))
    settings, headers, data = frames
    assert settings == (b"", 4, 0, 0)
    assert headers[1:] == (1, 4, 1)
    assert b"/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric" in headers[0]
    assert data[1:] == (0, 1, 1)
    assert data[0][:7] == b"\x00" + struct.pack(">I", len(data[0]) - 5) + b"\n" + bytes([len(data[0]) - 7])
    connection.sendall(ANSWERS[data[0][7:]])
    while connection.recv(1024):  # its acknowledgements
        pass


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += connection.recv(count - len(data)) or pytest.fail("the request ended")
    return data


def test_chips_are_read_as_libtpu_reports_them(libtpu: int) -> None:
    chips = RuntimeMetrics(libtpu)

    assert chips.find() == (Device("tpu", "chip 0", 16 << 30), Device("tpu", "chip 1", 16 << 30))
    assert chips.read() == ((87.5, 3 << 30), (0.0, 1 << 30))


def test_a_metric_that_libtpu_does_not_know_and_a_program_that_uses_no_chip_are_errors_that_are_caught(
    libtpu: int,
) -> None:
    with pytest.raises(OSError, match="no such metric"):
        RuntimeMetrics(libtpu)._ask("tpu.runtime.unknown")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(OSError, match="refused"):
        RuntimeMetrics(port).find()


# --------------------------------------------------------------------------------------------------------------- reader


class Driver:
    """Answers after some tries, and hangs when it is told to."""

    def __init__(self, tries: int = 0) -> None:
        self.tries, self.hangs, self.closed = tries, threading.Event(), threading.Event()

    def find(self) -> tuple[Device, ...]:
        self.tries -= 1
        if self.tries >= 0:
            raise ConnectionRefusedError
        return (Device("tpu", "chip 0", 1 << 30),)

    def read(self) -> tuple[Busy, ...]:
        if self.hangs.is_set():
            time.sleep(3600)
        return ((50.0, 7),)

    def close(self) -> None:
        self.closed.set()


def test_devices_appear_once_the_program_uses_them_and_the_driver_is_let_go() -> None:
    driver = Driver(tries=3)
    reader = DeviceReader(driver, seconds=0.01)

    until(lambda: reader.devices)
    assert reader.latest == ((50.0, 7),)
    reader.close()

    assert driver.closed.is_set()


def test_a_driver_that_hangs_delays_the_end_by_no_more_than_two_seconds() -> None:
    driver = Driver()
    reader = DeviceReader(driver, seconds=0.01)
    until(lambda: reader.devices)
    driver.hangs.set()
    time.sleep(0.05)
    began = time.monotonic()

    reader.close()

    assert time.monotonic() - began < 4
