"""What a function sees that runs in this process: its output folders, paths of its data, values of other jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kinetic._jobs.job_options import FOLLOWED
from kinetic._wire import order, references
from kinetic.errors import DataMissingError, OptionError

if TYPE_CHECKING:
    from kinetic._data.data import Data

_MODULE = "kinetic._data.data"  # while it is not imported, there is no Data anywhere
_OF_HANDLES = frozenset({"kinetic._jobs.handle", "kinetic._batches.batch_handle"})  # and without these no handle


def replace_references(
    function: Callable[..., Any], leading: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments as a job gets them: a path in the place of each ``Data``, and of a handle its value.

    With the defaults that are ``Data``. The jobs and batches of handles are waited for.
    """
    module, has_handles = sys.modules.get(_MODULE), not _OF_HANDLES.isdisjoint(sys.modules)
    if module is None and not has_handles:
        return args, dict(kwargs)
    kind: Any = ()
    if module is not None:
        from kinetic._jobs import data_refs

        kind, kwargs = module.Data, data_refs.with_defaults(function, (*leading, *args), kwargs)

    def is_wanted(value: object) -> bool:
        return isinstance(value, kind) or (has_handles and hasattr(type(value), FOLLOWED))

    found = list(references.find_objects(args, kwargs, is_wanted))
    for each in found:
        if each.where != "value" and isinstance(each.found, kind):
            raise OptionError(f"{each.position} is kinetic.Data, and no path can take its place", code="data-position")
    if not found:
        return args, dict(kwargs)
    replaced = dict[int, Any]()

    def swap(leaf: object) -> object:
        if not is_wanted(leaf):
            return leaf
        if id(leaf) not in replaced:  # the same Data is looked for, or fetched, once
            replaced[id(leaf)] = _path_of(leaf) if isinstance(leaf, kind) else _value_of(leaf)
        return replaced[id(leaf)]

    try:
        changed: tuple[tuple[Any, ...], dict[str, Any]] = references.replace_leaves((args, dict(kwargs)), swap)
    except RecursionError:
        raise OptionError(
            f"{found[0].position[:60]}… is nested too deeply for "
            f"{'kinetic.Data' if isinstance(found[0].found, kind) else 'a handle'}",
            why="nothing can be put into its place there",
            next="flatten it, or pass it as an argument of its own",
            code="data-position",
        ) from None
    return changed


def report_missing_volumes(name: str, volumes: Mapping[str, Data] | None) -> None:
    """Report which volumes of a function do not exist when it is called in this process."""
    missing = [path for path in volumes or () if not os.path.isdir(path)]
    if missing:
        from kinetic._output import terminal as output

        paths = ", ".join(missing)
        output.report_once(f"{name}() runs in this process, where its volumes are not mounted: there is no {paths}")


def _path_of(data: Data) -> str:
    """Return the path of local data; fetch other data into a folder that is removed with this process."""
    if data.is_local:
        if not os.path.exists(data.path):
            why = f"it is the path of {data!r}, looked for in this process"
            raise DataMissingError(f"there is no {data.path}", why=why)
        return data.path
    import atexit
    import shutil
    import tempfile
    from pathlib import Path

    from kinetic._config import home
    from kinetic._data import remote_refs
    from kinetic._runner.data.mounted_data import JobFolders
    from kinetic._runner.data.provision import provide

    folder = Path(tempfile.mkdtemp(prefix="kinetic-data-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    cache = home.kinetic_home(os.environ) / "cache" / "fetched"
    return provide([remote_refs.refer_to(data)], JobFolders(folder, cache, os.environ))[0]


def _value_of(handle: Any) -> Any:
    """Wait for a job, or a batch, and return what a job that follows it would get; both stay, as for that one."""
    return handle.results(cleanup=False) if hasattr(handle, "results") else handle.result(cleanup=False)


def output_dir() -> str:
    """Return where the running function should write files that are kept.

    In a job this is its output directory, as in KINETIC_OUTPUT_DIR: a folder that exists, or an address such as
    ``gs://bucket/path``; what the job writes there with ``open()`` is sent to the bucket. Outside of a job, so that the
    same function can be called directly, it is the folder that KINETIC_OUTPUT_DIR names, else ``outputs`` below the
    current folder; the call creates a local folder.

    Returns:
        Plain text, for libraries that write to buckets; ``pathlib.Path(kinetic.output_dir())`` is a folder in each job.

    Raises:
        OSError: The folder cannot be created.
    """
    configured = os.environ.get("KINETIC_OUTPUT_DIR")
    if configured:
        return order.make_output_dir(order.output_address(configured))
    return order.make_default_output_dir()


def checkpoint_dir() -> str:
    """Return where the running function keeps checkpoints, to resume from them next time.

    In a job this is KINETIC_CHECKPOINT_DIR: the same for each attempt at the job and for each call with the same
    ``output_dir``. Outside of a job it is ``checkpoints`` below ``kinetic.output_dir()``. The call creates a local
    folder.

    Returns:
        Plain text: a folder, or an address such as ``gs://bucket/path/checkpoints``.

    Raises:
        OSError: The folder cannot be created.
    """
    configured = os.environ.get("KINETIC_CHECKPOINT_DIR")
    folder = order.output_address(configured) if configured else order.checkpoint_dir(output_dir())
    return order.make_output_dir(folder)
