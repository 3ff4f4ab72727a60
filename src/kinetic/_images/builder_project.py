"""The project of a job that builds images: this room's own modules, beside the runner's, which has none of them."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

NAME = "kinetic_image_build"
_PROGRAM = '''"""Build an image in a pod; see kinetic/_images/pod_build.py."""
import os


def build(page):
    import kinetic._wire

    place = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "kinetic")
    kinetic.__path__.append(place)
    kinetic._wire.__path__.append(os.path.join(place, "_wire"))  # the runner's has not all of its modules
    from kinetic._images import pod_build

    return pod_build.build(page)
'''
_PROJECT = f'[project]\nname = "{NAME.replace("_", "-")}"\nversion = "0"\ndependencies = []\n'


def files() -> dict[str, bytes]:
    """Return the files of the project, by path."""
    package = Path(__file__).parents[1]
    # What processes that compile bytecode import as well: they see neither the runner nor installed packages.
    found = [*package.glob("_images/*.py"), *package.glob("_wire/*.py"), package / "errors.py"]
    modules = {f"lib/kinetic/{file.relative_to(package)}": file.read_bytes() for file in sorted(found)}
    return {"pyproject.toml": _PROJECT.encode(), f"{NAME}.py": _PROGRAM.encode(), **modules}


@contextlib.contextmanager
def written() -> Iterator[Callable[[Mapping[str, Any]], Any]]:
    """Write the project into a folder; yield its function, which can be submitted meanwhile."""
    with tempfile.TemporaryDirectory(prefix="kinetic-image-build-") as name:
        folder = Path(name).resolve()
        for path, data in files().items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        spec = importlib.util.spec_from_file_location(NAME, folder / f"{NAME}.py")
        assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - a file that was just written
        module = importlib.util.module_from_spec(spec)
        sys.modules[NAME] = module
        try:
            spec.loader.exec_module(module)
            yield module.build
        finally:
            del sys.modules[NAME]
