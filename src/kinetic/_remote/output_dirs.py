"""``kinetic.output_dir()`` and ``kinetic.checkpoint_dir()``: where a function writes, in a job and outside of one."""

from __future__ import annotations

import os

from kinetic._wire import output_paths


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
    return output_paths.make(output_paths.address(said)) if said else output_paths.make_here()


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
    return output_paths.make(output_paths.address(said) if said else output_paths.checkpoint_dir(output_dir()))
