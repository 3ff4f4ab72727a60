"""Lines of a requirements file: read, with those that they include, and rejected where only this machine has them.

A line ``-c NAME<2`` here is a constraint: a version that counts only if something else asks for the package. Users
write it into a file of its own, which ``-c FILE`` includes.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kinetic._wire import NamedTuple, addresses, python_runtime
from kinetic._wire.python_runtime import CONSTRAINT, SETTING
from kinetic.errors import OptionError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# The accelerator decides which build of these is right, so the base environment brings them.
BASE_NAMES = frozenset({"jax", "jaxlib", "libtpu", "libtpu-nightly"})

# An address, or a variable that holds one.
_REMOTE = r"(?i)(?:git|hg|bzr|svn)\+(?!file:|[./~])|(?!file:)[a-z][a-z0-9+.-]*://|\$\{(?!PROJECT_ROOT\b)"
_SEPARATORS = r"[-_.]+"
_COMMENT = r"(?:^|\s+)#.*$"
_KEEP = r"#\s*kn:keep\b"
_FILE_URL = r"(?i)(?:\A|[\s=@+\"'])file:"
_NAME_BEFORE = r"\A[\w.-]+\s*(?:\[([^\]]*)\]\s*)?@\s*"
_HASH = r"(?:--hash=sha256:|#sha256=)([0-9a-f]{64})\b"  # "#": of an address, as pip freeze writes it
_ROOT = r"\A/*(?:\$\{PROJECT_ROOT\}|\{root(?::uri)?\})"  # of the project, for PDM and uv, and for Hatch
_ABOVE_ROOT = r"\A/*\{root:parent(?::uri)?\}"
_FRAGMENT = r"#(?:sha256|egg|subdirectory)=.*\Z"
_FILE_SCHEME = r"(?i)^file:(?://(?:localhost)?(?=/))?"
_PIP_OPTIONS = r"\s*(?<!\S)--.*\Z"  # options of pip behind a requirement: its hashes
_EGG = r"[#&]egg=([A-Za-z0-9._-]+)"
_REPOSITORY = r"(?i)(?:git|hg|bzr|svn)\+"
_ARCHIVES = (".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")

_OF_CONDA = rf"\A(?:{CONSTRAINT})?(\w[\w.-]*)\s*=\s*([\w.]+)(?:=\S*)?\Z"  # name=version=build

_SETTINGS = "what its [tool.uv] says"  # an address in it may hold a password

_INCLUDING = {"-r": "--requirement", "-c": "--constraint"}
_INCLUDE = r"(?:-(?P<short>[rc])\s*|--(?:requirement|(?P<long>constraint))(?:\s+|=))(?P<file>\S.*)"
_EDITABLE = "--editable"
_SHORT = _INCLUDING | {"-e": _EDITABLE, "-f": "--find-links", "-i": "--index-url"}
_OPTIONS = {*_SHORT.values(), "--extra-index-url"}
_WRITE_HERE = "write the lines of that file into this one, or copy it beside this one"
_SENT_ANYWAY = (
    "remove the line if it is code of your project, which is sent anyway; "
    "else publish it and name it with a version or an address (https://…, git+https://…)"
)
_NAME_WHEELS = "name each wheel on a line of its own (./wheels/NAME.whl), or the address of an index or a page"
# Options that pip takes beside others on their line; uv 0.13 takes all that follows one of them for its value.
_ONE_A_LINE = r"-[if]\b|--(?:index-url|extra-index-url|find-links|trusted-host|no-index|pre|prefer-binary)\b"
# All that pip takes in a file; of that, what uv 0.13 passes over there, and takes as a setting.
_OF_A_FILE = (
    rf"-[ecr]|{_ONE_A_LINE}|--(?:editable|constraint|requirement|no-binary|only-binary|require-hashes|use-feature)\b"
)
REQUIRES_HASHES = r"--require-hashes\b"
_SETTING = r"--(?P<name>pre|trusted-host)\b[\s=]*(?P<value>\S*)"
_NO_HASH = r"(?<=\s)--(?!hash\b)[a-z-]+"
_REMOTE_EDITABLE = r"(?:-e|--editable)[\s=]*(?=\S+://)"
_NAME_OF_WHEEL = r"[^-$]+(?:-[^-$]+){4,5}\.whl"
_NAMED_BEHIND = r"\A(?P<address>[^#]+)#egg=(?P<name>[^&]+)&?(?P<more>.*)"
_BY_NAME = {  # why a line with such a name is still there: other wheels are sent with the project
    r"\.whl\b": "correct the path: the file is not there; a wheel that is there is sent with the project",
    r"\.(zip|tar|tgz)\b": "build a wheel of it (uv build --wheel), and name that: wheels are sent with the project",
}


class Entry(NamedTuple):
    """One requirement or option."""

    number: int  # the line on which it begins, from 1; 0 if it is in no file that a user wrote
    text: str  # on one line, without comments
    keep: bool = False  # whether ``# kn:keep`` is on it: it stays even if the base environment brings it
    file: Path | None = None  # the file that it is in, if another one includes that

    @property
    def name(self) -> str:
        """The normalized name of the package; "" for a constraint, an option, an address or a path."""
        requirement = parsed(self.text)
        return normalised(requirement.name) if requirement else ""

    @property
    def extras(self) -> Collection[str]:
        """The extras of the package that it wants."""
        requirement = parsed(self.text)
        return requirement.extras if requirement else ()

    @property
    def shown(self) -> str:
        """The text for people, without the passwords and tokens of addresses in it."""
        return addresses.without_secrets(self.text)

    @property
    def about(self) -> str:
        """The name of the package, also of a constraint."""
        return self._replace(text=self.text.removeprefix(CONSTRAINT)).name


class LocalPath(NamedTuple):
    """What a line installs from this machine."""

    path: str  # of a folder or a file, as the line names it
    extras: list[str]
    marker: str  # for which machines it counts (PEP 508); "" for all
    hashes: list[str]  # SHA-256 of the files that it accepts; none for any


def normalised(name: str) -> str:
    """Return the normalized name of a package (PEP 503); ``packaging`` does the same, and is read only for more."""
    return re.sub(_SEPARATORS, "-", name).lower()


@functools.lru_cache(maxsize=2000)  # 40 us and more, and each step asks again; a lock has hundreds of lines
def parsed(text: str) -> Requirement | None:
    """Return a requirement (PEP 508); None for an option of pip, an address or a path."""
    from packaging.requirements import InvalidRequirement, Requirement  # 15 ms; only where dependencies are read

    try:
        return Requirement(re.sub(_PIP_OPTIONS, "", text))
    except InvalidRequirement:
        return None


def not_satisfied(lines: Sequence[str], known: Sequence[str], installed: Mapping[str, str]) -> list[str]:
    """Return the requirements that what is installed does not satisfy, as far as names and versions tell.

    What they do not tell (an address, an option, extras, settings of uv) is satisfied if it is among the known ones.
    What is not installed satisfies a constraint.
    """
    before = {entry.text for entry in entries("\n".join(known))}
    found = []
    for entry in entries("\n".join(lines)):
        if entry.text.startswith(SETTING):
            found += [_SETTINGS] if entry.text not in before and entry.text.startswith(f"{SETTING}tool.") else []
            continue
        requirement = parsed(entry.text.removeprefix(CONSTRAINT))
        version = installed.get(entry.about)
        if entry.text.startswith(CONSTRAINT) and version is None:
            continue
        is_known = entry.text in before or (requirement is not None and not requirement.extras and not requirement.url)
        if requirement is None or version is None:
            is_there = entry.text in before and (requirement is None or requirement.marker is not None)
        else:
            is_there = requirement.specifier.contains(version, prereleases=True)
        if not (is_known and is_there):
            shown = re.sub(_PIP_OPTIONS, "", entry.shown) if requirement else entry.shown
            found.append(f"{shown} (has {version})" if version and not is_there else shown)
    return list(dict.fromkeys(found))


def read(file: Path) -> list[Entry]:
    """Read a requirements file, with what its lines ``-r FILE`` and ``-c FILE`` include in their places.

    Raises:
        OptionError: A file cannot be read, or an included one is not on this machine.
    """
    return list(_with_included(file, file, frozenset()))


def read_included(file: Path) -> list[Entry]:
    """Read a requirements file that another file includes: each line says where it is."""
    return [entry if entry.file else entry._replace(file=file) for entry in read(file)]


def _with_included(file: Path, top: Path, above: frozenset[str]) -> Iterator[Entry]:
    above |= {os.path.realpath(file)}
    for found in entries(read_text(file)):
        entry = found if file == top else found._replace(file=file)
        include = re.fullmatch(_INCLUDE, entry.text)
        if include is None:
            yield entry
            continue
        target = include["file"].strip("\"'")
        if re.match(_REMOTE, target):
            reject(entry, top, "the file that it includes is not on this machine", _WRITE_HERE)
        included = Path(os.path.normpath(file.parent / os.path.expanduser(re.sub(_FILE_SCHEME, "", target))))
        if not included.is_file():
            reject(entry, top, f"the file that it includes is not there: {included}", "correct the path")
        if os.path.realpath(included) in above:  # it is being read
            continue
        is_limit = include["short"] == "c" or include["long"]
        for each in _with_included(included, top, above):
            is_plain = not each.text.startswith("-")
            yield each._replace(text=f"{CONSTRAINT}{each.text}") if is_limit and is_plain else each


def keeps(line: str) -> bool:
    """Return whether ``# kn:keep`` is on a line."""
    return re.search(_KEEP, line) is not None


def entries(text: str) -> list[Entry]:
    """Read a requirements file: continuation lines and the hashes below a requirement belong to it."""
    found: list[Entry] = []
    for number, line in _joined(text):
        words, keep = " ".join(re.sub(_COMMENT, "", line).split()), keeps(line)
        if words.startswith("--hash") and found:
            found[-1] = Entry(found[-1].number, f"{found[-1].text} {words}", found[-1].keep or keep)
        elif words:
            options = re.split(r"\s+(?=--?[a-z])", words) if re.match(_ONE_A_LINE, words) else [words]
            found += (Entry(number, each, keep) for each in options)
    return found


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


def without_base(found: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Separate what is to be installed from what the base environment brings."""
    brought = [entry for entry in found if entry.about in BASE_NAMES and not entry.keep]
    return [entry for entry in found if entry not in brought], brought


def without_kinetic(found: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Separate what is to be installed from what names kinetic itself: a job brings its own copy.

    What an extra of kinetic brings for jobs stays, in the place of the line.
    """
    kept, ours = list[Entry](), list[Entry]()
    for entry in found:
        if not is_kinetic(entry):
            kept.append(entry)
            continue
        ours.append(entry)
        if requirement := parsed(entry.text):
            marker = f" ; {requirement.marker}" if requirement.marker else ""
            wanted = {normalised(extra) for extra in requirement.extras} & python_runtime.EXTRAS_OF_JOBS.keys()
            kept += [Entry(entry.number, python_runtime.EXTRAS_OF_JOBS[extra] + marker) for extra in sorted(wanted)]
    return kept, ours


def is_kinetic(entry: Entry) -> bool:
    """Return whether a line would install kinetic: by name, as an archive, or from a repository of that name."""
    if entry.about:
        return entry.about in python_runtime.NAMES
    words = entry.text.split()
    if words[0].startswith("-"):
        words = [value for option, value in _options(entry.text) if option == _EDITABLE]
    if not words:
        return False
    if egg := re.search(_EGG, words[0]):
        return normalised(egg[1]) in python_runtime.NAMES
    path = re.split(r"[?#]", words[0])[0].rstrip("/")
    name = path.rpartition("/")[2]
    if name.lower().endswith(".whl"):
        stem = name.partition("-")[0]
    elif name.lower().endswith(_ARCHIVES):
        stem = name.rpartition("-")[0] or path.partition("/archive/")[0].rpartition("/")[2]
    else:
        stem = name.partition("@")[0].removesuffix(".git") if re.match(_REPOSITORY, path) else ""
    return normalised(stem) in python_runtime.NAMES


def as_uv_reads(found: Sequence[Entry], source: Path) -> tuple[list[Entry], dict[str, object]]:
    """Return lines of pip as uv reads them, and settings for what it takes as such only; reject what it cannot read."""
    told = [match for entry in found if (match := re.match(_SETTING, entry.text))]
    hosts = [match["value"] for match in told if match["value"]]
    settings: dict[str, object] = {"prerelease": "allow"} if len(hosts) < len(told) else {}
    settings |= {"allow-insecure-host": hosts} if hosts else {}
    kept = []
    for entry in found:
        text = entry.text.removeprefix(CONSTRAINT)
        if text.startswith("-") and not re.match(_OF_A_FILE, text):
            reject(entry, source, "it is an option of pip install, and not of a requirements file", "remove the line")
        if not text.startswith("-") and (option := re.search(_NO_HASH, text)):
            why = f"uv, which installs for jobs, takes only --hash behind a requirement, and not {option[0]}"
            reject(entry, source, why, "remove it, or write config-settings-package into [tool.uv] of a pyproject.toml")
        if why := _why_unfit(text):
            reject(entry, source, why, "name the address of one for this Python, or use the Python that it is for")
        if match := re.match(_REMOTE_EDITABLE, text):  # uv refuses it, and a job has nothing to edit
            line = re.sub(_NAMED_BEHIND, r"\g<name> @ \g<address>#\g<more>", text[match.end() :]).rstrip("#")
            kept.append(entry._replace(text=line))
        elif not re.match(_SETTING, text):
            kept.append(entry)
    return kept, settings


def _why_unfit(text: str) -> str:
    """Return why no job can use the wheel whose address a line has; "" for nothing."""
    from urllib.parse import unquote, urlsplit

    if ".whl" not in text:
        return ""
    from kinetic._project import local_wheels  # few projects name any

    requirement = parsed(text)
    address = requirement.url if requirement else text.split(maxsplit=1)[0]
    try:
        name = unquote(urlsplit(address or "").path.rpartition("/")[2])
    except ValueError as error:
        return f"its address is not valid: {error}"
    is_meant = requirement is None or not requirement.marker or local_wheels.is_meant(str(requirement.marker))
    has_tags = re.fullmatch(_NAME_OF_WHEEL, name)
    return local_wheels.why_unfit(Path(name)) if has_tags and is_meant else ""


def reject_local(found: Sequence[Entry], source: Path) -> None:
    """Reject the first entry that no job can install; the message names file and line.

    It names something which only this machine has, or is of conda.
    """
    for entry in found:
        if match := re.match(_OF_CONDA, entry.text):
            why = "it is a line of conda, as conda list --export writes it, and not one of pip"
            reject(entry, source, why, f"write {match[1]}=={match[2]} if the package index has that version")
        if problem := _local_reference(entry.text):
            reason, advice = problem
            if entry.text.startswith(CONSTRAINT):
                advice = "take it out of the constraints; a wheel that is to be used is named in the requirements"
            why = f"{reason}; a job elsewhere has only what comes from an index, from an address, or with your project"
            reject(entry._replace(text=entry.text.removeprefix(CONSTRAINT)), source, why, advice)


def reject(entry: Entry, source: Path, why: str, advice: str) -> NoReturn:
    line = f", line {entry.number}" if entry.number else ""
    raise OptionError(
        f"{entry.file or source}{line} cannot be installed in a job: {entry.shown}",
        why=why,
        next=advice,
        code="dependency",
    )


def _local_reference(text: str) -> tuple[str, str] | None:
    """Return why a line cannot be installed elsewhere, and what to do; None if it can."""
    text = text.removeprefix(CONSTRAINT)
    advice = next((advice for end, advice in _BY_NAME.items() if re.search(end, text)), _SENT_ANYWAY)
    if re.search(_FILE_URL, text):
        return "it names a file of this machine", advice
    if not text.startswith("-"):
        return ("it names a path of this machine", advice) if _is_path(text) else None
    for option, value in _options(text):
        if option in _INCLUDING.values():
            return "it includes another file beside something else", "write -r FILE or -c FILE on a line of its own"
        if option == _EDITABLE and not re.match(_REMOTE, value):
            return "it installs from a folder of this machine", _SENT_ANYWAY
        if not re.match(_REMOTE, value):
            return "it looks into a folder of this machine", _NAME_WHEELS
    return None


def local_path(entry: Entry) -> LocalPath | None:
    """Return what a line installs from this machine; None if it installs nothing from there."""
    from urllib.parse import unquote  # only where dependencies are read

    if not _local_reference(entry.text):
        return None
    editable = [value for option, value in _options(entry.text) if option == _EDITABLE]
    if entry.text.startswith("-") and not editable:  # such as --find-links: it installs nothing by itself
        return None
    target, _, marker = (editable or [re.sub(_PIP_OPTIONS, "", entry.text)])[0].partition(";")
    before = re.match(_NAME_BEFORE, target.strip())
    target = re.sub(_FILE_SCHEME, "", target.strip()[before.end() if before else 0 :])
    target = re.sub(_ABOVE_ROOT, "..", re.sub(_ROOT, ".", re.sub(_FRAGMENT, "", target)))
    path, _, extras = unquote(target).rstrip("]").partition("[")
    listed = [extra.strip() for extra in (extras or (before and before[1]) or "").split(",")]
    return LocalPath(path, list(filter(None, listed)), marker.strip(), re.findall(_HASH, entry.text))


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
    if re.match(_REMOTE, target):
        return False
    if url or target.lower().endswith(_ARCHIVES):
        return True
    return requirement is None and (target[0] in ".~" or "/" in target or "\\" in target)


def invalid(file: Path, why: str, number: int = 0, next_: str = "correct the file") -> NoReturn:
    """Raise the error of a file with dependencies that cannot be read."""
    place = f"{file}, line {number}," if number else str(file)
    raise OptionError(f"the dependencies in {place} cannot be read", why=why, next=next_, code="dependency")


def read_text(file: Path, errors: str = "strict") -> str:
    """Return the text of a file with dependencies."""
    try:
        return file.read_text(encoding="utf-8-sig", errors=errors)
    except (OSError, UnicodeDecodeError) as error:
        why = f"{type(error).__name__}: {error}"
        invalid(file, why, next_="correct the file: it must be readable, and UTF-8")
