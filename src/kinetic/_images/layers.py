"""Layers of an image, written straight from wheels: the same bytes on every system, and a key that needs no wheel.

A wheel is a zip file, and each of its entries is compressed already. A layer is a tar file in gzip; gzip allows many
members, one after the other. So the compressed bytes of an entry are copied, as one member, and only the tar headers
between them are compressed here, by a fixed code that does not depend on a version of zlib. Everything is inflated once
all the same, because a layer is also named by the digest of its uncompressed bytes, and to check each entry's CRC.

Source of the formats: RFC 1951 (deflate), RFC 1952 (gzip), PEP 427 and 491 (wheels), 376 and 627 (RECORD, INSTALLER),
the OCI image specification 1.1.
"""

from __future__ import annotations

import base64
import configparser
import contextlib
import csv
import hashlib
import io
import json
import posixpath
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from kinetic._wire import NamedTuple
from kinetic.errors import ImageError

FORMAT = 2  # part of every key: another way of writing layers makes other layers
PREFIX = "opt/kinetic/env"  # a virtual environment of its own: nothing of the base is overwritten
MEDIA_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
OWN_LAYER_BYTES = 4_000_000  # a wheel from this size on is a layer: of 75 wheels for torch 24, and 99 % of the bytes
SHARED_LAYERS = 6  # the small wheels: one that changes costs a sixth of them, some 4 MB, and of their bytecode
MOST_OWN_LAYERS = 26  # with those below and the base's, about 60 layers; container runtimes refuse images at about 127
OWN_BYTECODE = 12  # large wheels whose bytecode is a layer of its own; that of the others is in two
_CHUNK = 1 << 18  # of a body or a file in memory, for each of up to 16 threads
_STORED_BLOCK = 0xFFFF  # bytes of a deflate block without compression
_SHEBANG = f"#!/{PREFIX}/bin/python\n".encode()
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_ZIP_LOCAL_HEADER = struct.Struct("<4s22xHH")
_INSTALLER = b"kinetic\n"  # as pip writes "pip"


@dataclass(frozen=True, order=True)
class Wheel:
    """A wheel as a lock names it."""

    name: str  # the distribution, normalized, for example "scikit-learn"
    version: str  # its version
    filename: str  # as in the index, with the tags of Python and platform
    sha256: str  # of the file, 64 hexadecimal digits
    size_bytes: int  # of the file; 0 where the index does not say
    url: str  # from where it can be fetched, without credentials


@dataclass(frozen=True)
class Layer:
    """Wheels that make one layer, in the order of their names."""

    wheels: tuple[Wheel, ...]
    python: str  # X.Y

    @property
    def key(self) -> str:
        """Return what names the layer before it exists: a function of hashes, X.Y, prefix and format."""
        return key_of("wheels", self.python, [wheel.sha256 for wheel in self.wheels])

    @property
    def size_bytes(self) -> int:
        """Return the size of the wheels; the layer's differs by less than a twentieth."""
        return sum(wheel.size_bytes for wheel in self.wheels)


class FileOfWheel(NamedTuple):
    """A file of a layer: what tells its contents from others, and from which wheel it is."""

    crc: int
    size_bytes: int
    wheel: str


@dataclass(frozen=True)
class WrittenLayer:
    """A layer that exists: what a manifest says of it."""

    digest: str  # "sha256:…" of the compressed bytes: the name of the blob
    size_bytes: int  # of the compressed bytes
    diff_id: str  # "sha256:…" of the uncompressed tar file
    # of wheels: for each path the CRC and size of its contents, and each wheel that brings it
    files: Mapping[str, list[FileOfWheel]] = field(default_factory=dict, compare=False)


def conflicts(written: Iterable[WrittenLayer]) -> list[tuple[str, str]]:
    """Return the paths that several wheels bring with different contents, each with the wheel that wins.

    Args:
        written: Layers, the lowest first: the uppermost file counts, and within a layer the last wheel by name.
    """
    seen: dict[str, FileOfWheel] = {}
    found: dict[str, str] = {}
    for layer in written:
        for path, files in layer.files.items():
            for file in files:
                before = seen.get(path, file)
                if path in found or before[:2] != file[:2]:
                    found[path] = file.wheel
                seen[path] = file
    return sorted(found.items())


def key_of(kind: str, python: str, hashes: Sequence[str]) -> str:
    """Return the key of a layer of some kind: 64 hexadecimal digits."""
    text = json.dumps([FORMAT, kind, python, PREFIX, sorted(hashes)], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def group_into_layers(wheels: Iterable[Wheel], python: str) -> list[Layer]:
    """Return the layers of an environment, the largest first.

    A large wheel is a layer of its own. The others are distributed by a hash of their names, so that a wheel stays in
    its layer when others come and go. Large first: a node names an unpacked layer by all below it, so a change of the
    lightest costs nothing else.
    """
    large, small = _by_size(wheels)
    own = [Layer((wheel,), python) for wheel in large]
    shared = [Layer(group, python) for group in spread(small, SHARED_LAYERS)]
    return own + sorted(shared, key=lambda layer: -layer.size_bytes)


def group_for_bytecode(wheels: Sequence[Wheel]) -> list[tuple[Wheel, ...]]:
    """Return whose bytecode shares a layer; that of large wheels never does with small ones.

    To compile a layer, all of its wheels must be here. So a small one that changes asks for no large one. The order is
    that of the layers of wheels: of a module that two bring, bytecode and source must be of the same wheel.
    """
    large, _ = _by_size(wheels)
    groups = [layer.wheels for layer in group_into_layers(wheels, "")]
    others = tuple(large[OWN_BYTECODE:])
    half = (len(others) + 1) // 2
    return [
        *groups[: min(len(large), OWN_BYTECODE)],
        *filter(None, (others[:half], others[half:])),
        *groups[len(large) :],
    ]


def large_wheels(wheels: Iterable[Wheel]) -> frozenset[Wheel]:
    """Return the wheels that are layers of their own."""
    return frozenset(_by_size(wheels)[0])


def _by_size(wheels: Iterable[Wheel]) -> tuple[list[Wheel], list[Wheel]]:
    """Return the wheels that are layers of their own, and the others; the largest first."""
    listed = sorted(wheels, key=lambda wheel: (-wheel.size_bytes, wheel.name))
    count = sum(wheel.size_bytes >= OWN_LAYER_BYTES for wheel in listed[:MOST_OWN_LAYERS])
    return listed[:count], listed[count:]


def spread(wheels: Iterable[Wheel], count: int) -> list[tuple[Wheel, ...]]:
    """Distribute wheels over at most so many groups by a hash of their names: each stays where it is."""
    groups: dict[int, list[Wheel]] = {}
    for wheel in wheels:
        groups.setdefault(zlib.crc32(wheel.name.encode()) % count, []).append(wheel)
    return [tuple(sorted(group)) for _, group in sorted(groups.items())]


def write_layer(layer: Layer, files: Callable[[Wheel], Path], sink: IO[bytes]) -> WrittenLayer:
    """Write a layer from its wheels.

    Raises:
        ImageError: A wheel is damaged, or holds what a wheel must not hold.
    """
    entries: dict[str, _Entry] = {}
    brought: dict[str, list[FileOfWheel]] = {}
    try:
        with contextlib.ExitStack() as archives:
            for wheel in layer.wheels:
                archive = archives.enter_context(zipfile.ZipFile(files(wheel)))
                for entry in _entries_of(wheel, archive, layer.python):
                    entries[entry.path] = entry
                    brought.setdefault(entry.path, []).append(FileOfWheel(*entry.fingerprint, wheel.name))
            writer = LayerWriter(sink)
            for path in sorted(entries):
                entries[path].write_to(writer)
            return writer.finish(brought)
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error, ValueError) as error:
        raise ImageError(
            f"a layer of {', '.join(wheel.name for wheel in layer.wheels)} could not be written",
            why=str(error),
            next="remove the cache of wheels and try again: rm -r ~/.kinetic/cache/wheels",
            code="layer",
        ) from error


def write_environment(python: str, home: str, sink: IO[bytes]) -> WrittenLayer:
    """Write the layer that makes PREFIX a virtual environment, as ``python -m venv --without-pip`` would."""
    writer = LayerWriter(sink)
    config = f"home = {home}\ninclude-system-site-packages = false\nversion = {python}\n"
    for name, target in (("python", f"{home}/python{python}"), ("python3", "python"), (f"python{python}", "python")):
        writer.add_link(f"{PREFIX}/bin/{name}", target)
    writer.add_bytes(f"{PREFIX}/pyvenv.cfg", config.encode(), executable=False)
    return writer.finish()


def write_file(path: str, data: bytes, sink: IO[bytes]) -> WrittenLayer:
    """Write a layer of one file."""
    writer = LayerWriter(sink)
    writer.add_bytes(path, data, executable=False)
    return writer.finish()


def write_zips(files: Sequence[Path], folder: str, sink: IO[bytes]) -> WrittenLayer | None:
    """Write what zip files contain below a folder; None, and nothing, where all are empty."""
    writer, found = LayerWriter(sink), dict[str, tuple[zipfile.ZipFile, zipfile.ZipInfo]]()
    with contextlib.ExitStack() as archives:
        for file in files:
            archive = archives.enter_context(zipfile.ZipFile(file))
            found |= {f"{folder}/{info.filename}": (archive, info) for info in archive.infolist()}
        for path in sorted(found):
            writer.add_zipped(path, *found[path], executable=False)
        return writer.finish() if found else None


# ------------------------------------------------------------------------------------------------------ one wheel


@dataclass(frozen=True)
class _Entry:
    """A file of a layer: an entry of a wheel as it is, or bytes that were made from one."""

    path: str
    executable: bool
    archive: zipfile.ZipFile | None = None
    info: zipfile.ZipInfo | None = None
    data: bytes = b""

    @property
    def fingerprint(self) -> tuple[int, int]:
        return (self.info.CRC, self.info.file_size) if self.info else (zlib.crc32(self.data), len(self.data))

    def write_to(self, writer: LayerWriter) -> None:
        if self.archive is None or self.info is None:
            writer.add_bytes(self.path, self.data, executable=self.executable)
        else:
            writer.add_zipped(self.path, self.archive, self.info, executable=self.executable)


def _entries_of(wheel: Wheel, archive: zipfile.ZipFile, python: str) -> Iterator[_Entry]:
    """Yield what an installer makes of a wheel and where, by PEP 427; scripts get the Python of this environment.

    RECORD lists what is there and where, so that pip and uv can show and uninstall it, and ``importlib.metadata`` finds
    its files. It lists the bytecode too, which is never compared with its source: uv removes only what is listed, and
    the bytecode of a version that was replaced would be the one that runs.
    """
    packages = f"{PREFIX}/lib/python{python}/site-packages"
    listed, about = _listed(archive), ""
    rows: dict[str, str] = {}
    for entry in _files_of(wheel, archive, packages, python):
        top, *below = PurePosixPath(entry.path.removeprefix(f"{packages}/")).parts
        if top.endswith(".dist-info"):
            about = about or top
            if below in (["RECORD"], ["INSTALLER"]):
                continue
        rows[entry.path] = listed.get(entry.info.filename, ",") if entry.info else _row_of(entry.data)
        if entry.path.endswith(".py") and entry.path.startswith(f"{packages}/"):
            folder, _, name = entry.path.rpartition("/")
            rows[f"{folder}/__pycache__/{name.removesuffix('.py')}.cpython-{python.replace('.', '')}.pyc"] = ","
        yield entry
    if not about:
        return
    rows[f"{packages}/{about}/INSTALLER"] = _row_of(_INSTALLER)
    rows[f"{packages}/{about}/RECORD"] = ","
    record = sorted(f"{_quoted(posixpath.relpath(path, packages))},{row}\n" for path, row in rows.items())
    yield _Entry(f"{packages}/{about}/INSTALLER", executable=False, data=_INSTALLER)
    yield _Entry(f"{packages}/{about}/RECORD", executable=False, data="".join(record).encode())


def _files_of(wheel: Wheel, archive: zipfile.ZipFile, packages: str, python: str) -> Iterator[_Entry]:
    """Yield the files of a wheel and its programs, each where it belongs."""
    roots = {
        "purelib": packages,
        "platlib": packages,
        "data": PREFIX,
        "headers": f"{PREFIX}/include/site/python{python}/{wheel.name}",
        "scripts": f"{PREFIX}/bin",
    }
    for info in archive.infolist():
        path = PurePosixPath(info.filename)
        if info.is_dir():
            continue
        if path.is_absolute() or ".." in path.parts or info.flag_bits & 1:
            raise ValueError(f"{wheel.filename} contains {info.filename!r}, which no wheel may contain")
        executable = bool(info.external_attr >> 16 & 0o111)
        top, *below = path.parts
        if not top.endswith(".data") or len(below) < 2:
            if top.endswith(".dist-info") and below == ["entry_points.txt"]:
                yield from _scripts_of(archive.read(info).decode())
            yield _Entry(f"{packages}/{path}", executable, archive, info)
            continue
        scheme, inner = below[0], "/".join(below[1:])
        if scheme not in roots:
            raise ValueError(f"{wheel.filename} wants to install {info.filename!r} at an unknown place")
        if scheme == "scripts" and (data := archive.read(info)).startswith(b"#!python"):
            rest = data.partition(b"\n")[2]
            yield _Entry(f"{roots[scheme]}/{inner}", executable=True, data=_SHEBANG + rest)
        else:
            yield _Entry(f"{roots[scheme]}/{inner}", executable or scheme == "scripts", archive, info)


def _listed(archive: zipfile.ZipFile) -> dict[str, str]:
    """Return what a wheel's own RECORD says of its files: "hash,size"; one that cannot be read says nothing."""
    found: dict[str, str] = {}
    for info in archive.infolist():
        top, _, name = info.filename.partition("/")
        if top.endswith(".dist-info") and name == "RECORD":
            try:
                for row in csv.reader(io.StringIO(archive.read(info).decode(), newline="")):
                    found |= {row[0]: ",".join(map(_quoted, row[1:]))} if len(row) == 3 else {}
            except (UnicodeDecodeError, csv.Error):
                return {}
    return found


def _row_of(data: bytes) -> str:
    """Return what RECORD says of bytes: their hash and size."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest},{len(data)}"


def _quoted(text: str) -> str:
    """Write a field of RECORD: not by Python's csv, whose releases quote differently."""
    return '"' + text.replace('"', '""') + '"' if any(each in text for each in ',"\r\n') else text


def _scripts_of(entry_points: str) -> Iterator[_Entry]:
    """Yield the programs that a wheel's entry points name."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names of programs keep their case
    parser.read_string(entry_points)
    for group in ("console_scripts", "gui_scripts"):
        for name, target in parser.items(group) if parser.has_section(group) else ():
            module, _, attribute = target.partition("[")[0].strip().partition(":")
            if not module or not attribute or "/" in name or name in {".", ".."}:
                raise ValueError(f"the entry point {name!r} = {target!r} cannot be a program")
            first, call = attribute.strip().split(".")[0], attribute.strip()
            text = f"import sys\nfrom {module.strip()} import {first}\nsys.exit({call}())\n"
            yield _Entry(f"{PREFIX}/bin/{name}", executable=True, data=_SHEBANG + text.encode())


# ------------------------------------------------------------------------------------------------- tar inside gzip


class LayerWriter:
    """Writes a layer, entry by entry, and computes both of its digests."""

    def __init__(self, sink: IO[bytes]) -> None:
        self._sink = sink
        self._compressed = hashlib.sha256()
        self._tar = hashlib.sha256()
        self._size = 0
        self._pending = bytearray()  # padding and headers, which become one gzip member
        self._folders: set[str] = set()

    def add_zipped(self, path: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo, *, executable: bool) -> None:
        """Add an entry of a zip file, and copy its compressed bytes where it is compressed by deflate."""
        if info.compress_type not in {zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED}:
            raise ValueError(f"{info.filename!r} in {archive.filename} is compressed in an unusual way")
        self._begin(path, info.file_size, executable=executable)
        self._flush()
        self._write(_GZIP_HEADER)
        crc, length = (self._copy_stored if info.compress_type == zipfile.ZIP_STORED else self._copy_deflated)(
            _raw_bytes(archive, info)
        )
        if crc != info.CRC or length != info.file_size:
            raise ValueError(f"{info.filename!r} in {archive.filename} is damaged")
        self._write(struct.pack("<II", crc, length & 0xFFFFFFFF))
        self._pending += bytes(-length % tarfile.BLOCKSIZE)

    def _copy_deflated(self, pieces: Iterator[bytes]) -> tuple[int, int]:
        """Copy compressed bytes; return CRC and length of what they hold, of which little is in memory at a time."""
        inflate, crc, length = zlib.decompressobj(-zlib.MAX_WBITS), 0, 0
        for piece in pieces:
            self._write(piece)
            left = piece
            while left:
                data = inflate.decompress(left, _CHUNK)
                crc, length = zlib.crc32(data, crc), length + len(data)
                self._tar.update(data)
                left = inflate.unconsumed_tail
        while data := inflate.decompress(b"", _CHUNK):  # what the window still held
            crc, length = zlib.crc32(data, crc), length + len(data)
            self._tar.update(data)
        if not inflate.eof or inflate.unused_data:
            raise ValueError("an entry of a wheel is cut off")
        return crc, length

    def _copy_stored(self, pieces: Iterator[bytes]) -> tuple[int, int]:
        """Copy bytes that are not compressed as deflate blocks without compression; return their CRC and length."""
        crc, length, before = 0, 0, b""
        for data in pieces:
            crc, length = zlib.crc32(data, crc), length + len(data)
            self._tar.update(data)
            before += data
            whole = (len(before) - 1) // _STORED_BLOCK * _STORED_BLOCK  # something stays for the last block
            self._write(_stored(before[:whole], last=False))
            before = before[whole:]
        self._write(_stored(before))
        return crc, length

    def add_bytes(self, path: str, data: bytes, *, executable: bool) -> None:
        """Add a file that is not compressed yet; large ones should not come this way."""
        self._begin(path, len(data), executable=executable)
        self._flush()
        self._member(data, _stored(data))
        self._pending += bytes(-len(data) % tarfile.BLOCKSIZE)

    def add_link(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        self._add_folders(path)
        link = tarfile.TarInfo(path)
        link.type, link.linkname, link.mode = tarfile.SYMTYPE, target, 0o777
        self._pending += link.tobuf(tarfile.PAX_FORMAT)

    def finish(self, files: Mapping[str, list[FileOfWheel]] | None = None) -> WrittenLayer:
        """End the tar file and return what a manifest says of it."""
        self._pending += bytes(2 * tarfile.BLOCKSIZE)
        self._flush()
        digests = (f"sha256:{each.hexdigest()}" for each in (self._compressed, self._tar))
        return WrittenLayer(next(digests), self._size, next(digests), files or {})

    def _begin(self, path: str, size: int, *, executable: bool) -> None:
        self._add_folders(path)
        header = tarfile.TarInfo(path)
        header.size, header.mode = size, 0o755 if executable else 0o644
        self._pending += header.tobuf(tarfile.PAX_FORMAT)

    def _add_folders(self, path: str) -> None:
        for folder in reversed(PurePosixPath(path).parents[:-1]):
            if str(folder) not in self._folders:
                self._folders.add(str(folder))
                header = tarfile.TarInfo(str(folder))
                header.type, header.mode = tarfile.DIRTYPE, 0o755
                self._pending += header.tobuf(tarfile.PAX_FORMAT)

    def _flush(self) -> None:
        """Write the headers that have gathered as a member of their own."""
        if self._pending:
            data = bytes(self._pending)
            self._pending.clear()
            self._member(data, _fixed_huffman(data))

    def _member(self, data: bytes, deflated: bytes) -> None:
        self._tar.update(data)
        self._write(_GZIP_HEADER + deflated + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF))

    def _write(self, data: bytes) -> None:
        self._compressed.update(data)
        self._size += len(data)
        self._sink.write(data)


def _raw_bytes(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the compressed bytes of an entry as they are in the file."""
    file = archive.fp
    if file is None:
        raise ValueError(f"{archive.filename} is closed")
    file.seek(info.header_offset)
    sign, name_length, extra_length = _ZIP_LOCAL_HEADER.unpack(file.read(_ZIP_LOCAL_HEADER.size))
    if sign != b"PK\x03\x04":
        raise ValueError(f"{archive.filename} is not a valid zip file")
    file.seek(name_length + extra_length, 1)
    left = info.compress_size
    while left:
        piece = file.read(min(left, _CHUNK))
        if not piece:
            raise ValueError(f"{archive.filename} is cut off")
        left -= len(piece)
        yield piece


def _stored(data: bytes, *, last: bool = True) -> bytes:
    """Return bytes as deflate blocks without compression; ``last``: no other blocks follow."""
    pieces = [data[start : start + _STORED_BLOCK] for start in range(0, len(data), _STORED_BLOCK)] or [b""] * last
    end = len(pieces) - 1 if last else -1
    return b"".join(
        struct.pack("<BHH", number == end, len(piece), len(piece) ^ 0xFFFF) + piece
        for number, piece in enumerate(pieces)
    )


def _reversed(code: int, bits: int) -> tuple[int, int]:
    """Return a Huffman code as deflate stores it, first bit lowest, with its length."""
    return int(f"{code:0{bits}b}"[::-1], 2), bits


# Section 3.2.6 of RFC 1951: the fixed code of each byte and of each symbol of a length.
_CODES = [_reversed(0x30 + byte, 8) if byte < 144 else _reversed(0x190 + byte - 144, 9) for byte in range(256)]
_LONGEST = 258


def _length_code(length: int) -> tuple[int, int]:
    """Return the bits of "repeat the last byte so many times": a symbol, its extra bits, and the distance 1."""
    if length == _LONGEST:
        symbol, extra, bits = 285, 0, 0
    else:
        symbol, base, bits = 257, 3, 0
        while length >= base + (1 << bits):
            base += 1 << bits
            symbol += 1
            bits = max(0, (symbol - 261) // 4)
        extra = length - base
    code, width = _reversed(symbol - 256, 7) if symbol < 280 else _reversed(0xC0 + symbol - 280, 8)
    return code | extra << width, width + bits + 5  # the distance 1 is five zero bits


_REPEATS = [(0, 0)] * 3 + [_length_code(length) for length in range(3, _LONGEST + 1)]


def _fixed_huffman(data: bytes) -> bytes:
    """Return one deflate block with the fixed code, in which runs of a byte are repeats: enough for tar headers.

    Ours, and not zlib's, because the digest of a layer must not depend on which zlib a Python was built with.
    """
    value, width, position, end = 0b011, 3, 0, len(data)  # the last block, with the fixed code
    out = bytearray()
    while position < end:
        byte = data[position]
        code, bits = _CODES[byte]
        value |= code << width
        width += bits
        position += 1
        run = position
        while run < end and data[run] == byte:
            run += 1
        while (length := min(run - position, _LONGEST)) >= 3:
            code, bits = _REPEATS[length]
            value |= code << width
            width += bits
            position += length
        if width > 512:
            whole = width // 8
            out += (value & ((1 << whole * 8) - 1)).to_bytes(whole, "little")
            value >>= whole * 8
            width -= whole * 8
    width += 7  # the end of the block is seven zero bits
    out += value.to_bytes((width + 7) // 8, "little")
    return bytes(out)
