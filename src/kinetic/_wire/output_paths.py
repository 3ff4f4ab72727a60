"""Where outputs and checkpoints are: one rule for the client that submits, the runner, and the user's function.

{output_dir}/…                               what the function writes
{output_dir}/checkpoints/                    KINETIC_CHECKPOINT_DIR of a single job, and of every attempt at it
{output_dir}/{group}/{index}/checkpoints/    of one child of a batch: children must not overwrite each other's
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kinetic.errors import OptionError

if TYPE_CHECKING:
    from pathlib import Path

    from kinetic._wire.order import Order

CHECKPOINTS = "checkpoints"
DEFAULT_FOLDER = "outputs"  # below the current folder: where a function writes outside of a job by default
MARKER = ".gitignore"
_MARKER_TEXT = "# made by kinetic.output_dir(), for what functions write outside of jobs\n*\n"
_ONE_SLASH = re.compile(r"([a-z][a-z0-9]+):/(?!/)(.*)", re.DOTALL)  # what pathlib makes of "gs://bucket"


def address(written: str) -> str:
    """Return an output directory as an absolute path, or as an address such as "gs://b/x" without a last slash."""
    if lost := _ONE_SLASH.fullmatch(written):
        raise OptionError(
            f"output_dir={written!r} is neither a path nor an address",
            why="a pathlib.Path cannot hold an address: it drops one of the two slashes",
            next=f'output_dir="{lost[1]}://{lost[2]}"',
        )
    scheme, separator, rest = written.partition("://")
    if separator and scheme != "file":
        return f"{scheme}://{rest.rstrip('/')}"
    return os.path.abspath(os.path.expanduser(written.removeprefix("file://")))


def resolve(argument: str | None, environ: Mapping[str, str]) -> str:
    """Return the output directory that a user chose for a job: the argument, else KINETIC_OUTPUT_DIR; "" for none."""
    said = argument or environ.get("KINETIC_OUTPUT_DIR")
    return address(said) if said else ""


def local_folder(output_dir: str) -> str:
    """Return the local folder of an address, or "" when it is elsewhere."""
    path = output_dir.removeprefix("file://")
    return path if path.startswith("/") else ""


def checkpoint_dir(output_dir: str, group: str = "", index: int | None = None) -> str:
    """Return where checkpoints belong: the same for every attempt, and for every call with the same output directory.

    The output directory of a batch's child may be the child's own already: then nothing is added twice.
    """
    if not output_dir:
        return ""
    base, own = output_dir.rstrip("/"), f"/{group}/{index}" if group and index is not None else ""
    return f"{base.removesuffix(own)}{own}/{CHECKPOINTS}"


def checkpoints_of(order: Order) -> str:
    """Return where the checkpoints of an order belong."""
    return checkpoint_dir(order.output_dir, order.group, order.index)


def make_folder(output_dir: str) -> str:
    """Make the folder if it is a local one, and return the address: a function may write there at once."""
    if folder := local_folder(output_dir):
        os.makedirs(folder, exist_ok=True)  # as the user's umask has it: the files are the user's
    return output_dir


def make_default_folder() -> str:
    """Make the folder below the current one, with a marker that keeps it out of git and of this project's jobs."""
    folder = os.path.abspath(DEFAULT_FOLDER)
    if not os.path.isdir(folder):
        os.mkdir(folder)
        with open(os.path.join(folder, MARKER), "w") as sign:  # plain: the user's own folder
            sign.write(_MARKER_TEXT)
    return folder


def excluded_folders(output_dir: str, needed: Iterable[str]) -> list[Path]:
    """Return the folders of outputs in a project: what jobs wrote is not sent with the next job.

    A folder that holds one of the ``needed`` folders, which the job starts in or imports from, is sent.
    """
    from pathlib import Path  # only for a client; a job that asks for its folder need not load it

    here = os.path.abspath(DEFAULT_FOLDER)
    found = [local_folder(output_dir), here if _has_marker(here) else ""]
    starts = [f"{folder}/" for folder in needed]
    return [Path(folder) for folder in found if folder and not any(each.startswith(f"{folder}/") for each in starts)]


def _has_marker(folder: str) -> bool:
    try:
        with open(os.path.join(folder, MARKER)) as sign:  # plain
            return sign.read() == _MARKER_TEXT
    except (OSError, ValueError):
        return False
