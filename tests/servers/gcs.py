"""A server that speaks Cloud Storage's XML and JSON APIs, with its objects in memory.

The XML API as obstore uses it, the JSON API as google-cloud-storage and our standard-library client use it, over the
same objects: tests cross-check that each sees the bytes of the others. Written from the public description of the
protocol; ours, because the two emulators that exist do not serve obstore (fake-gcs-server 1.56.1 answers its PUT with
"invalid uploadType", gcp-storage-emulator 2026.7.19 its HEAD with 501; tried on 2026-11-21).

It also plays the metadata server and the token endpoint. Run as a program it serves until it is killed:
``python -m servers.gcs PORT`` from the tests folder.
"""

from __future__ import annotations

import email.utils
import itertools
import json
import re
import sys
import time
import urllib.parse
import xml.etree.ElementTree as ET
from xml.sax.saxutils import escape

from servers.buckets import Bucket, Item, Refused, Upload
from servers.http11 import Answer, Request, Server

META = "x-goog-meta-"
JSON_TYPE = {"Content-Type": "application/json; charset=UTF-8"}
XML_TYPE = {"Content-Type": "application/xml; charset=UTF-8"}


class GcsServer:
    """Serve buckets until closed; what tests turn stands in the attributes.

    Attributes:
        page_size: The most entries of one page of a listing, whatever the client asks for.
        tokens: Bearer tokens that are accepted; None accepts any, and none.
        issue: Tokens that the metadata server and the token endpoint hand out, one after the other, with their
            seconds of life; the last one again and again.
        ignores_conditions: Behave like a service that does not know preconditions.
        rewrite_steps: How many calls a copy through the JSON API takes.
        seen: Method and path of every request, in order.
    """

    def __init__(self, port: int = 0, host: str = "127.0.0.1") -> None:
        self.buckets: dict[str, Bucket] = {}
        self.page_size = 1000
        self.tokens: set[str] | None = None
        self.issue: list[tuple[str, int]] = [("token", 3600)]
        self.ignores_conditions = False
        self.rewrite_steps = 1
        self.seen: list[tuple[str, str]] = []
        self._ids = itertools.count(1)
        self._server = Server(self.answer, port, host)
        self.url = self._server.url

    def delay(self, seconds: float) -> None:
        """Answer each request so much later, as over a network."""
        self._server.delay_seconds = seconds

    def start(self) -> GcsServer:
        self._server.start()
        return self

    def run(self) -> None:
        self._server.run()

    def close(self) -> None:
        self._server.close()

    def bucket(self, name: str) -> Bucket:
        """Make an empty bucket."""
        self.buckets[name] = Bucket()
        return self.buckets[name]

    # ------------------------------------------------------------------------------------------------------- routes

    def answer(self, request: Request) -> Answer:
        self.seen.append((request.method, request.path))
        json_api = bool(re.match(r"/(?:(?:upload|download)/)?storage/v1/", request.path))
        try:
            if request.path.startswith(("/computeMetadata/", "/token")):
                return self._token(request)
            self._authorize(request)
            return self._json(request) if json_api else self._xml(request)
        except Refused as refused:
            if json_api:
                body = json.dumps({"error": {"code": refused.status, "message": refused.code}}).encode()
                return Answer(refused.status, body, JSON_TYPE)
            body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{refused.code}</Code></Error>".encode()
            return Answer(refused.status, body, XML_TYPE)

    def _authorize(self, request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.tokens is not None and given not in self.tokens:
            raise Refused(401, "AuthenticationRequired")

    def _token(self, request: Request) -> Answer:
        if request.path.startswith("/computeMetadata/") and request.headers.get("metadata-flavor") != "Google":
            raise Refused(403, "Forbidden")
        if request.path == "/token":
            form = dict(urllib.parse.parse_qsl(request.body.decode()))
            if form.get("grant_type") != "refresh_token" or form.get("refresh_token") != "right":
                return Answer(400, b'{"error": "invalid_grant"}', JSON_TYPE)
        token, seconds = self.issue.pop(0) if len(self.issue) > 1 else self.issue[0]
        page = {"access_token": token, "expires_in": seconds, "token_type": "Bearer"}
        return Answer(200, json.dumps(page).encode(), JSON_TYPE)

    def _find(self, name: str) -> Bucket:
        if name not in self.buckets:
            raise Refused(404, "NoSuchBucket")
        return self.buckets[name]

    def _only_if(self, value: str | None) -> int | None:
        return None if value is None or self.ignores_conditions else int(value)

    # -------------------------------------------------------------------------------------------------- the XML API

    def _xml(self, request: Request) -> Answer:
        _, name, *rest = request.path.split("/", 2)
        key = urllib.parse.unquote(rest[0]) if rest else ""
        bucket = self._find(urllib.parse.unquote(name))
        if not key:
            return self._xml_list(bucket, request)
        if "uploads" in request.query:
            return self._xml_begin(bucket, key, request)
        if "uploadId" in request.query:
            return self._xml_upload(bucket, key, request)
        if request.method == "PUT":
            return self._xml_put(bucket, key, request)
        if request.method == "DELETE":
            bucket.delete(key)
            return Answer(204)
        return _content(bucket.get(key), request, {"ETag": bucket.get(key).etag})

    def _xml_put(self, bucket: Bucket, key: str, request: Request) -> Answer:
        only_if = self._only_if(request.headers.get("x-goog-if-generation-match"))
        source = request.headers.get("x-goog-copy-source")
        if source is not None:
            name, _, from_key = urllib.parse.unquote(source).lstrip("/").partition("/")
            old = self._find(name).get(from_key)
            item = bucket.put(key, old.data, only_if=only_if, metadata=old.metadata, content_type=old.content_type)
            return Answer(200, f"<CopyObjectResult><ETag>{item.etag}</ETag></CopyObjectResult>".encode(), _about(item))
        item = bucket.put(key, request.body, only_if=only_if, **_described(request))
        return Answer(200, b"", _about(item))

    def _xml_begin(self, bucket: Bucket, key: str, request: Request) -> Answer:
        upload_id = f"xml-{next(self._ids)}"
        bucket.uploads[upload_id] = Upload(key, **_described(request))
        page = f"<InitiateMultipartUploadResult><UploadId>{upload_id}</UploadId></InitiateMultipartUploadResult>"
        return Answer(200, page.encode(), XML_TYPE)

    def _xml_upload(self, bucket: Bucket, key: str, request: Request) -> Answer:
        upload = bucket.uploads.get(request.query["uploadId"])
        if upload is None or upload.name != key:
            raise Refused(404, "NoSuchUpload")
        if request.method == "PUT":
            number = int(request.query["partNumber"])
            upload.parts[number] = request.body
            return Answer(200, b"", {"ETag": f'"part-{number}"'})
        if request.method == "POST":
            numbers = [
                int(each.text or "") for each in ET.fromstring(request.body).iter() if _tag(each) == "PartNumber"
            ]
            item = bucket.put(key, upload.joined(numbers), metadata=upload.metadata, content_type=upload.content_type)
            del bucket.uploads[request.query["uploadId"]]
            page = f"<CompleteMultipartUploadResult><ETag>{item.etag}</ETag></CompleteMultipartUploadResult>"
            return Answer(200, page.encode(), {**XML_TYPE, **_about(item)})
        del bucket.uploads[request.query["uploadId"]]
        return Answer(204)

    def _xml_list(self, bucket: Bucket, request: Request) -> Answer:
        asked = request.query
        page = bucket.page(
            asked.get("prefix", ""),
            delimiter=asked.get("delimiter", ""),
            after=asked.get("start-after", ""),
            token=asked.get("continuation-token", ""),
            limit=min(self.page_size, int(asked.get("max-keys") or self.page_size)),
        )
        lines = [
            f"<Contents><Key>{escape(item.name)}</Key><Size>{len(item.data)}</Size><ETag>{escape(item.etag)}</ETag>"
            f"<LastModified>{_iso(item.updated)}</LastModified><Generation>{item.generation}</Generation></Contents>"
            for item in page.items
        ]
        lines += [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in page.prefixes]
        if page.token:
            lines.append(f"<NextContinuationToken>{page.token}</NextContinuationToken>")
        lines.append(f"<IsTruncated>{'true' if page.token else 'false'}</IsTruncated>")
        body = "<?xml version='1.0' encoding='UTF-8'?><ListBucketResult>" + "".join(lines) + "</ListBucketResult>"
        return Answer(200, body.encode(), XML_TYPE)

    # ------------------------------------------------------------------------------------------------- the JSON API

    def _json(self, request: Request) -> Answer:
        room, _, rest = request.path.partition("storage/v1/")
        parts = [urllib.parse.unquote(part) for part in rest.rstrip("/").split("/")]
        if parts == ["b"] and request.method == "POST":
            name = json.loads(request.body)["name"]
            self.bucket(name)
            return _page({"kind": "storage#bucket", "name": name, "id": name})
        bucket = self._find(parts[1])
        if len(parts) == 2:
            return _page({"kind": "storage#bucket", "name": parts[1], "id": parts[1]})
        if room.startswith("/upload"):
            return self._json_upload(bucket, parts[1], request)
        if len(parts) == 3:
            return self._json_list(bucket, parts[1], request)
        if len(parts) == 9 and parts[4] in {"rewriteTo", "copyTo"}:
            return self._json_copy(bucket, parts[3], parts[6], parts[8], request)
        return self._json_object(bucket, parts[1], parts[3], request)

    def _json_object(self, bucket: Bucket, name: str, key: str, request: Request) -> Answer:
        item = bucket.get(key)
        bucket.check(key, self._only_if(request.query.get("ifGenerationMatch")))
        if request.method == "DELETE":
            bucket.delete(key)
            return Answer(204)
        if request.query.get("alt") == "media":
            return _content(item, request, {"ETag": item.etag})
        return _page(_resource(name, item))

    def _json_list(self, bucket: Bucket, name: str, request: Request) -> Answer:
        asked = request.query
        page = bucket.page(
            asked.get("prefix", ""),
            delimiter=asked.get("delimiter", ""),
            start=asked.get("startOffset", ""),
            token=asked.get("pageToken", ""),
            limit=min(self.page_size, int(asked.get("maxResults") or self.page_size)),
        )
        body: dict[str, object] = {"kind": "storage#objects"}
        if page.items:
            body["items"] = [_resource(name, item) for item in page.items]
        if page.prefixes:
            body["prefixes"] = page.prefixes
        if page.token:
            body["nextPageToken"] = page.token
        return _page(body)

    def _json_copy(self, bucket: Bucket, key: str, to_bucket: str, to_key: str, request: Request) -> Answer:
        old = bucket.get(key)
        step = int(request.query.get("rewriteToken") or 0) + 1
        if step < self.rewrite_steps:
            return _page({"done": False, "rewriteToken": str(step), "objectSize": str(len(old.data))})
        only_if = self._only_if(request.query.get("ifGenerationMatch"))
        target = self._find(to_bucket)
        item = target.put(to_key, old.data, only_if=only_if, metadata=old.metadata, content_type=old.content_type)
        return _page({"done": True, "objectSize": str(len(old.data)), "resource": _resource(to_bucket, item)})

    def _json_upload(self, bucket: Bucket, name: str, request: Request) -> Answer:
        kind = request.query.get("uploadType")
        only_if = self._only_if(request.query.get("ifGenerationMatch"))
        if "upload_id" in request.query:
            return self._json_continue(bucket, name, request)
        if kind == "media":
            item = bucket.put(request.query["name"], request.body, only_if=only_if)
            return _page(_resource(name, item))
        if kind == "multipart":
            about, content_type, data = _two_parts(request)
            key = about.get("name") or request.query["name"]
            metadata = about.get("metadata") or {}
            item = bucket.put(key, data, only_if=only_if, metadata=metadata, content_type=content_type)
            return _page(_resource(name, item, checksum=True))
        about = json.loads(request.body or b"{}")
        key = about.get("name") or request.query["name"]
        upload_id = f"json-{next(self._ids)}"
        content_type = request.headers.get("x-upload-content-type", "application/octet-stream")
        bucket.uploads[upload_id] = Upload(key, about.get("metadata") or {}, content_type, only_if)
        place = f"http://{request.headers['host']}{request.path}?uploadType=resumable&upload_id={upload_id}"
        return Answer(200, b"", {"Location": place})

    def _json_continue(self, bucket: Bucket, name: str, request: Request) -> Answer:
        """Take the next bytes of a resumable upload, or tell how many have arrived."""
        upload = bucket.uploads.get(request.query["upload_id"])
        if upload is None:
            raise Refused(404, "NoSuchUpload")
        if request.method == "DELETE":
            del bucket.uploads[request.query["upload_id"]]
            return Answer(499)
        if upload.finished is not None:
            return _page(_resource(name, upload.finished, checksum=True))
        given = request.headers.get("content-range", f"bytes 0-{len(request.body) - 1}/{len(request.body)}")
        match = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", given)
        if match is None:
            raise Refused(400, "InvalidContentRange")
        if match[1] is not None:
            known = upload.arrived - int(match[1])  # of what comes now, sent a second time
            if known < 0:
                raise Refused(503, "BackendError")
            upload.received.append(request.body[known:])
            upload.arrived += len(upload.received[-1])
        if match[3] != "*" and int(match[3]) == upload.arrived:
            data = b"".join(upload.received)
            upload.finished = bucket.put(
                upload.name, data, only_if=upload.only_if, metadata=upload.metadata, content_type=upload.content_type
            )
            upload.received.clear()
            return _page(_resource(name, upload.finished, checksum=True))
        if match[1] is not None and len(request.body) % (256 << 10):
            raise Refused(400, "PartNotMultipleOf256KiB")
        return Answer(308, b"", {"Range": f"bytes=0-{upload.arrived - 1}"} if upload.arrived else {})


# ------------------------------------------------------------------------------------------------------------ forms


def _content(item: Item, request: Request, headers: dict[str, str]) -> Answer:
    """Answer with an object's bytes, or a range of them."""
    wanted = request.headers.get("if-match")
    if wanted is not None and wanted.strip('"') != item.etag.strip('"'):
        raise Refused(412, "PreconditionFailed")
    headers = {**headers, **_about(item), "Content-Type": item.content_type, "Accept-Ranges": "bytes"}
    headers |= {META + name: value for name, value in item.metadata.items()}
    size = len(item.data)
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
    if match is None:
        return Answer(200, item.data, headers, length=size)
    first, last = int(match[1]), min(int(match[2] or size), size - 1)
    if first > last:
        return Answer(416, b"<Error><Code>InvalidRange</Code></Error>", {"Content-Range": f"bytes */{size}"})
    headers["Content-Range"] = f"bytes {first}-{last}/{size}"
    return Answer(206, memoryview(item.data)[first : last + 1], headers)


def _about(item: Item) -> dict[str, str]:
    return {
        "ETag": item.etag,
        "Last-Modified": email.utils.formatdate(item.updated, usegmt=True),
        "x-goog-generation": str(item.generation),
        "x-goog-metageneration": "1",
    }


def _described(request: Request) -> dict[str, object]:
    metadata = {name.removeprefix(META): value for name, value in request.headers.items() if name.startswith(META)}
    return {"metadata": metadata, "content_type": request.headers.get("content-type", "application/octet-stream")}


def _resource(bucket: str, item: Item, *, checksum: bool = False) -> dict[str, object]:
    resource: dict[str, object] = {
        "kind": "storage#object",
        "id": f"{bucket}/{item.name}/{item.generation}",
        "bucket": bucket,
        "name": item.name,
        "size": str(len(item.data)),
        "generation": str(item.generation),
        "metageneration": "1",
        "contentType": item.content_type,
        "timeCreated": _iso(item.updated),
        "updated": _iso(item.updated),
        "etag": item.etag.strip('"'),
    }
    if item.metadata:
        resource["metadata"] = item.metadata
    if checksum and "google_crc32c" in sys.modules:  # google-cloud-storage compares; the import is its own
        import base64

        digest = sys.modules["google_crc32c"].Checksum(item.data).digest()
        resource["crc32c"] = base64.b64encode(digest).decode()
    return resource


def _two_parts(request: Request) -> tuple[dict[str, object], str, bytes]:
    """Take a multipart/related body apart: JSON about the object, then its bytes."""
    boundary = request.headers["content-type"].partition("boundary=")[2].strip("\"'").encode()
    _, about, rest = request.body.split(b"--" + boundary + b"\r\n", 2)
    data, _, _ = rest.rpartition(b"\r\n--" + boundary + b"--")
    head, _, content = data.partition(b"\r\n\r\n")
    kind = re.search(rb"content-type:\s*(\S+)", head, re.IGNORECASE)
    page = json.loads(about.partition(b"\r\n\r\n")[2])
    return page, kind[1].decode() if kind else "application/octet-stream", content


def _page(body: dict[str, object]) -> Answer:
    return Answer(200, json.dumps(body).encode(), JSON_TYPE)


def _iso(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03}Z"


def _tag(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def main() -> None:
    import google_crc32c  # noqa: F401 - so that checksums are given

    server = GcsServer(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print(server.url, flush=True)
    server.run()


if __name__ == "__main__":
    main()
