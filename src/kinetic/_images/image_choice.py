"""Which image the containers of a job use, and what is installed into it when they start.

container_image      image                                       requirements    base packages: JAX and Keras
None                 as "bundled" where KINETIC_IMAGE_REPO can be written, else as "python"
"bundled"            built for the project, in that repository   in the image    in the image
  without one        python:{X.Y}-slim                           unpacked        unpacked, from the store
"prebuilt"           {repository}/base-{kind}:{version}-py{X.Y}  installed       in the image
"python"             python:{X.Y}-slim                           installed       installed
any other text       as written                                  not touched     not touched
"""

from __future__ import annotations

import re
from collections.abc import Collection

from kinetic._wire import NamedTuple
from kinetic.errors import OptionError

DEFAULT_REPOSITORY = "kinetic"
# Where GKE mounts the driver of a GPU. Images made for CUDA know it, and Python's own do not.
# Source: cloud.google.com/kubernetes-engine/docs/how-to/gpus, "About the NVIDIA CUDA-X libraries", read 2026-11.
GPU_DRIVER = "/usr/local/nvidia/lib64"
BUNDLED, PREBUILT, PYTHON = "bundled", "prebuilt", "python"
_JAX = {"cpu": "jax", "gpu": "jax[cuda12]", "tpu": "jax[tpu]"}
_KEYWORDS = (BUNDLED, PREBUILT, PYTHON)
_NEAR = 0.75  # "prebuild" is at 0.88 of "prebuilt", "bundle" at 0.92 of "bundled", "build" below 0.67 of both

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9.-]+(?=:)|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
_TAG, _DIGEST = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", r"[a-z0-9+._-]+:[0-9a-f]{32,}"
_IMAGE = rf"(?P<name>(?:{_HOST}/)?{_PART}(?:/{_PART})*)(?::(?P<tag>{_TAG}))?(?:@(?P<digest>{_DIGEST}))?"
_EXAMPLES = {
    "container_image": "europe-docker.pkg.dev/team/images/train:1",
    "base_image_repo": "europe-docker.pkg.dev/team/images",
    "image_repo": "europe-docker.pkg.dev/team/kinetic/jobs",
}


class Image(NamedTuple):
    """The image of a job's containers."""

    uri: str  # the image
    installs: bool  # whether the requirements of the project are installed when a container starts
    has_base: bool  # whether the base packages for this hardware are in the image
    note: str  # a plain sentence for the user, or ""
    repository: str = ""  # where an image with everything in it is built; "" for none
    unpacks: bool = False  # whether packages go through the store, where that can be


def choose(
    container_image: str | None,
    base_image_repo: str | None,
    image_repo: str | None = None,
    *,
    python: str,
    kind: str,
    version: str,
) -> Image:
    """Choose the image of a job; ``image_repo`` is where images are built for projects, if anywhere."""
    if container_image == BUNDLED or (not container_image and image_repo):
        return _bundled(image_repo, python)
    if not container_image or container_image == PYTHON:
        uri = f"python:{'.'.join(python.split('.')[:2])}-slim"
        note = f"jobs start in the image {uri}; uv installs what the project needs"
        return Image(uri, installs=True, has_base=False, note=note)
    if container_image == PREBUILT:
        return _prebuilt(base_image_repo, f"base-{kind}:{version}")
    _reject_misspelled_keyword(container_image)
    if not re.fullmatch(_IMAGE, container_image):
        raise _invalid_image("container_image", container_image, *_problem(container_image))
    return Image(container_image, installs=False, has_base=False, note="")


# What base packages bring with all that they need, as of JAX 0.10 and Keras 3.13.
BROUGHT_BY_BASE = (
    *("jax", "jaxlib", "ml-dtypes", "numpy", "opt-einsum", "scipy"),
    *("keras", "absl-py", "h5py", "namex", "optree", "packaging", "rich", "markdown-it-py", "mdurl", "pygments"),
    "typing-extensions",
)


def base_packages(kind: str, named: Collection[str]) -> tuple[str, ...]:
    """Return what a job finds without naming it: JAX for its hardware, and Keras; what the project names, it brings."""
    return tuple(line for name, line in (("jax", _JAX[kind]), ("keras", "keras")) if name not in named)


def _bundled(repository: str | None, python: str) -> Image:
    if not repository:
        uri = f"python:{'.'.join(python.split('.')[:2])}-slim"
        note = f"jobs start in the image {uri}, and unpack their packages from the store: no image repository is set"
        return Image(uri, installs=True, has_base=False, note=note, unpacks=True)
    if not re.fullmatch(_IMAGE, f"{repository}:env"):
        raise _invalid_image("image_repo", repository, *_repository_problem(repository))
    return Image("", installs=False, has_base=False, note="", repository=repository)


def _prebuilt(repository: str | None, name: str) -> Image:
    uri = f"{(repository or DEFAULT_REPOSITORY).rstrip('/')}/{name}"
    if repository and not re.fullmatch(_IMAGE, uri):
        raise _invalid_image("base_image_repo", repository, *_repository_problem(repository))
    note = f"jobs start in the prebuilt image {uri}"
    if not repository:  # others may put something there
        note += "; this release publishes none there: set KINETIC_BASE_IMAGE_REPO to your own repository"
    return Image(uri, installs=True, has_base=True, note=note)


def _reject_misspelled_keyword(word: str) -> None:
    """Reject what looks like a keyword: as the name of an image, it would fail only when the job has its machine."""
    if any(sign in word for sign in "/:."):
        return
    from difflib import get_close_matches  # 2 ms; only for a word that could be the name of an image of Docker's own

    plain = word.strip().lower()
    near = get_close_matches(plain, _KEYWORDS, 1, _NEAR)
    if near:
        better = f'write container_image="{near[0]}"'
        raise OptionError(
            f"container_image={word!r} looks like a misspelled {near[0]!r}",
            why=f"{BUNDLED!r}, {PREBUILT!r} and {PYTHON!r} are keywords; any other text is the name of an image",
            next=f'{better}; if it is an image, write its tag as well: "{plain}:latest"',
        )


def _invalid_image(option: str, written: str, why: str, better: str) -> OptionError:
    """Return the error for a name that no registry has; a cluster would report it much later."""
    return OptionError(
        f"{option}={written!r} cannot be the name of an image{'' if option == 'container_image' else ' repository'}",
        why=why,
        next=f'write {option}="{better}"' if better else f'write it as in "{_EXAMPLES[option]}"',
    )


def _problem(written: str) -> tuple[str, str]:
    """Return why it is not an image, and what may have been meant or ""."""
    if any(character.isspace() for character in written):
        return "it contains white space", _if_image("".join(written.split()))
    scheme, separator, rest = written.partition("://")
    if separator:
        return f"an image does not begin with {scheme}://", _if_image(rest)
    better = _if_image(_lowered(written))
    if better:
        return "a repository has only lower-case letters; tags may have upper-case ones", better
    return "the form is registry/repository:tag, or registry/repository@sha256:digest", ""


def _repository_problem(written: str) -> tuple[str, str]:
    """Return the same for a repository, which has neither tag nor digest."""
    tagged = re.fullmatch(_IMAGE, written)
    if tagged and (tagged["tag"] or tagged["digest"]):
        return "a repository has no tag; kinetic adds its version", written[: tagged.end("name")]
    why, better = _problem(written)
    return ("the form is registry/repository", "") if "@" in why else (why, better)


def _lowered(written: str) -> str:
    """Write all but the tag and the digest in lower-case letters."""
    name, at, digest = written.partition("@")
    folder, slash, last = name.rpartition("/")
    last, colon, tag = last.partition(":")
    return f"{folder.lower()}{slash}{last.lower()}{colon}{tag}{at}{digest}"


def _if_image(text: str) -> str:
    return text if re.fullmatch(_IMAGE, text) else ""
