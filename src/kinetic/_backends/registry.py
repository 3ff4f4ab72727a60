"""The backends: one line for each, with all that the rest of kinetic may know of one before it is opened.

A new backend is a room of its own below ``kinetic._backends`` whose module has ``open_backend``, and one line in
``_BUILT_IN``. This file imports no other room, so that settings and options can read it. No other file under ``src``
has the name of a backend in it; tests/architecture/test_backends_are_registered_once.py looks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic.errors import BackendUnavailableError, OptionError

if TYPE_CHECKING:
    from pathlib import Path


class Address(NamedTuple):
    """A cluster and a namespace of it; not used on this machine."""

    project: str = ""  # of Google Cloud
    zone: str = ""  # a zone or a region
    cluster: str = ""
    namespace: str = ""
    context: str = ""  # of a kubeconfig; "" for GKE's own endpoint


class Opening(NamedTuple):
    entry: Entry
    address: Address
    runtime: Path  # the folder for files of this machine
    environ: Mapping[str, str]  # it reads its own settings from it
    strict: bool = False  # the user asked for it by name; then missing hardware is an error


class Entry(NamedTuple):
    """What is known of a backend before it is opened."""

    name: str  # what a user writes into ``backend=``
    source: str | Callable[[Opening], Any]  # the module whose ``open_backend(opening)`` opens it, or such a function
    # whether jobs run on this machine: then they see its files, and only this machine sees its processes
    is_here: bool = False
    containers: bool = False  # whether jobs run in containers: these have an image, and settings of a cluster
    spans_hosts: bool = False  # whether a job takes several small hosts where one large host would do
    # the backend that takes jobs of several hosts instead, unless the user named this one; "" for none
    many_hosts: str = ""
    store: str = "gs://{project}-kn-{cluster}-jobs"  # the default store, with {home}, {project} and {cluster} filled in
    # values of "project", "zone", "cluster" and "namespace" where the user gives none; a name that is not in it must
    # be given
    defaults: Mapping[str, str] = {}
    variables: tuple[str, ...] = ()  # the environment variables that it depends on: another value means another backend
    # the library that it needs, and the extra of kinetic-jobs that brings it; None where it needs none
    library: tuple[str, str] | None = None


_ON_A_CLUSTER: dict[str, Any] = {
    "source": "kinetic._backends.kube.backend",
    "containers": True,
    "defaults": {"zone": "us-central1-a", "cluster": "kinetic-cluster", "namespace": "default"},
    "variables": ("KUBECONFIG", "KINETIC_OWNER", "HOME"),
    "library": ("yaml", "gke"),
}
_ON_THIS_MACHINE: dict[str, Any] = {
    "source": "kinetic._backends.local.backend",
    "defaults": {"project": "local", "zone": "local", "cluster": "local", "namespace": "default"},
    "variables": ("KINETIC_LOCAL_SLOTS", "KINETIC_LOCAL_GPUS", "KINETIC_GPU_LOCKS", "KINETIC_PORTABLE"),
    "store": "file://{home}/store",
}
_BUILT_IN = (
    Entry("local", **_ON_THIS_MACHINE, is_here=True),
    Entry("gke", **_ON_A_CLUSTER, many_hosts="pathways"),
    Entry("pathways", **_ON_A_CLUSTER, spans_hosts=True),
)

HERE, CLUSTER = _BUILT_IN[0], _BUILT_IN[1]  # where jobs run without a setting, and with a project alone
_entries = {entry.name: entry for entry in _BUILT_IN}
_opened: dict[tuple[str, ...], Any] = {}  # a Backend each; to import its type would be an import upwards
_lock = threading.Lock()


def names() -> tuple[str, ...]:
    return tuple(_entries)


def listed() -> str:
    """Return the names of all backends as a sentence lists them: "a, b or c"."""
    *first, last = names()
    return f"{', '.join(first)} or {last}" if first else last


def find(name: str) -> Entry:
    """Return the entry of a backend; raises OptionError if none has this name."""
    entry = _entries.get(name)
    if entry is None:
        import difflib  # 5 ms; only on the way to an error

        near = difflib.get_close_matches(name.lower(), names(), 1, cutoff=0)
        raise OptionError(
            f"Unknown backend {name!r}",
            why=f"backends are {', '.join(names())}",
            next=f'backend="{near[0]}"',
            code="unknown-backend",
        )
    return entry


def is_here(name: object) -> bool:
    """Return whether jobs of a backend run on the machine that submits them; False for a name that is not known."""
    return isinstance(name, str) and name in _entries and _entries[name].is_here


def spans_hosts(name: object) -> bool:
    """Return whether jobs of a backend prefer several hosts to a large one; False for a name that is not known."""
    return isinstance(name, str) and name in _entries and _entries[name].spans_hosts


def open_backend(
    name: str, address: Address, *, runtime: Path, environ: Mapping[str, str], strict: bool = False
) -> Any:
    """Open a backend; one that is open already is used again. See ``Opening`` for the arguments.

    Raises:
        OptionError: No backend has this name.
        BackendUnavailableError: A library that it needs is not installed.
    """
    entry = find(name)
    if entry.library is not None:
        _check_library(entry.name, *entry.library)
    own = (str(runtime), str(strict)) if entry.is_here else tuple(address)
    key = (name, *own, *(environ.get(variable, "") for variable in entry.variables))
    with _lock:
        if key not in _opened:
            opener = entry.source
            if isinstance(opener, str):
                import importlib

                opener = importlib.import_module(opener).open_backend
            _opened[key] = opener(Opening(entry, address, runtime, environ, strict))
        return _opened[key]


@contextmanager
def registered(entry: Entry) -> Iterator[Entry]:
    """Add a backend to the registry until the block ends, as a test does with its own.

    Raises:
        OptionError: A backend has this name.
    """
    if entry.name in _entries:
        raise OptionError(f"the name {entry.name!r} is used by another backend", next="choose another name")
    _entries[entry.name] = entry
    try:
        yield entry
    finally:
        with _lock:
            del _entries[entry.name]
            for key in [key for key in _opened if key[0] == entry.name]:
                del _opened[key]


def _check_library(name: str, library: str, extra: str) -> None:
    import importlib.util

    if importlib.util.find_spec(library) is None:
        raise BackendUnavailableError(
            f"the {name} backend needs a library that is not installed here",
            why=f"it uses {library}, which comes with the extra {extra}",
            next=f'pip install "kinetic-jobs[{extra}]"     or backend="{HERE.name}" to run on this machine',
            code="extra-missing",
        )
