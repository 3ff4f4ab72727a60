"""Which lines of the project a job runs, for a client whose new processes are measured by coverage.py.

It asks for that by a variable (``patch = subprocess`` in its settings, or a user sets it), which an interpreter reads
when it starts. A worker is forked from a process that started for others, and its project is a copy. So it begins to
measure itself, and names each file where the user has it.
https://coverage.readthedocs.io/en/latest/subprocess.html
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kinetic._runner.worker import process_setup
from kinetic._wire import folders

_FILE, _DATA = "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"  # see worker_process.py
_NOT_NEWS = ("no-data-collected", "module-not-imported", "module-not-measured")  # one job runs few of the files
_PATHS = ("run:source", "run:source_dirs", "run:include", "run:omit")


class CodeCoverage:
    """Measures this process from now on, and those that it starts if the client's settings say so.

    Args:
        environ: Of the job.
        copies: Folders of the job's copy of the project, each with the one that it is a copy of; all end with a slash.
        here: The folder of the client's project.
        parts: A folder for what each process has found; it is made, unless this is a job that begins again.
        ours: Where kinetic's own files are, which no report can show: they go with the runtime folder.

    Raises:
        ImportError: coverage.py is not in the job's environment.
    """

    def __init__(
        self, environ: Mapping[str, str], copies: Sequence[tuple[str, str]], here: str, parts: Path, ours: str
    ) -> None:
        import coverage

        self._copies, self._parts = copies, parts
        config = f":data:{environ[_DATA]}" if environ.get(_DATA) else environ[_FILE]
        self._measured = coverage.Coverage(data_suffix=True, config_file=config)
        self._file = os.path.join(here, str(self._measured.get_option("run:data_file")))
        self._measured.set_option("run:data_file", str(parts / "found"))
        self._measured.set_option("run:disable_warnings", list(_NOT_NEWS))
        for name in _PATHS:
            with contextlib.suppress(coverage.CoverageException):  # an older coverage.py lacks some
                if isinstance(paths := self._measured.get_option(name), list):
                    more = [f"{ours}/*"] if name == "run:omit" else []
                    self._measured.set_option(name, [*paths, *self._copies_of(paths), *more])
        parts.mkdir(exist_ok=True)
        self._measured.start()

    def finish(self, **_: Any) -> None:
        """Write what was found into a file of its own beside the client's, as ``coverage combine`` expects it."""
        try:
            self._write()
        except Exception as error:  # noqa: BLE001 - the job has its value
            what = f"what coverage.py measured cannot be written beside {self._file}"
            process_setup.write_to_log(f"kinetic: {what}: {type(error).__name__}: {error}\n")

    def _write(self) -> None:
        import coverage

        self._measured.stop()
        self._measured.save()
        found = coverage.CoverageData(self._file, suffix=True)
        for path in folders.listed(self._parts):
            part = coverage.CoverageData(path)
            part.read()
            found.update(part, map_path=self._original)

    def _original(self, path: str) -> str:
        return next((there + path[len(copy) :] for copy, there in self._copies if path.startswith(copy)), path)

    def _copies_of(self, paths: Iterable[str]) -> list[str]:
        """Return where files and folders of the client are in the copy."""
        inside = [(path, copy, there) for path in paths for copy, there in self._copies if f"{path}/".startswith(there)]
        return [copy + path[len(there) :] for path, copy, there in inside]
