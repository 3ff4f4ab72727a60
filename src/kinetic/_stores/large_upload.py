"""Large objects in a bucket: uploads in parts, and copies inside the service.

No service offers a condition for an upload in parts. So where a large object must be created only if absent, it is
uploaded beside its place, below ``.tmp/``, and copied into place inside the service, on the condition that no object is
there. Where copies do not heed that condition, it is one request.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

from kinetic._stores import obstore_client, store_errors, upload
from kinetic._stores.obstore_client import UNSUPPORTED, ObstoreClient, is_transient, names_no_bucket
from kinetic._stores.protocol import SCRATCH
from kinetic._stores.upload import PART, Body, Large, Uploader, new_writer_id

MOST_PARTS = 10_000  # of one upload; Cloud Storage and S3
MOST_COPIED = 5 << 30  # bytes that S3 copies in one piece, or takes in one request
# A copy is refused: Ceph wants a length with it, which obstore does not send (16.2; as much is in its source of 2025).
_NO_COPIES = frozenset({411, UNSUPPORTED})
_NO_BLOCKS = "InvalidBlockList"  # of Azure, which has put them together already: they are gone
_LARGE_AT_ONCE = threading.BoundedSemaphore(3)  # uploads in parts: 3 x 6 parts of 8 MiB in memory


class LargeUploader:
    """Write objects that do not fit into one request, and make such ones young; errors leave as obstore's."""

    def __init__(self, small: Uploader) -> None:
        self._small, self._client = small, small.client
        self._scheme = self._client.address.scheme
        # None: to be tested, for many services imitate S3.
        self._copies_conditionally: bool | None = None if self._scheme == "s3" else True

    def write(self, key: str, body: Large) -> bool:
        """Write an object, whatever is there."""
        self._in_parts(key, body, new_writer_id())
        return True

    def create(self, key: str, body: Large) -> bool:
        """Upload beside the place, and copy into it if nothing is there."""
        if self._client.about(key) is not None:
            return False
        me = new_writer_id()
        with self._beside(me) as beside:
            if self._copies_conditionally is None:
                self._copies_conditionally = self._test_copies(beside)
            if not self._copies_conditionally:
                return self._create_at_once(key, body)
            self._in_parts(beside, body, me)
            if self._scheme == "s3":
                about = self._client.about(beside)
                _check_size(MOST_COPIED + 1 if about is None else about["size"])
            copy = self._copying(beside, key, overwrite=False, again=False)
            created = self._small.conditionally(key, me, copy, lambda: self._same(beside, key))
            if created and self._scheme == "az":
                self._await_copy(beside, key)
            return created

    def touch(self, key: str, size: int) -> None:
        """Make an object young by replacing it by itself."""
        if self._scheme != "s3":
            self._copying(key, key)()
        elif size <= PART:
            self._write_again(key)
        else:
            self._copy_there_and_back(key)

    def _same(self, one: str, other: str) -> bool:
        first, second = self._client.about(one), self._client.about(other)
        if first is None or second is None or first["size"] != second["size"]:
            return False
        return all(self._part(one, at) == self._part(other, at) for at in range(0, first["size"], PART))

    def _part(self, key: str, start: int) -> bytes:
        return bytes(self._client.ask_about("get_range", key, start=start, length=PART))

    def _test_copies(self, beside: str) -> bool:
        """Return whether this service heeds the condition of a copy: onto itself it must refuse.

        Raises:
            StoreError: It heeds none at all.
        """
        from obstore.exceptions import AlreadyExistsError, GenericError

        self._small.create(beside, b".")
        try:
            self._copying(beside, beside, overwrite=False)()
        except AlreadyExistsError:
            return True
        except GenericError as error:
            if obstore_client.status_of(error) not in _NO_COPIES:
                raise
        if self._small.create(beside, b"."):
            raise store_errors.unconditional(self._client.address.url, store_errors.TWICE)
        return False

    def _create_at_once(self, key: str, body: Large) -> bool:
        """Create a large object in one request, with the time that it takes; none of it is read into memory."""
        data = _mapped(body.source)
        _check_size(len(data))
        timeout = obstore_client.TIMEOUT + timedelta(seconds=len(data) >> 20)
        client = ObstoreClient(self._client.address, self._client.retry, timeout)
        return Uploader(client).create(key, data)

    def _await_copy(self, beside: str, key: str) -> None:
        """Wait until a copy has its size: Azure may answer before, and the source must stay until then."""
        source, begun, retry = self._client.about(beside), time.monotonic(), self._client.retry
        for attempt in itertools.count():
            found = self._client.about(key)
            if source is not None and found is not None and found["size"] == source["size"]:
                return
            if time.monotonic() - begun > retry.total_seconds:
                self._client.ask_about("delete", key)  # ours, and not whole
                raise store_errors.unreachable(self._client.address, key, TimeoutError("a copy did not end"))
            retry.pause(attempt)

    def _in_parts(self, key: str, body: Large, me: str) -> None:
        """Upload in parts; from the front again where the source allows it and the first request was lost."""
        from obstore.exceptions import GenericError

        largest = PART if body.size is not None else 2 * PART
        size = max(largest, -(-(body.size or 0) // (MOST_PARTS - 1)))
        client = self._client
        for attempt in range(client.retry.attempts):
            try:
                with _LARGE_AT_ONCE, upload.LINE.taken(in_parts=True) as at_once:
                    client.ask_about(
                        "put", key, body.source, mode="overwrite", use_multipart=True, chunk_size=size,
                        max_concurrency=at_once, attributes={self._small.writer_key: me}, again=False,
                        is_whole=lambda: body.again,
                    )  # fmt: skip
                return
            except (GenericError, FileNotFoundError) as error:
                session_is_lost = _NO_BLOCKS in str(error) or (
                    isinstance(error, FileNotFoundError) and error.errno is None and not names_no_bucket(error)
                )
                if not session_is_lost and not is_transient(error):
                    raise
                if self._small.writer(key) == me:  # complete, and only the answer did not come
                    return
                if not body.again or attempt == client.retry.attempts - 1:
                    raise store_errors.unreachable(client.address, key, error) from None
            client.retry.pause(attempt)

    def _write_again(self, key: str) -> None:
        """Replace a small object by itself, unless another writer does: S3 copies nothing onto itself."""
        from obstore.exceptions import PreconditionError

        result = self._client.ask_about("get", key)
        version = {name: result.meta[name] for name in ("e_tag", "version") if result.meta[name]}
        data, attributes = result.bytes(), result.attributes
        with contextlib.suppress(PreconditionError):  # replaced in between: young already
            self._client.ask_about("put", key, data, mode=version, use_multipart=False, attributes=attributes)

    def _copy_there_and_back(self, key: str) -> None:
        """Let the service copy a large object twice; no byte travels."""
        before = self._client.about(key)
        with self._beside(new_writer_id()) as beside:
            self._copying(key, beside)()
            now = self._client.about(key)
            if before is not None and now is not None and now["e_tag"] == before["e_tag"]:
                self._copying(beside, key)()

    def _copying(self, key: str, to: str, **options: bool) -> Callable[[], object]:
        return lambda: self._client.ask_about("copy", key, self._client.full(to), **options)

    @contextlib.contextmanager
    def _beside(self, me: str) -> Iterator[str]:
        """Name a place for a half-made object, and clear it in the end."""
        key = f"{SCRATCH}/{me}"
        try:
            yield key
        finally:
            with contextlib.suppress(Exception):  # what stays is no object, and old scratch is swept
                self._client.ask_about("delete", key)


def _mapped(source: memoryview | Path | Iterator[Body]) -> memoryview:
    """Return the bytes of a file, or of chunks, which a file takes first."""
    import mmap  # most services copy
    import tempfile

    if isinstance(source, memoryview):
        return source
    with source.open("rb") if isinstance(source, Path) else tempfile.TemporaryFile() as file:
        if not isinstance(source, Path):
            file.writelines(source)
            file.flush()
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _check_size(size: int) -> None:
    if size > MOST_COPIED:
        raise store_errors.too_large(MOST_COPIED)
