"""What stays out of the project that ships: by default, because it looks like a secret, or by ``.kineticignore``.

``.kineticignore`` means what ``.gitignore`` means: ``*`` and ``?`` stop at a slash, ``**`` does not, a slash in front
or in the middle ties a line to the root, one at the end means folders only, ``!`` takes back what an earlier line
left out, the last line that fits decides. As with git, nothing below a folder that is left out can be taken back.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
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

_PIECES = re.compile(  # what is not plain in a glob; a bracket or backslash that nothing follows makes it fit nothing
    r"(?P<deep>(?:(?<=/)|^)\*\*(?:/|\Z))|(?P<star>\*+)|(?P<one>\?)"
    r"|\[(?P<set>[!^]?\]?[^\]]*)\]|\\(?P<quoted>.)|(?P<broken>[\[\\])",
    re.DOTALL,
)

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
        """Say in a few words why a path stays out."""
        if self.origin == "user":
            return f"{FILE} line {self.number}: {self.text}"
        return f"looks like a secret ({self.text})" if self.origin == "secret" else f"left out by default ({self.text})"

    def fits(self, relative: str, name: str) -> bool:
        """Say whether the pattern fits a path, or its last part."""
        match = _compiled(self.pattern, any_case=self.origin == "secret")
        return match is not None and match.fullmatch(relative if self.whole_path else name) is not None


class Rules:
    """Everything that decides what stays out, prepared once."""

    def __init__(self, rules: Sequence[Rule], *, environments: bool = True) -> None:
        self._rules = tuple(reversed(rules))  # the last line that fits decides
        self._files = _Sieve(rule for rule in rules if not rule.keeps and not rule.folders_only)
        self._folders = _Sieve(rule for rule in rules if not rule.keeps)
        self.environments = environments

    def concern(self, names: Sequence[str]) -> bool:
        """Say whether any of the files in one folder might have to stay out; nearly always not."""
        return self._files.catches(names)

    def file(self, relative: str, name: str) -> Rule | None:
        """Return the rule that leaves a file out, or None when it ships."""
        return self._refusal(relative, name, folder=False) if self._files.catches((name,)) else None

    def folder(self, relative: str, name: str) -> Rule | None:
        """Return the rule that leaves a folder out with all that it holds, or None."""
        return self._refusal(relative, name, folder=True) if self._folders.catches((name,)) else None

    def insist_on(self, relative: str, name: str) -> bool:
        """Say whether a ``!`` line of the user's asks for a path that stays out for another reason than its name."""
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


class _Sieve:
    """One quick look at all names of a folder at once: what it catches is then judged name by name, rule by rule."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        # Names are joined by slashes, which no name contains. Each pattern gives way to something wider and simpler:
        # its last part as a whole, its end, its beginning, or else the longest run of plain letters in it.
        wider: list[str] = []
        self._catches_all = False
        for rule in rules:
            last = rule.pattern.rpartition("/")[2].lower()
            plain = max(_PIECES.split(last)[:: _PIECES.groups + 1], key=len)
            if not plain:
                self._catches_all = True
            elif last == plain:
                wider.append(f"/{re.escape(plain)}/")
            elif last.endswith(plain):
                wider.append(f"{re.escape(plain)}/")
            elif last.startswith(plain):
                wider.append(f"/{re.escape(plain)}")
            else:
                wider.append(re.escape(plain))
        self._any = re.compile("|".join(sorted(wider)) or "(?!)")

    def catches(self, names: Iterable[str]) -> bool:
        return self._catches_all or self._any.search(f"/{'/'.join(names)}/".lower()) is not None


def read(root: str | os.PathLike[str], environ: Mapping[str, str] = os.environ) -> tuple[Rules, tuple[str, ...]]:
    """Read the rules of a project.

    Returns:
        The rules, and notes for the user: an ignore file that cannot be read does not stop anything.
    """
    defaults = environ.get("KINETIC_NO_DEFAULT_EXCLUDES") != "1"
    lines: list[str] = []
    notes: tuple[str, ...] = ()
    try:
        with open(os.path.join(root, FILE), encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        pass
    except OSError as error:
        notes = (f"{FILE} cannot be read and is passed over: {error.strerror}",)
    return compile_rules(lines, defaults=defaults), notes


def compile_rules(lines: Iterable[str], *, defaults: bool = True) -> Rules:
    """Compile the built-in rules and the lines of an ignore file, in the order in which they speak."""
    built_in = [*ALWAYS, *DEFAULTS] if defaults else list(ALWAYS)
    rules = [rule for text in built_in if (rule := _rule(text, "default", 0))]
    rules += [rule for text in SECRETS if (rule := _rule(text, "secret", 0))]
    rules += [rule for number, text in enumerate(lines, 1) if (rule := _rule(text, "user", number))]
    return Rules(rules, environments=defaults)


def _rule(line: str, origin: Origin, number: int) -> Rule | None:
    """Compile one line; None for a comment, an empty line, or one that can fit nothing."""
    text = re.sub(r"(?<!\\)[ \t]+$", "", line.removeprefix("\ufeff"))
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


@functools.cache
def _compiled(pattern: str, *, any_case: bool) -> re.Pattern[str] | None:
    """Compile a pattern when it is first asked for: few ever are."""
    try:
        return re.compile(_translate(pattern), re.DOTALL | (re.IGNORECASE if any_case else 0))
    except re.error:  # such as [z-a]: git lets it fit nothing
        return None


def _translate(pattern: str) -> str:
    """Turn a glob into a regular expression; raise re.error for what can fit nothing."""
    done, parts = 0, []
    for piece in _PIECES.finditer(pattern):
        parts.append(re.escape(pattern[done : piece.start()]))
        parts.append(_translate_piece(piece, at_end=piece.end() == len(pattern)))
        done = piece.end()
    return "".join(parts) + re.escape(pattern[done:])


def _translate_piece(piece: re.Match[str], *, at_end: bool) -> str:
    if piece["deep"]:
        return ".+" if at_end and not piece["deep"].endswith("/") else "(?:.*/)?"
    if piece["star"]:
        return "[^/]*"
    if piece["one"]:
        return "[^/]"
    if piece["quoted"]:
        return re.escape(piece["quoted"])
    if piece["broken"]:
        raise re.error(f"{piece['broken']} is not closed")
    inside = piece["set"]
    negated = inside[:1] in {"!", "^"}
    body = re.sub(r"([\\\[&~|])", r"\\\1", inside[negated:]) if "\\" not in inside else inside[negated:]
    body = ("\\" + body) if body.startswith(("]", "^")) else body
    return f"(?!/)[{'^' if negated else ''}{body}]"
