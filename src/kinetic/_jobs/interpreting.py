"""Which Python a job on this machine runs in: the client's own, or one that was built for the project."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING

from kinetic import _output as output
from kinetic._jobs import places
from kinetic._settings import project_file
from kinetic._wire import distribution, fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kinetic._jobs.submit_context import SubmitContext
    from kinetic._packing.root import Plan


def interpreter_for(function: Callable[..., Any], plan: Plan, context: SubmitContext) -> str:
    """Return the interpreter of the environment that this job needs, built if need be; "" for the client's own.

    Raises:
        OptionError: KINETIC_LOCAL_ENV is not known, a dependency cannot be installed elsewhere, or the project wants
            another Python.
        ImageBuildError: uv could not build the environment.
    """
    from kinetic._images import environments

    if not context.backend.is_here or environments.wanted(os.environ) == "same":
        _warn_of_a_stranger()
        return ""
    from kinetic._images import choosing, uv
    from kinetic._jobs import defaults, podding
    from kinetic._packing import dependencies, root

    base = defaults.is_wanted("base_packages", plan.root, context.target.profile, os.environ)
    found = dependencies.find(
        plan,
        script=root.source_file(root.innermost(function)),
        extras=project_file.read_project_options(plan.root).extras,
        export=uv.export,
        base=base,
    )
    kind = "gpu" if context.placement.kind == "gpu" and places.local().limits.gpus else "cpu"  # others are emulated
    packages = choosing.base_packages(kind, found.names) if base else ()
    output.once("; ".join([*found.notes[:1], *podding.base_note(packages, base=base)]))
    for note in found.notes[1:]:
        output.once(note)
    found.check_python(fingerprint.python())
    with output.phase("building the environment"):
        built = environments.ready(
            found.lines,
            cache=places.local().paths.environments,
            python=fingerprint.python(),
            say=output.say,
            base=packages,
            source=found.source,
        )
    return str(built)


@functools.cache
def _warn_of_a_stranger() -> None:
    """Warn of another company's package that writes its files over ours."""
    folders = [folder for folder in sys.path if folder.endswith("-packages")]
    if found := distribution.stranger(folders):
        output.warn(
            f"this environment has another package whose import name is kinetic, too: {found}; the two overwrite each "
            f"other's files. Repair it: pip uninstall {distribution.STRANGER}; pip install --force-reinstall "
            f"{distribution.NAME}"
        )
