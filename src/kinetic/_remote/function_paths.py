"""Calling the plain function in this process: data among its arguments becomes paths here, as it would in a job."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kinetic._wire import output_paths, references
from kinetic.errors import DataMissingError, OptionError

if TYPE_CHECKING:
    from kinetic._data.data import Data
    from kinetic._wire.references import Occurrence


_MODULE = "kinetic._data.data"  # as long as nobody has imported it, there is no Data anywhere


def replace_data(
    function: Callable[..., Any], leading: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with a path in the place of each ``Data``; without any they are what they were.

    Args:
        function: What they are for: its defaults may be Data, too.
        leading: What stands before them and is left as it is.
        args: By position.
        kwargs: By name.

    Raises:
        OptionError: Data in a set, or as a key of a dict, or too deep in lists of lists.
        DataMissingError: There is no such file, folder, object or prefix.
    """
    module = sys.modules.get(_MODULE)
    if module is None:
        return args, dict(kwargs)
    from kinetic._jobs import data_refs

    kwargs = dict(data_refs.with_defaults(function, (*leading, *args), kwargs))
    first = _first_of(module.Data, args, kwargs)
    return (args, kwargs) if first is None else _replaced(module.Data, args, kwargs, first)


def _first_of(kind: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Occurrence | None:
    """Return where the first Data is, or None without any; refuse all where one is where no path can be.

    Raises:
        OptionError: Data in a set, or as a key of a dict.
    """
    spots = list(references.find_objects(args, kwargs, lambda value: isinstance(value, kind)))
    for spot in spots:
        if spot.where != "value":
            raise OptionError(f"{spot.position} is kinetic.Data, and no path can take its place", code="data-position")
    return spots[0] if spots else None


def _replaced(
    kind: type, args: tuple[Any, ...], kwargs: dict[str, Any], first: Occurrence
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Put a path in the place of each Data; the same one is looked for, or fetched, once.

    Raises:
        OptionError: Data too deep in lists of lists; where the first is tells the user which.
    """
    paths: dict[int, str] = {}

    def swap(leaf: object) -> object:
        if not isinstance(leaf, kind):
            return leaf
        if id(leaf) not in paths:
            paths[id(leaf)] = _path_of(leaf)  # type: ignore[arg-type] # its class is Data
        return paths[id(leaf)]

    try:
        found: tuple[tuple[Any, ...], dict[str, Any]] = references.replace_leaves((args, kwargs), swap)
    except RecursionError:
        raise OptionError(
            f"{first.position[:60]}… is nested too deeply for kinetic.Data",
            why="no path can be put into its place there",
            next="flatten it, or pass the data as an argument of its own",
            code="data-position",
        ) from None
    return found


def report_missing_volumes(name: str, volumes: Mapping[str, Data] | None) -> None:
    """Say which volumes of a function are not there when it is called in this process."""
    missing = [path for path in volumes or () if not os.path.isdir(path)]
    if missing:
        from kinetic import _output as output

        output.report_once(
            f"{name}() runs in this process, where its volumes are not shown: there is no {', '.join(missing)}"
        )


def _path_of(data: Data) -> str:
    if not data.is_local:
        return _fetched(data)
    if not os.path.exists(data.path):
        raise DataMissingError(
            f"there is no {data.path}", why=f"it is the path of {data!r}, looked for in this process"
        )
    return data.path


def _fetched(data: Data) -> str:
    """Fetch what lies elsewhere into a folder that goes with this process."""
    import atexit
    import shutil
    import tempfile
    from pathlib import Path

    from kinetic import _config as settings
    from kinetic._data import remote_refs
    from kinetic._runner.data import provide

    folder = Path(tempfile.mkdtemp(prefix="kinetic-data-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    cache = settings.kinetic_home(os.environ) / "cache" / "fetched"
    return provide([remote_refs.refer_to(data)], folder=folder, cache=cache, environ=os.environ)[0]


def output_dir() -> str:
    """Return where the running function leaves files that should be kept.

    In a job this is its output directory, as in KINETIC_OUTPUT_DIR: a folder that exists, or an address such as
    ``gs://bucket/path``. Outside of a job, so that the same function can be called directly, it is the folder that
    KINETIC_OUTPUT_DIR names, else ``outputs`` below the current folder; a local folder is made by the call.

    Returns:
        Plain text, because a path cannot hold an address; ``pathlib.Path(kinetic.output_dir())`` where it is a folder.

    Raises:
        OSError: The folder cannot be made.
    """
    said = os.environ.get("KINETIC_OUTPUT_DIR")
    return output_paths.make_folder(output_paths.address(said)) if said else output_paths.make_default_folder()


def checkpoint_dir() -> str:
    """Return where the running function keeps checkpoints, to go on from there the next time.

    In a job this is KINETIC_CHECKPOINT_DIR: the same for each attempt at the job and for each call with the same
    ``output_dir``. Outside of a job it is ``checkpoints`` below ``kinetic.output_dir()``. A local folder is made by the
    call.

    Returns:
        Plain text: a folder, or an address such as ``gs://bucket/path/checkpoints``.

    Raises:
        OSError: The folder cannot be made.
    """
    said = os.environ.get("KINETIC_CHECKPOINT_DIR")
    return output_paths.make_folder(output_paths.address(said) if said else output_paths.checkpoint_dir(output_dir()))
