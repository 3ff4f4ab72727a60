"""What only stores in the cloud have: accounts, buckets that are missing, services that promise less, forks."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import ssl
import subprocess
import sys
import threading
import traceback
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from cluster.certificates import Authority
from obstore.exceptions import UnauthenticatedError
from obstore.store import GCSStore
from servers.azurite import ACCOUNT, AZURE, KEY
from servers.faults import BrokenServer, Fault, FaultyProxy, QuietHandler
from servers.http11 import Answer
from servers.scripted import Scripted, page

import kinetic
from kinetic._jobs import store_check
from kinetic._stores import credentials, obstore_client, open_store, parallel
from kinetic._stores.bucket import BucketStore
from kinetic._stores.parallel import Retry
from kinetic._stores.protocol import parse_address
from kinetic.errors import CredentialsError, OptionError, SettingsError, StoreError, StoreUnreachableError

QUICK = Retry(attempts=3, first_seconds=0.01, most_seconds=0.02, total_seconds=5)
CLOUDS = ["gcs", "s3", AZURE]


@pytest.fixture(params=CLOUDS)
def wire(request, faulty):
    return faulty(request.param)


def run(code, *arguments, **environ):
    environ = {**os.environ, "PYTHONPATH": str(Path(kinetic.__file__).parents[1]), **environ}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environ, capture_output=True, text=True, timeout=18, check=False
    )


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("status", [401, 403])
def test_a_service_that_does_not_let_us_in_is_told_with_what_was_looked_for(wire, status):
    store, proxy, _ = wire
    proxy.faults = [Fault("status", status=status, times=math.inf)]

    verbs = [
        lambda: store.put("a", b""), lambda: store.put("a", b"", if_absent=True), lambda: store.get("a"),
        lambda: store.size("a"), lambda: list(store.entries("")), lambda: store.delete("a"),
    ]  # fmt: skip
    for verb in verbs:
        with pytest.raises(CredentialsError, match="rejected our credentials") as caught:
            verb()
        variable = VARIABLES[store.url[:2]]
        assert variable in caught.value.why
        assert variable in caught.value.next


VARIABLES = {"s3": "AWS_ACCESS_KEY_ID", "gs": "GOOGLE_APPLICATION_CREDENTIALS", "az": "AZURE_STORAGE_KEY"}
MAY_NOT = "ann does not have storage.objects.create access"
WRONG_REGION = "the region is wrong; expecting 'eu-central-1'"
OLD = "<AuthenticationErrorDetail>Request date header too old: 'Sun, 29 Nov 2026'</AuthenticationErrorDetail>"
REFUSALS = [
    ("s3", 403, "AccessDenied", "not authorized to perform: s3:PutObject", CredentialsError, "does not let our account",
     "s3:GetObject"),
    ("gcs", 403, "AccessDenied", f"denied</Message><Details>{MAY_NOT}</Details><Message>", CredentialsError, MAY_NOT,
     "roles/storage.objectUser"),
    ("s3", 400, "ExpiredToken", "The provided token has expired.", CredentialsError, "token has expired", "sso login"),
    ("s3", 403, "RequestTimeTooSkewed", "too large", CredentialsError, "the time of our request", "set the clock"),
    ("s3", 400, "AuthorizationHeaderMalformed", f"{WRONG_REGION}</Message><Region>eu-central-1</Region><Message>",
     StoreError, "not in the region us-east-1", "export AWS_REGION=eu-central-1"),
    ("s3", 301, "PermanentRedirect", "use the specified endpoint", StoreError, "not in the region us-east-1",
     "get-bucket-location --bucket kinetic"),
    ("az", 403, "AuthorizationPermissionMismatch", "not authorized\nRequestId:1", CredentialsError,
     "does not let our account", "Storage Blob Data Contributor"),
    ("az", 403, "AuthenticationFailed", "Server failed to authenticate", CredentialsError, "rejected our credentials",
     "az login"),
    ("az", 403, "AuthenticationFailed", f"no</Message>{OLD}<Message>", CredentialsError, "the time of our request",
     "set the clock"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "status", "code", "message", "error", "what", "next_"), REFUSALS)
def test_each_cause_of_a_refusal_has_its_sentence_and_its_next_step(
    no_credentials, monkeypatch, kind, status, code, message, error, what, next_
):
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
    with Scripted(Answer(status, body, {"Content-Type": "application/xml"})) as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL", service.url)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", service.url)
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", service.url)
        url = {"gcs": "gs://kinetic-jobs", "s3": "s3://kinetic-jobs", "az": "az://kinetic-jobs@account"}[kind]
        with pytest.raises(error) as caught:
            BucketStore(url, retry=QUICK).get("a")

    assert what in str(caught.value)
    assert next_ in caught.value.next


@pytest.mark.parametrize(
    ("status", "code"), [(400, "ExpiredToken"), (403, "InvalidAccessKeyId"), (403, "InvalidTokenId")]
)
def test_keys_that_expire_while_a_process_runs_are_read_again_from_their_file(
    no_credentials, monkeypatch, tmp_path, status, code
):
    file, valid = tmp_path / "credentials", ["OLD"]
    refused = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()

    def answer(request):
        if f"Credential={valid[0]}/" in request.headers["authorization"]:
            about = {"ETag": '"1"', "Last-Modified": "Fri, 27 Nov 2026 12:00:00 GMT"}
            whole = {"Content-Range": "bytes 0-4/5"} if "range" in request.headers else {}
            return Answer(206 if whole else 200, b"value", about | whole)
        return Answer(status, b"" if request.method == "HEAD" else refused, {"Content-Type": "application/xml"})

    def log_in(key):
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = x\naws_session_token = x\n")

    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    with Scripted(answer) as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL", service.url)
        store = BucketStore("s3://kinetic-jobs", retry=QUICK)
        log_in("OLD")
        before = store.get("a")
        valid[0] = "NEW"
        with pytest.raises(CredentialsError):
            store.get("a")
        log_in("NEW")

        assert (before, store.get("a"), store.size("a")) == (b"value", b"value", 5)
        valid[0] = "NEWER"
        log_in("NEWER")
        assert (store.size("a"), store.put("a", b"")) == (5, True)


@pytest.mark.parametrize("kind", CLOUDS)
def test_a_bucket_that_does_not_exist_is_told(make_store, kind):
    there = make_store(kind)
    store = type(there)(there.url.partition("://")[0] + "://no-such-bucket", retry=QUICK)

    for verb in (
        lambda: store.put("a", b""), lambda: store.put("a", b"", if_absent=True), lambda: store.get("a"),
        lambda: list(store.entries("")), lambda: list(store.folders("")), lambda: store.put("a", bytes(9 << 20)),
    ):  # fmt: skip
        with pytest.raises(StoreError, match=r"no-such-bucket\S* does not exist") as caught:
            verb()
        assert caught.value.code == "store-missing"
        assert "Debug source" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "url",
    [
        "gs://",
        "gs:///a",
        "s3://a b/c",
        "gs://bucket/a//b",
        "gs://bucket/../b",
        "s3://-x",
        "az://bucket",
        "az://bucket@a_b",
        "az://@account",
    ],
)
def test_an_address_without_a_usable_bucket_or_prefix_is_refused(url):
    with pytest.raises(OptionError):
        open_store(url)


@pytest.mark.parametrize("prefix", ["", "/", "/deep/er", "/deep/er/"])
def test_a_store_sees_nothing_outside_of_its_prefix(make_store, prefix):
    bucket = make_store("gcs").url.removesuffix("/some/prefix")
    store, beside = BucketStore(bucket + prefix, retry=QUICK), BucketStore(bucket + "/deep/er-other", retry=QUICK)

    beside.put("x", b"")
    store.put("a", b"")

    assert [entry.key for entry in store.entries("")] == ["a"] + ["deep/er-other/x"] * (prefix in {"", "/"})
    assert [entry.key for entry in beside.entries("")] == ["x"]
    assert store.url == (bucket + prefix).rstrip("/")


# --------------------------------------------------------------------------------------------------------------- probe


DELETION = {"gs": 11, "s3": 3, "az": 10}  # requests to delete nine objects; listings come in pages of seven


@pytest.fixture
def nothing_proven(monkeypatch):
    monkeypatch.setattr(store_check, "_proven", set())


def test_a_service_that_heeds_conditions_is_asked_once_and_then_only_once_more_per_process(wire, nothing_proven):
    store, proxy, _ = wire

    store_check.check_conditional_writes(store)
    first = len(proxy.requests)  # the very first on this bucket
    scheme = store.address.scheme
    probe = 2 + 1 + (scheme == "s3")  # created twice, and deleted in between; for S3, a look whether it is there
    assert first == probe + 2 + 8 * 8 + DELETION[scheme]  # one object twice; eight at once, eight times
    store_check.check_conditional_writes(store)
    assert len(proxy.requests) == first
    store_check._proven.clear()
    store_check.check_conditional_writes(store)
    assert len(proxy.requests) == first + 1


def test_the_probe_is_in_no_listing(wire, nothing_proven):
    store, _, _ = wire

    store_check.check_conditional_writes(store)

    assert list(store.entries("")) == []
    assert list(store.folders("")) == []


@pytest.mark.parametrize("kind", ["gcs", "s3"])  # in Azure the key signs the condition
def test_a_service_that_ignores_conditions_is_refused_every_time(faulty, kind, nothing_proven):
    store, proxy, _ = faulty(kind)
    proxy.faults = [Fault("careless", times=math.inf)]

    for _ in range(2):
        with pytest.raises(StoreError, match="does not support conditional writes") as caught:
            store_check.check_conditional_writes(store)
        assert caught.value.code == "store-unconditional"


@pytest.mark.parametrize("after", [0, 50])  # as Swift 2.38 does with most, and S3Mock 5.2 with some
def test_a_service_whose_conditions_do_not_hold_for_requests_at_the_same_time_is_refused_every_time(
    faulty, nothing_proven, after
):
    store, proxy, straight = faulty("s3")

    for _ in range(2):
        proxy.faults = [Fault("careless", method="PUT", target=r"/race-\w+/\d", times=math.inf, after=after)]
        with pytest.raises(StoreError, match="at the same time created the same object") as caught:
            store_check.check_conditional_writes(store)
        assert caught.value.code == "store-unconditional"

    assert straight.size(store_check.PROBE) is None


def test_a_bucket_has_no_probe_before_all_is_proven(faulty, nothing_proven):
    store, proxy, straight = faulty("s3")
    there = []

    class Look(Fault):
        def meets(self, method, target):
            if "/race-" in target:
                there.append(straight.size(store_check.PROBE))
            return False

    proxy.faults = [Look("status")]

    store_check.check_conditional_writes(store)

    assert {*there} == {None}  # a process that ends in the middle, as its cluster refuses the job, has proven nothing
    assert straight.size(store_check.PROBE)


def test_another_first_client_that_removes_the_probe_does_not_make_the_service_look_careless(faulty, nothing_proven):
    store, proxy, straight = faulty("s3")

    class Removed(Fault):
        def meets(self, method, target):
            if store_check.PROBE in target and method == "PUT":
                straight.delete(store_check.PROBE)
            return False

    proxy.faults = [Removed("status")]

    store_check.check_conditional_writes(store)


def of_ceph():
    """What Ceph 16.2 answers to a copy without a length: obstore sends none."""
    return Fault("status", status=411, method="PUT", target=r"partNumber=\d+&uploadId=", times=math.inf)


COPIES = {
    "refuse": of_ceph(),
    "ignore conditions": Fault("careless", method="POST", times=math.inf),
    "know none": Fault("status", status=501, method="POST", target="uploadId", times=math.inf),
}


@pytest.mark.parametrize("form", ["bytes", "file", "generator"])
@pytest.mark.parametrize("copies", COPIES)
def test_a_large_object_is_created_once_where_copies_heed_no_conditions(faulty, tmp_path, copies, form):
    store, proxy, straight = faulty("s3")
    proxy.faults = [COPIES[copies]]
    content = os.urandom(9 << 20)
    (tmp_path / "source").write_bytes(content)

    def source():
        chunks = (content[at : at + 100_000] for at in range(0, len(content), 100_000))
        return {"bytes": content, "file": tmp_path / "source", "generator": chunks}[form]

    assert store.put("a", source(), if_absent=True) is True
    assert store.put("a", bytes(9 << 20), if_absent=True) is False

    assert store.get("a") == content
    assert [entry.key for entry in straight.entries("")] == ["a"]
    assert straight.sweep(older_than_seconds=-60) == 0


def test_of_two_large_objects_at_once_one_is_created_where_copies_heed_no_conditions(faulty, monkeypatch):
    store, proxy, _ = faulty("s3")
    proxy.faults = [of_ceph()]
    monkeypatch.setattr(store._client, "about", lambda key: None)  # both see nothing there

    assert store.put("a", b"1" * (9 << 20), if_absent=True) is True
    assert store.put("a", b"2" * (9 << 20), if_absent=True) is False

    assert store.get("a") == b"1" * (9 << 20)


def test_a_large_object_whose_answer_is_lost_is_known_as_ours_where_copies_heed_no_conditions(faulty):
    store, proxy, _ = faulty("s3")
    proxy.faults = [of_ceph(), Fault("lose", method="PUT", target="/a$")]

    assert store.put("a", bytes(9 << 20), if_absent=True) is True

    assert proxy.faults[1].met == 1


UNKNOWN_HEADER = b"<Error><Code>NotImplemented</Code><Message>A header implies what is not there.</Message></Error>"


@pytest.fixture
def without_conditions(no_credentials, monkeypatch):
    """A store in a service that knows no conditions, and says so, as some that imitate S3 do."""

    def answer(request):
        if "if-none-match" in request.headers:
            return Answer(501, UNKNOWN_HEADER)
        return Answer(404) if request.method == "HEAD" else Answer(200, headers={"ETag": '"1"'})

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    with Scripted(answer) as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL", service.url)
        yield BucketStore("s3://kinetic-jobs", retry=QUICK), service


def test_a_service_that_knows_no_conditions_is_refused_at_once_and_not_called_unreachable(
    without_conditions, nothing_proven
):
    store, service = without_conditions

    with pytest.raises(StoreError, match="does not support conditional writes") as caught:
        store_check.check_conditional_writes(store)

    assert caught.value.code == "store-unconditional"
    assert "501 Not Implemented: NotImplemented: A header implies" in caught.value.why
    assert len(service.asked) == QUICK.attempts  # obstore's own; we do not begin again


def test_what_a_service_does_not_have_is_not_an_outage(no_credentials, monkeypatch):
    with Scripted(Answer(501, UNKNOWN_HEADER)) as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL", service.url)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "x")

        with pytest.raises(StoreError, match="rejected the request for 'a'") as caught:
            BucketStore("s3://kinetic-jobs", retry=QUICK).get("a")

    assert not isinstance(caught.value, StoreUnreachableError)


def test_an_untrusted_certificate_is_answered_with_the_variable_that_makes_it_trusted(
    no_credentials, monkeypatch, tmp_path
):
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server = BrokenServer(("127.0.0.1", 0), Empty)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    with contextlib.ExitStack() as stack:
        stack.callback(server.serve())
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "x")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{server.server_address[1]}")
        with pytest.raises(StoreUnreachableError, match="certificate is not trusted") as caught:
            BucketStore("s3://kinetic-jobs", retry=QUICK).get("a")
        assert "set SSL_CERT_FILE to a file" in caught.value.next

        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))

        assert BucketStore("s3://kinetic-jobs", retry=QUICK).size("a") is None


def test_why_nothing_answers_is_said_and_whether_it_is_the_proxy(no_credentials, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://127.0.0.1:1")

    with pytest.raises(StoreUnreachableError, match="sending request: Connection refused") as caught:
        BucketStore("s3://kinetic-jobs", retry=QUICK).get("a")
    assert "proxy" not in str(caught.value)

    with Scripted(Answer(407)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with pytest.raises(StoreUnreachableError, match="sending request: the proxy: ProxyAuthRequired") as caught:
            BucketStore("s3://kinetic-jobs", retry=QUICK).get("a")
    assert "HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT" in caught.value.next


SERVICES = {
    "s3://kinetic-jobs": "s3.us-east-1.amazonaws.com",
    "gs://kinetic-jobs": "storage.googleapis.com",
    "az://kinetic-jobs@account": "account.blob.core.windows.net",
}


@pytest.mark.parametrize("url", SERVICES)
@pytest.mark.parametrize("kind", ["socks5", "socks5h", "socks"])
def test_a_socks_proxy_is_refused_at_once_instead_of_being_tried_or_passed_by(no_credentials, monkeypatch, url, kind):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ALL_PROXY", f"{kind}://127.0.0.1:1080/")

    with pytest.raises(SettingsError, match=f"begins with {kind}://, and buckets are reached through HTTP") as caught:
        BucketStore(url, retry=QUICK).get("a")

    assert caught.value.next.startswith("export HTTPS_PROXY=http://HOST:PORT")
    assert caught.value.next.endswith(f"NO_PROXY={SERVICES[url]}")


@pytest.mark.parametrize("kind", ["socks5", "SOCKS5"])  # obstore passes over the latter
def test_a_socks_proxy_is_also_refused_for_a_bucket_of_this_machine(no_credentials, monkeypatch, kind):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ALL_PROXY", f"{kind}://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9000")

    with pytest.raises(SettingsError, match="buckets are reached through HTTP proxies only") as caught:
        BucketStore("s3://kinetic-jobs", retry=QUICK).get("a")

    assert caught.value.next.endswith("NO_PROXY=localhost")


@pytest.mark.parametrize("passed_by", [{"NO_PROXY": "127.0.0.0/8"}, {"HTTP_PROXY": ""}])
def test_a_bucket_for_which_there_is_another_way_than_a_socks_proxy_is_reached(no_credentials, monkeypatch, passed_by):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    with Scripted(Answer(404, b"<Error><Code>NoSuchKey</Code></Error>")) as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL", service.url)
        for name, value in passed_by.items():
            monkeypatch.setenv(name, value or service.url)

        assert BucketStore("s3://kinetic-jobs", retry=QUICK).size("a") is None


class Empty(QuietHandler):
    """Has nothing."""

    def answer(self):
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = answer  # noqa: N815 - the base's names


def test_a_probe_whose_answer_is_lost_accuses_nobody(wire, nothing_proven):
    store, proxy, _ = wire
    proxy.faults = [Fault("lose", method="PUT|POST")]

    store_check.check_conditional_writes(store)


def test_a_large_object_is_not_created_where_copies_ignore_conditions(faulty):
    store, proxy, straight = faulty("s3")
    proxy.faults = [Fault("careless", times=math.inf)]

    with pytest.raises(StoreError, match="does not support conditional writes"):
        store.put("a", bytes(9 << 20), if_absent=True)

    assert list(straight.entries("")) == []


def test_files_need_no_probe(make_store):
    store = make_store("files")

    store_check.check_conditional_writes(store)

    assert not store.root.exists()


# -------------------------------------------------------------------------------------------- one bucket, two clients


def test_googles_own_client_sees_our_bytes_and_we_see_its(gcs_server, make_store, tmp_path, monkeypatch):
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    ours = make_store("gcs")
    client = storage.Client(project="p", credentials=AnonymousCredentials())
    bucket = client.bucket(ours.address.bucket)
    large = os.urandom(20 << 20)

    ours.put("small", b"ours")
    ours.put("ünï/a b%2F", b"odd")
    ours.put("large", large)
    ours.put("large-once", large, if_absent=True)
    bucket.blob("some/prefix/theirs").upload_from_string(b"theirs", if_generation_match=0)
    (tmp_path / "file").write_bytes(large)
    bucket.blob("some/prefix/theirs-large").upload_from_filename(tmp_path / "file", checksum="crc32c")

    expected = {
        "small": b"ours", "ünï/a b%2F": b"odd", "large": large, "large-once": large,
        "theirs": b"theirs", "theirs-large": large,
    }  # fmt: skip
    assert {entry.key: ours.get(entry.key) for entry in ours.entries("")} == expected
    blobs = client.list_blobs(bucket, prefix="some/prefix/")
    assert {blob.name.removeprefix("some/prefix/"): blob.download_as_bytes() for blob in blobs} == expected
    assert ours.put("theirs", b"", if_absent=True) is False
    client.close()


# -------------------------------------------------------------------------------------------------------------- tokens


@pytest.fixture
def guarded(gcs_server, make_store, monkeypatch):
    """A bucket behind tokens, and what its server hands out; reached as the real service would be."""
    store = make_store("gcs")
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setenv("GCE_METADATA_HOST", gcs_server.url.partition("://")[2])

    def client(bucket, options):
        options["client_options"]["allow_http"] = True
        login = credentials.google_login()
        config = {"base_url": gcs_server.url, **login.pop("config", {})}
        return GCSStore(bucket, config=config, **options, **login)

    google = credentials.of_cloud(parse_address("gs://bucket"))._replace(client=client)
    monkeypatch.setitem(credentials._CLOUDS, "gs", google)  # only the address of the service is another one
    gcs_server.tokens, gcs_server.issue = {"one", "two"}, [("one", 3600), ("two", 3600)]
    yield store.url
    gcs_server.tokens, gcs_server.issue = None, [("token", 3600)]


def tokens_asked_for(server, since=0):
    return sum(path.startswith("/computeMetadata/") for _, path in server.seen[since:])


def test_a_machine_of_googles_gives_one_token_to_many_threads(guarded, gcs_server):
    store = BucketStore(guarded, retry=QUICK)
    before = len(gcs_server.seen)

    list(parallel.in_parallel(store, [partial(store.put, f"a/{number}", b"x") for number in range(50)]))

    assert store.get("a/7") == b"x"
    assert tokens_asked_for(gcs_server, before) == 1


def test_a_pod_waits_for_a_metadata_server_that_starts_with_its_machine(guarded, gcs_server, monkeypatch):
    with contextlib.closing(FaultyProxy(gcs_server.url)) as proxy:
        monkeypatch.setenv("GCE_METADATA_HOST", proxy.url.partition("://")[2])
        proxy.faults = [Fault("drop", times=3), Fault("status", times=2, after=3)]

        assert BucketStore(guarded, retry=QUICK._replace(attempts=8)).put("a", b"x") is True


def test_a_federated_login_opens_a_bucket_and_a_token_that_is_about_to_end_is_exchanged(
    guarded, gcs_server, monkeypatch, tmp_path
):
    (tmp_path / "subject").write_text("token of the CI system")
    exchanged = page({"access_token": "of sts", "token_type": "Bearer", "expires_in": 3600})
    soon = [(datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ") for seconds in (30, 3600)]
    impersonated = [
        page({"accessToken": token, "expireTime": ends}) for token, ends in zip(("one", "two"), soon, strict=True)
    ]
    with Scripted(exchanged, *impersonated) as google:
        login = {
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/ci/providers/ci",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"{google.url}/v1/token",
            "service_account_impersonation_url": f"{google.url}/v1/projects/-/serviceAccounts/b@p:generateAccessToken",
            "credential_source": {"file": str(tmp_path / "subject")},
        }
        (tmp_path / "login.json").write_text(json.dumps(login))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "login.json"))
        store, before = BucketStore(guarded, retry=QUICK), len(gcs_server.seen)

        assert store.put("a", b"x") is True
        assert store.get("a") == b"x"

        assert tokens_asked_for(gcs_server, before) == 0
        assert google.paths[:2] == ["POST /v1/token", "POST /v1/projects/-/serviceAccounts/b@p:generateAccessToken"]
        assert len(google.asked) == 3  # a token that is about to end is exchanged at once
        assert b"token+of+the+CI+system" in google.asked[0].body


def test_a_login_in_another_folder_of_gcloud_is_found(guarded, monkeypatch, tmp_path):
    (tmp_path / "application_default_credentials.json").write_text('{"type": "authorized_user"}')
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))

    with pytest.raises(CredentialsError, match="client_id"):  # obstore has read it
        BucketStore(guarded, retry=QUICK).get("a")


def test_a_federated_login_that_is_refused_says_why(guarded, monkeypatch, tmp_path):
    with Scripted(page({"error": "invalid_grant", "error_description": "the pool ci is disabled"}, 400)) as google:
        login = {
            "type": "external_account",
            "audience": "ci",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        }
        login |= {"token_url": f"{google.url}/v1/token", "credential_source": {"file": str(tmp_path / "login.json")}}
        (tmp_path / "login.json").write_text(json.dumps(login))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "login.json"))

        with pytest.raises(CredentialsError, match="the pool ci is disabled"):
            BucketStore(guarded, retry=QUICK).get("a")


def test_no_credentials_at_all_are_told_with_where_they_were_looked_for(guarded, monkeypatch):
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("GCE_METADATA_IP", "127.0.0.1:1")

    with pytest.raises(CredentialsError, match="GOOGLE_APPLICATION_CREDENTIALS") as caught:
        BucketStore(guarded, retry=QUICK).get("a")
    assert "application-default login" in caught.value.next


def test_credentials_that_cannot_be_read_are_told(no_credentials, monkeypatch):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/no/such/file.json")

    with pytest.raises(CredentialsError, match=r"/no/such/file\.json"):
        BucketStore("gs://bucket", retry=QUICK).get("a")


def test_keys_that_the_aws_command_wrote_are_found(make_store, monkeypatch, tmp_path):
    store = make_store("s3")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    folder = Path(os.environ["HOME"]) / ".aws"
    folder.mkdir(parents=True)
    (folder / "credentials").write_text("[work]\naws_access_key_id = AKIA\naws_secret_access_key = s%cret\n")

    monkeypatch.setenv("AWS_PROFILE", "work")

    assert store.put("a", b"x") is True


@pytest.fixture
def amazon(make_store, monkeypatch, tmp_path):
    """A bucket of S3, no keys in the environment, and a function that writes the files and the command of Amazon's."""
    store = make_store("s3")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("AWS_PROFILE", "work")
    folder = Path(os.environ["HOME"]) / ".aws"
    folder.mkdir(parents=True)

    def write(config, command):
        (folder / "config").write_text(config)
        (tmp_path / "aws").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n{command}\n')
        (tmp_path / "aws").chmod(0o755)
        return store

    return write


SSO = "[profile work]\nsso_session = acme\nregion = eu-west-1\n"


def test_a_profile_with_single_sign_on_has_the_keys_that_the_aws_command_returns(amazon, tmp_path):
    keys = {"Version": 1, "AccessKeyId": "AKIA", "SecretAccessKey": "secret", "SessionToken": "token",
            "Expiration": "2099-01-01T00:00:00+00:00"}  # fmt: skip
    store = amazon(SSO, f"echo '{json.dumps(keys)}'")

    assert store.put("a", b"x") is True
    assert store.get("a") == b"x"

    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["configure export-credentials --profile work --format process"]
    assert credentials.amazon_region() == "eu-west-1"


def test_a_login_of_amazon_that_ended_says_so(amazon):
    store = amazon(SSO, "echo 'Error loading SSO Token: Token for acme does not exist' >&2; exit 255")

    with pytest.raises(CredentialsError, match="Token for acme does not exist") as caught:
        store.get("a")
    assert "aws sso login" in caught.value.next


def test_two_logins_that_are_refused_in_one_process_each_say_their_own_reason(no_credentials):
    def refusal_of(name):
        def login():
            raise CredentialsError(f"{name} has ended", next=f"log in to {name}")

        options = {"config": {"base_url": "http://127.0.0.1:9"}, "client_options": {"allow_http": True}}
        with pytest.raises(UnauthenticatedError) as caught:
            GCSStore(name, credential_provider=credentials.told(login), **options).put("a", b"x")
        return caught.value

    failures = [refusal_of("one"), refusal_of("other")]
    first, second = map(obstore_client.login_error, failures)

    assert (first.next, second.next) == ("log in to one", "log in to other")


def test_an_endpoint_of_a_login_that_does_not_answer_is_asked_again(guarded, monkeypatch, tmp_path):
    answered = page({"access_token": "one", "token_type": "Bearer", "expires_in": 3600})
    with Scripted(page({}, 503), page({}, 503), answered) as google:
        login = {"type": "external_account", "audience": "ci"}
        login |= {"subject_token_type": "urn:ietf:params:oauth:token-type:jwt", "token_url": f"{google.url}/v1/token"}
        login |= {"credential_source": {"file": str(tmp_path / "login.json")}}
        (tmp_path / "login.json").write_text(json.dumps(login))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "login.json"))

        assert BucketStore(guarded, retry=QUICK).put("a", b"x") is True


def test_without_the_aws_command_a_profile_with_single_sign_on_says_what_is_missing(amazon, monkeypatch):
    store = amazon(SSO, "")
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(CredentialsError, match="aws"):
        store.get("a")


def test_a_damaged_file_of_profiles_is_told(amazon):
    with pytest.raises(CredentialsError, match=r"\.aws/config"):
        amazon("no section\n", "").get("a")


# --------------------------------------------------------------------------------------------------------------- Azure


@pytest.fixture
def container(make_store, azurite, monkeypatch):
    """The name of a container, and an environment in which nothing says who we are."""
    name = make_store("azure").address.bucket.partition("@")[0]
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    return name


def azure(container, account=ACCOUNT):
    return BucketStore(f"az://{container}@{account}/some/prefix", retry=QUICK)


@pytest.mark.parametrize(
    "names",
    [("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY"), ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCESS_KEY")],
)
def test_an_address_without_an_account_has_that_of_the_environment(container, azurite, monkeypatch, names):
    for name, value in zip(names, (ACCOUNT, KEY), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{azurite.url}/{ACCOUNT}")

    store = BucketStore(f"az://{container}/some/prefix", retry=QUICK)

    assert store.put("a", b"x") is True
    assert store.url == f"az://{container}@{ACCOUNT}/some/prefix"
    assert azure(container).get("a") == b"x"


def test_the_key_of_a_connection_string_is_not_given_to_another_account(container, azurite, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
    monkeypatch.setenv("AZURE_STORAGE_TOKEN", "token")
    refused = page({}, 403)
    with Scripted(refused, refused, refused) as service:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "other")
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", service.url)
        with pytest.raises(CredentialsError, match="of account other"):
            azure(container, "other").get("a")

        assert service.asked[0].headers["authorization"] == "Bearer token"


def test_a_shared_access_signature_opens_a_container(container, azurite, monkeypatch):
    expires = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", f"?{azurite.signature(container, expires)}")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{azurite.url}/{ACCOUNT}")
    store = azure(container)

    assert store.put("a", b"x", if_absent=True) is True
    assert store.put("large", bytes(9 << 20), if_absent=True) is True
    assert [entry.key for entry in store.entries("")] == ["a", "large"]
    assert store.delete("a") == 1


def test_a_signature_that_has_expired_says_when(container, azurite, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", azurite.signature(container, "2020-01-01T00:00:00Z"))
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{azurite.url}/{ACCOUNT}")

    with pytest.raises(CredentialsError) as caught:
        azure(container).get("a")
    assert "AZURE_STORAGE_SAS_TOKEN" in caught.value.next


def test_the_login_of_the_az_command_is_asked_for_a_token(no_credentials, monkeypatch, tmp_path):
    token = {"accessToken": "of az", "expiresOn": "2099-01-01 00:00:00.000000", "subscription": "s", "tenant": "t",
             "tokenType": "Bearer"}  # fmt: skip
    (tmp_path / "az").write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/asked\necho '{json.dumps(token)}'\n")
    (tmp_path / "az").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    folder = Path(os.environ["HOME"]) / ".azure"
    folder.mkdir(parents=True)
    (folder / "azureProfile.json").write_text('{"subscriptions": [{"id": "s"}]}', "utf-8-sig")
    about = {"ETag": '"1"', "Last-Modified": "Fri, 27 Nov 2026 12:00:00 GMT", "Content-Length": "5"}
    with Scripted(lambda _: Answer(206, b"value", about | {"Content-Range": "bytes 0-4/5"})) as service:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", service.url)
        store = azure("container", "account")

        assert store.get("a") == b"value"
        assert store.get("b") == b"value"

        assert {request.headers["authorization"] for request in service.asked} == {"Bearer of az"}
        assert (tmp_path / "asked").read_text().count("get-access-token") == 1


def test_an_az_command_that_is_not_logged_in_says_so(no_credentials, monkeypatch, tmp_path):
    (tmp_path / "az").write_text("#!/bin/sh\necho \"Please run 'az login' to setup account.\" >&2\nexit 1\n")
    (tmp_path / "az").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    folder = Path(os.environ["HOME"]) / ".azure"
    folder.mkdir(parents=True)
    (folder / "azureProfile.json").write_text('{"subscriptions": [{"id": "s"}]}', "utf-8-sig")

    with pytest.raises(CredentialsError, match="Please run 'az login'") as caught:
        azure("container", "account").get("a")
    assert "run az login" in caught.value.next


def test_a_signature_comes_before_the_identity_that_aks_gives_a_pod(no_credentials, monkeypatch, tmp_path):
    about = {"ETag": '"1"', "Last-Modified": "Fri, 27 Nov 2026 12:00:00 GMT", "Content-Range": "bytes 0-4/5"}
    with Scripted(lambda _: Answer(206, b"value", about)) as service:
        for name in ("AZURE_AUTHORITY_HOST", "AZURE_STORAGE_ENDPOINT"):
            monkeypatch.setenv(name, service.url)
        monkeypatch.setenv("AZURE_CLIENT_ID", "")  # as of a service account that names none
        monkeypatch.setenv("AZURE_TENANT_ID", "tenant")
        monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=1&sig=2")

        assert azure("container", "account").get("a") == b"value"

    assert [request.query for request in service.asked] == [{"sv": "1", "sig": "2"}]


def test_a_machine_of_azure_has_its_identity_where_the_az_command_was_used_without_a_login(
    no_credentials, monkeypatch, tmp_path
):
    (tmp_path / "az").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "az").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    folder = Path(os.environ["HOME"]) / ".azure"
    folder.mkdir(parents=True)
    (folder / "azureProfile.json").write_text('{"installationId": "i", "subscriptions": []}')  # as az version leaves it
    store = azure("container", "account")
    store.make_client()

    assert "use_azure_cli" not in store._client._client.config


def test_a_pod_of_aks_exchanges_its_token_for_one_of_its_workload_identity(no_credentials, monkeypatch, tmp_path):
    (tmp_path / "token").write_text("of the service account")
    about = {"ETag": '"1"', "Last-Modified": "Fri, 27 Nov 2026 12:00:00 GMT", "Content-Range": "bytes 0-4/5"}

    def answer(request):
        if request.path.endswith("/oauth2/v2.0/token"):
            return page({"access_token": "of entra", "expires_in": 3600, "token_type": "Bearer"})
        return Answer(206, b"value", about)

    with Scripted(answer) as azures:
        monkeypatch.setenv("AZURE_CLIENT_ID", "client")
        monkeypatch.setenv("AZURE_TENANT_ID", "tenant")
        monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "token"))
        for name in ("AZURE_AUTHORITY_HOST", "AZURE_STORAGE_ENDPOINT"):
            monkeypatch.setenv(name, azures.url)

        assert azure("container", "account").get("a") == b"value"

        assert azures.paths[0] == "POST /tenant/oauth2/v2.0/token"
        assert b"client_assertion=of+the+service+account" in azures.asked[0].body
        assert azures.asked[1].headers["authorization"] == "Bearer of entra"


def test_a_copy_that_azure_ends_later_is_waited_for(make_store, monkeypatch):
    store = make_store("azure")
    about, short = store._client.about, [0, 7]

    def pending(key):
        found = about(key)
        return {**found, "size": short.pop()} if key == "a" and found is not None and short else found

    monkeypatch.setattr(store._client, "about", pending)

    assert store.put("a", bytes(9 << 20), if_absent=True) is True
    assert short == []


def test_a_copy_that_azure_never_ends_is_an_error_and_leaves_nothing(make_store, monkeypatch):
    store = make_store("azure", QUICK._replace(total_seconds=0.1))
    about = store._client.about

    def pending(key):
        found = about(key)
        return {**found, "size": 0} if key == "a" and found is not None else found

    monkeypatch.setattr(store._client, "about", pending)

    with pytest.raises(StoreUnreachableError, match="a copy did not end"):
        store.put("a", bytes(9 << 20), if_absent=True)
    assert list(store.entries("")) == []


def test_the_host_of_an_account_may_be_written_out_for_another_cloud(no_credentials, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
    store = BucketStore("az://container@account.dfs.core.chinacloudapi.cn", retry=QUICK)
    store.make_client()

    assert store._client._client.config["endpoint"] == "https://account.blob.core.chinacloudapi.cn"
    assert store._client._client.config["account_name"] == "account"


def test_a_connection_string_of_a_national_cloud_says_its_host(no_credentials, monkeypatch):
    whole = f"DefaultEndpointsProtocol=https;AccountName=acct;AccountKey={KEY};EndpointSuffix=core.chinacloudapi.cn"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", whole)
    store = BucketStore("az://container/a", retry=QUICK)
    store.make_client()

    assert store.url == "az://container@acct.blob.core.chinacloudapi.cn/a"
    assert store._client._client.config["endpoint"] == "https://acct.blob.core.chinacloudapi.cn"
    assert store._client._client.config["account_key"] == KEY


def test_an_account_of_the_environment_with_its_host_has_the_key_beside_it(no_credentials, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "acct.blob.core.chinacloudapi.cn")  # as kinetic gives it to pods
    monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
    store = BucketStore("az://container@acct.blob.core.chinacloudapi.cn", retry=QUICK)
    store.make_client()

    assert store._client._client.config["account_key"] == KEY


@pytest.mark.parametrize("host", ["acct", "acct.blob.core.chinacloudapi.cn"])
def test_a_connection_string_with_a_signature_names_its_account_by_its_endpoint(no_credentials, monkeypatch, host):
    endpoint = f"https://{host if '.' in host else f'{host}.blob.core.windows.net'}"
    whole = f"BlobEndpoint={endpoint}/;QueueEndpoint=https://acct.queue.core.windows.net/;SharedAccessSignature=sv=1"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", whole)
    own, others = (BucketStore(f"az://container{name}/a", retry=QUICK) for name in ("", "@other"))
    own.make_client()
    others.make_client()

    assert own.url == f"az://container@{host}/a"
    assert own._client._client.config["endpoint"] == endpoint
    assert own._client._client.credential_provider()["sas_token"] == "sv=1"
    assert others._client._client.config["endpoint"] == "https://other.blob.core.windows.net"
    assert others._client._client.credential_provider is None


def test_the_endpoint_of_one_account_is_not_used_for_another(no_credentials, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "acct")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "https://acct.example")  # obstore reads it as well
    stores = [azure("container", account) for account in ("acct", "other")]
    for store in stores:
        store.make_client()

    endpoints = [store._client._client.config["endpoint"] for store in stores]
    assert endpoints == ["https://acct.example", "https://other.blob.core.windows.net"]


def test_a_password_in_an_address_of_azure_is_not_shown():
    with pytest.raises(OptionError, match="holds a user name or a password") as caught:
        open_store("az://user:secret@account/folder")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "az://container@account/folder?sv=2024-11-04&sig=marker",
        "az://container?sig=marker",
        "s3://bucket/folder?X-Amz-Signature=marker",
        "https://account.blob.core.windows.net/container?sv=2024-11-04&sig=marker",
        "https://user:marker@minio.example/bucket",
    ],
)
def test_an_address_with_a_signature_is_refused_and_the_signature_not_shown(url):
    with pytest.raises(OptionError) as caught:
        open_store(url)
    assert "marker" not in f"{caught.value} {caught.value.why} {caught.value.next}"


# ------------------------------------------------------------------------------------------------- opening, processes


def test_a_store_is_opened_once_and_anew_for_other_credentials(make_store, monkeypatch):
    url = make_store("gcs").url

    first = open_store(url)
    assert open_store(url) is first
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    assert open_store(url) is not first


def test_obstore_is_loaded_with_the_first_bucket_only():
    code = """
import sys
from kinetic._stores import open_store
import tempfile
open_store(tempfile.mkdtemp()).put("a", b"")
assert not {"obstore", "http.client", "ssl"} & set(sys.modules), sorted(sys.modules)
open_store("gs://bucket")
assert "obstore" in sys.modules
"""
    assert run(code).stderr == ""


@pytest.mark.parametrize("url", ["gs://bucket", "s3://bucket", "az://container@account"])
def test_without_obstore_the_error_names_the_line_to_add_to_the_image(url):
    code = """
import sys
sys.modules["obstore"] = None
from kinetic._stores import open_store
try:
    open_store(sys.argv[1])
except Exception as error:
    print(type(error).__name__, error.what)
    print(error.next)
"""

    assert run(code, url).stdout.splitlines() == [
        f"OptionError {url!r} cannot be opened here",
        "pip install obstore; in an image of your own, add the line RUN pip install obstore",
    ]


FORKED = """
import os, sys
from kinetic._stores import open_store
store = open_store(sys.argv[1])
store.put("a", b"1")
child = os.fork()
if child == 0:
    for which in (store, open_store(sys.argv[1])):
        try:
            print(type(which).__name__, which.get("a"), flush=True)
        except Exception as error:
            print(type(error).__name__, error.what, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(store.get("a"))
"""


@pytest.mark.parametrize("kind", CLOUDS)
def test_a_forked_child_never_hangs_in_a_store_that_its_parent_used(make_store, kind):
    lines = run(FORKED, make_store(kind).url).stdout.splitlines()

    refused = "StoreError this process cannot use the store"
    assert lines == [refused, refused, "b'1'"]


@pytest.mark.parametrize("kind", ["gs", "s3", "az"])
def test_ctrl_c_does_not_wait_for_a_service_that_does_not_answer(kind, tmp_path, no_credentials):
    import socket

    silent = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{silent.getsockname()[1]}"
    code = """
import sys
from kinetic._stores.bucket import BucketStore
store = BucketStore(sys.argv[1])
print("asking", flush=True)
store.get("a")
"""
    url = f"{kind}://bucket"
    environ = {
        **os.environ, "PYTHONPATH": str(Path(kinetic.__file__).parents[1]), "STORAGE_EMULATOR_HOST": address,
        "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x",
        "AZURE_STORAGE_ENDPOINT": address, "AZURE_STORAGE_ACCOUNT": ACCOUNT, "AZURE_STORAGE_KEY": KEY,
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", code, url], env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    connection, _ = silent.accept()  # the request is on its way

    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=15)

    assert "KeyboardInterrupt" in errors
    connection.close()
    silent.close()


MEMORY = """
import resource, sys, os
from kinetic._stores.bucket import BucketStore
store = BucketStore(sys.argv[1])
store.put("warm", b"")
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = peak()
store.put("a", (os.urandom(1 << 20) for _ in range(240)), if_absent=True)
store.fetch("a", sys.argv[2])
print(peak() - before)
"""


def test_an_object_larger_than_memory_passes_through(make_store, tmp_path):
    done = run(MEMORY, make_store("gcs").url, str(tmp_path / "file"))

    assert int(done.stdout) < 200, "MiB of memory for an object of 240"
    assert (tmp_path / "file").stat().st_size == 240 << 20


@pytest.mark.parametrize("kind", CLOUDS)
def test_the_first_error_among_many_transfers_ends_them(faulty, kind, tmp_path):
    store, proxy, _ = faulty(kind, QUICK)
    proxy.faults = [Fault("status", times=math.inf, after=20)]

    with pytest.raises(StoreUnreachableError):
        list(parallel.in_parallel(store, (partial(store.put, f"a/{number}", b"") for number in range(1000))))

    assert len(proxy.requests) < 500
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kinetic-transfer-17")]


@pytest.mark.parametrize("kind", CLOUDS)
def test_what_killed_writers_left_is_swept_and_nothing_else(make_store, kind):
    store = make_store(kind)
    store.put("a", b"x")
    store._client.ask_about("put", ".tmp/left", b"half")

    assert store.sweep() == 0
    assert store.sweep(older_than_seconds=-10) == 1
    assert store.sweep(older_than_seconds=-10) == 0
    assert store.get("a") == b"x"
