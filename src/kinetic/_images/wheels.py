"""Wheels on this machine: fetched from where a lock says they are, verified by their hash, and kept for other layers.

{cache}/{sha256}.whl            a wheel
{cache}/{sha256}.{tag}.zip      its bytecode
{cache}/...                     all else is being made, and is removed when it is a day old
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import netrc
import os
import re
import shutil
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from http.client import HTTPResponse
from pathlib import Path

from kinetic._images.layers import Wheel
from kinetic._wire import folders, http_client, proxies
from kinetic._wire.http_client import HttpClient
from kinetic.errors import AccessDeniedError, ImageBuildError

ATTEMPTS = 5
SIDE_BY_SIDE = 8  # from one index: as many as pip's successors use
_CHUNK = 1 << 18  # of a body or a file in memory, for each of up to 16 threads
_DAY = 24 * 3600.0
EXTRA_INDEXES = "UV_EXTRA_INDEX_URL"
_INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", EXTRA_INDEXES)
_NAMED_INDEX = re.compile(r"[A-Za-z0-9._-]+=")

Report = Callable[[int], None]  # takes how many more bytes have come; a negative number takes back a failed attempt


class WheelCache:
    """Wheels by hash in a folder. Threads and processes may share it.

    Args:
        folder: Made when it is needed.
        environ: Where logins of indexes are: their addresses in uv's variables, UV_INDEX_<NAME>_USERNAME and _PASSWORD,
            and NETRC.
        client: Sends the requests.
        sleep: Waits between attempts; None: until what is fetched is not wanted any more.
    """

    def __init__(
        self,
        folder: Path,
        environ: Mapping[str, str] = os.environ,
        client: HttpClient | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self.folder = folder
        # An index in a company's network may have no TLS; uv asks it, too, and each file has the hash of the lock.
        self._environ, self._client, self._sleep = environ, client or HttpClient(plain_http=True), sleep
        self._lock = threading.Lock()
        self._hung_up = threading.Event()

    def hang_up(self) -> None:
        """End what other threads fetch at once: they raise CancelledError. Nothing can be fetched after that."""
        self._hung_up.set()
        self._client.hang_up()

    def path_of(self, wheel: Wheel) -> Path:
        """Return where a wheel is once it was fetched."""
        return self.folder / f"{wheel.sha256}.whl"

    def missing(self, wheels: Iterable[Wheel]) -> list[Wheel]:
        """Return the wheels that must be fetched first."""
        return [wheel for wheel in wheels if not self._has(wheel)]

    def _has(self, wheel: Wheel) -> bool:
        """Return whether a wheel is there with all its bytes; a machine that lost power may have kept an empty file."""
        path = self.path_of(wheel)
        try:
            about = path.stat()
            if time.time() - max(about.st_atime, about.st_mtime) > _DAY:
                os.utime(path)  # so that it is not removed as unused before it is read
        except FileNotFoundError:
            return False
        size = about.st_size
        return size == wheel.size_bytes if wheel.size_bytes else size > 0

    def fetch(self, wheels: Iterable[Wheel], report: Report = lambda _: None) -> None:
        """Fetch the wheels that are missing, several at once; what has arrived stays if one of them fails.

        Raises:
            ImageBuildError: A wheel does not come, is not the one of the lock, or the disk is full.
            AccessDeniedError: An index wants a login.
        """
        wanted = list(wheels)
        with self.fetching(wanted, report) as wait_for:
            wait_for(wanted)

    @contextlib.contextmanager
    def fetching(
        self, wheels: Iterable[Wheel], report: Report = lambda _: None
    ) -> Iterator[Callable[[Iterable[Wheel]], None]]:
        """Fetch the wheels that are missing while the block runs; yield what waits for some of them.

        What is still under way at the end of the block is given up. ``wait_for`` raises what ``fetch`` raises.
        """
        wanted = sorted(self.missing(wheels), key=lambda wheel: -wheel.size_bytes)
        if not wanted:
            yield lambda _: None
            return
        with disk_full(self.folder):
            folders.make(self.folder)
        self._remove_left_over()
        stop = threading.Event()
        with ThreadPoolExecutor(min(SIDE_BY_SIDE, len(wanted)), "kinetic-wheels") as pool:
            running = {wheel.sha256: pool.submit(self._fetch_one, wheel, report, stop) for wheel in wanted}

            def wait_for(some: Iterable[Wheel]) -> None:
                for wheel in some:
                    if wheel.sha256 in running:
                        running[wheel.sha256].result()

            try:
                yield wait_for
            finally:
                stop.set()
                self._client.hang_up()
                pool.shutdown(cancel_futures=True)
                self._client.close()

    def _fetch_one(self, wheel: Wheel, report: Report, stop: threading.Event) -> None:
        why = ""
        for attempt in range(ATTEMPTS):
            if stop.is_set() or self._hung_up.is_set():
                raise CancelledError
            try:
                with disk_full(self.folder, wheel.size_bytes):
                    answer = self._attempt(wheel, report, stop)
            except proxies.RefusedError as error:
                what = f"the proxy for {host_of(wheel.url)} does not let us through"
                raise ImageBuildError(what, why=str(error), next=proxies.ADVICE, code="wheel") from error
            except OSError as error:
                why = str(error)
                self._wait(0.25 * 2**attempt, stop)
                continue
            if answer.status == 200:
                return
            why = f"HTTP {answer.status}"
            if answer.status in {401, 403}:
                raise _login_error(wheel, answer.status)
            if answer.status not in http_client.RETRYABLE:
                break
            self._wait(max(0.25 * 2**attempt, min(30.0, answer.retry_after)), stop)
        raise ImageBuildError(
            f"{wheel.filename} could not be fetched",
            why=f"{host_of(wheel.url)}: {why}",
            next="check the network and try again; what has arrived is kept",
            code="wheel",
        )

    def _wait(self, seconds: float, stop: threading.Event) -> None:
        """Wait before the next attempt, which there may not be any more."""
        if not self._hung_up.is_set():
            (self._sleep or stop.wait)(seconds)

    def _attempt(self, wheel: Wheel, report: Report, stop: threading.Event) -> http_client.Response:
        """Fetch a wheel once into a file beside its place, and put it there when its hash is right."""
        beside = self.folder / f"{wheel.sha256}.whl.{os.urandom(4).hex()}"
        hasher, came = hashlib.sha256(), 0

        def take(response: HTTPResponse) -> None:
            nonlocal came
            with open(beside, "wb", opener=folders.opener) as file:
                while piece := response.read(_CHUNK):
                    if stop.is_set():
                        raise CancelledError
                    file.write(piece)
                    hasher.update(piece)
                    came += len(piece)
                    report(len(piece))

        try:
            answer = self._client.send("GET", wheel.url, headers=_login_header(wheel.url, self._environ), take=take)
            if answer.status == 200 and hasher.hexdigest() != wheel.sha256:
                raise OSError(f"{came} bytes came, and they do not have the hash of the lock")
            if answer.status == 200:
                beside.replace(self.path_of(wheel))
            return answer
        except BaseException:
            report(-came)
            raise
        finally:
            beside.unlink(missing_ok=True)

    def _remove_left_over(self) -> None:
        """Remove what processes that were killed had begun."""
        now = time.time()
        for file in folders.listed(self.folder):
            if file.suffix in {".whl", ".zip"} or folders.age(file, now) <= _DAY:
                continue
            if file.is_dir():
                shutil.rmtree(file, ignore_errors=True)
            else:
                file.unlink(missing_ok=True)


def _login_header(url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the header that shows an index who we are, if there is a login for it; uv uses the same."""
    found = find_login(url, environ)
    if not found:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(":".join(found).encode()).decode()}


def digests_of(url: str, algorithms: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Fetch a file of an index for its digests, in hexadecimal, by the names of algorithms; it is not kept.

    Raises:
        OSError: It did not come.
    """
    hashers = {name: hashlib.new(name, usedforsecurity=False) for name in algorithms}

    def take(response: HTTPResponse) -> None:
        while piece := response.read(_CHUNK):
            for hasher in hashers.values():
                hasher.update(piece)

    client = HttpClient(plain_http=True)
    try:
        answer = client.send("GET", url, headers=_login_header(url, environ), take=take)
    finally:
        client.close()
    if answer.status != 200:
        raise OSError(f"{host_of(url)}: HTTP {answer.status}")
    return {name: hasher.hexdigest() for name, hasher in hashers.items()}


def find_login(url: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the user and password for the index of an address, where uv would find them, or None."""
    return _uv_login(url, environ) or _netrc_login(host_of(url), environ)


def with_indexes(environ: Mapping[str, str], addresses: Sequence[str]) -> dict[str, str]:
    """Return variables that name more indexes, whose addresses may have logins in them."""
    return {**environ, EXTRA_INDEXES: " ".join([environ.get(EXTRA_INDEXES, ""), *addresses])}


@contextlib.contextmanager
def disk_full(folder: Path, size_bytes: int = 0) -> Iterator[None]:
    """Raise what a user understands where the disk has no room for what the block writes.

    Raises:
        ImageBuildError: The disk, or what this account may use of it, is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in http_client.DISK_FULL:
            raise
        needed = f"{size_bytes >> 20} MiB belong into" if size_bytes else "wheels and layers are written into"
        raise ImageBuildError(
            "the disk is full: the image cannot be built",
            why=f"{needed} {folder}: {error.strerror}",
            next=f"make room there, and try again; what has arrived is kept: df -h {folder}",
            code="wheel-cache-full",
        ) from error


def _uv_login(url: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return what the address of an index says, or UV_INDEX_<NAME>_USERNAME and _PASSWORD of a named one.

    The index is one of the same host, and of several the one below whose address the file is, as of two projects of
    GitLab; a login that is in its address goes nowhere without TLS if its index has it.
    """
    found: list[tuple[int, tuple[str, str]]] = []
    for entry in " ".join(environ.get(name, "") for name in _INDEXES).split():
        name, address = entry.split("=", 1) if _NAMED_INDEX.match(entry) else ("", entry)
        index = urllib.parse.urlsplit(address)
        if (index.scheme, host_of(address)) != (urllib.parse.urlsplit(url).scheme, host_of(url)):
            continue
        word = "".join(letter if letter.isalnum() else "_" for letter in name.upper())
        user, password = (
            environ.get(f"UV_INDEX_{word}_{part}", "") if name else "" for part in ("USERNAME", "PASSWORD")
        )
        if index.username or index.password:
            user, password = (urllib.parse.unquote(each or "") for each in (index.username, index.password))
        if user or password:
            above = f"{index.path.rstrip('/').removesuffix('/simple')}/"
            is_below = urllib.parse.urlsplit(url).path.startswith(above)
            found.append((len(above) if is_below else 0, (user, password)))
    return max(found, key=lambda each: each[0])[1] if found else None


def _netrc_login(host: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    file = Path(environ.get("NETRC") or Path(environ.get("HOME") or Path.home()) / ".netrc")
    try:
        found = netrc.netrc(str(file)).authenticators(host.partition(":")[0])
    except (OSError, netrc.NetrcParseError):
        return None
    return (found[0] or "", found[2] or "") if found else None


def host_of(url: str) -> str:
    """Return the host of an address, with its port."""
    return urllib.parse.urlsplit(url).netloc.rpartition("@")[2]


def _login_error(wheel: Wheel, status: int) -> AccessDeniedError:
    return AccessDeniedError(
        f"{host_of(wheel.url)} refuses {wheel.filename} (HTTP {status})",
        why="the index wants a login, and none that kinetic finds is accepted",
        next=f"add a line for {host_of(wheel.url)} to ~/.netrc, or set UV_INDEX_<NAME>_USERNAME and _PASSWORD",
        code="index-login",
    )
