"""Where kinetic keeps its files on this machine: the home, and the part of it that belongs to one host.

The home holds what must last: the store, keys, profiles. The runtime folder holds what means something on one host
only: the queue (SQLite), locks, pipes, logs being written. A home may be on a network file system that many hosts
share, where neither SQLite nor locks can be trusted; the runtime folder is then elsewhere.

    home               {KINETIC_HOME, else ~/.kinetic}
    runtime folder     {KINETIC_RUNTIME_DIR}
                  else {home}/run/{machine}                                    home on a local file system
                  else /var/tmp/kinetic-{uid}-{digest of home}/{machine}       home on any other
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic._config.variables import read_variable
from kinetic._wire import folders
from kinetic.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping


_MOUNTS = Path("/proc/self/mountinfo")
_MACHINE_FILE = Path("/etc/machine-id")
_ELSEWHERE = Path("/var/tmp")  # noqa: S108 - on disk and kept over a reboot, unlike /tmp; owner and mode are checked
COLLECT_SECONDS = 24 * 3600.0  # after the last garbage collection of a store, when the next one is due
_ID_LENGTH = 12  # hexadecimal digits: 48 bits tell the hosts of one user apart
_MAX_ID = 64  # characters; the id is a folder name

# File systems that another host can write too, or that a hypervisor or a user process serves. Where a type is listed
# wrongly, the only loss is that the runtime folder is under /var/tmp. "autofs" is a network mount not yet touched.
_SHARED = frozenset(
    {
        *("9p", "acfs", "afs", "autofs", "beegfs", "ceph", "cifs", "coda", "dvs", "fakeowner", "fuse", "gfs", "gfs2"),
        *("glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs3", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs"),
        *("pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs", "wekafs"),
    }
)
_SHARED_KIND = "fuse."  # fuse.sshfs, fuse.s3fs, fuse.glusterfs, …; "fuseblk" is a local disk and does not match
_HOME = "~/.kinetic"
_SET_HOME = "set KINETIC_HOME to a folder that you can write to"


def kinetic_home(environ: Mapping[str, str]) -> Path:
    """Return the folder of everything that lasts; it need not exist yet."""
    home = path_of(read_variable("KINETIC_HOME", environ) or _HOME, environ)
    return _trusted(home, "kinetic home", "KINETIC_HOME")


def ensure_home(environ: Mapping[str, str], inside: str = "") -> Path:
    """Create the home, or a folder inside, if it is missing, readable by its owner only, and return it."""
    home = kinetic_home(environ)
    try:
        folders.make(home / inside)
    except OSError as error:
        why = f"{type(error).__name__}: {error.strerror or error}"
        raise SettingsError(f"the kinetic home {home} cannot be created", why=why, next=_SET_HOME) from error
    return home / inside


def unpacked_wheels(home: Path) -> Path:
    """Return the folder of wheels of this machine, unpacked to be sent with projects, by their digests."""
    return home / "cache" / "unpacked"


def uv_files(environ: Mapping[str, str]) -> list[str]:
    """Return the files with settings of uv that count for all projects: this user's and the machine's, or a named one.

    uv resolves and installs what is in the environments of this home.
    """
    if environ.get("UV_NO_CONFIG", "").lower() in {"1", "true", "yes", "on", "y", "t"}:  # what uv takes for true
        return []
    if named := environ.get("UV_CONFIG_FILE"):
        return [named]
    folders = (environ.get("XDG_CONFIG_HOME") or path_of("~/.config", environ), "/etc")
    return [file for file in (f"{folder}/uv/uv.toml" for folder in folders) if os.path.isfile(file)]


def machine_id(environ: Mapping[str, str], *, machine_file: Path = _MACHINE_FILE) -> str:
    """Return a word that stays the same on this host and differs on every other that may share the home.

    With a runtime folder of its own a process cannot see the jobs of another one: they are those of another machine.

    Args:
        environ: The environment; KINETIC_MACHINE_ID in it wins.
        machine_file: The system's own id. Cloned machines and containers share it, so the host name counts too.
    """
    chosen = read_variable("KINETIC_MACHINE_ID", environ)
    if chosen is None:
        hardware = _hardware_uuid() if sys.platform == "darwin" else ""
        # The name of a Mac changes with its network, so there the hardware id counts alone, if it can be read.
        own = short_digest(hardware or f"{_text_of(machine_file)}\n{os.uname().nodename}")
        runtime = read_variable("KINETIC_RUNTIME_DIR", environ)
        usual = path_of(read_variable("KINETIC_HOME", environ) or _HOME, environ) / "run" / own
        at = os.path.realpath(usual if runtime is None else path_of(runtime, environ))
        return own if at == os.path.realpath(usual) else short_digest(f"{own}\n{at}")
    plain = chosen.replace("-", "").replace("_", "").replace(".", "")
    if plain.isascii() and plain.isalnum() and not chosen.startswith(".") and len(chosen) <= _MAX_ID:
        return chosen
    raise SettingsError(
        f"KINETIC_MACHINE_ID={chosen!r} cannot name this machine",
        why="it becomes the name of a folder: letters, digits, '-', '_' and '.', not '.' in front, "
        f"and at most {_MAX_ID} characters",
        next="unset KINETIC_MACHINE_ID, or set it to a plain word such as this host's name",
    )


def runtime_folder(environ: Mapping[str, str], *, mounts: Path = _MOUNTS, elsewhere: Path = _ELSEWHERE) -> Path:
    """Return the folder for what belongs to this host only; it need not exist yet.

    Args:
        environ: The environment; KINETIC_RUNTIME_DIR in it wins.
        mounts: The kernel's table of mounts.
        elsewhere: A local folder that every user can write to, for homes that are shared over a network.
    """
    chosen = read_variable("KINETIC_RUNTIME_DIR", environ)
    home = kinetic_home(environ) if chosen is None else None
    if home is not None and not is_local(home, mounts=mounts):
        parent = elsewhere / f"kinetic-{os.getuid()}-{short_digest(os.path.realpath(home))}"
        _make_private(parent)
        return parent / machine_id(environ)
    folder = path_of(chosen or "", environ) if home is None else home / "run" / machine_id(environ)
    return _trusted(folder, "folder for running jobs", "KINETIC_RUNTIME_DIR")


def is_local(path: Path, *, mounts: Path = _MOUNTS) -> bool:
    """Return whether a folder is on a file system of this host alone, as far as can be known.

    Without a table of mounts the answer is yes. On macOS there is none: statfs is not in the standard library, and a
    subprocess costs more than all else here, so a home on a network share needs KINETIC_RUNTIME_DIR there.
    """
    real = os.path.realpath(path)  # it also touches the path, so that an automounter shows what it mounts there
    try:
        table = mounts.read_text(errors="surrogateescape")
    except OSError:
        return True
    kind = file_system(real, table)
    return not (kind in _SHARED or kind.startswith(_SHARED_KIND))


def file_system(path: str, table: str) -> str:
    """Find the type of the file system that holds a path, "" if the table does not say.

    Args:
        path: Absolute and without symbolic links; need not exist.
        table: Text of ``/proc/self/mountinfo``. Of two mounts in one place the later hides the earlier.

    Source: man 5 proc, /proc/pid/mountinfo.
    """
    longest, kind = -1, ""
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if len(fields) < 6:  # those before the optional ones
            continue
        first, *others = fields[4].split("\\")  # the kernel writes blank, tab, newline and \ as three octal digits
        point = (first + "".join(chr(int(other[:3], 8)) + other[3:] for other in others)).rstrip("/")
        if len(point) >= longest and (path == point or path.startswith(f"{point}/")):
            longest, kind = len(point), kinds[0]
    return kind


def path_of(written: str, environ: Mapping[str, str]) -> Path:
    """Return the absolute path that a user wrote, with ~ as the home of the user in this environment."""
    if written != "~" and not written.startswith("~/"):
        return Path(os.path.abspath(os.path.expanduser(written)))  # "~somebody" as well
    if environ.get("HOME"):
        return Path(os.path.abspath(environ["HOME"])) / written[2:]
    try:
        return Path.home() / written[2:]
    except RuntimeError as error:
        raise SettingsError(
            "no home folder is known for this user",
            why=f"HOME is unset, and the system has no entry for user {os.getuid()}",
            next=_SET_HOME,
        ) from error


def _text_of(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def _hardware_uuid() -> str:
    """Ask macOS for the id of the hardware; "" if it does not answer."""
    try:
        import ctypes  # 5 ms; only on macOS, where no file has the id

        answer = ctypes.create_string_buffer(16)
        timeout = (ctypes.c_long * 2)(1, 0)  # struct timespec: 1 s, which the call never needs
        failed = ctypes.CDLL(None).gethostuuid(answer, timeout)
    except (ImportError, OSError, AttributeError):
        return ""
    return "" if failed else answer.raw.hex()


def collection_mark(runtime: Path, store_url: str) -> Path:
    """Return the file whose time is that of the last garbage collection of a store."""
    return runtime / f"tidied-{short_digest(store_url)}"


def short_digest(text: str) -> str:
    """Return the first digits of a SHA-256, for names of files and folders."""
    sha256: Any = None
    for module in ("_sha2", "_sha256", "hashlib"):  # Python's own, from 3.12 and in 3.11; hashlib loads OpenSSL, 3 ms
        with contextlib.suppress(ImportError):
            sha256 = importlib.import_module(module).sha256
            break
    return str(sha256(text.encode(errors="surrogateescape")).hexdigest())[:_ID_LENGTH]


def _trusted(folder: Path, what: str, variable: str) -> Path:
    """Return a folder unless others can write to it: it has keys, profiles and programs that will run."""
    try:
        is_folder = stat.S_ISDIR(os.stat(folder).st_mode)
    except OSError as error:  # one that does not exist is created
        is_folder = not isinstance(error, NotADirectoryError)
    if not is_folder:
        raise SettingsError(
            f"the {what} {folder} is not a folder",
            why="it is a file, or below a file",
            next=f"set {variable} to a folder that you can write to",
        )
    why, next_ = folders.why_not_utf8(str(folder))
    if why:
        raise SettingsError(f"the {what} {folder} cannot be used", why=why, next=next_)
    who = folders.other_writers(folder)
    if not who:
        return folder
    import shlex  # on the way to an error

    found = folder.stat()
    own = f"export {variable}={shlex.quote(str(folder / 'kinetic'))}"
    others = own if found.st_mode & stat.S_ISVTX else f"chmod go-w {shlex.quote(str(folder))}"  # as /tmp: meant for all
    raise SettingsError(
        f"the {what} {folder} cannot be trusted",
        why=f"{who}, and everyone who can write to it can run programs as you",
        next=others if found.st_uid == os.geteuid() else f"set {variable} to a folder of your own",
        code="not-private",
    )


def _make_private(folder: Path) -> None:
    """Create a folder in a place that everyone can write to, and accept it only if it is ours alone."""
    try:
        folder.mkdir(folders.PRIVATE_FOLDER, exist_ok=True)
        found = folder.lstat()  # not stat: a link planted by another user must not be followed
    except OSError as error:
        raise _unusable(folder, f"{type(error).__name__}: {error.strerror or error}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise _unusable(folder, "it is a link and not a folder")
    if found.st_uid != os.getuid():
        raise _unusable(folder, f"it belongs to user {found.st_uid}, and you are user {os.getuid()}")
    if found.st_mode & 0o077:
        raise _unusable(folder, f"its mode {stat.S_IMODE(found.st_mode):04o} lets other users in; 0700 is needed")


def _unusable(folder: Path, why: str) -> SettingsError:
    return SettingsError(
        f"the folder {folder} for running jobs cannot be used",
        why=f"{why}; it is used because the home is on a shared file system",
        next="set KINETIC_RUNTIME_DIR to a folder of your own on a local disk",
    )


# ----------------------------------------------------------------------------------------------- keys that seal results
# One for each namespace, 32 random bytes, in {home}/keys/{id}, for their owner only. A key never changes: another key
# has another id, and results sealed with the old one stay readable as long as its file exists.

_CURRENT = "this-home"  # the file that names this home's own key


def own_key(home: Path) -> tuple[str, bytes]:
    """Return the id and bytes of this home's key, made on first use; of several makers at once, one wins."""
    from kinetic._wire import documents  # hashlib and json: only where a key is used

    folder = home / "keys"
    pointer = folder / _CURRENT
    try:
        folders.make(folder)
        if not pointer.exists():
            key = os.urandom(documents.KEY_BYTES)
            _create(folder / documents.key_id(key), key.hex())
            _create(pointer, documents.key_id(key))
        key_id = pointer.read_text(errors="replace").strip()
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        raise SettingsError(
            f"the key that seals this home's results cannot be created or read in {folder}",
            why=f"{error.filename or folder}: {error.strerror or error}",
            next="free some space there, or set KINETIC_HOME to a folder on another disk"
            if full
            else "make sure that you can write there, or set KINETIC_HOME to a folder that you can write to",
        ) from error
    found = find_key(home, key_id)
    if found is None:
        raise SettingsError(
            "the key that seals this home's results is gone",
            why=f"{pointer} names {key_id}, and {folder / key_id} is missing or damaged"
            if key_id.isalnum()
            else f"{pointer}, which names it, is damaged",
            next=f"restore that file, or remove {pointer} to start with a new key",
        )
    return key_id, found


def own_key_id(home: Path) -> str | None:
    """Return the id of this home's key, without making one; None where none can be read."""
    try:
        return (home / "keys" / _CURRENT).read_text(errors="replace").strip()
    except OSError:
        return None


def find_key(home: Path, key_id: str) -> bytes | None:
    """Return a key of this keyring, or None."""
    from kinetic._wire import documents  # hashlib and json: only where a key is used

    if not key_id.isalnum():
        return None
    try:
        key = bytes.fromhex((home / "keys" / key_id).read_text().strip())
    except (OSError, ValueError):
        return None
    return key if documents.key_id(key) == key_id else None


def list_ids(home: Path) -> list[str]:
    """Return the ids of the keys in this keyring."""
    with contextlib.suppress(OSError):
        return sorted(path.name for path in (home / "keys").iterdir() if find_key(home, path.name))
    return []


def add_key(home: Path, text: str) -> str:
    """Add a key that another machine exported, and return its id."""
    from kinetic._wire import documents  # hashlib and json: only where a key is used

    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != documents.KEY_BYTES:
        raise SettingsError("this is not a valid key", why=f"a key is {2 * documents.KEY_BYTES} hexadecimal digits")
    folders.make(home / "keys")
    _create(home / "keys" / documents.key_id(key), key.hex())
    return documents.key_id(key)


def _create(path: Path, text: str) -> None:
    """Create a file atomically; an existing one stays."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with open(beside, "x", opener=folders.opener) as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        with folders.opened(path.parent) as at:
            folders.name_once(str(beside), path.name, at, lambda: path.parent)
        folders.sync(path.parent)  # without its key no result can be read
    finally:
        beside.unlink(missing_ok=True)
