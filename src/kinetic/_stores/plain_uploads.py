"""A resumable upload to Cloud Storage with the standard library: one piece in memory, no fault starts it anew."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable

from kinetic._stores import complaints
from kinetic._stores.addresses import Address
from kinetic._stores.plain_http import Caller, NoAnswer, Reply
from kinetic._stores.retrying import Retry
from kinetic._stores.sources import Body, Large
from kinetic.errors import KineticError, StoreError

PIECE = 8 << 20  # bytes; a multiple of 256 KiB, as the protocol wants
GOES_ON = 308  # the answer to all pieces but the last
_RANGE = re.compile(r"bytes=0-(\d+)")


class ResumableUpload:
    """Send one object through a session that was begun."""

    def __init__(
        self, caller: Caller, credentials: Callable[[str | None], dict[str, str]], retry: Retry, session: str
    ) -> None:
        self._caller = caller
        self._credentials = credentials
        self._retry = retry
        self._session = session

    def send(self, address: Address, key: str, body: Large) -> Reply:
        """Send everything; the answer is that to the last piece, and tells whether the object was written.

        Raises:
            StoreUnreachableError: The service did not take it, however often it was asked.
        """
        try:
            return self._all_pieces(key, body)
        except BaseException as error:
            with contextlib.suppress(KineticError, NoAnswer):  # what stays is no object, and ends within a week
                self._caller.call("DELETE", self._session, headers=self._credentials(None), again=False)
            if isinstance(error, NoAnswer):
                raise complaints.unreachable(address, key, error) from error
            raise

    def _all_pieces(self, key: str, body: Large) -> Reply:
        at = 0
        pieces = body.chunks(PIECE)
        piece = next(pieces)
        while (following := next(pieces, None)) is not None:
            reply = self._piece(piece, at, "*")
            at += len(piece)
            if reply.status != GOES_ON:
                raise StoreError(
                    f"the store ended the upload of {key!r} too early", why=f"HTTP {reply.status} after {at} bytes"
                )
            piece = following
        return self._piece(piece, at, str(at + len(piece)))

    def _piece(self, piece: Body, at: int, total: str) -> Reply:
        """Send one piece; after a fault ask how much of it arrived, and go on from there.

        Args:
            piece: Its bytes.
            at: Where it belongs.
            total: The size of the object, with the last piece; else "*".
        """
        arrived, end = at, at + len(piece)
        failures, repeated = 0, False
        while True:
            before = arrived
            try:
                if repeated:
                    reply = self._put(b"", f"bytes */{total}")
                if not repeated or (reply.status == GOES_ON and (arrived := _arrived(reply, at, end)) < end):
                    reply = self._put(memoryview(piece)[arrived - at :], f"bytes {arrived}-{end - 1}/{total}")
                if reply.status != GOES_ON or ((arrived := _arrived(reply, at, end)) == end and total == "*"):
                    return reply._replace(repeated=repeated)
                failure = NoAnswer(f"the upload stays at byte {arrived}")
            except NoAnswer as error:
                failure = error
            repeated = True
            failures = 0 if arrived > before else failures + 1
            if failures == self._retry.attempts:
                raise failure
            if failures:
                self._retry.pause(failures - 1)

    def _put(self, data: Body, place: str) -> Reply:
        headers = {"Content-Range": place, **self._credentials(None)}
        reply = self._caller.call("PUT", self._session, body=data, headers=headers, again=False)
        if reply.status == 401:
            headers |= self._credentials(headers.get("Authorization"))
            reply = self._caller.call("PUT", self._session, body=data, headers=headers, again=False)
        if reply.status in {404, 410}:
            raise NoAnswer(f"HTTP {reply.status}: the service has forgotten the upload")
        return reply


def _arrived(reply: Reply, at: int, end: int) -> int:
    """Return how many bytes of the object the service has; never fewer than it had confirmed."""
    found = _RANGE.fullmatch(reply.headers.get("range", ""))
    arrived = int(found[1]) + 1 if found else 0
    if not at <= arrived <= end:
        raise NoAnswer(f"the service confirmed {at} bytes of an upload, and now has {arrived} of {end}")
    return arrived
