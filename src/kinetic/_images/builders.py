"""Where an image is built: on this machine while sending it takes about a minute, else where the network is faster.

All places run the same ``ImageBuilder``. What one of them has sent stays in the registry, and the next one continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from kinetic._images.container_registry import Reference
from kinetic._images.image import BuiltImage, ImageBuilder, Progress
from kinetic._images.layers import Wheel
from kinetic._images.lock import Lock
from kinetic._images.request import BuildRequest
from kinetic._images.uplink import ASSUMED_RATE, PATIENCE_SECONDS, Meter, SlowUplinkError, Uplinks
from kinetic._output import terminal as output
from kinetic._output.format import duration_text, size_text
from kinetic._stores.protocol import Store
from kinetic._wire import NamedTuple, documents
from kinetic.errors import ImageBuildError, IntegrityError, KeyMissingError

T = TypeVar("T")

_LAYER_RATIO = 1.2  # bytes of the layers of a wheel, its bytecode among them, to those of the wheel


class RemoteImage(NamedTuple):
    """What a builder elsewhere made."""

    built: BuiltImage  # the image
    wheels: tuple[tuple[Wheel, bytes], ...] = ()  # wheels that were built from source for it, with their bytes
    finish: Callable[[], object] = lambda: None  # called once their lock is kept: what the build left behind is removed


class UnavailableError(ImageBuildError):
    """A builder cannot build at all; another one may."""


class NotWaitingError(ImageBuildError):
    """The image is being built elsewhere, and no job waits for it."""


class CollectedError(ImageBuildError):
    """The build ended, and another client has taken what it made."""


class RemoteBuilder(Protocol):
    """Builds images somewhere else."""

    @property
    def where(self) -> str:
        """Where, as part of a sentence: "a pod of the cluster"."""
        ...

    @property
    def builds_sources(self) -> bool:
        """Whether it can build packages that have no wheel."""
        ...

    def build(self, request: BuildRequest, *, waits: bool) -> RemoteImage:
        """Build an image, or wait for the build of the same that is running.

        Raises:
            UnavailableError: It cannot be used here.
            NotWaitingError: ``waits`` is false, and the build is running now.
            ImageBuildError: The build failed.
        """
        ...

    def detach(self) -> list[str]:
        """End what waits for a build in another thread; return sentences about a build that keeps running."""
        ...


def read_note(kind: documents.PageKind[T], store: Store, at: str, key: bytes | None) -> T | None:
    """Return the note of a build that was begun, or None; a damaged one is removed."""
    try:
        return documents.open_page(kind, store, at, key)
    except KeyMissingError:
        return None
    except IntegrityError:
        store.delete(at)
        return None


def build(
    request: BuildRequest,
    builder: ImageBuilder,
    connect: Callable[[Reference], Any],
    shown: Progress,
    uplinks: Uplinks,
    remotes: Sequence[RemoteBuilder] = (),
    *,
    waits: bool = True,
    phase: Callable[[], Any],
) -> RemoteImage:
    """Build an image at the place that fits, and say in one line where and why.

    Raises:
        ImageBuildError: It failed, or a package has no wheel and no builder can compile it.
        NotWaitingError: See ``RemoteBuilder.build``.
    """
    host = builder.registry.host

    def here(progress: Progress) -> RemoteImage:
        with connect(Reference.parse(request.source)) as source, phase():
            made = ImageBuilder(builder.registry, builder.cache, progress)
            return RemoteImage(made.build(request.lock, request.base, source))

    if request.lock.to_build:
        remotes = [each for each in remotes if each.builds_sources]
        named = ", ".join(request.lock.to_build)
        why = f"there is only source code of {named}, which is compiled there"
        if found := _elsewhere(request, remotes, why, waits=waits):
            return found
        raise no_wheels(request.lock)
    to_send = _bytes_to_send(builder, request)
    measured = uplinks.rate(host)
    rate = measured or ASSUMED_RATE
    if remotes and to_send / rate > PATIENCE_SECONDS:
        how = f"at {size_text(int(rate))}/s" if measured else "even at 100 Mbit/s"
        why = f"to send {size_text(to_send)} from here would take {duration_text(to_send / rate)} {how}"
        if found := _elsewhere(request, remotes, why, waits=waits):
            return found
        remotes = ()
    if to_send / rate >= output.LONG_SECONDS:  # else one line at its end says enough
        expected = f", about {duration_text(to_send / rate)} to send" if measured else ""
        output.report(f"building the image here: {size_text(to_send)}{expected} to {host}")
    meter = Meter(shown, to_send, gives_up=bool(remotes))
    try:
        return here(meter)
    except SlowUplinkError:
        seconds = to_send / (meter.rate or ASSUMED_RATE)
        why = f"to send {size_text(to_send)} from here would take {duration_text(seconds)}, as its beginning shows"
    finally:
        if meter.rate:
            uplinks.note(host, meter.rate)
    return _elsewhere(request, remotes, why, waits=waits) or here(shown)


def _elsewhere(request: BuildRequest, remotes: Sequence[RemoteBuilder], why: str, *, waits: bool) -> RemoteImage | None:
    """Build where that is possible; None where it is nowhere."""
    for remote in remotes:
        output.report(f"building the image in {remote.where}: {why}")
        try:
            return remote.build(request, waits=waits)
        except UnavailableError as error:
            output.report(f"{error.what}: {error.why}")
    return None


def no_wheels(lock: Lock) -> ImageBuildError:
    """Return the error for packages that have no wheel."""
    platform = lock.platform
    return ImageBuildError(
        f"{', '.join(lock.to_build)} cannot be put into an image by this client",
        why=f"there is no wheel for Python {platform.python} on {platform.machine} with glibc "
        f"{platform.glibc.replace('_', '.')}, only source code, which must be compiled on such a machine",
        next='write container_image="python": then it is compiled when the job starts; or choose a version '
        "that has wheels",
        code="source-only",
    )


def _bytes_to_send(builder: ImageBuilder, request: BuildRequest) -> int:
    missing = builder.missing(request.lock, request.base)
    size = sum(wheel.size_bytes for part in missing if part.kind == "wheels" for wheel in part.wheels)
    absent = (layer for layer in request.base.layers if not builder.registry.has_blob(layer["digest"]))
    return int(size * _LAYER_RATIO) + sum(int(layer["size"]) for layer in absent)
