"""Data: what a user passes in place of a path that the job reads."""

from __future__ import annotations

import os
import stat
import threading

from kinetic._output import tracebacks
from kinetic.errors import DataError, DataMissingError, OptionError, OptionTypeError

TYPE_CHECKING = False  # as in kinetic/__init__.py: scripts that only decorate import this module
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_CLOUDS = ("gs://", "s3://", "az://")  # of _stores/protocol.py, which this would load
_HUGGING_FACE = "hf://"
_FILE = "file://"
_VOLUMES = 'volumes={"/data": kinetic.Data("./set")}'
_OURS = "/_kinetic"  # mount points of our own
_KNOWN = "gs://bucket/…, s3://bucket/…, az://container@account/…, hf://data-set, or a path of this machine"


@tracebacks.hides_frames_of_methods
class Data:
    """A reference to data that a job reads.

    As an argument of a job, or in ``volumes=``, it becomes a plain path inside the job: the function never meets it.

    Args:
        path: A local file or folder (``~`` is expanded), ``gs://bucket/…``, ``s3://bucket/…``,
            ``az://container@account/…`` or ``hf://data-set?split=…``. In a bucket a trailing slash means everything
            below; without one it is one object.
        fuse: Show the data to the job without copying it, where the place can do that.
        hf_trust_remote_code: Let a Hugging Face data set run code of its own inside the job.

    Raises:
        OptionError: The path is empty, or cannot be one; or ``fuse=True`` with ``hf://``.
        DataMissingError: There is no such local file or folder. Not raised inside a job, where a module of yours that
            says ``Data("./set")`` is imported too.
    """

    @tracebacks.hides_frames
    def __init__(self, path: str | os.PathLike[str], fuse: bool = False, hf_trust_remote_code: bool = False) -> None:
        self._raw = _text_of(path)
        self._fuse = _flag("fuse", fuse)
        self._trust = _flag("hf_trust_remote_code", hf_trust_remote_code)
        self._path = _resolved(self._raw)
        self._hash = ""
        self._lock = threading.Lock()
        if self.is_hf and self._fuse:
            raise OptionError(
                f"{self._raw!r} cannot be mounted",
                why="a Hugging Face data set is loaded inside the job; there are no files to show before that",
                next="leave out fuse=True",
            )
        if not os.environ.get("KINETIC_JOB_ID"):  # the path of the client means nothing in there
            _warn_of_missing_slash(self) if self.is_cloud else _check_exists(self)

    @property
    def path(self) -> str:
        """The absolute local path, or the URI."""
        return self._path

    @property
    def fuse(self) -> bool:
        """Whether the job is to see the data without a copy."""
        return self._fuse

    @property
    def hf_trust_remote_code(self) -> bool:
        """Whether a Hugging Face data set may run code of its own."""
        return self._trust

    @property
    def is_gcs(self) -> bool:
        """Return whether the data is in a bucket of Google Cloud Storage."""
        return self._path.startswith("gs://")

    @property
    def is_s3(self) -> bool:
        """Return whether the data is in a bucket with the S3 API."""
        return self._path.startswith("s3://")

    @property
    def is_cloud(self) -> bool:
        """Return whether the data is in a bucket."""
        return self._path.startswith(_CLOUDS)

    @property
    def is_local(self) -> bool:
        """Return whether the data is on this machine."""
        return not (self.is_cloud or self.is_hf)

    @property
    def is_hf(self) -> bool:
        """Whether the data is a Hugging Face data set."""
        return self._path.startswith(_HUGGING_FACE)

    @property
    def is_dir(self) -> bool:
        """Whether the job gets a folder: by the trailing slash in a bucket, always for hf://, else as it is now."""
        if self.is_cloud:
            return self._path.endswith("/")
        return self.is_hf or os.path.isdir(self._path)

    def __fspath__(self) -> str:
        """Return the absolute local path: a job gets a path in its place, and here ``open(data)`` opens the same file.

        So type checkers accept a Data wherever ``os.PathLike[str]`` is accepted.

        Raises:
            OptionError: The data is in a bucket or at Hugging Face, and is not a path before a job has it.
        """
        if not self.is_local:
            raise OptionError(
                f"{self._raw!r} is not on this machine",
                why="it becomes a path inside a job, where it is fetched",
                next="pass it to the function as it is; function.local(…) fetches it here, too",
            )
        return self._path

    def content_hash(self) -> str:
        """Return the SHA-256 of all contents in a fixed order, in hexadecimal.

        Each file is digested with its relative path; the digests are combined depth first, names sorted, a folder's
        files before its folders. Links to folders are not followed, links to files are read. Computed once for this
        object: later edits do not change it, and data that no longer matches it is not sent.

        Raises:
            OptionError: The data is in a bucket or at Hugging Face.
            DataError: Something in it cannot be read.
        """
        if not self.is_local:
            raise OptionError(
                f"{self._raw!r} has no content hash", why="only local data is hashed; data elsewhere may change"
            )
        with self._lock:
            if not self._hash:
                from kinetic._blobs import file_tree

                self._hash = file_tree.digest_tree(self._path, _cache()).hash
            return self._hash

    def __repr__(self) -> str:
        more = [", fuse=True"] * self._fuse + [", hf_trust_remote_code=True"] * self._trust
        return f"Data({self._raw!r}{''.join(more)})"

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def raw_of(data: Data) -> str:
    """Return what the user wrote; for messages."""
    return data._raw  # noqa: SLF001 - the same package


def frozen_of(data: Data) -> str:
    """Return the content hash if it was computed already, else ""."""
    return data._hash  # noqa: SLF001 - the same package


def _cache() -> Path | None:
    from kinetic._config import home
    from kinetic.errors import SettingsError

    try:
        return home.kinetic_home(os.environ) / "cache" / "data"
    except SettingsError:  # no home folder for this user: nothing is remembered
        return None


def _text_of(path: object) -> str:
    if not isinstance(path, str | os.PathLike):
        raise OptionTypeError(
            f"the path of Data is {path!r}", why=f"it is of type {type(path).__name__}", next="a str or a pathlib.Path"
        )
    text = os.fspath(path)
    if not isinstance(text, str):
        raise OptionTypeError(f"the path of Data is {text!r}", why="it is bytes", next="use os.fsdecode on it")
    if not text.strip():
        raise OptionError("the path of Data is empty", next=f"one of: {_KNOWN}")
    for scheme in (*_CLOUDS, _HUGGING_FACE):
        if not isinstance(path, str) and text.lower().startswith(scheme[:-1]):  # Path("gs://b/x") is gs:/b/x
            raise OptionError(
                f"{text!r} is not an address",
                why="pathlib makes one slash of two",
                next=f"write it as a string: Data({scheme + text[len(scheme) - 1 :]!r})",
            )
    return text


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise OptionTypeError(f"{name}={value!r} of Data is neither True nor False")
    return value


def _resolved(raw: str) -> str:
    """Return the URI with its scheme in small letters, or the absolute path."""
    scheme, colon, rest = raw.partition("://")
    if not colon or not scheme.replace("+", "").isalnum():
        return _local(os.path.expanduser(raw))
    known = f"{scheme.lower()}://"
    if known == _FILE:
        if not rest.startswith("/"):
            raise OptionError(f"{raw!r} names a host", why="a local path has three slashes: file:///folder")
        return _local(rest if os.path.lexists(rest) or "%" not in rest else _unquoted(rest))
    from kinetic._wire import addresses  # only for data elsewhere

    place = rest if known == "az://" else raw  # a container may stand before an @
    if (shown := addresses.without_secrets(place)) != place:
        raise OptionError(
            "the address of data holds a password, a signature or a token",
            why=f"it would be stored with the job: {f'{known}{shown}' if known == 'az://' else shown}",
            next="remove it; jobs get credentials as docs/stores.md lists them",
        )
    if known not in {*_CLOUDS, _HUGGING_FACE}:
        raise OptionError(f"{raw!r} is not a supported address", next=f"one of: {_KNOWN}")
    name, slash, _ = rest.partition("?" if known == _HUGGING_FACE else "/")
    if not name:
        what, example = ("data set", "data-set") if known == _HUGGING_FACE else ("bucket", "bucket/folder/")
        raise OptionError(f"{raw!r} has no {what}", next=f"name the {what}, as in {known}{example}")
    return known + rest + ("/" if known in _CLOUDS and not slash else "")  # a bucket alone means all of it


def _local(path: str) -> str:
    if "\0" in path:
        raise OptionError(f"{path!r} is not a path", why="it holds a NUL character")
    return os.path.abspath(path)


def _unquoted(path: str) -> str:
    from urllib.parse import unquote  # 5 ms, for addresses made by Path.as_uri

    return unquote(path)


def _check_exists(data: Data) -> None:
    if data.is_hf:
        return
    try:
        mode = os.stat(data.path).st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise missing(data) from error
    except OSError as error:
        raise DataError(f"{raw_of(data)!r} cannot be accessed", why=str(error)) from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OptionError(f"{raw_of(data)!r} is neither a file nor a folder", why="a job reads files")


def missing(data: Data) -> DataMissingError:
    """Return the error for local data that does not exist; it suggests the nearest name."""
    why = f"looked for {data.path}"
    if os.path.islink(data.path):
        why += f", a broken link to {os.readlink(data.path)}"
    raw = raw_of(data)
    scheme, colon, rest = raw.partition(":/")
    is_address = f"{scheme}://" in {*_CLOUDS, _HUGGING_FACE} and colon
    step = f"did you mean '{scheme}://{rest}'?" if is_address else _nearest(data.path)
    return DataMissingError(f"{raw!r} does not exist", why=why, next=step)


def _nearest(path: str) -> str:
    import fnmatch
    import shlex  # 2 ms, for a message

    folder, name = os.path.split(path)
    try:
        names = os.listdir(folder)
    except OSError:
        above = os.path.dirname(folder)
        while not os.path.isdir(above):
            above = os.path.dirname(above)
        if not set("*?[").isdisjoint(os.path.relpath(path, above)):
            return f"patterns are not expanded: pass the folder, Data({above!r})"
        return f"check {above}: this part of the path exists"
    from difflib import get_close_matches  # 3 ms, for a message

    if matching := fnmatch.filter({*names} - {name}, name):
        return f"{len(matching)} names there match it, but patterns are not expanded: pass the folder, Data({folder!r})"
    near = get_close_matches(name, sorted({*names} - {name})[:10_000], n=1)
    if near:
        return f"did you mean {os.path.join(folder, near[0])!r}?"
    return f"look at what is there: ls {shlex.quote(folder)}"


def _warn_of_missing_slash(data: Data) -> None:
    last = data.path.rpartition("/")[2]
    if last and "." not in last:
        from kinetic._output import terminal as output

        output.warn(f"{data!r} is one object; if you mean everything below it, end it with a slash: '{data.path}/'")


def check_volumes(volumes: Mapping[str, Data]) -> dict[str, Data]:
    """Return volumes by their paths, without slashes at the end."""
    found: dict[str, Data] = {}
    for path, data in volumes.items():
        if not isinstance(path, str) or not isinstance(data, Data):
            raise OptionTypeError(f"volumes={{{path!r}: {data!r}}} is not a path and a Data", next=_VOLUMES)
        mount = path.rstrip("/")
        if why := _problem(path, mount, found):
            raise OptionError(f"a volume cannot be mounted at {path!r}", why=why, next=_VOLUMES)
        found[mount] = data
    return found


def _problem(path: str, mount: str, others: Mapping[str, Data]) -> str | None:
    if not path.startswith("/"):
        return "the path is not absolute"
    if not mount:
        return "it is the root of the file system"
    plain = "/" + os.path.normpath(mount).lstrip("/").replace("\0", "")
    if plain != mount:
        return f"the path is not in its plain form, {plain!r}"
    if mount == _OURS or mount.startswith(f"{_OURS}/"):
        return f"{_OURS}/ is reserved for kinetic"
    for other in others:
        if f"{mount}/".startswith(f"{other}/") or other.startswith(f"{mount}/"):
            return f"another volume is mounted at {other!r}" + (
                ", and one cannot be inside the other" * (other != mount)
            )
    return None
