"""Kubeconfig contexts, plug-ins and pods: who we are, over TLS that both ends check."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json
import shlex
import socket
import ssl
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import other_user
import pytest
import yaml
from cluster.certificates import Authority
from cryptography.hazmat.primitives import serialization
from servers.scripted import Scripted, page, refusal

from kinetic._backends.kube import client as kube_client
from kinetic._backends.kube import connection
from kinetic._backends.kube.client import Client
from kinetic._backends.kube.connection import context_access, gke_access, in_cluster_access
from kinetic._backends.kube.transport import Access
from kinetic._google.clusters import Cluster
from kinetic._stores.parallel import Retry
from kinetic.errors import BackendUnavailableError, CredentialsError, SettingsError


def config(
    path: Path, *, name: str = "dev", cluster: dict | None = None, user: dict | None = None, **more: Any
) -> Path:
    """Write a kubeconfig with one context."""
    written = {
        "clusters": [{"name": name, "cluster": {"server": "https://127.0.0.1:1", **(cluster or {})}}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, **more.pop("context", {})}}],
        **more,
    }
    path.write_text(yaml.safe_dump(written))
    return path


def read(path: Path, name: str = "dev") -> Access:
    return context_access(name, {"KUBECONFIG": str(path)})


def header(access: Access) -> str:
    return access.credential.header()


# ----------------------------------------------------------------------------------------------------------- contexts


@pytest.mark.parametrize("server", ["https://k8s:6443/", "HTTPS://k8s:6443"])
def test_a_context_says_where_and_who(tmp_path: Path, server: str) -> None:
    path = config(
        tmp_path / "config",
        cluster={"server": server},
        user={"token": "abc"},
        context={"namespace": "team"},
    )

    access = read(path)

    assert (access.server, access.namespace, header(access)) == ("https://k8s:6443", "team", "Bearer abc")
    assert access.about == "the context dev"


def test_without_a_name_the_current_context_counts(tmp_path: Path) -> None:
    path = config(tmp_path / "config", **{"current-context": "dev"})

    assert context_access("", {"KUBECONFIG": str(path)}).about == "the context dev"


def test_several_files_are_one_and_the_first_wins(tmp_path: Path) -> None:
    first = config(tmp_path / "first", user={"token": "first"})
    second = config(tmp_path / "second", user={"token": "second"})
    other = config(tmp_path / "third", name="prod", user={"token": "third"})
    files = {"KUBECONFIG": f"{first}:{tmp_path / 'missing'}:{second}:{other}"}

    assert header(context_access("dev", files)) == "Bearer first"
    assert header(context_access("prod", files)) == "Bearer third"


def test_paths_count_from_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from a file\n")
    (tmp_path / "ca.crt").write_bytes(b"PEM")

    access = read(config(tmp_path / "config", cluster={"certificate-authority": "ca.crt"}, user={"tokenFile": "token"}))

    assert (header(access), access.authority) == ("Bearer from a file", b"PEM")


def test_a_token_file_is_read_anew(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    access = read(config(tmp_path / "config", user={"tokenFile": "token"}))
    (tmp_path / "token").write_text("new")

    assert header(access) == "Bearer new"


def test_a_context_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    path = config(tmp_path / "config", name="prod")

    with pytest.raises(SettingsError) as caught:
        context_access("pord", {"KUBECONFIG": str(path), "KINETIC_KUBE_CONTEXT": "pord"})

    assert f"{path} has prod" in caught.value.why
    assert caught.value.next == "export KINETIC_KUBE_CONTEXT=prod"


@pytest.mark.parametrize("setting", ["new name", ""])
def test_a_context_that_was_renamed_can_have_its_old_name_too_for_the_jobs_of_before(
    tmp_path: Path, setting: str
) -> None:
    path = config(tmp_path / "config", name="new name")
    environ = {"KUBECONFIG": str(path), "KINETIC_KUBE_CONTEXT": setting}

    with pytest.raises(SettingsError) as caught:
        context_access("old", environ)
    *command, name, cluster, user = shlex.split(str(caught.value.next).partition("after: ")[2])
    page = yaml.safe_load(path.read_text())
    named = {"cluster": cluster.removeprefix("--cluster="), "user": user.removeprefix("--user=")}
    path.write_text(yaml.safe_dump({**page, "contexts": [*page["contexts"], {"name": name, "context": named}]}))

    assert command == ["kubectl", "config", "set-context"]

    assert ("export KINETIC_KUBE_CONTEXT='new name'" in str(caught.value.next)) is not bool(setting)
    assert (context_access("old", environ).server, header(context_access("old", environ))) == (
        context_access("new name", environ).server, header(context_access("new name", environ))
    )  # fmt: skip


@pytest.mark.parametrize("content", ["a: [", "- 1", "\x00"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)

    with pytest.raises(SettingsError, match="config"):
        read(path)


def test_a_file_in_a_folder_that_only_another_user_may_enter_counts_as_missing(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)

    with other_user.without_rights(), pytest.raises(SettingsError, match="there is no kubeconfig"):
        read(tmp_path / "closed" / "config")


def test_no_file_at_all_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no kubeconfig"):
        read(tmp_path / "missing")


def test_the_old_way_to_log_in_is_named(tmp_path: Path) -> None:
    path = config(tmp_path / "config", user={"auth-provider": {"name": "gcp"}})

    with pytest.raises(CredentialsError, match="auth-provider"):
        read(path)


def test_a_context_that_acts_as_somebody_else_is_not_taken_for_us(tmp_path: Path) -> None:
    path = config(tmp_path / "config", user={"token": "t", "as": "viewer"})

    with pytest.raises(CredentialsError, match="impersonates viewer"):
        read(path)


# ----------------------------------------------------------------------------------------------------------- plug-ins

PLUGIN = """#!{python}
import json, os, sys
count = {folder!r} + "/count"
calls = int(open(count).read()) + 1 if os.path.exists(count) else 1
open(count, "w").write(str(calls))
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
status = json.loads({status!r}.replace("CALL", str(calls)))
print(json.dumps({{"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}}))
open({folder!r} + "/info", "w").write(json.dumps([info, sys.argv[1:], os.environ.get("EXTRA")]))
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Callable[..., dict]:
    """Return a function that writes a plug-in and returns the ``exec`` of a user."""

    def write(status: dict, version: str = "v1", **more: Any) -> dict:
        path = tmp_path / "plugin"
        path.write_text(PLUGIN.format(python=sys.executable, folder=str(tmp_path), status=json.dumps(status)))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return {"exec": {"apiVersion": f"client.authentication.k8s.io/{version}", "command": "./plugin", **more}}

    return write


def calls(tmp_path: Path) -> int:
    return int((tmp_path / "count").read_text())


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_plug_in_hands_out_a_token_once_for_many_requests(tmp_path: Path, plugin, version: str) -> None:
    user = plugin({"token": "token-CALL"}, version, args=["login"], env=[{"name": "EXTRA", "value": "yes"}])
    access = read(config(tmp_path / "config", user=user))

    assert [header(access), header(access)] == ["Bearer token-1", "Bearer token-1"]
    info, arguments, extra = json.loads((tmp_path / "info").read_text())
    assert (info["spec"], arguments, extra) == ({"interactive": False}, ["login"], "yes")


def test_a_token_may_end_with_a_line_break(tmp_path: Path, plugin) -> None:
    """As that of a block of YAML does, or one that a script read from a file."""
    of_the_file = read(config(tmp_path / "a", user={"token": "token-0\n"}))
    of_the_plugin = read(config(tmp_path / "b", user=plugin({"token": "token-CALL\n"})))

    assert [header(of_the_file), header(of_the_plugin)] == ["Bearer token-0", "Bearer token-1"]
    assert of_the_plugin.credential.header(rejected="Bearer token-1") == "Bearer token-2"


@pytest.mark.parametrize("token", ["hunter22\nhunter33", "hunter22é"])
def test_a_token_that_cannot_be_sent_is_in_no_error(tmp_path: Path, secure: str, token: str) -> None:
    cluster = {"server": secure, "insecure-skip-tls-verify": True}
    access = read(config(tmp_path / "config", cluster=cluster, user={"token": token}))

    with pytest.raises(CredentialsError, match="credentials for the context dev cannot be sent") as caught:
        who(access)

    assert "hunter" not in "".join(traceback.format_exception(caught.value))


def test_a_plug_in_is_called_again_when_its_token_is_refused_or_about_to_end(
    tmp_path: Path, plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PLUGIN_PAUSE_SECONDS", 0.0)
    user = plugin({"token": "token-CALL", "expirationTimestamp": "2020-01-01T00:00:00Z"})
    access = read(config(tmp_path / "config", user=user))
    assert [header(access), header(access)] == ["Bearer token-1", "Bearer token-2"]

    user = plugin({"token": "lasting-CALL"})
    lasting = read(config(tmp_path / "config", user=user))
    first = header(lasting)
    assert lasting.credential.header(rejected=first) != first
    assert lasting.credential.header(rejected=first) == header(lasting)


@pytest.mark.parametrize("seconds", [30, -600], ids=["ends soon", "ended by a clock that is ahead"])
def test_a_plug_in_that_returns_its_token_until_that_ends_is_not_run_for_each_request(
    tmp_path: Path, plugin, seconds: int
) -> None:
    ends = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)
    user = plugin({"token": "kept", "expirationTimestamp": ends.isoformat()})
    access = read(config(tmp_path / "config", user=user))

    for _ in range(5):
        header(access)
    assert calls(tmp_path) == 1

    access.credential.header(rejected="Bearer kept")
    assert calls(tmp_path) == 2


def test_a_plug_in_is_told_about_the_cluster_if_it_asks(tmp_path: Path, plugin) -> None:
    path = config(tmp_path / "config", user=plugin({"token": "t"}, provideClusterInfo=True))

    header(read(path))

    info, _, _ = json.loads((tmp_path / "info").read_text())
    assert info["spec"]["cluster"] == {"server": "https://127.0.0.1:1"}


def test_a_plug_in_is_told_what_kubectl_tells_it_and_never_a_path(tmp_path: Path, plugin) -> None:
    (tmp_path / "ca.crt").write_bytes(b"PEM")
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "ours"}}
    more = {"certificate-authority": "ca.crt", "tls-server-name": "k8s", "extensions": [extension]}
    path = config(tmp_path / "config", cluster=more, user=plugin({"token": "t"}, provideClusterInfo=True))

    header(read(path))

    info, _, _ = json.loads((tmp_path / "info").read_text())
    assert info["spec"]["cluster"] == {
        "server": "https://127.0.0.1:1",
        "tls-server-name": "k8s",
        "certificate-authority-data": base64.b64encode(b"PEM").decode(),
        "config": {"audience": "ours"},
    }


def test_a_plug_in_that_is_not_installed_comes_with_the_hint_of_the_kubeconfig(tmp_path: Path) -> None:
    hint = (
        "Install gke-gcloud-auth-plugin for use with kubectl by following\n  https://cloud.google.com/kubernetes-engine"
    )
    spec = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "gke-gcloud-auth-plugin-nowhere"}
    path = config(tmp_path / "config", user={"exec": {**spec, "installHint": hint}})

    with pytest.raises(CredentialsError) as caught:
        header(read(path))

    assert caught.value.next == " ".join(hint.split())


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ({"command": "/nowhere/plugin"}, "No such file"),
        ({"command": sys.executable, "args": ["-c", "import sys; sys.exit('please log in')"]}, "please log in"),
        ({"command": sys.executable, "args": ["-c", "print('hello')"]}, "not an ExecCredential"),
        (
            {"command": sys.executable, "args": ["-c", "import json; print(json.dumps({'status': {}}))"]},
            "neither a token",
        ),
    ],
)
def test_a_plug_in_that_fails_is_shown_with_its_own_words(tmp_path: Path, command: dict, why: str) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", **command}}
    access = read(config(tmp_path / "config", user=user))

    with pytest.raises(CredentialsError) as caught:
        header(access)

    assert why in caught.value.why
    assert command["command"] in caught.value.next


@pytest.mark.parametrize("ends", ["exit 3", "exec sleep 60", "nothing"])
def test_what_a_kubeconfig_hands_to_a_plug_in_is_shown_nowhere(tmp_path: Path, monkeypatch, ends: str) -> None:
    program = tmp_path / "plugin"
    program.write_text(f'#!/bin/sh\necho "cannot log in with $2 and $MINE and $3" >&2\n{ends}\n')
    program.chmod(0o755)
    args = ["--password", "hunter2222", "--token=s3cr3t-t0ken"]
    command = {"command": str(program), "args": args, "env": [{"name": "MINE", "value": "of-the-environment"}]}
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", **command}}
    monkeypatch.setattr(connection, "PLUGIN_TIMEOUT_SECONDS", 0.5)

    with pytest.raises(CredentialsError) as raised:
        header(read(config(tmp_path / "config", user=user)))

    told = f"{raised.value}{raised.value!r}{raised.value.__cause__}"
    assert not [secret for secret in ("hunter2222", "s3cr3t-t0ken", "of-the-environment") if secret in told], told
    assert f"run {program} yourself" in told


def test_the_password_of_a_proxy_is_in_no_repr(tmp_path: Path) -> None:
    found = read(config(tmp_path / "config", cluster={"proxy-url": "http://ada:hunter2222@proxy:3128"}))

    assert found.proxy == "http://ada:hunter2222@proxy:3128"
    assert "hunter2222" not in repr(found)


def test_a_plug_in_of_a_removed_version_is_refused(tmp_path: Path, plugin) -> None:
    with pytest.raises(CredentialsError, match="v1alpha1"):
        read(config(tmp_path / "config", user=plugin({"token": "t"}, "v1alpha1")))


# ------------------------------------------------------------------------------------------------- inside a pod, on GKE


def test_in_a_pod_its_own_account_is_taken(tmp_path: Path) -> None:
    for name, text in {"token": "pod-token", "ca.crt": "PEM", "namespace": "team"}.items():
        (tmp_path / name).write_text(text)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}

    access = in_cluster_access(environ, tmp_path)

    assert access is not None
    assert (access.server, access.namespace, header(access)) == ("https://[fd00::1]:443", "team", "Bearer pod-token")


def test_outside_of_a_pod_there_is_no_such_account(tmp_path: Path) -> None:
    assert in_cluster_access({}, tmp_path) is None


def test_a_pod_without_a_token_says_what_is_missing(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}

    with pytest.raises(CredentialsError) as caught:
        in_cluster_access(environ, tmp_path / "missing")

    assert "automountServiceAccountToken" in caught.value.next


def test_a_cluster_of_gke_that_was_made_anew_is_found_at_its_new_place() -> None:
    with Scripted(page({"metadata": {"uid": "1"}})) as server:
        places = iter(["http://127.0.0.1:1", server.url])
        asked: list[str] = []

        def read_cluster() -> Cluster:
            asked.append("read")
            return Cluster("c", "us-central1-a", "p", next(places), b"")

        client = Client(gke_access(read_cluster, lambda refused: "google"), "team", Retry(3, sleep=lambda _: None))
        with contextlib.closing(client):
            assert client.get(kube_client.JOB, "a") is not None

    assert asked == ["read", "read"]
    assert server.asked[0].headers["authorization"] == "Bearer google"
    assert client.about == "the cluster c in us-central1-a of p"


@pytest.mark.parametrize("by_address", [True, False])
def test_a_private_address_that_cannot_be_reached_comes_with_the_command_that_opens_a_public_name(
    authority: Authority, by_address: bool
) -> None:
    found = Cluster(
        "c", "us-central1", "p", "https://127.0.0.1:1", authority.certificate.read_bytes() if by_address else b""
    )
    client = Client(gke_access(lambda: found, lambda _: "google"), "team", Retry(2, sleep=lambda _: None))

    with contextlib.closing(client), pytest.raises(BackendUnavailableError) as caught:
        client.get(kube_client.JOB, "a")

    command = "gcloud container clusters update c --location us-central1 --project p --enable-dns-access"
    assert str(caught.value.next).startswith(command) is by_address


# ----------------------------------------------------------------------------------------------------------------- TLS


class Handler(BaseHTTPRequestHandler):
    """Answers every request with who the client's certificate says it is."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        subject = (self.connection.getpeercert() or {}).get("subject", ())
        body = json.dumps({"metadata": {"uid": str(dict(pair[0] for pair in subject).get("commonName"))}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Clients here give up on purpose."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    (tmp_path / "tls").mkdir()
    return Authority(tmp_path / "tls")


@pytest.fixture
def secure(authority: Authority, request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that asks for a certificate, and looks at it; its own is valid between two days from now."""
    pair = authority.issue("server", days=getattr(request, "param", (-1, 1)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    context.load_verify_locations(authority.certificate)
    context.verify_mode = ssl.CERT_OPTIONAL
    server = Quiet(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def who(access: Access) -> str:
    with contextlib.closing(Client(access, "team", Retry(2, sleep=lambda _: None))) as client:
        found = client.get(kube_client.JOB, "a")
    assert found is not None
    return str(found["metadata"]["uid"])


def test_a_client_certificate_of_a_kubeconfig_is_shown(tmp_path: Path, authority: Authority, secure: str) -> None:
    mine = authority.issue("ann")
    cluster = {"server": secure, "certificate-authority-data": encoded(authority.certificate)}
    user = {"client-certificate-data": encoded(mine.certificate), "client-key-data": encoded(mine.key)}

    assert who(read(config(tmp_path / "config", cluster=cluster, user=user))) == "ann"


def test_authorities_with_comments_in_any_language_are_trusted(
    tmp_path: Path, authority: Authority, secure: str
) -> None:
    """As in the bundle of certifi, which names them."""
    mine, bundle = authority.issue("ann"), tmp_path / "bundle.crt"
    bundle.write_bytes("# Főtanúsítvány\n".encode() + authority.certificate.read_bytes())
    user = {"client-certificate-data": encoded(mine.certificate), "client-key-data": encoded(mine.key)}

    path = config(tmp_path / "config", cluster={"server": secure, "certificate-authority": str(bundle)}, user=user)

    assert who(read(path)) == "ann"


def test_a_certificate_of_a_plug_in_is_shown(tmp_path: Path, authority: Authority, secure: str, plugin) -> None:
    mine = authority.issue("bob")
    cluster = {"server": secure, "certificate-authority": str(authority.certificate)}
    user = plugin({"clientCertificateData": mine.certificate.read_text(), "clientKeyData": mine.key.read_text()})

    assert who(read(config(tmp_path / "config", cluster=cluster, user=user))) == "bob"


@pytest.mark.parametrize("kind", ["ec", "pkcs8"])
def test_a_key_with_a_password_is_refused_and_nothing_is_asked_on_the_terminal(
    tmp_path: Path, authority: Authority, secure: str, kind: str
) -> None:
    mine = authority.issue("ann")
    key = serialization.load_pem_private_key(mine.key.read_bytes(), None)
    form = serialization.PrivateFormat.PKCS8 if kind == "pkcs8" else serialization.PrivateFormat.TraditionalOpenSSL
    encrypted = serialization.BestAvailableEncryption(b"secret")
    mine.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encrypted))
    cluster = {"server": secure, "certificate-authority-data": encoded(authority.certificate)}
    user = {"client-certificate": str(mine.certificate), "client-key": str(mine.key)}

    with pytest.raises(CredentialsError, match="the client key for the context dev is encrypted") as caught:
        who(read(config(tmp_path / "config", cluster=cluster, user=user)))

    assert "openssl pkey" in caught.value.next


@pytest.mark.parametrize(
    ("days", "why"),
    [
        (
            (-400, -35),
            r"why:   the client certificate expired on \d{4}-\d\d-\d\d at \d\d:\d\d UTC\nnext:  fetch",
        ),
        ((-400, 365 * 40), r"why:   .*bad token"),
        ((2, 300), r"why:   the client certificate is valid from \d{4}-\d\d-\d\d on\n"),
    ],
)
def test_a_certificate_that_is_rejected_since_it_has_expired_is_named(
    tmp_path: Path, authority: Authority, days: tuple[int, int], why: str
) -> None:
    mine = authority.issue("ann", days=days)
    user = {"client-certificate-data": encoded(mine.certificate), "client-key-data": encoded(mine.key)}
    refused = refusal(401, "bad token")

    with Scripted(refused, refused) as server, pytest.raises(CredentialsError, match=why):
        who(read(config(tmp_path / "config", cluster={"server": server.url}, user=user)))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_server_that_demands_a_certificate_and_does_not_accept_ours_is_asked_only_twice(
    tmp_path: Path, authority: Authority, version: ssl.TLSVersion
) -> None:
    pair, mine = authority.issue("server"), authority.issue("ann", days=(-400, -35))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = version
    context.load_cert_chain(pair.certificate, pair.key)
    context.load_verify_locations(authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    asked: list[object] = []
    user = {"client-certificate": str(mine.certificate), "client-key": str(mine.key)}
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError, ValueError):  # the latter of a client that has gone before TLS began
                while True:
                    used, asker = listening.accept()
                    asked.append(asker)
                    with context.wrap_socket(used, server_side=True, do_handshake_on_connect=False) as tls:
                        with contextlib.suppress(ssl.SSLError):
                            tls.do_handshake()
                        while socket.socket.recv(tls, 65536):  # a reset could be faster than what TLS said
                            pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        server = f"https://127.0.0.1:{listening.getsockname()[1]}"
        cluster = {"server": server, "certificate-authority": str(authority.certificate)}
        with pytest.raises(CredentialsError, match="dev rejected our credentials") as caught:
            who(read(config(tmp_path / "config", cluster=cluster, user=user)))
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(30)

    assert caught.value.why.startswith("the client certificate expired on")
    assert len(asked) <= 2


def test_a_certificate_without_its_key_is_refused_instead_of_asking_without_it(
    tmp_path: Path, authority: Authority
) -> None:
    path = config(tmp_path / "config", user={"client-certificate-data": encoded(authority.issue("ann").certificate)})

    with pytest.raises(CredentialsError, match="dev has a client certificate without its key"):
        read(path)


@pytest.mark.parametrize("field", ["client-certificate-data", "client-key-data", "certificate-authority-data"])
def test_data_that_is_not_base64_is_refused_and_line_breaks_in_it_are_taken(tmp_path: Path, field: str) -> None:
    entry = "cluster" if "authority" in field else "user"
    whole = {"client-certificate-data": "QUJD", "client-key-data": "QUJD"} if entry == "user" else {}

    assert read(config(tmp_path / "config", **{entry: {**whole, field: "QU\n JD\n"}}))
    with pytest.raises(CredentialsError, match=f"cannot read {field.removesuffix('-data')} of a kubeconfig"):
        read(config(tmp_path / "config", **{entry: {**whole, field: "%%%"}}))


def test_a_server_that_somebody_else_signed_is_not_spoken_to_and_asked_only_once(tmp_path: Path, secure: str) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    path = config(tmp_path / "config", cluster={"server": secure, "certificate-authority": str(other.certificate)})
    pauses: list[float] = []

    with (
        contextlib.closing(Client(read(path), "team", Retry(8, sleep=pauses.append))) as client,
        pytest.raises(BackendUnavailableError, match="CERTIFICATE_VERIFY_FAILED") as caught,
    ):
        client.get(kube_client.JOB, "a")

    assert pauses == []  # 21 s of them, once
    assert "is not trusted" in caught.value.what
    assert "SSL_CERT_FILE" not in caught.value.next
    assert "kept" not in str(caught.value)


@pytest.mark.parametrize("secure", [(-3, -2), (2, 3)], indirect=True, ids=["expired", "not valid yet"])
def test_a_certificate_that_is_not_valid_by_the_clock_of_this_machine_names_that_clock(
    tmp_path: Path, authority: Authority, secure: str
) -> None:
    path = config(tmp_path / "config", cluster={"server": secure, "certificate-authority": str(authority.certificate)})

    with (
        contextlib.closing(Client(read(path), "team", Retry(2, sleep=lambda _: None))) as client,
        pytest.raises(BackendUnavailableError, match="is not trusted") as caught,
    ):
        client.get(kube_client.JOB, "a")

    assert caught.value.next.startswith("set the clock of this machine, unless it is 20")


def test_where_no_authority_is_named_the_variable_of_this_machines_own_is(tmp_path: Path, secure: str) -> None:
    path = config(tmp_path / "config", cluster={"server": secure})

    with (
        contextlib.closing(Client(read(path), "team", Retry(2, sleep=lambda _: None))) as client,
        pytest.raises(BackendUnavailableError, match="is not trusted") as caught,
    ):
        client.get(kube_client.JOB, "a")

    assert caught.value.next.startswith("set SSL_CERT_FILE to a file")


def test_a_certificate_is_not_looked_at_only_where_the_kubeconfig_says_so(tmp_path: Path, secure: str) -> None:
    path = config(tmp_path / "config", cluster={"server": secure, "insecure-skip-tls-verify": True})

    assert who(read(path)) == "None"


def test_a_changed_authority_is_fetched_anew_once(tmp_path: Path, authority: Authority, secure: str) -> None:
    (tmp_path / "other").mkdir()
    stale = Authority(tmp_path / "other").certificate.read_bytes()
    found = iter([stale, authority.certificate.read_bytes()])

    access = gke_access(lambda: Cluster("c", "z", "p", secure, next(found)), lambda refused: "t")

    assert who(access) == "None"


def test_broken_certificates_are_an_error_of_credentials(tmp_path: Path, secure: str) -> None:
    (tmp_path / "ca.crt").write_text("no PEM")
    path = config(tmp_path / "config", cluster={"server": secure, "certificate-authority": "ca.crt"})

    with pytest.raises(CredentialsError, match="certificates"):
        who(read(path))


def test_a_key_never_shows_in_a_text(tmp_path: Path, authority: Authority) -> None:
    mine = authority.issue("ann")
    user = {"client-certificate-data": encoded(mine.certificate), "client-key-data": encoded(mine.key)}

    assert "PRIVATE" not in repr(read(config(tmp_path / "config", user=user)))


def test_nothing_is_written_beside_the_kubeconfig(tmp_path: Path, authority: Authority, secure: str) -> None:
    mine = authority.issue("ann")
    cluster = {"server": secure, "certificate-authority-data": encoded(authority.certificate)}
    user = {"client-certificate-data": encoded(mine.certificate), "client-key-data": encoded(mine.key)}
    (tmp_path / "kube").mkdir()
    path = config(tmp_path / "kube" / "config", cluster=cluster, user=user)
    before = path.read_bytes()

    who(read(path))

    assert path.read_bytes() == before
    assert [each.name for each in (tmp_path / "kube").iterdir()] == ["config"]


def test_a_refused_plug_in_is_asked_once_more_by_a_request(tmp_path: Path, plugin) -> None:
    with Scripted(refusal(401), page({"metadata": {"uid": "1"}})) as server:
        path = config(tmp_path / "config", cluster={"server": server.url}, user=plugin({"token": "token-CALL"}))
        who(read(path))

    assert [each.headers["authorization"] for each in server.asked] == ["Bearer token-1", "Bearer token-2"]
    assert calls(tmp_path) == 2
