"""What of a project is sent, and what is not: by default, because it looks like a secret, or by ``.kineticignore``.

``.kineticignore`` means what ``.gitignore`` means: ``*`` and ``?`` stop at a slash, ``**`` does not, a slash in front
or in the middle ties a line to the root, one at the end means folders only, ``!`` takes back what an earlier line
left out, the last line that fits decides. As with git, nothing below a folder that is left out can be taken back.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import functools
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Literal

from kinetic._blobs.file_tree import File, Folder, LeftOut, Scan, Selection
from kinetic._output.format import names_text, size_text
from kinetic._wire import NamedTuple, folders
from kinetic.errors import ProjectRootError

FILE = ".kineticignore"

# Never wanted, whatever KINETIC_NO_DEFAULT_EXCLUDES says: large, changing, and of no use in a job.
ALWAYS = (".git", "__pycache__/")

# Not in this list: *.egg-info, because an editable install needs it for importlib.metadata (`__version__ = …` at
# import); build/, dist/, env/ and wandb/, because user code often means something of its own by these names.
DEFAULTS = (
    *(".venv/", "venv/", "site-packages/", "node_modules/", ".eggs/", ".tox/", ".nox/", ".hg/", ".svn/"),
    *(".mypy_cache/", ".ruff_cache/", ".pytest_cache/", ".ipynb_checkpoints/", ".DS_Store", "*.pyc"),
    *(".coverage", ".coverage.*"),  # of coverage.py: each job that is measured writes one more
)
ENVIRONMENT_SIGNS = ("pyvenv.cfg", "conda-meta")  # a folder that holds one of these is an environment

# Compared without regard to case. The three templates are published on purpose.
SECRETS = (
    *(".env", ".env.*", "!.env.example", "!.env.template", "!.env.sample", ".envrc"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.kdb", "*.ppk"),
    *("id_rsa*", "id_ed25519*", "id_ecdsa*", "id_dsa*", "!id_*.pub"),
    *(".netrc", "_netrc", ".pgpass", ".my.cnf", ".htpasswd", ".pypirc", ".npmrc", ".git-credentials"),
    *("credentials.json", "client_secret*.json", "application_default_credentials.json", "token.json"),
    "gha-creds-*.json",  # of the action google-github-actions/auth, in the folder of the project
    *("*service-account*.json", "*service_account*.json", "*serviceaccount*.json"),
    *("secrets.json", "secrets.yaml", "secrets.yml", "secrets.toml", ".vault-token", ".dockerconfigjson"),
    *(".aws/", ".ssh/", ".gnupg/", ".azure/", ".kube/config", "**/.kube/config", "**/.docker/config.json"),
    *("**/.config/gcloud/", "terraform.tfstate", "terraform.tfstate.backup", "*.tfvars"),
)

# The things a glob is made of: stars, any character, a set, a plain character.
_TOKENS = r"\*+|\?|\[[!^]?\]?[^\]]*\]|\\?.|\\"

_LONGEST_FILE, _LONGEST_LINE = 1 << 20, 4096  # characters; no path is longer than such a line

# This user's credentials, below the home folder. They are never sent, also not through links.
_PRIVATE = (".aws", ".azure", ".config/gcloud", ".docker", ".gnupg", ".kube", ".netrc", ".ssh")
_PRIVATE_VARIABLES = ("AWS_SHARED_CREDENTIALS_FILE", "GOOGLE_APPLICATION_CREDENTIALS", "KUBECONFIG")

Origin = Literal["default", "secret", "user"]


class Rule(NamedTuple):
    """One line: a pattern, and what it means when it fits."""

    text: str
    pattern: str
    origin: Origin
    number: int
    keeps: bool
    folders_only: bool
    whole_path: bool

    @property
    def reason(self) -> str:
        """Why a path is left out, in a few words."""
        if self.origin == "user":
            return f"{FILE} line {self.number}: {self.text}"
        return f"looks like a secret ({self.text})" if self.origin == "secret" else f"left out by default ({self.text})"

    def fits(self, relative: str, name: str) -> bool:
        """Return whether the pattern fits a path, or its last part."""
        path = _compiled(self.pattern, any_case=self.origin == "secret")
        return path is not None and path.fits(relative if self.whole_path else name)


class Rules:
    """All rules, prepared once."""

    def __init__(self, rules: Sequence[Rule], *, environments: bool = True) -> None:
        self._rules = tuple(reversed(rules))  # the last line that fits decides
        self._files = _NameFilter(rule for rule in rules if not rule.keeps and not rule.folders_only)
        self._folders = _NameFilter(rule for rule in rules if not rule.keeps)
        self.environments = environments

    def of_the_user(self) -> Iterator[Rule]:
        """Yield the lines of the ignore file, in its order."""
        return (rule for rule in reversed(self._rules) if rule.origin == "user")

    def concern(self, names: Sequence[str]) -> bool:
        """Return whether any of the files in one folder might be left out; nearly always not."""
        return self._files.catches(names)

    def file(self, relative: str, name: str) -> Rule | None:
        """Return the rule that leaves a file out, or None."""
        return self._refusal(relative, name, folder=False) if self._files.catches((name,)) else None

    def folder(self, relative: str, name: str) -> Rule | None:
        """Return the rule that leaves a folder out with all its contents, or None."""
        return self._refusal(relative, name, folder=True) if self._folders.catches((name,)) else None

    def insist_on(self, relative: str, name: str) -> bool:
        """Return whether a ``!`` line of the user's includes a path, whatever else leaves it out."""
        rule = self._decide(self._rules, relative, name, folder=True)
        return rule is not None and rule.keeps and rule.origin == "user"

    def above(self, relative: str) -> Rule | None:
        """Return the rule that leaves out a file, or any folder above it, judged by names alone."""
        parts = relative.split("/")
        for count in range(1, len(parts)):
            if rule := self.folder("/".join(parts[:count]), parts[count - 1]):
                return rule
        return self.file(relative, parts[-1])

    def secret(self, path: str) -> Rule | None:
        """Return the rule by which a path anywhere on this machine looks like a secret, or None."""
        secrets = [rule for rule in self._rules if rule.origin == "secret"]
        parts = path.strip("/").split("/")
        for count in range(1, len(parts) + 1):
            rule = self._decide(secrets, "/".join(parts[:count]), parts[count - 1], folder=count < len(parts))
            if rule and not rule.keeps:
                return rule
        return None

    def _refusal(self, relative: str, name: str, *, folder: bool) -> Rule | None:
        rule = self._decide(self._rules, relative, name, folder=folder)
        return None if rule is None or rule.keeps else rule

    def _decide(self, rules: Iterable[Rule], relative: str, name: str, *, folder: bool) -> Rule | None:
        for rule in rules:
            if (folder or not rule.folders_only) and rule.fits(relative, name):
                return rule
        return None


class _NameFilter:
    """One fast check of all names of a folder at once; what it catches is then judged by each rule."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._parts = tuple({_plain_part(rule.pattern) for rule in rules})

    def catches(self, names: Iterable[str]) -> bool:
        joined = f"/{'/'.join(names)}/".lower()  # no name contains a slash
        return any(part in joined for part in self._parts)


def _plain_part(pattern: str) -> str:
    """Return the longest text that every name that fits contains, with a slash where the name begins or ends."""
    last = pattern.rpartition("/")[2].lower()
    plain = "" if "[" in last or "\\" in last else max(last.replace("?", "*").split("*"), key=len)
    if not plain or last == plain:
        return plain and f"/{plain}/"
    return f"{plain}/" if last.endswith(plain) else f"/{plain}" if last.startswith(plain) else plain


def read_rules(root: str | os.PathLike[str], environ: Mapping[str, str] = os.environ) -> tuple[Rules, tuple[str, ...]]:
    """Read the rules of a project.

    Returns:
        The rules, and notes for the user: an ignore file that cannot be read stops nothing.
    """
    defaults = environ.get("KINETIC_NO_DEFAULT_EXCLUDES") != "1"
    lines: list[str] = []
    notes: tuple[str, ...] = ()
    try:
        with open(os.path.join(root, FILE), encoding="utf-8", errors="replace") as file:
            text = file.read(_LONGEST_FILE + 1)
        lines = text[:_LONGEST_FILE].splitlines()
        if len(text) > _LONGEST_FILE:
            notes = (f"{FILE} is longer than {_LONGEST_FILE:,} characters; the rest is ignored",)
        elif any(len(line) > _LONGEST_LINE for line in lines):
            notes = (f"a line in {FILE} is longer than {_LONGEST_LINE} characters, which no path is, and is ignored",)
    except FileNotFoundError:
        pass
    except OSError as error:
        notes = (f"{FILE} cannot be read and is ignored: {error.strerror}",)
    return compile_rules(lines, defaults=defaults), notes


def private_places(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the folders and files with this user's credentials, whether they exist or not."""
    home = os.path.expanduser(environ.get("HOME") or "~")
    named = [part for name in _PRIVATE_VARIABLES for part in environ.get(name, "").split(os.pathsep) if part]
    return (*(f"{home}/{name}" for name in _PRIVATE), *named)


def compile_rules(lines: Iterable[str], *, defaults: bool = True) -> Rules:
    """Compile the built-in rules and the lines of an ignore file; later ones win."""
    return _compiled_rules(tuple(lines), defaults)


@functools.lru_cache(maxsize=8)  # each call of a function asks again, and a tenth of its client's time was this
def _compiled_rules(lines: tuple[str, ...], defaults: bool) -> Rules:
    built_in = [*ALWAYS, *DEFAULTS] if defaults else list(ALWAYS)
    rules = [rule for text in built_in if (rule := _rule(text, "default", 0))]
    rules += [rule for text in SECRETS if (rule := _rule(text, "secret", 0))]
    rules += [rule for number, text in enumerate(lines, 1) if (rule := _rule(text, "user", number))]
    return Rules(rules, environments=defaults)


def _rule(line: str, origin: Origin, number: int) -> Rule | None:
    """Compile one line; None for a comment, an empty line, or one that can fit nothing."""
    if len(line) > _LONGEST_LINE:
        return None
    line = line.removeprefix("\ufeff")
    text = line.rstrip(" \t")
    if text.endswith("\\"):  # it quotes the blank behind it
        text = line[: len(text) + 1]
    if not text or text.startswith("#"):
        return None
    keeps = text.startswith("!")
    pattern = text[keeps:]
    folders_only = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    whole_path = "/" in pattern
    pattern = pattern.removeprefix("/")
    if not pattern:
        return None
    return Rule(text, pattern, origin, number, keeps, folders_only, whole_path)


class _Path:
    """A pattern as runs of segments, with ``**`` between them: each run is looked for once, from the left.

    Whatever a pattern looks like, matching takes at most (segments of the path) x (segments of the pattern) looks, and
    each of those is linear: a project that somebody cloned must not be able to hang a submission.
    """

    def __init__(self, segments: Sequence[re.Pattern[str] | None]) -> None:
        self._runs: list[list[re.Pattern[str]]] = [[]]
        for segment in segments:
            if segment is None:
                self._runs.append([])
            else:
                self._runs[-1].append(segment)
        self._wants_more = len(segments) > 1 and segments[-1] is None  # "a/**" fits what lies in a, and not a itself

    def fits(self, path: str) -> bool:
        parts = path.split("/")
        first, *middle = self._runs
        if not middle:
            return len(parts) == len(first) and _run_at(first, parts, 0)
        last = middle.pop()
        start, end = len(first), len(parts) - max(len(last), int(self._wants_more))
        if start > end or not _run_at(first, parts, 0) or not _run_at(last, parts, len(parts) - len(last)):
            return False
        for run in middle:  # the first place that fits is as good as any
            found = next((at for at in range(start, end - len(run) + 1) if _run_at(run, parts, at)), None)
            if found is None:
                return False
            start = found + len(run)
        return True


def _run_at(run: Sequence[re.Pattern[str]], parts: Sequence[str], start: int) -> bool:
    return all(segment.fullmatch(parts[start + at]) for at, segment in enumerate(run))


@functools.cache
def _compiled(pattern: str, *, any_case: bool) -> _Path | None:
    """Compile a pattern when it is first used: few ever are."""
    flags = re.DOTALL | (re.IGNORECASE if any_case else 0)
    parts: list[list[str]] = [[]]
    for token in re.findall(_TOKENS, pattern, re.DOTALL):
        if token in {"/", "\\/"}:
            parts.append([])
        else:
            parts[-1].append(token)
    try:
        return _Path([None if part == ["**"] else re.compile(_translate(part), flags) for part in parts])
    except re.error:  # such as [z-a]: git lets it fit nothing
        return None


def _translate(part: Sequence[str]) -> str:
    """Turn what is between two slashes into a regular expression that never goes back behind a star that has fitted."""
    chunks = [""]
    for token in part:
        if token[0] != "*":
            chunks[-1] += _translate_token(token)
        elif len(chunks) == 1 or chunks[-1]:
            chunks.append("")
    first, *others = chunks
    if not others:
        return first
    return first + "".join(f"(?>.*?{chunk})" for chunk in others[:-1]) + f".*{others[-1]}"


def _translate_token(text: str) -> str:
    if text == "?":
        return "."
    if text in {"[", "\\"}:
        raise re.error(f"{text} is not closed")
    if text[0] != "[":
        return re.escape(text[-1])
    inside = text[1:-1]
    negated = inside[:1] in {"!", "^"}
    body = re.sub(r"([\\\[&~|])", r"\\\1", inside[negated:]) if "\\" not in inside else inside[negated:]
    body = ("\\" + body) if body.startswith(("]", "^")) else body
    return f"[{'^' if negated else ''}{body}]"


def differences_from_fnmatch(rules: Rules, paths: Sequence[str]) -> tuple[str, ...]:
    """Name lines that leave out less here than in the package that we replace, where that makes a difference.

    There, a line is stripped of blanks, and ``*`` matches slashes. ``paths`` is what is sent; folders end with a slash.
    """
    notes = []
    for rule in rules.of_the_user():
        blank = rule.text[:1].isspace()
        crosses = "/" in rule.pattern and any(sign in rule.pattern for sign in "*?[") and "**" not in rule.pattern
        if rule.keeps or not (blank or crosses):
            continue
        theirs = rule.text.strip()
        fits = re.compile(fnmatch.translate(theirs.strip("/"))).match
        found = next((path for path in paths if _is_theirs(path, fits, rule)), None)
        if found is not None:
            better = theirs if blank else theirs.replace("*", "**/*")
            why = "a blank in front belongs to the pattern" if blank else "* stops at a slash"
            notes.append(
                f"{FILE} line {rule.number}, {rule.text!r}, does not match {found}: {why}, as with git; write {better}"
            )
    return tuple(notes)


def _is_theirs(path: str, fits: Callable[[str], object], rule: Rule) -> bool:
    name = path.rstrip("/")
    if rule.folders_only and not path.endswith("/"):
        return False
    return fits(name) is not None or fits(name.rpartition("/")[2]) is not None


# ------------------------------------------------------------------------------------------------- what a scan takes

LIMIT_BYTES = 2 * 10**9  # 2 GB: above this it is data, and belongs into kinetic.Data
LIMIT_FILES = 1_000_000  # links that lead to each other can multiply without end
_KEPT_APART = "kept apart: data, credentials, or kinetic's own"
WARN_VARIABLE = "KINETIC_CONTEXT_SIZE_WARN_MB"
_WARN_MB = 100.0
_LARGE_SHARE = 0.05  # of the project: a smaller file is not why it is large
_NAMED = 10  # names in one line


class Project(Selection):
    """What of a project is sent.

    What is left out has one of these origins: "default", "secret", "user", "data", "outside" for a link that leads out
    of the project, or "skipped" when it could not be sent.

    Args:
        root: The folder.
        rules: What is left out.
        exclude: Further paths that are left out, absolute, with all they contain: data, credentials.
        limited: Reject what is too large to be a project, with a ProjectRootError.
    """

    def __init__(self, root: str, rules: Rules, exclude: Iterable[str], *, limited: bool = True) -> None:
        self.root = root
        self.lost_files: list[LeftOut] = []
        self.beside: dict[str, Project] = {}  # other projects, by their folders in the job's copy
        self._rules = rules
        self._limited = limited
        self._real_root = os.path.realpath(root)
        self._data = {os.path.realpath(path) for path in exclude} - {self._real_root}
        self._data_names = {os.path.basename(path) for path in self._data}
        self._within_data = tuple(f"{path.rstrip('/')}/" for path in self._data)

    def asks_about(self, names: Sequence[str]) -> bool:
        return bool(self._rules.concern(names)) or not self._data_names.isdisjoint(names)

    def odd_name(self, relative: str) -> LeftOut | None:
        try:
            relative.encode()
        except UnicodeEncodeError:
            return _skipped(os.fsencode(relative).decode(errors="replace"), "its name is not valid UTF-8")
        return None

    def file(self, entry: os.DirEntry[str], relative: str) -> LeftOut | None:
        if entry.name in self._data_names and os.path.realpath(entry.path) in self._data:
            return LeftOut(relative, None, _KEPT_APART, "data")
        rule = self._rules.file(relative, entry.name)
        if rule is None:
            return None
        size = None
        with contextlib.suppress(OSError):
            size = entry.stat().st_size
        return LeftOut(relative, size, rule.reason, rule.origin)

    def folder(self, entry: os.DirEntry[str], relative: str) -> LeftOut | None:
        name = entry.name
        if rule := self._rules.folder(relative, name):
            return LeftOut(f"{relative}/", None, rule.reason, rule.origin)
        if (name in self._data_names and os.path.realpath(entry.path) in self._data) or _is_ours(entry):
            return LeftOut(f"{relative}/", None, _KEPT_APART, "data")
        if self._rules.environments and is_environment(entry.path) and not self._rules.insist_on(relative, name):
            return LeftOut(f"{relative}/", None, "a virtual environment", "default")
        return None

    def link(self, entry: os.DirEntry[str], relative: str, about: os.stat_result, inside: Folder) -> LeftOut | None:
        """Send only what is in the project: a clone must not send away what its links lead to on this machine."""
        target, is_folder = os.path.realpath(entry.path), stat.S_ISDIR(about.st_mode)
        if left := self._outside(target, f"{relative}/" if is_folder else relative):
            return left
        if is_folder:
            if self._leads_back(target, inside):
                return _skipped(f"{relative}/", "a link to a folder that contains it")
            return self.folder(entry, relative)
        rule = self._rules.file(relative, entry.name) or self._secret(target, relative, entry.name)
        return rule and LeftOut(relative, about.st_size, rule.reason, rule.origin)

    def unreadable(self, path: str, relative: str, error: OSError) -> LeftOut:
        if not relative:
            raise ProjectRootError(f"the project cannot be read: {self.root}", why=str(error)) from error
        if relative.endswith("/"):
            return _skipped(relative, f"cannot be listed: {error.strerror}")
        what = "a broken link" if os.path.islink(path) else "cannot be read"
        return _skipped(relative, f"{what}: {error.strerror}")

    def problem(self, so_far: Scan) -> ProjectRootError | None:
        return too_large(self.root, so_far) if self._limited else None

    def open(self, file: File) -> int:
        """Open what was judged, and nothing else.

        Between the scan and the reading somebody may put a link in the place of a file, or of a folder above it. So a
        file is opened by descriptors from the project's root on, which follow no link; where there is one, the path
        that it leads to is judged first, as the scan does, and then opened in the same way.
        """
        for name, other in self.beside.items():
            if file.relative.startswith(f"{name}/"):
                return other.open(file._replace(relative=file.relative[len(name) + 1 :]))
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return folders.open_file(self._real_root, file.relative)
        real = os.path.realpath(file.path)
        if left := self._outside(real, file.relative):
            raise PermissionError(errno.EPERM, left.reason, file.path)
        if rule := self._secret(real, file.relative, file.relative.rpartition("/")[2]):
            raise PermissionError(errno.EPERM, rule.reason, file.path)
        return folders.open_file(self._real_root, real[len(self._real_root.rstrip("/")) + 1 :])

    def lost(self, file: File, error: OSError) -> None:
        self.lost_files.append(LeftOut(file.relative, file.size, f"cannot be read: {error.strerror}", "skipped"))

    def _outside(self, target: str, relative: str) -> LeftOut | None:
        if target in self._data or target.startswith(self._within_data):
            return LeftOut(relative.rstrip("/"), None, _KEPT_APART, "data")
        if not is_inside(target, self._real_root):
            return LeftOut(relative, None, f"a link to {target}", "outside")
        return None

    def _secret(self, target: str, relative: str, name: str) -> Rule | None:
        """Judge a link to a secret by its target, unless the user asks for it by the link's name."""
        rule = self._rules.secret(target)
        return rule if rule and not self._rules.insist_on(relative, name) else None

    def _leads_back(self, target: str, folder: Folder) -> bool:
        inside = target.rstrip("/") + "/"
        place = folder.path
        while True:
            real = os.path.realpath(place)
            if real == target or real.startswith(inside):
                return True
            if len(place) <= len(self.root):
                return False
            place = os.path.dirname(place)


# What a home has, and a runtime folder: folders of these names, and a file that no package or data of the user's has.
_OURS = (("keys", "store", "cache"), "keys", r"[0-9a-f]{16}\Z"), (("runners", "supervisors", "jobs"), "", r"queue\.db")


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """Return whether a folder is a home or runtime folder of kinetic's, of whatever name: its keys must not travel."""
    for names, inside, file in _OURS:
        if all(os.path.isdir(f"{entry.path}/{name}") for name in names):
            with contextlib.suppress(OSError):
                return any(re.match(file, name) for name in os.listdir(f"{entry.path}/{inside}"))
            return True  # whatever cannot be listed
    return False


def _skipped(relative: str, reason: str) -> LeftOut:
    return LeftOut(relative, None, reason, "skipped")


def is_inside(real: str, real_root: str) -> bool:
    """Return whether a path without links is a folder, or below it."""
    return real == real_root or real.startswith(real_root.rstrip("/") + "/")


def is_environment(folder: str) -> bool:
    """Return whether a folder is a virtual environment, whatever its name, or where this Python is installed."""
    return folder in {sys.prefix, sys.base_prefix} or any(
        os.path.exists(f"{folder}/{sign}") for sign in ENVIRONMENT_SIGNS
    )


def too_large(root: str, found: Scan) -> ProjectRootError | None:
    """Return why a project is too large to send, or None."""
    if found.bytes <= LIMIT_BYTES and found.files + len(found.folders) <= LIMIT_FILES:
        return None
    heavy: dict[str, int] = {}
    for file in found.all_files():
        top = file.relative.partition("/")[0]
        heavy[top] = heavy.get(top, 0) + file.size
    names = sorted(heavy, key=lambda name: heavy[name], reverse=True)[:5]
    listed = ", ".join(f"{name} {size_text(heavy[name])}" for name in names)
    return ProjectRootError(
        f"the project is too large to send: {root}",
        why=f"more than {size_text(LIMIT_BYTES)} or {LIMIT_FILES} files; largest so far: {listed or 'empty folders'}",
        next="add what the job does not need to .kineticignore, or set KINETIC_PACKAGE_ROOT to a smaller folder",
        code="project-too-large",
    )


# ------------------------------------------------------------------------------------------------------------- notes


def notes_about(found: Scan, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the notes about a scan, a sentence each; usually none."""
    by_origin: dict[str, list[LeftOut]] = {}
    for left in found.left_out:
        by_origin.setdefault(left.origin, []).append(left)
    notes = []
    if secrets := [left.relative for left in by_origin.get("secret", ())]:
        names, line = names_text(secrets, _NAMED), f"!{escaped(secrets[0])[1:]}"
        notes.append(f"left out because they look like secrets: {names} (a line '{line}' in {FILE} sends it)")
    if links := [f"{left.relative.rstrip('/')} ({left.reason})" for left in by_origin.get("outside", ())]:
        notes.append(
            f"skipped links that lead out of the project: {names_text(links, _NAMED)}; "
            "copy what the job needs into the project, pass it as kinetic.Data, or set KINETIC_PACKAGE_ROOT to a "
            "folder that contains both"
        )
    notes += _skipped_notes(by_origin.get("skipped", ()))
    text, limit = environ.get(WARN_VARIABLE, "").strip(), _WARN_MB
    try:
        limit = float(text) if text else _WARN_MB
    except ValueError:
        notes.append(f"{WARN_VARIABLE} is not a number: {text!r}; the limit is {_WARN_MB:g} MB")
    if 0 < limit < found.bytes / 1_000_000:
        notes.append(_size_note(found, limit))
    return tuple(notes)


def notes_of_sending(lost: Sequence[LeftOut], unsteady: Sequence[str]) -> tuple[str, ...]:
    """Return the notes about files that could not be read, and about those that changed meanwhile."""
    names = names_text(unsteady, _NAMED)
    changed = f"changed while they were packed, so they are sent as they were at that moment: {names}"
    return *_skipped_notes(lost), *([changed] if unsteady else [])


def _skipped_notes(left_out: Sequence[LeftOut]) -> list[str]:
    more = [f"skipped {len(left_out) - _NAMED} more files that cannot be sent"] if len(left_out) > _NAMED else []
    return [f"skipped {left.relative}: {left.reason}" for left in left_out[:_NAMED]] + more


def _size_note(found: Scan, limit: float) -> str:
    import heapq  # only for this message

    largest = heapq.nlargest(5, found.all_files(), attrgetter("size"))
    # Without the others, which may be scripts, the project would be as large.
    largest = [file for file in largest if file.size >= _LARGE_SHARE * found.bytes] or largest
    files = ", ".join(f"{file.relative} ({size_text(file.size)})" for file in largest)
    lines = "\n".join(f"    {escaped(file.relative)}" for file in largest)
    return (
        f"the project contains {size_text(found.bytes)} in {found.files} files, more than {limit:g} MB "
        f"({WARN_VARIABLE}); the largest: {files}. These lines in {FILE} would leave them out:\n{lines}"
    )


def escaped(relative: str) -> str:
    """Return the line of an ignore file that matches exactly one path."""
    text = "".join(f"\\{sign}" if sign in "\\*?[" else sign for sign in relative)
    if text.endswith(" "):
        text = f"{text[:-1]}\\ "
    return f"/{text}"
