"""What of a project is not sent: by default, because it looks like a secret, or by ``.kineticignore``.

``.kineticignore`` means what ``.gitignore`` means: ``*`` and ``?`` stop at a slash, ``**`` does not, a slash in front
or in the middle ties a line to the root, one at the end means folders only, ``!`` takes back what an earlier line
left out, the last line that fits decides. As with git, nothing below a folder that is left out can be taken back.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

FILE = ".kineticignore"

# Never wanted, whatever KINETIC_NO_DEFAULT_EXCLUDES says: large, changing, and of no use in a job.
ALWAYS = (".git", "__pycache__/")

# Not in this list: *.egg-info, because an editable install needs it for importlib.metadata (`__version__ = …` at
# import); build/, dist/, env/ and wandb/, because user code often means something of its own by these names.
DEFAULTS = (
    *(".venv/", "venv/", "site-packages/", "node_modules/", ".eggs/", ".tox/", ".nox/", ".hg/", ".svn/"),
    *(".mypy_cache/", ".ruff_cache/", ".pytest_cache/", ".ipynb_checkpoints/", ".DS_Store", "*.pyc"),
)
ENVIRONMENT_SIGNS = ("pyvenv.cfg", "conda-meta")  # a folder that holds one of these is an environment

# Compared without regard to case. The three templates are published on purpose.
SECRETS = (
    *(".env", ".env.*", "!.env.example", "!.env.template", "!.env.sample", ".envrc"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.kdb", "*.ppk"),
    *("id_rsa*", "id_ed25519*", "id_ecdsa*", "id_dsa*", "!id_*.pub"),
    *(".netrc", "_netrc", ".pgpass", ".my.cnf", ".htpasswd", ".pypirc", ".npmrc", ".git-credentials"),
    *("credentials.json", "client_secret*.json", "application_default_credentials.json", "token.json"),
    *("*service-account*.json", "*service_account*.json", "*serviceaccount*.json"),
    *("secrets.json", "secrets.yaml", "secrets.yml", "secrets.toml", ".vault-token", ".dockerconfigjson"),
    *(".aws/", ".ssh/", ".gnupg/", ".azure/", ".kube/config", "**/.kube/config", "**/.docker/config.json"),
    *("**/.config/gcloud/", "terraform.tfstate", "terraform.tfstate.backup", "*.tfvars"),
)

_TOKENS = r"\*+|\?|\[[!^]?\]?[^\]]*\]|\\?.|\\"  # of a glob, each one thing: stars, any character, a set, a plain character

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


def private_places(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the folders and files with this user's credentials, whether they exist or not."""
    home = os.path.expanduser(environ.get("HOME") or "~")
    named = [part for name in _PRIVATE_VARIABLES for part in environ.get(name, "").split(os.pathsep) if part]
    return (*(f"{home}/{name}" for name in _PRIVATE), *named)


def compile_rules(lines: Iterable[str], *, defaults: bool = True) -> Rules:
    """Compile the built-in rules and the lines of an ignore file; later ones win."""
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


def _translate_token(token: str) -> str:
    if token == "?":
        return "."
    if token in {"[", "\\"}:
        raise re.error(f"{token} is not closed")
    if token[0] != "[":
        return re.escape(token[-1])
    inside = token[1:-1]
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
