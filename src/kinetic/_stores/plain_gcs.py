"""A store in a bucket of Cloud Storage with the standard library alone: for jobs whose image has no obstore.

It speaks the JSON API. A small object is one request; a large one is a resumable upload, of which one piece is in
memory and which a fault does not start anew. Both can be created only if absent.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from kinetic._stores import addresses, complaints, reading, transfer
from kinetic._stores.naming import check_key, check_prefix, is_hidden
from kinetic._stores.plain_http import Caller, NoAnswer, Reply
from kinetic._stores.plain_uploads import PIECE, ResumableUpload
from kinetic._stores.protocol import Entry, Source
from kinetic._stores.retrying import Retry
from kinetic._stores.sources import Body, Large, body_of
from kinetic._stores.tokens import Tokens
from kinetic.errors import StoreError

WRITER = "kinetic-writer"  # metadata: who created an object, as objects.py writes it
_ABOUT = "name,size,updated,generation"


class PlainGcsStore:
    """Keep objects in a bucket of Cloud Storage, below a prefix."""

    def __init__(self, url: str, *, retry: Retry | None = None, tokens: Tokens | None = None) -> None:
        self.address = addresses.parse(url)
        self.url = self.address.url
        self._retry = retry or Retry()
        emulator = addresses.google_emulator()
        self._tokens = tokens or (None if emulator else Tokens(self.address, self._retry))
        self._caller = Caller(emulator or addresses.GOOGLE, self._retry)

    def put(self, key: str, source: Source, *, if_absent: bool = False) -> bool:
        """Write an object; see the protocol."""
        check_key(key)
        me = os.urandom(12).hex()
        body = body_of(source, PIECE)
        if isinstance(body, Large):
            with body:
                if if_absent and self.entry(key) is not None:
                    return False
                reply = self._upload(key, body, me, if_absent=if_absent)
        else:
            reply = self._send(key, body, me, if_absent=if_absent)
        if reply.status == 412:
            return reply.repeated and self._writer(key) == me  # our own earlier try, whose answer was lost
        self._expect(reply, key)
        return True

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes of an object; see the protocol."""
        return reading.part(self, key, start, length)

    def fetch(self, key: str, to: os.PathLike[str]) -> None:
        """Copy an object into a local file; see the protocol."""
        reading.into_file(self, key, to)

    def piece(self, key: str, start: int, length: int, *, version: str | None = None) -> reading.Piece:
        """Return a piece of an object; see reading.Pieces."""
        check_key(key)
        query = {"alt": "media"} | ({"ifGenerationMatch": version} if version else {})
        headers = {"Range": f"bytes={start}-{start + length - 1}"}
        reply = self._ask("GET", self._object(key), key, query, headers=headers)
        if version and reply.status in {404, 412}:
            raise reading.Changed
        if reply.status == 416:
            return reading.Piece(b"", int(reply.headers["content-range"].rpartition("/")[2]), "")
        self._expect(reply, key)
        size = reply.headers.get("content-range", "").rpartition("/")[2] or str(len(reply.body))
        return reading.Piece(reply.body, int(size), reply.headers["x-goog-generation"])

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None."""
        found = self.entry(key)
        return None if found is None else found.size

    def entry(self, key: str) -> Entry | None:
        """Return size and age of an object, or None."""
        check_key(key)
        found = self._about(key, _ABOUT)
        return None if found is None else self._entry(found)

    def touch(self, key: str) -> bool:
        """Make an object young again; see the protocol."""
        check_key(key)
        place = self._object(key)
        query: dict[str, str] = {}
        while True:
            reply = self._ask("POST", f"{place}/rewriteTo{place.removeprefix('/storage/v1')}", key, query, body=b"")
            if reply.status == 404:
                return self._is_missing(reply, key)
            page = self._expect(reply, key)
            if page["done"]:
                return True
            query = {"rewriteToken": page["rewriteToken"]}

    def entries(self, prefix: str, *, after: str = "") -> Iterator[Entry]:
        """List objects under a prefix in key order; see the protocol."""
        check_prefix(prefix)
        return self._entries_below(prefix, after)

    def folders(self, prefix: str) -> Iterator[str]:
        """Name the folders directly below a prefix."""
        check_prefix(prefix)
        pages = self._pages(prefix, {"delimiter": "/", "fields": "prefixes,nextPageToken"})
        names = {each.rstrip("/").rpartition("/")[2] for page in pages for each in page.get("prefixes", [])}
        return iter(sorted(name for name in names if prefix or not is_hidden(name)))

    def delete(self, prefix: str) -> int:
        """Delete one key or everything under a prefix; see the protocol."""
        check_key(prefix.removesuffix("/"))
        if not prefix.endswith("/"):
            return self._delete_one(prefix)
        doomed = (entry.key for entry in self.entries(prefix))
        return sum(transfer.in_parallel(self, (partial(self._delete_one, key) for key in doomed)))

    # ------------------------------------------------------------------------------------------------------ writing

    def _send(self, key: str, body: Body, me: str, *, if_absent: bool) -> Reply:
        """Write a small object in one request: what it is, and its bytes."""
        boundary = f"kinetic-{me}"
        about = json.dumps({"name": self._full(key), "metadata": {WRITER: me}})
        head = (
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{about}\r\n"
            f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
        )
        whole = b"".join([head.encode(), body, f"\r\n--{boundary}--\r\n".encode()])
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        return self._ask("POST", self._uploads(), key, _query("multipart", if_absent), body=whole, headers=headers)

    def _upload(self, key: str, body: Large, me: str, *, if_absent: bool) -> Reply:
        """Write a large object piece by piece."""
        about = json.dumps({"name": self._full(key), "metadata": {WRITER: me}}).encode()
        headers = {"Content-Type": "application/json; charset=UTF-8"}
        query = _query("resumable", if_absent)
        begun = self._ask("POST", self._uploads(), key, query, body=about, headers=headers)
        if begun.status == 412:
            return begun
        self._expect(begun, key)
        session = "/" + begun.headers["location"].partition("://")[2].partition("/")[2]
        reply = ResumableUpload(self._caller, self._headers, self._retry, session).send(self.address, key, body)
        if reply.status in {401, 403}:
            raise complaints.refused(self.address, f"HTTP {reply.status} in the middle of an upload")
        return reply

    def _writer(self, key: str) -> str | None:
        found = self._about(key, "metadata")
        return None if found is None else found.get("metadata", {}).get(WRITER)

    # ----------------------------------------------------------------------------------------------- listing, deleting

    def _entries_below(self, prefix: str, after: str) -> Iterator[Entry]:
        query = {"fields": f"items({_ABOUT}),nextPageToken"}
        if after:
            query["startOffset"] = self._full(after)
        for page in self._pages(prefix, query):
            for found in page.get("items", []):
                entry = self._entry(found)
                if entry.key > after and (prefix or not is_hidden(entry.key)):
                    yield entry

    def _pages(self, prefix: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
        query = {"prefix": self._full(prefix), **query}
        while True:
            page = self._expect(self._ask("GET", f"/storage/v1/b/{self._bucket()}/o", prefix, query), prefix)
            yield page
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    def _delete_one(self, key: str) -> int:
        reply = self._ask("DELETE", self._object(key), key, {})
        if reply.status == 404:
            self._is_missing(reply, key)
            return int(reply.repeated)  # our own earlier try, most likely
        self._expect(reply, key)
        return 1

    # ------------------------------------------------------------------------------------------------------- requests

    def _ask(
        self,
        method: str,
        path: str,
        key: str,
        query: dict[str, str],
        *,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        place = f"{path}?{urlencode(query)}" if query else path
        token = self._headers(None)
        try:
            reply = self._caller.call(method, place, body=body, headers={**token, **(headers or {})})
            if reply.status == 401:
                token = self._headers(token.get("Authorization"))
                again = self._caller.call(method, place, body=body, headers={**token, **(headers or {})})
                reply = again._replace(repeated=again.repeated or reply.repeated)
        except NoAnswer as error:
            raise complaints.unreachable(self.address, key, error) from error
        if reply.status in {401, 403}:
            raise complaints.refused(self.address, f"HTTP {reply.status}: {reply.body[:300].decode(errors='replace')}")
        return reply

    def _headers(self, refused: str | None) -> dict[str, str]:
        if self._tokens is None:
            return {}
        return {
            "Authorization": f"Bearer {self._tokens.get(instead_of=(refused or '').removeprefix('Bearer ') or None)}"
        }

    def _expect(self, reply: Reply, key: str) -> dict[str, Any]:
        """Return the page of an answer that is none of an error."""
        if reply.status == 404:
            self._is_missing(reply, key)
            raise complaints.missing(self.address, key)
        if reply.status >= 300:
            words = f"HTTP {reply.status}: {reply.body[:300].decode(errors='replace')}"
            raise StoreError(f"the store did not take the request for {key!r}", why=words)
        is_page = reply.headers.get("content-type", "").startswith("application/json") and b"{" in reply.body[:3]
        try:
            page: dict[str, Any] = json.loads(reply.body) if is_page else {}
        except ValueError as error:  # somebody between us and the service has answered, or cut the answer
            raise complaints.unreachable(self.address, key, error) from error
        return page

    def _is_missing(self, reply: Reply, key: str) -> bool:
        """Answer False, for "not found"; unless it is the bucket that is not."""
        if re.search(rb"bucket does not exist|NoSuchBucket", reply.body):
            raise complaints.no_bucket(self.address, f"HTTP 404 for {key!r}")
        return False

    def _about(self, key: str, fields: str) -> dict[str, Any] | None:
        reply = self._ask("GET", self._object(key), key, {"fields": fields})
        if reply.status == 404:
            self._is_missing(reply, key)
            return None
        return self._expect(reply, key)

    def _entry(self, found: dict[str, Any]) -> Entry:
        seconds = datetime.fromisoformat(found["updated"]).timestamp()
        return Entry(found["name"][len(self.address.prefix) :], int(found["size"]), float(int(seconds)))

    def _bucket(self) -> str:
        return quote(self.address.bucket, safe="")

    def _object(self, key: str) -> str:
        return f"/storage/v1/b/{self._bucket()}/o/{quote(self._full(key), safe='')}"

    def _uploads(self) -> str:
        return f"/upload/storage/v1/b/{self._bucket()}/o"

    def _full(self, key: str) -> str:
        return self.address.prefix + key


def _query(kind: str, if_absent: bool) -> dict[str, str]:
    return {"uploadType": kind} | ({"ifGenerationMatch": "0"} if if_absent else {})
