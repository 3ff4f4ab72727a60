"""Where this process works, as its environment says: its home, keys, machine and runtime folder, and what is here.

What lists jobs needs no more than this, so nothing here opens a page.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, TypeVar, cast

from kinetic._backends import registry
from kinetic._backends.registry import Address
from kinetic._config import home as config_home
from kinetic._config import target as settings
from kinetic._output import terminal as output
from kinetic._stores import open_store
from kinetic._wire import folders
from kinetic.errors import KineticError

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kinetic._backends.local.backend import LocalBackend
    from kinetic._backends.protocol import Backend
    from kinetic._config.target import Target
    from kinetic._stores.protocol import Store

T = TypeVar("T")
_RUNTIME = ("KINETIC_HOME", "KINETIC_RUNTIME_DIR", "HOME", "KINETIC_MACHINE_ID")
_PLACE = ".place"  # the ending of a file in the home with the address of a store
_MOST_PLACES = 8  # that are asked for an id which is not where jobs are looked for
_found: dict[tuple[object, ...], Any] = {}


def _once(find: Callable[[Mapping[str, str]], T], names: Sequence[str]) -> T:
    """Return what is found by the environment; looked for once for each setting of some variables."""
    setting = (find, *(os.environ.get(name, "") for name in names))
    if setting not in _found:
        _found[setting] = find(os.environ)
    result: T = _found[setting]
    return result


def home() -> Path:
    """Return this caller's kinetic home; checked once for each setting."""
    return _once(settings.kinetic_home, ("KINETIC_HOME", "HOME"))


def trusts_the_store() -> bool:
    """Return whether the user said to open what cannot be verified."""
    return settings.read_variable("KINETIC_TRUST_STORE", os.environ) == "1"


def key_ids() -> frozenset[str]:
    """Return the keys that are in this caller's own ring, without opening them."""
    try:
        return frozenset(os.listdir(home() / "keys"))
    except OSError:
        return frozenset()


def own_key_id() -> str | None:
    """Return the id of this home's own key, read once; None where it has none yet, or it cannot be read."""
    setting = (config_home.own_key_id, home())
    if not _found.get(setting):
        _found[setting] = config_home.own_key_id(home())
    return _found[setting]  # type: ignore[no-any-return] # what was put there


def machine() -> str:
    """Return the word that stands for this machine among those that share a home."""
    return _once(settings.machine_id, _RUNTIME)


def runtime() -> Path:
    """Return the folder for host-local state; found once for each setting, as that reads the list of mounts."""
    return _once(settings.runtime_folder, _RUNTIME)


def local() -> LocalBackend:
    """Return the backend of this machine."""
    return cast("LocalBackend", open_backend(registry.HERE.name, Address()))  # it is the one whose queue can be asked


def open_backend(name: str, address: Address, *, strict: bool = False) -> Backend:
    """Return a backend of this process; see the registry."""
    found: Backend = registry.open_backend(name, address, runtime=runtime(), environ=os.environ, strict=strict)
    return found


def backend_at(target: Target, *, strict: bool = False) -> Backend:
    """Return the backend that a target names; strict where the user asked for it by name."""
    address = Address(
        target.project.value, target.zone.value, target.cluster.value, target.namespace.value, target.context.value
    )
    return open_backend(target.backend.value, address, strict=strict)


def is_supervised() -> bool:
    """Return whether a supervisor is alive or starting here. Who looked at the queue has recovered dead ones."""
    return bool(local().queue.supervisors())


def local_store() -> Store:
    """Return the store of the jobs of this machine."""
    return open_store(settings.resolve(backend=registry.HERE.name).store.value)


def note_store(store: Store) -> None:
    """Keep the address of a store to which jobs are sent, for those who look for one by its id alone."""
    if store.url == _own_store():  # of which its folder tells the same
        return
    path = _note_of(store.url)
    with contextlib.suppress(OSError):  # a full or read-only disk
        try:
            os.utime(path)
        except FileNotFoundError:
            folders.write_whole(path, store.url.encode())


def forget_store(url: str) -> None:
    """Forget that jobs were sent to a store: it is gone."""
    with contextlib.suppress(OSError):
        _note_of(url).unlink()


def _own_store() -> str:
    """Return the address of the store in the home, where jobs are sent while no setting names another one."""
    return f"file://{home()}/store"


def _note_of(url: str) -> Path:
    return home() / "index" / f"{config_home.short_digest(url)}{_PLACE}"


def noted_stores(known: Iterable[Store]) -> Iterator[tuple[Store, float]]:
    """Yield the stores to which jobs were sent lately, and when (Unix time), the last first, without the known ones."""
    urls = {store.url for store in known}
    notes = sorted(((path.stat().st_mtime, path) for path in (home() / "index").glob(f"*{_PLACE}")), reverse=True)
    own = home() / "store"
    with contextlib.suppress(OSError):  # none was made yet
        notes = [*notes[:_MOST_PLACES], (own.stat().st_mtime, own)]  # each job makes a folder in it
    for noted, path in sorted(notes, reverse=True)[: _MOST_PLACES + 1]:
        with contextlib.suppress(OSError, ValueError, KineticError):  # a damaged file
            if (url := _own_store() if path == own else path.read_text()) not in urls:
                yield open_store(url), noted


def folders_not_sent(needed: Iterable[str], output_dir: str | None, store: Store) -> tuple[Path, ...]:
    """Return the folders that a submission leaves out whatever the rules say: outputs, and kinetic's own.

    A folder of a store or of outputs is sent if it holds one of the ``needed`` folders.
    """
    from kinetic._wire import order  # only to pack, or to show what is packed

    needed, apart = list(needed), [home(), runtime()]
    written = order.excluded_output_folders(order.resolve_output_dir(output_dir, os.environ), needed)
    if store.local is not None and not any(f"{each}/".startswith(f"{store.local.root}/") for each in needed):
        apart.append(store.local.root)
    return (*apart, *written)


def warn_if_shared(store: Store) -> Store:
    """Return a store, and report once if it is a folder that others may write to."""
    who = folders.other_writers(store.local.root) if store.local is not None else ""
    if who:
        output.report_once(f"others may write to the store {store.url}: {who}")
    return store


def log() -> logging.Logger:
    """Return the logger of this room."""
    import logging  # 5 ms; only when there is something to report

    return logging.getLogger("kinetic.jobs")
