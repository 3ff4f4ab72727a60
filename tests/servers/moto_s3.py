"""A server of S3 in a process of its own: moto's, which others wrote and which does not know our clients."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request

PROGRAM = """
import os, sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

app, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

def one_at_a_time(environ, start_response):  # moto looks first and writes then; S3 does both at once
    with lock:
        return list(app(environ, start_response))

def demanding(environ, start_response):
    writes = environ["REQUEST_METHOD"] == "PUT" and environ["PATH_INFO"].count("/") > 1
    if not writes or os.environ["MOTO_DEMANDS"] in environ:  # else it answers in S3's own words
        return one_at_a_time(environ, start_response)
    start_response("400 Bad Request", [("Content-Type", "application/xml")])
    words = "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests with Object Lock parameters"
    return [f"<Error><Code>InvalidRequest</Code><Message>{words}</Message></Error>".encode()]

server = make_server("127.0.0.1", 0, demanding if "MOTO_DEMANDS" in os.environ else one_at_a_time, threaded=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("http://127.0.0.1:%d" % server.server_port, flush=True)
sys.stdin.read()
"""


class MotoServer:
    """Serve S3 until closed; pages of listings are as small as asked for.

    ``demands``: a header without which no object is taken, as WSGI writes it.
    """

    def __init__(self, page_size: int = 1000, demands: str = "") -> None:
        environ = {**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(page_size)}
        environ |= {"MOTO_DEMANDS": demands} if demands else {}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM],
            env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def bucket(self, name: str) -> None:
        """Make an empty bucket."""
        request = urllib.request.Request(f"{self.url}/{name}", method="PUT")
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200

    def environment(self) -> dict[str, str]:
        """Return the variables with which a client finds this server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }

    def close(self) -> None:
        self._process.communicate()  # the end of its input ends it
