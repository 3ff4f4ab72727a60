"""The folder that an image is built in from a Dockerfile: the project, by the same rules as for jobs, as .tar.gz."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from kinetic._blobs import file_tree
from kinetic._blobs.file_tree import File, Scan
from kinetic._project import archive, ignore, root
from kinetic._project.ignore import Project
from kinetic._wire import NamedTuple
from kinetic.errors import OptionError


class BuildContext(NamedTuple):
    """What is sent."""

    folder: Path  # the project
    dockerfile: str  # its path in the project
    notes: tuple[str, ...]  # a plain sentence for each thing that the user should know of it
    found: Scan  # the files
    project: Project  # opens them

    def pack(self, to: Path) -> tuple[str, ...]:
        """Write it; return a sentence for each file that could not be read.

        Raises:
            DataChangedError: A file became shorter meanwhile.
        """
        with tarfile.open(to, "w:gz", compresslevel=6) as packed:
            for relative in self.found.empty_folders():
                about = tarfile.TarInfo(relative)
                about.type, about.mode = tarfile.DIRTYPE, 0o755
                packed.addfile(about)
            for file in self.found.all_files():
                self._add(file, packed)
        return tuple(f"skipped {left.relative}: {left.reason}" for left in self.project.lost_files)

    def _add(self, file: File, packed: tarfile.TarFile) -> None:
        try:
            descriptor = file_tree.open_regular(self.project, file)
        except OSError as error:
            self.project.lost(file, error)
            return
        with os.fdopen(descriptor, "rb") as opened:
            about = tarfile.TarInfo(file.relative)
            about.size, about.mode = os.fstat(descriptor).st_size, 0o755 if file.executable else 0o644
            try:
                packed.addfile(about, opened)
            except OSError as error:
                if error.errno is not None:  # of the disk that it is written to
                    raise
                raise file_tree.changed_error(file, "it became shorter while it was packed") from error


def find(
    dockerfile: str | os.PathLike[str], *, exclude: Sequence[Path] = (), environ: Mapping[str, str] = os.environ
) -> BuildContext:
    """Find the project of a Dockerfile, and what of it is sent; the same rules hold as for jobs.

    Raises:
        OptionError: The file is among installed packages, or is not sent by the rules.
        ProjectRootError: The project is larger than 2 GB.
    """
    plan = root.plan_for_file(dockerfile, environ=environ)
    inside = root.below(os.path.abspath(dockerfile), os.fspath(plan.root))
    if not inside:
        raise OptionError(
            f"{os.fspath(dockerfile)} is not in the project {plan.root}",
            why="only the project is sent, and this file is among installed packages",
            next="copy it into your project, and name the copy",
        )
    project, found, notes = archive.scan(plan, exclude, environ)
    if inside not in {file.relative for file in found.all_files()}:
        raise OptionError(
            f"{os.fspath(dockerfile)} is not sent",
            why="a rule of the project's .kineticignore, or of kinetic itself, leaves it out",
            next=f"add this line to {plan.root}/{ignore.FILE}: !{ignore.escaped(inside)[1:]}",
        )
    return BuildContext(plan.root, inside, notes, found, project)
