"""Where outputs and checkpoints lie: one rule for the client that submits, the runner, and the user's function.

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
DEFAULT_FOLDER = (
    "outputs"  # below the current folder: where a function writes outside of a job, unless somebody says otherwise
)
MARKER = ".gitignore"
_MARKER_TEXT = "# made by kinetic.output_dir(), for what functions write outside of jobs\n*\n"
_ONE_SLASH = re.compile(r"([a-z][a-z0-9]+):/(?!/)(.*)", re.DOTALL)  # what pathlib makes of "gs://bucket"


def address(written: str) -> str:
    """Return an output directory as everything durable holds it: an absolute path, or an address without a last slash.

    Args:
        written: As a user wrote it: a path, which may be relative or begin with "~", or an address such as "gs://b/x".

    Raises:
        OptionError: It was an address and lost a slash on its way through ``pathlib.Path``.
    """
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
    """Return the local folder that an address stands for, or "" when it lies elsewhere."""
    path = output_dir.removeprefix("file://")
    return path if path.startswith("/") else ""


def checkpoint_dir(output_dir: str, group: str = "", index: int | None = None) -> str:
    """Return where checkpoints belong: the same for every attempt, and for every call with the same output directory.

    Args:
        output_dir: Of the job. That of a batch's child may be the child's own already: then nothing is added twice.
        group: The batch that the job belongs to, or "" for a single job.
        index: Of the job's input within the batch.
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
        os.makedirs(folder, exist_ok=True)  # as the user's umask has it: what lies there is the user's
    return output_dir


def make_default_folder() -> str:
    """Make the folder below the current one, with a sign in it that keeps it out of git and of this project's jobs."""
    folder = os.path.abspath(DEFAULT_FOLDER)
    if not os.path.isdir(folder):
        os.mkdir(folder)
        with open(os.path.join(folder, MARKER), "w") as sign:  # plain: the user's own folder
            sign.write(_MARKER_TEXT)
    return folder


def excluded_folders(output_dir: str, needed: Iterable[str]) -> list[Path]:
    """Name the folders of outputs that a project may hold: what jobs wrote does not travel with the next job.

    Args:
        output_dir: Of the job that is submitted, or "".
        needed: Folders that the job begins in or imports from: a folder that holds one of these ships.
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
