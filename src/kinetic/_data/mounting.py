"""What a cluster needs to know to mount a bucket for a job; plain data, for whoever writes pods."""

from __future__ import annotations

from typing import NamedTuple

from kinetic._data import clouds
from kinetic._wire.data import DataRef
from kinetic.errors import OptionError


class FuseMount(NamedTuple):
    """One read-only mount of a bucket, or of a folder in it.

    Attributes:
        bucket: Its name, without a scheme.
        only_dir: The folder that is shown, without slashes at its ends; "" for all of the bucket.
        options: For the driver, in order.
        file: Which file of the folder is meant; "" for all of it.
        read_only: Always, so far.
    """

    bucket: str
    only_dir: str
    options: tuple[str, ...]
    file: str = ""
    read_only: bool = True

    @property
    def mount_options(self) -> str:
        """The options as the driver's attribute ``mountOptions`` wants them."""
        return ",".join(self.options)


def fuse_mount(ref: DataRef) -> FuseMount:
    """Say how data is mounted that lies in a bucket of Google Cloud Storage as plain objects.

    A single object is mounted by the folder that it lies in.

    Raises:
        OptionError: It does not lie there.

    Source: GKE's documentation of the Cloud Storage FUSE CSI driver; behaviour.md E-R31 and E-R32.
    """
    if ref.kind not in {"prefix", "object"} or not ref.uri.startswith("gs://"):
        raise OptionError(
            f"{ref.path!r} cannot be mounted in a cluster",
            why="only what lies in a gs:// bucket can",
            next="leave out fuse=True, and the job gets a copy",
        )
    address, key = clouds.split(ref.uri)
    folder, _, file = key.rpartition("/")
    only = [f"only-dir={_escaped(folder)}"] if folder else []
    return FuseMount(address.removeprefix("gs://"), folder, ("implicit-dirs", *only), file)


def _escaped(folder: str) -> str:
    """Write commas so that they do not end an option."""
    return folder.replace(",", "\\,")
