"""How busy the GPUs or TPU chips of a job are, and how much of their memory is used; on a thread of its own.

A driver that hangs must not keep a supervisor from its deadline. GPUs: NVIDIA's management library, which every driver
brings, by ctypes. TPUs: the metrics that libtpu serves on port 8431 of its host once a program uses the chips. Each is
one gRPC request without compression: a few frames of HTTP/2 (RFC 9113, 7541), for which no library is needed.

Sources: docs.nvidia.com/deploy/nvml-api, and the proto of Google's package tpu-info 0.14; both read 2026-11-23.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from kinetic._wire.measurements import GPU, TPU, Device

Busy = tuple[float | None, int | None]  # how busy a device is (%), and bytes of its memory that are used

# The second is where GKE mounts the driver, whatever an image's loader knows.
NVML = ("libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1")
TPU_PORT = 8431
_SECONDS = 2.0  # between two readings
_TIMEOUT = 2.0
_READING = "kinetic-gpus"  # a thread


class Source(Protocol):
    """What knows the devices of one host."""

    def find(self) -> tuple[Device, ...]:
        """Return the devices; none while they are not known."""

    def read(self) -> tuple[Busy, ...]:
        """Return how each of them is used now."""

    def close(self) -> None:
        """Release the driver."""


class DeviceReader:
    """Reads the devices of a host now and then."""

    def __init__(self, source: Source, seconds: float = _SECONDS) -> None:
        self.devices: tuple[Device, ...] = ()  # what there is; empty until it is known
        self.latest: tuple[Busy, ...] = ()  # how each of them was used lately
        self._source, self._seconds = source, seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kinetic-devices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End, unless the driver hangs: the next worker is forked from this process."""
        self._over.set()
        self._thread.join(_TIMEOUT)

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._look()
                self._over.wait(self._seconds)
        finally:
            self._source.close()

    def _look(self) -> None:
        try:
            found = self.devices or self._source.find()
            read = self._source.read() if found else ()
        except (OSError, ValueError, IndexError, struct.error):  # not there yet, or the program is ending
            read = tuple((None, None) for _ in self.devices)
            found = self.devices
        if len(read) == len(found):
            self.latest, self.devices = read, found


def reader_of(kind: str, visible: str | None) -> DeviceReader | None:
    """Return what reads the devices of this host; None where there is no driver. ``visible``: as for CUDA."""
    if kind == TPU:
        return DeviceReader(RuntimeMetrics(_ports(os.environ)[0]))
    try:
        return DeviceReader(Nvml(visible))
    except OSError:
        return None


def used_bytes(gpus: Sequence[str], seconds: float = 1.0) -> dict[str, int]:
    """Return how much memory of these GPUs programs use now; nothing, where that is not known within some time.

    A driver without a persistent daemon takes seconds until it has opened a GPU that no program has open.
    """
    found: dict[str, int] = {}
    if any(thread.name == _READING for thread in threading.enumerate()):
        return found  # the driver hangs since the last time

    def read() -> None:
        with contextlib.suppress(OSError):
            library = Nvml(",".join(gpus))
            try:
                found.update(zip(gpus, (used or 0 for _, used in library.read()), strict=True))
            finally:
                library.close()

    thread = threading.Thread(target=read, name=_READING, daemon=True)
    thread.start()
    thread.join(seconds)
    return {} if thread.is_alive() else found


def _ports(environ: Mapping[str, str]) -> list[int]:
    """Return where libtpu serves its metrics; the variable is libtpu's own."""
    ports = environ.get("TPU_RUNTIME_METRICS_PORTS", "").split(",")
    return [int(port) for port in ports if port.strip().isdigit()] or [TPU_PORT]


# ----------------------------------------------------------------------------------------------------------------- GPUs


def _first_of(libraries: Sequence[str]) -> Any:
    for name in libraries[:-1]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return ctypes.CDLL(libraries[-1])


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Nvml:
    """The GPUs of this machine, or those that CUDA_VISIBLE_DEVICES names, by number or UUID.

    Raises:
        OSError: There is no such library, or it does not find a driver.
    """

    def __init__(self, visible: str | None = None, libraries: Sequence[str] = NVML) -> None:
        self._library = _first_of(libraries)
        self._call("nvmlInit_v2")
        self._handles = [handle for handle in self._find(visible) if handle]

    def find(self) -> tuple[Device, ...]:
        return tuple(Device(GPU, self._name(handle), self._memory(handle).total) for handle in self._handles)

    def read(self) -> tuple[Busy, ...]:
        return tuple((self._busy(handle), int(self._memory(handle).used)) for handle in self._handles)

    def close(self) -> None:
        self._library.nvmlShutdown()

    def _find(self, visible: str | None) -> Iterator[ctypes.c_void_p]:
        if visible is None:
            count = ctypes.c_uint()
            self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
            visible = ",".join(map(str, range(count.value)))
        for word in filter(None, map(str.strip, visible.split(","))):
            handle = ctypes.c_void_p()
            if word.isdecimal():
                self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(int(word)), ctypes.byref(handle))
            else:
                self._call("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(word.encode()), ctypes.byref(handle))
            yield handle

    def _name(self, handle: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(96)
        self._call("nvmlDeviceGetName", handle, text, ctypes.c_uint(len(text)))
        return text.value.decode(errors="replace")

    def _memory(self, handle: ctypes.c_void_p) -> Any:
        found = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(found))
        return found

    def _busy(self, handle: ctypes.c_void_p) -> float | None:
        found = _Utilization()
        try:
            self._call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(found))
        except OSError:  # a part of a GPU (MIG) does not tell
            return None
        return float(found.gpu)

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            code = getattr(self._library, name)(*arguments)
        except AttributeError as error:  # an old driver
            raise OSError(f"{name} is not there") from error
        if code:
            raise OSError(f"{name}: error {code}")


# ----------------------------------------------------------------------------------------------------------------- TPUs

_USED, _TOTAL = "tpu.runtime.hbm.memory.usage.bytes", "tpu.runtime.hbm.memory.total.bytes"
_DUTY = "tpu.runtime.tensorcore.dutycycle.percent"
_PATH = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY = 0, 1, 3, 4, 6, 7  # kinds of frames
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_STREAM = 1  # each request has a connection of its own
_MOST_BYTES = 1 << 16  # of an answer: what one connection may send unasked


class RuntimeMetrics:
    """The chips of this host, as libtpu reports them while a program uses them."""

    def __init__(self, port: int = TPU_PORT, host: str = "127.0.0.1") -> None:
        self._address = host, port
        self._chips: list[int] = []

    def find(self) -> tuple[Device, ...]:
        total = self._ask(_TOTAL)
        self._chips = sorted(total)
        return tuple(Device(TPU, f"chip {chip}", int(total[chip])) for chip in self._chips)

    def read(self) -> tuple[Busy, ...]:
        used, duty = self._ask(_USED), self._ask(_DUTY)
        cores = max(len(self._chips) // max(len(duty), 1), 1)  # older chips have two, each with memory of its own
        return tuple((duty.get(each // cores), int(used[each]) if each in used else None) for each in self._chips)

    def close(self) -> None: ...

    def _ask(self, metric: str) -> dict[int, float]:
        """Return the value of a metric by the number of the device.

        Raises:
            OSError: libtpu does not answer, or with an error.
        """
        name = metric.encode()
        message = b"\x0a" + bytes([len(name)]) + name  # field 1, text
        with socket.create_connection(self._address, _TIMEOUT) as connection:
            connection.settimeout(_TIMEOUT)
            headers = b"\x83\x86" + b"".join(  # POST, http; both have a number
                b"\x00" + bytes([len(key)]) + key + bytes([len(value)]) + value
                for key, value in (
                    (b":path", _PATH.encode()),
                    (b":authority", b"localhost"),
                    (b"content-type", b"application/grpc"),
                    (b"te", b"trailers"),
                )
            )
            body = b"\x00" + struct.pack(">I", len(message)) + message
            connection.sendall(
                _PREFACE
                + _frame(_SETTINGS, 0, b"", 0)
                + _frame(_HEADERS, _END_HEADERS, headers)
                + _frame(_DATA, _END_STREAM, body)
            )
            return dict(_values(_answer(connection)))


def _frame(kind: int, flags: int, data: bytes, stream: int = _STREAM) -> bytes:
    return struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data


def _answer(connection: socket.socket) -> bytes:
    """Return the message of a gRPC answer; raises OSError if there is none."""
    body = bytearray()
    while True:
        head = _receive(connection, 9)
        length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        if length > _MOST_BYTES or len(body) > _MOST_BYTES:
            raise OSError("the answer is too long")
        data = _receive(connection, length)
        if kind == _DATA:
            body += data
        elif kind in {_SETTINGS, _PING} and not flags & _ACK:
            connection.sendall(_frame(kind, _ACK, data if kind == _PING else b"", 0))
        elif kind in {_RESET, _GO_AWAY}:
            raise OSError("the request was refused")
        if kind in {_DATA, _HEADERS} and flags & _END_STREAM:
            break
    if len(body) < 5 or body[0]:  # an error has no message; we did not offer compression
        raise OSError("there is no such metric")
    return bytes(body[5 : 5 + int.from_bytes(body[1:5], "big")])


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise OSError("the connection was closed")
        data += piece
    return data


def _values(answer: bytes) -> Iterator[tuple[int, float]]:
    """Yield number and value of each device: MetricResponse.metric(1).metrics(3), of each attribute(1) and gauge(3)."""
    for metric in _inside(answer, 1, 3):
        device = next(iter(_inside(metric, 1, 2, 3)), 0)  # attribute.value.int_attr; proto3 leaves out a zero
        whole, part = _inside(metric, 3, 2), _inside(metric, 3, 1)  # gauge.as_int, gauge.as_double
        if whole or part:
            yield int(device), float(whole[0] if whole else part[0])


def _inside(data: Any, *path: int) -> Sequence[Any]:
    """Return the values of a field in a field of a message of Protocol Buffers."""
    found = [value for number, value in _fields(data) if number == path[0]]
    return found if len(path) == 1 else [each for value in found for each in _inside(value, *path[1:])]


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        value: Any
        if kind == 0:
            value, at = _varint(data, at)
        elif kind == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif kind == 2:
            length, at = _varint(data, at)
            value, at = data[at : at + length], at + length
        elif kind == 5:
            value, at = data[at : at + 4], at + 4
        else:
            raise ValueError(f"kind {kind} of a field")
        yield tag >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
