"""What every store can do: durable bytes by key. And what an address of one says: ``gs://bucket/prefix``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from kinetic._wire import NamedTuple
from kinetic.errors import OptionError

Source = bytes | bytearray | memoryview | os.PathLike[str] | Iterable[bytes]


class Entry(NamedTuple):
    """One key as a listing shows it."""

    key: str
    size: int  # bytes
    modified: float  # seconds since the epoch by the store's own clock, never by ours


class Store(Protocol):
    """Durable bytes by key. Keys are relative paths with forward slashes, e.g. ``cpu-train-…/order.json``.

    An object appears whole or not at all, and what was put is durable when ``put`` returns.
    """

    url: str

    @property
    def local(self) -> LocalStore | None:
        """This store with what only a folder of this machine can do, or None for any other store."""

    def put(self, key: str, source: Source, *, if_absent: bool = False) -> bool:
        """Write an object.

        Args:
            key: Its name.
            source: Bytes, a file (streamed), or chunks of bytes.
            if_absent: Create only: an existing object is left as it is.

        Returns:
            True when this call wrote the object, False when ``if_absent`` found one.
        """

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of an object, or a range of them.

        Raises:
            KeyMissingError: There is no such object.
        """

    def fetch(self, key: str, to: os.PathLike[str], received: Callable[[int], object] | None = None) -> None:
        """Copy an object into a local file, which appears whole or not at all.

        ``received`` is called with the number of bytes of each piece that has arrived, on any thread.

        Raises:
            KeyMissingError: There is no such object.
        """

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None when there is none."""

    def entry(self, key: str) -> Entry | None:
        """Return size and age of an object, or None when there is none."""

    def touch(self, key: str) -> bool:
        """Make an object as young as if it had just been written; False when there is none.

        For what a bucket deletes after a number of days, though it is still needed.
        """

    def entries(self, prefix: str, *, after: str = "") -> Iterator[Entry]:
        """List everything under a prefix that ends in "/" (or is empty), in key order, keys after ``after`` only."""

    def folders(self, prefix: str) -> Iterator[str]:
        """Name what is directly below a prefix that ends in "/" (or is empty) and holds further keys."""

    def delete(self, prefix: str) -> int:
        """Delete one key, or everything under a prefix that ends in "/"; return how many objects this call deleted.

        ``job-1/`` does not delete ``job-12/``. Nothing to delete is not an error.
        """

    def sweep(self, *, older_than_seconds: float = 86400.0) -> int:
        """Delete what killed writers left half-made and no listing shows; return how many there were.

        In a folder these files may be the only copy of a result: there the local backend recovers or removes them.
        """


class LocalStore(Store, Protocol):
    """A store in a folder of this machine: what it can do beyond a store, because its objects are files."""

    root: Path

    def adopt(self, key: str, path: os.PathLike[str], *, if_absent: bool = False) -> bool:
        """Take over a complete file of the same file system as an object: a rename instead of a copy.

        The file is gone when this returns, whatever the answer, and stays when this raises: it may be the only copy of
        a result. From another file system it is copied.
        """

    def put_many(self, objects: Sequence[tuple[str, bytes]], *, if_absent: bool = False) -> list[str]:
        """Write objects; see the function of this name."""

    def put_hint(self, key: str, data: bytes = b"") -> bool:
        """Create an object; see the function of this name."""

    def force(self, entry: Entry) -> None:
        """Force an object to the disk that another process may have written a moment ago, and not forced yet."""

    def note_forced(self, entry: Entry) -> None:
        """Note that this process has written an object: ``force`` does nothing then."""

    def entries(self, prefix: str, *, after: str = "", known: Callable[[str], bool] | None = None) -> Iterator[Entry]:
        """List as every store does, but no keys that are known: for a listing of thousands that is read often."""

    def scratch(self) -> Path:
        """Return a folder of this store's file system for files that will be adopted."""

    def reserve(self, size: int) -> int:
        """Keep space on this store's disk: a descriptor of a file without a name, which ends with it."""

    def open(self, key: str) -> int:
        """Return a descriptor of an object's file, for readers that must not hold it whole in memory.

        Raises:
            KeyMissingError: There is no such object.
        """


def put_file(store: Store, key: str, path: Path, *, if_absent: bool = False) -> bool:
    """Make a complete file an object: by a rename where the store is a folder, else by an upload.

    The file is gone when this returns, whatever the answer, and stays when this raises.

    Returns:
        True when this call wrote the object, False when ``if_absent`` found one.
    """
    if store.local is not None:
        return store.local.adopt(key, path, if_absent=if_absent)
    written = store.put(key, path, if_absent=if_absent)
    path.unlink(missing_ok=True)
    return written


def put_many(store: Store, objects: Sequence[tuple[str, bytes]], *, if_absent: bool = False) -> list[str]:
    """Write objects: the last one appears only when all others are there. They replace what is there.

    All are durable when this returns. After an error, or a crash of the machine, any of them may be there. In a folder
    each directory is forced to the disk once, and many objects at the same time.

    Returns:
        The keys of objects that were left as they are.
    """
    if store.local is not None:
        return store.local.put_many(objects, if_absent=if_absent)
    if not objects:
        return []
    from functools import partial

    from kinetic._stores import parallel

    left: list[str] = []

    def put(key: str, data: bytes) -> None:
        if not (store.put(key, data, if_absent=True) if if_absent else store.put(key, data)):
            left.append(key)

    *others, last = objects
    for _ in parallel.in_parallel(store, (partial(put, key, data) for key, data in others)):
        pass
    put(*last)
    return left


def put_hint(store: Store, key: str, data: bytes = b"") -> bool:
    """Create an object that a power cut may undo or damage: in a folder, nothing is forced to the disk for it.

    Returns whether this call created it.
    """
    if store.local is not None:
        return store.local.put_hint(key, data)
    return store.put(key, data, if_absent=True)


def scratch_folder(store: Store) -> Path:
    """Return a folder for files that will be handed over: of the store's own file system, if it has one."""
    if store.local is not None:
        return store.local.scratch()
    import tempfile  # 4 ms; only for stores that are not folders

    return Path(tempfile.gettempdir())


# ----------------------------------------------------------------------------------------------------------------- keys

SCRATCH = ".tmp"  # half-written objects; no key
RESERVED_FOLDER = ".kinetic"  # what kinetic notes about a store itself; keys, but in no listing of the whole store
HIDDEN = frozenset({SCRATCH, RESERVED_FOLDER})
MAX_KEY_BYTES = 1024  # of a key: the limit of Cloud Storage and of S3; Azure's is in characters

# No control characters, halves of surrogate pairs or non-characters: XML, in which buckets list, cannot spell them.
_KEY = re.compile(r"(?!/)(?!.*//)(?!(?:.*/)?\.\.?(?:/|\Z))[^\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]+(?<!/)")


def check_key(key: str) -> None:
    """Refuse what is not a key.

    Raises:
        OptionError: It is empty, leads out of the store, or cannot be spelled in every store.
    """
    if not _KEY.fullmatch(key) or key.partition("/")[0] == SCRATCH:
        raise OptionError(
            f"{key!r} is not a key",
            why="a key is a relative path without '.' or '..' and without control characters in it",
        )
    if len(key) * 4 > MAX_KEY_BYTES and len(key.encode()) > MAX_KEY_BYTES:
        raise OptionError(f"{key[:60]!r}… is not a key", why=f"it is longer than {MAX_KEY_BYTES} bytes")


def check_prefix(prefix: str) -> None:
    """Raise OptionError for what is no prefix: neither empty, nor a key and "/"."""
    if prefix:
        if not prefix.endswith("/"):
            raise OptionError(f"{prefix!r} is not a prefix", why="a prefix is empty or a key followed by '/'")
        check_key(prefix[:-1])


def is_hidden(key: str) -> bool:
    """Return whether a listing of the whole store leaves this key out."""
    return key.startswith(".") and key.partition("/")[0] in HIDDEN


# ------------------------------------------------------------------------------------------------------------ addresses

CLOUDS = ("gs://", "s3://", "az://")  # how addresses of buckets begin

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]")

# What a bucket of S3 may demand of each request: obstore makes headers of them.
_S3_HEADERS = (
    "AWS_CHECKSUM_ALGORITHM", "AWS_REQUEST_PAYER", "AWS_SERVER_SIDE_ENCRYPTION", "AWS_SSE_KMS_KEY_ID",
    "AWS_SSE_BUCKET_KEY_ENABLED",
)  # fmt: skip

# What stores read of the environment. A job that is to reach the same store needs the same variables.
CREDENTIAL_VARIABLES = (
    # Cloud Storage, as Google's own clients name them, and as obstore does
    "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_SERVICE_ACCOUNT_PATH", "STORAGE_EMULATOR_HOST", "GCE_METADATA_HOST", "GCE_METADATA_IP",
    "GCE_METADATA_ROOT", "CLOUDSDK_CONFIG",
    # S3
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
    "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ENDPOINT_URL_STS",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "AWS_METADATA_ENDPOINT", *_S3_HEADERS,
    # Azure, as the az command names them, as its workload identity does, and as obstore does
    "AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_TOKEN", "AZURE_STORAGE_ENDPOINT", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID",
    "AZURE_AUTHORITY_HOST", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_MSI_ENDPOINT", "AZURE_CONFIG_DIR",
)  # fmt: skip

# What opens a store: with them the way there, and whose certificates count.
ACCESS_VARIABLES = (
    *CREDENTIAL_VARIABLES,
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip

# Those of them that say where a store is and what it demands, and nothing about who we are: everyone who can read pods
# may read them.
PUBLIC_VARIABLES = (
    "STORAGE_EMULATOR_HOST", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
    "AZURE_STORAGE_ENDPOINT", *_S3_HEADERS,
)  # fmt: skip


class Address(NamedTuple):
    """The address of a store in the cloud."""

    scheme: str  # "gs", "s3" or "az"
    bucket: str  # "container@account" in Azure
    prefix: str  # empty, or ends in "/"

    @property
    def url(self) -> str:
        """The address in its one spelling."""
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")


def parse_address(url: str) -> Address:
    """Take ``gs://bucket/prefix``, ``s3://bucket/prefix`` or ``az://container@account/prefix`` apart.

    Raises:
        OptionError: It has no bucket, a user, a signature, or a prefix that no key could start with.
    """
    scheme, _, rest = url.partition("://")
    if "?" in rest:
        from kinetic._wire import addresses  # few need it, as below

        if (shown := addresses.without_secrets(rest)) != rest:
            raise OptionError(
                "the address of a store holds a signature or a token",
                why=f"it would be stored with each job: {scheme}://{shown}",
                next="remove what is behind the ?; credentials come from the environment, as docs/stores.md lists them",
            )
    bucket, _, prefix = rest.partition("/")
    name, at, account = bucket.partition("@") if scheme == "az" else (bucket, "", "")
    if "@" in name + account or (at and not _BUCKET.fullmatch(name)):  # not shown: it may be a password
        raise OptionError(
            "the address of a store holds a user name or a password",
            why=f"it would be stored with each job; what is before the @ in {scheme}://***@{bucket.rpartition('@')[2]}",
            next="remove it; credentials come from the environment, as docs/stores.md lists them",
        )
    if not _BUCKET.fullmatch(name):
        raise OptionError(f"{url!r} names no bucket", why=f"{name!r} is not a valid bucket name")
    if scheme == "az":
        from kinetic._stores import azure  # few need it

        bucket = f"{name}@{azure.account_of(url, account)}"
    prefix = prefix.strip("/")
    if prefix:
        check_key(prefix)
    return Address(scheme, bucket, prefix and prefix + "/")


def google_emulator() -> str | None:
    """Return the address of the emulator that Google's clients would use, or None for the real service."""
    host = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    if not host:
        return None
    return host if "://" in host else f"http://{host}"
