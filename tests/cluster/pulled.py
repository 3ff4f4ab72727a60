"""Images of a real registry on the process node: their layers are unpacked into a folder, which Python finds first.

The file system below stays this machine's own: what the layers of the base hold is not used, and a real node is
another test's subject.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from cluster.images import Image, Registry, of_this_python
from servers.registry import anonymous

from kinetic._images.container_registry import Reference
from kinetic._images.container_registry import Registry as ContainerRegistry
from kinetic._images.layers import PREFIX
from kinetic.errors import ImageUnavailableError


class PulledImages(Registry):
    """The images of the tests, and those of one registry."""

    def __init__(self, others: Registry, host: str, folder: Path) -> None:
        super().__init__()
        self._others, self.host, self._folder = others, host, folder
        self._shown: tuple[str, ...] = ()
        self.pulled: list[str] = []
        self.on_pull: Callable[[str], object] = lambda _: None  # called with each name of this registry

    def pull(self, name: str) -> Image | None:
        if not name.startswith(f"{self.host}/"):
            return self._others.pull(name)
        self.on_pull(name)
        reference = Reference.parse(name)
        folder = self._folder / reference.digest.replace(":", "-")
        if not folder.exists():
            with ContainerRegistry(reference.host, reference.name, anonymous) as registry:
                try:
                    manifest, _ = registry.read_manifest(reference.digest)
                except ImageUnavailableError:
                    return None
                for layer in manifest["layers"]:
                    with tempfile.TemporaryFile() as file:
                        registry.read_blob(layer["digest"], file)
                        file.seek(0)
                        with tarfile.open(fileobj=file, mode="r:gz") as archive:
                            archive.extractall(folder, filter="tar")
        self.pulled.append(name)
        packages = next((folder / PREFIX / "lib").glob("python*/site-packages"))
        below = self._others.pull("python:3-slim") or of_this_python()
        return below._replace(environment={"PYTHONPATH": str(packages)}, shown=(*below.shown, str(folder)))
