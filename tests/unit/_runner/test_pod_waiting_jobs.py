"""What a pod does at its end for the jobs that wait for its own."""

from __future__ import annotations

import ssl
import threading
from base64 import b64encode
from pathlib import Path

from cluster.certificates import Authority
from servers.faults import BrokenServer, QuietHandler

from kinetic._runner.pod import cluster_api, waiting_jobs
from kinetic._stores.memory import MemoryStore
from kinetic._wire import documents, keys

JOB_ID, LATER = "cpu-a-20261123-103059-1234567", "cpu-b-20261123-103059-1234568"


def test_a_page_that_somebody_else_wrote_keeps_no_other_job_from_its_end(tmp_path: Path) -> None:
    store = MemoryStore("a")
    (tmp_path / "namespace").write_text("here")
    page = {"schema": documents.SCHEMA, "after": [JOB_ID]}
    for name, more in (("cpu-0", {}), (LATER, {"closed": {JOB_ID: b64encode(b"its verdict").decode()}})):
        store.put(keys.follower(JOB_ID, name), documents.write(page | more))

    said = list(waiting_jobs.settle(store, JOB_ID, "", succeeded=False, environ={}, folder=tmp_path))

    assert said == [f"{LATER}, which follows this job, was closed"]
    assert store.get(keys.result(LATER)) == b"its verdict"


def test_a_token_of_the_service_account_that_has_expired_is_read_anew(tmp_path: Path) -> None:
    authority, token = Authority(tmp_path), tmp_path / "token"
    shown: list[str] = []

    class Handler(QuietHandler):
        def do_PATCH(self) -> None:  # noqa: N802 - the base's name
            shown.append(self.headers["Authorization"])
            self.rfile.read(int(self.headers["Content-Length"]))
            token.write_text("renewed")  # by the kubelet, meanwhile
            self.send_response(200 if shown[-1].endswith("renewed") else 401)
            self.send_header("Content-Length", "0")
            self.end_headers()

    pair, context = authority.issue("server"), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server = BrokenServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    token.write_text("expired")
    where = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.server_address[1])}

    statuses = [cluster_api.request("PATCH", "/a", {}, environ=where, folder=tmp_path).status for _ in range(2)]
    server.shutdown()
    thread.join()
    server.server_close()

    assert statuses == [200, 200]
    assert shown == ["Bearer expired", "Bearer renewed", "Bearer renewed"]
