"""The lines of a requirements file: joined, rid of JAX, and refused where they name what only this machine has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kinetic._wire import distribution
from kinetic.errors import OptionError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# The accelerator decides which build of these is right, so the base environment brings them.
BASE_NAMES = frozenset({"jax", "jaxlib", "libtpu", "libtpu-nightly"})

_REMOTE = re.compile(  # an address, or a variable that holds one
    r"(?:git|hg|bzr|svn)\+(?!file:|[./~])|(?!file:)[a-z][a-z0-9+.-]*://|\$\{(?!PROJECT_ROOT\b)", re.IGNORECASE
)
_COMMENT = re.compile(r"(?:^|\s+)#.*$")
_KEEP = re.compile(r"#\s*kn:keep\b")
_FILE_URL = re.compile(r"(?:\A|[\s=@+\"'])file:", re.IGNORECASE)
_OF_PIP = re.compile(r"\s*(?<!\S)--.*\Z")  # options of pip behind a requirement: its hashes
_EGG = re.compile(r"[#&]egg=([A-Za-z0-9._-]+)")
_FROM_A_REPOSITORY = re.compile(r"(?:git|hg|bzr|svn)\+", re.IGNORECASE)
_ARCHIVES = (".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")

_INCLUDING = {"-r": "--requirement", "-c": "--constraint"}
_EDITABLE = {"-e": "--editable"}
_LOOKING = {"-f": "--find-links", "-i": "--index-url"}
_SHORT = _INCLUDING | _EDITABLE | _LOOKING
_OPTIONS = {*_SHORT.values(), "--extra-index-url"}

_PUT_HERE = "write the lines of that file into this one"
_SHIPS_ANYWAY = (
    "remove the line if it is code of your project, which ships anyway; "
    "else publish it and name it with a version or an address (https://…, git+https://…)"
)


class Entry(NamedTuple):
    """One requirement or option.

    Attributes:
        number: The line on which it begins, from 1; 0 where it stands in no file that a user wrote.
        text: On one line, without comments.
        keep: Whether ``# kn:keep`` stands on it: it stays even if the base environment brings it.
    """

    number: int
    text: str
    keep: bool = False

    @property
    def name(self) -> str:
        """The normalized name of the package; "" for an option, an address or a path."""
        requirement = parsed(self.text)
        return normalised(requirement.name) if requirement else ""


def normalised(name: str) -> str:
    """Return the normalized name of a package (PEP 503)."""
    from packaging.utils import canonicalize_name  # as below

    return canonicalize_name(name)


def parsed(text: str) -> Requirement | None:
    """Return a requirement (PEP 508); None for an option of pip, an address or a path."""
    from packaging.requirements import InvalidRequirement, Requirement  # 15 ms; only where dependencies are read

    try:
        return Requirement(_OF_PIP.sub("", text))
    except InvalidRequirement:
        return None


def is_kept(text: str) -> bool:
    """Say whether a line carries the comment that keeps it."""
    return _KEEP.search(text) is not None


def entries(text: str) -> list[Entry]:
    """Read a requirements file: continuation lines and the hashes below a requirement belong to it."""
    found: list[Entry] = []
    for number, line in _joined(text):
        words = " ".join(_COMMENT.sub("", line).split())
        if words.startswith("--hash") and found:
            found[-1] = Entry(found[-1].number, f"{found[-1].text} {words}", found[-1].keep or is_kept(line))
        elif words:
            found.append(Entry(number, words, is_kept(line)))
    return found


def without_base(found: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Part what is to be installed from what the base environment brings."""
    brought = [entry for entry in found if entry.name in BASE_NAMES and not entry.keep]
    return [entry for entry in found if entry not in brought], brought


def without_ourselves(found: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Part what is to be installed from what names kinetic itself: a job brings its own copy.

    What an extra of ours brings for jobs stays, in the place of the line.
    """
    kept, ours = list[Entry](), list[Entry]()
    for entry in found:
        if not _names_us(entry):
            kept.append(entry)
            continue
        ours.append(entry)
        requirement = parsed(entry.text)
        wanted = {normalised(extra) for extra in requirement.extras} if requirement else set[str]()
        marker = f" ; {requirement.marker}" if requirement and requirement.marker else ""
        for extra in sorted(wanted & distribution.EXTRAS_OF_JOBS.keys()):
            kept.append(Entry(entry.number, distribution.EXTRAS_OF_JOBS[extra] + marker))
    return kept, ours


def refuse_local(found: Sequence[Entry], source: object) -> None:
    """Refuse the first entry that names something which only this machine has.

    Args:
        found: The entries.
        source: The file they come from.

    Raises:
        OptionError: It names file and line.
    """
    for entry in found:
        reason, advice = _complaint(entry.text)
        if reason:
            line = f", line {entry.number}" if entry.number else ""
            raise OptionError(
                f"{source}{line} cannot be carried out in a job: {entry.text}",
                why=f"{reason}; an environment is built from this one file, here as on a cluster",
                next=advice,
                code="dependency",
            )


def _names_us(entry: Entry) -> bool:
    """Say whether a line would install kinetic: by name, as an archive, or from a repository of that name."""
    if entry.name:
        return entry.name in distribution.NAMES
    words = entry.text.split()
    if words[0].startswith("-"):
        words = [value for option, value in _options(entry.text) if option == "--editable"]
    if not words:
        return False
    egg = _EGG.search(words[0])
    if egg:
        return normalised(egg[1]) in distribution.NAMES
    path = re.split(r"[?#]", words[0])[0].rstrip("/")
    name = path.rpartition("/")[2]
    if name.lower().endswith(".whl"):
        stem = name.partition("-")[0]
    elif name.lower().endswith(_ARCHIVES):
        stem = name.rpartition("-")[0]
        stem = stem or path.partition("/archive/")[0].rpartition("/")[2]
    else:
        stem = name.partition("@")[0].removesuffix(".git") if _FROM_A_REPOSITORY.match(path) else ""
    return normalised(stem) in distribution.NAMES


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Yield logical lines and where they begin; a backslash at the end of a comment joins nothing."""
    begin, parts = 0, list[str]()
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.rstrip()
        begin = begin if parts else number
        if line.lstrip().startswith("#"):
            line = f" {line}"
        elif line.endswith("\\"):
            parts.append(line[:-1])
            continue
        yield begin, "".join([*parts, line])
        parts = []
    if parts:
        yield begin, "".join(parts)


def _complaint(text: str) -> tuple[str, str]:
    """Return why a line cannot be carried out elsewhere, and what to do; two empty strings if it can."""
    if _FILE_URL.search(text):
        return "it names a file of this machine", _SHIPS_ANYWAY
    if not text.startswith("-"):
        return ("it names a path of this machine", _SHIPS_ANYWAY) if _is_path(text) else ("", "")
    for option, value in _options(text):
        if option in _INCLUDING.values():
            return "it includes another file", _PUT_HERE
        if option in _OPTIONS and not _REMOTE.match(value):
            editable = option in _EDITABLE.values()
            what = "it installs from a folder of this machine" if editable else "it looks into a folder of this machine"
            return what, _SHIPS_ANYWAY if editable else "name the address of an index or a page"
    return "", ""


def _options(text: str) -> Iterator[tuple[str, str]]:
    """Yield the options of a line by their long names, with their values: ``-rx``, ``-r x``, ``--requirement=x``."""
    words = iter(text.split())
    for word in words:
        option, _, value = word.partition("=")
        if word[:2] in _SHORT:
            option, value = _SHORT[word[:2]], word[2:].lstrip("=")
        if option in _OPTIONS:
            yield option, (value or next(words, "")).strip("\"'")


def _is_path(text: str) -> bool:
    requirement = parsed(text)
    url = requirement.url if requirement else None
    target = url or text.split(maxsplit=1)[0].partition(";")[0]
    if _REMOTE.match(target):
        return False
    if url or target.lower().endswith(_ARCHIVES):
        return True
    return requirement is None and (target[0] in ".~" or "/" in target or "\\" in target)
