"""A build of an image in a job of its own, on a CPU machine of the cluster or in Cloud Build: standard library only.

These modules are not in the runner of other jobs. They travel as the project of this one; see ``builder_project.py``.
What a build prints is the log of its job.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from kinetic._images import docker_login
from kinetic._images.container_registry import Login, Reference, Registry
from kinetic._images.image import ImageBuilder, Progress
from kinetic._images.layers import Wheel
from kinetic._images.lock import Source, with_built
from kinetic._images.request import BuildRequest, plain_wheel, with_folders
from kinetic._images.wheels import WheelCache, host_of
from kinetic._wire import python_runtime
from kinetic._wire.http_client import HttpClient
from kinetic.errors import CredentialsError, ImageBuildError

LOGINS = "IMAGE_BUILD_LOGINS"  # variable, from the Secret of the job: what ``request.logins`` returned
MADE = "made-"  # the beginning of the names of files that a service keeps for the client; the rest is their hash
_METADATA = "metadata.google.internal"
_TOKEN_PATH = "computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105 - a path
_REPORT_SECONDS = 5.0


def build(page: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Build an image, and first the wheels of packages that have only source code.

    Args:
        page: Of ``BuildRequest.to_json``; "carried" has the bytes of wheels that no index has, by hash.
        environ: Of the job.

    Returns:
        "built": the fields of the image; "wheels": those that were built from source, with their bytes.
    """
    request, sources = BuildRequest.from_json(page)
    logins = json.loads(environ.get(LOGINS) or "{}")
    with tempfile.TemporaryDirectory(prefix="kinetic-image-") as name:
        folder = Path(name)
        environ = {**environ, "NETRC": str(_write_netrc(folder / "netrc", logins.get("indexes") or {}))}
        cache = WheelCache(folder / "wheels", with_folders(environ, logins))
        cache.folder.mkdir()
        for sha256, data in (page.get("carried") or {}).items():
            (cache.folder / f"{sha256}.whl").write_bytes(data)
        made = [_build_wheel(source, request.lock.platform.machine, folder, cache, environ) for source in sources]
        lock = with_built(request.lock, made)
        target, base = Reference.parse(f"{request.repository}:env"), Reference.parse(request.source)
        _print(f"building an image of {len(lock.wheels)} packages for {request.repository}")
        with (
            _connect(target, logins, needed=True) as registry,
            _connect(base, logins, needed=False) as from_,
            _Lines() as lines,
        ):
            built = ImageBuilder(registry, cache, lines).build(lock, request.base, from_)
        _print(
            f"built {built.uri} in {built.seconds:.1f} s: {built.built_layers} layers, {built.sent_bytes} bytes sent"
        )
        wheels = [{"wheel": plain_wheel(wheel), "data": cache.path_of(wheel).read_bytes()} for wheel in made]
        return {"built": built._asdict(), "wheels": wheels}


def main(file: str) -> None:
    """Build what a file asks for: the step of a service that knows no jobs, such as Cloud Build.

    The folder "carried" beside it has the wheels that no index has, by hash. Wheels that were built from source are
    left beside it with a list of them, whose hash is the output of the step: the client believes no other list.
    """
    folder = Path(file).parent
    carried = {each.stem: each.read_bytes() for each in folder.glob("carried/*.whl")}
    wheels = build({**json.loads(Path(file).read_bytes()), "carried": carried})["wheels"]
    if not wheels:
        return
    for each in wheels:
        (folder / f"{MADE}{each['wheel']['sha256']}").write_bytes(each["data"])
    listed = json.dumps([each["wheel"] for each in wheels]).encode()
    digest = hashlib.sha256(listed).hexdigest()
    (folder / f"{MADE}{digest}").write_bytes(listed)
    (Path(os.environ["BUILDER_OUTPUT"]) / "output").write_text(digest)


class _Lines(Progress):
    """Prints how far the build is, every few seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._fetched = self._to_fetch = self._sent = 0
        self._thread = threading.Thread(target=self._print, name="kinetic-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def fetching(self, size_bytes: int) -> None:
        with self._lock:
            self._to_fetch += size_bytes

    def fetched(self, size_bytes: int) -> None:
        with self._lock:
            self._fetched += size_bytes

    def sent(self, size_bytes: int) -> None:
        with self._lock:
            self._sent += size_bytes

    def _print(self) -> None:
        said, begun = "", time.monotonic()
        while not self._over.wait(_REPORT_SECONDS):
            with self._lock:
                words = f"{self._fetched >> 20} of {self._to_fetch >> 20} MiB fetched, {self._sent >> 20} MiB sent"
            if words != said:
                said = words
                _print(f"{words} in {time.monotonic() - begun:.0f} s")


def _print(line: str) -> None:
    sys.stdout.write(f"kinetic: {line}\n")
    sys.stdout.flush()


# ------------------------------------------------------------------------------------------------------------- logins


def _connect(reference: Reference, logins: Mapping[str, Any], *, needed: bool) -> Registry:
    """Open a registry: with what the client sent along, the pod's own Docker files, or the machine's Google account."""

    def login(*, again: bool) -> Login:
        if given := (logins.get("registries") or {}).get(reference.host):
            return Login(*map(str, given))
        try:
            rejected = "again" if again else ""
            return docker_login.find_login(
                reference.host, metadata_token, os.environ, rejected, repository=reference.name
            )
        except CredentialsError:
            if needed:
                raise
            return Login()

    return Registry(reference.host, reference.name, login)


def metadata_token(rejected: str = "") -> str:  # noqa: ARG001 - the server renews its tokens by itself
    """Return an access token of the Google account that this machine, or the pod by its service account, has.

    Raises:
        CredentialsError: There is no metadata server: this is not a machine of Google's, or the account has no token.
    """
    host = os.environ.get("GCE_METADATA_HOST") or _METADATA  # the variable of Google's own libraries
    why = ""
    try:
        answer = HttpClient(plain_http=True, timeout_seconds=10, is_direct=True).send(
            "GET", f"http://{host}/{_TOKEN_PATH}", headers={"Metadata-Flavor": "Google"}, follow=False
        )
        if answer.status == 200:
            return str(json.loads(answer.body)["access_token"])
        why = f"{host} answered {answer.status}"
    except (OSError, ValueError, KeyError) as error:
        why = f"{host}: {error}"
    raise CredentialsError(
        "the pod that builds the image has no Google account",
        why=why,
        next="let its service account use Workload Identity with the role roles/artifactregistry.writer, "
        "or log in to the registry on this machine: docker login",
        code="registry-login",
    )


def _write_netrc(file: Path, indexes: Mapping[str, Sequence[str]]) -> Path:
    def quoted(text: str) -> str:
        return '"' + re.sub(r'["\\]', r"\\\g<0>", text) + '"'  # also where it is empty, as beside a token

    lines = [
        f"machine {host.partition(':')[0]} login {quoted(user)} password {quoted(password)}\n"
        for host, (user, password) in indexes.items()
    ]
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "w") as opened:
        opened.writelines(lines)
    return file


# ----------------------------------------------------------------------------------------------------- from source


def _build_wheel(source: Source, wanted: str, folder: Path, cache: WheelCache, environ: Mapping[str, str]) -> Wheel:
    """Build the wheel of a package for this machine's Python, and put it into the cache under its hash.

    The processor that is wanted may be another one: then what was compiled is refused, and plain Python is not.
    """
    out = folder / f"built-{source.name}"
    out.mkdir()
    what = source.url
    if source.sha256:
        archive = Wheel(source.name, source.version, source.filename, source.sha256, 0, source.url)
        cache.fetch([archive])
        what = str(folder / os.path.basename(source.filename))
        os.link(cache.path_of(archive), what)
    uv = python_runtime.find_installer()
    if uv and source.sha256:
        words = [uv, "build", "--wheel", what, "--out-dir", str(out), "--python", sys.executable, "--no-config"]
    else:
        words = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(out), what]
    _print(f"compiling {source.name} {source.version} from {host_of(source.url)}")
    code = subprocess.run(words, env=dict(environ), cwd=folder, stdin=subprocess.DEVNULL, check=False).returncode
    found = sorted(out.glob("*.whl"))
    if code or len(found) != 1:
        raise ImageBuildError(
            f"{source.name} {source.version} could not be built from source",
            why=f"{' '.join(words[:3])} ended with exit code {code}; its output is in the log of this build",
            next="choose a version that has wheels, or a base image with what it needs: KINETIC_BASE_IMAGE",
            code="source-build",
        )
    if (here := platform.machine()) != wanted and not found[0].stem.endswith("-any"):
        raise ImageBuildError(
            f"{source.name} {source.version} must be compiled on a machine of the job's kind",
            why=f"it was compiled on {here} here, and the job runs on {wanted}",
            next='write container_image="python": then it is compiled when the job starts; or choose a version '
            "that has wheels",
            code="source-only",
        )
    data = found[0].read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    (cache.folder / f"{sha256}.whl").write_bytes(data)
    version = found[0].name.split("-")[1]
    return Wheel(source.name, version, found[0].name, sha256, len(data), f"store:{sha256}")
