"""Find phrases that a reader with English as a second language has to guess, in messages and in pages.

Run by `make check`. Each phrase of PHRASES has what to write instead; the reason is the section "English" of the style
that CONTRIBUTING.md describes. Texts are: every string in src that is not a docstring, the docstrings of the public
modules, README.md, CONTRIBUTING.md, and the pages below docs/ (not the decision records, which are history). What
is in backquotes is code and is not read.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PHRASES = {
    r"(goes|go|went|gone|going) on\b(?! (to|with))": "keeps running, continues",
    r"\b(lies|lay|lying)\b": "is, is stored",
    r"\b(stands|stood) (in|on|at|there|here|for itself|beside|below|above)\b": "is",
    r"\b(is|are|was|were) told\b": "sees, is reported",
    r"\b(whoever|whomever|whosoever)\b": "a user who, a process that",
    r"\b(nobody|somebody)\b": "no one, a user, another process",
    r"\bto be had\b": "available",
    r"\bin words\b": "as text",
    r"\blet(s|ting)? go of\b": "releases",
    r"(?<![Tt]here )\b(is|are) no (?!longer|more than|less than|such)": "is not a",
    r"\bless than none\b": "negative",
    r"\bwithout more ado\b": "at once",
    r"\bcannot be called so\b": "is not one",
    r"\bof (its|their|his) own accord\b": "automatically",
    r"\bwho we are\b": "our credentials",
    r"\bleads nowhere\b": "cannot be used",
    r"\bthat would do\b": "matching",
    r"\bfor ever\b": "forever",
    r"\b(thereby|herewith|therein|thereof|whereupon|henceforth)\b": "(leave it out)",
    r"\b(keeper|soil|tombstone|life lock)s?\b": "supervisor, process template, history record, process lock",
    r"\bbury|\bburied\b|\bforsak": "recover, abandon",
    r"\bcomes? to (its|an) end\b": "ends",
    r"\bsay(s)? whether\b": "return whether",
    r"\bwherever it\b": "everywhere it",
    r"\bas long as it lives\b": "while it runs",
}
BANNED = [(re.compile(phrase, re.IGNORECASE), instead) for phrase, instead in PHRASES.items()]
Found = tuple[str, int, str, str]
CODE = re.compile(r"`[^`]*`")
PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md", "docs/design/*.md")


def main() -> int:
    """Print each phrase with its place; return the exit status."""
    found = sorted({*in_pages(), *in_source()})
    for path, line, phrase, instead in found:
        sys.stdout.write(f"{path}:{line}: write {instead!r} instead of {phrase!r}\n")
    return bool(found)


def in_pages() -> Iterator[Found]:
    """Yield the phrases in the manual and in the pages for developers."""
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                yield from matches(path, number, CODE.sub("", line))  # code is code: names of tests, users, files


def in_source() -> Iterator[Found]:
    """Yield the phrases in the strings of the source and in the docstrings of public modules."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree, public = ast.parse(path.read_text()), path.parent.name == "kinetic"
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and (public or id(node) not in docstrings)
            ):
                yield from matches(path, node.lineno, " ".join(node.value.split()))


def matches(path: Path, line: int, text: str) -> Iterator[Found]:
    """Yield the phrases in one text: file, line, phrase, and what to write instead."""
    for phrase, instead in BANNED:
        for match in phrase.finditer(text):
            yield str(path.relative_to(ROOT)), line, match.group(), instead


if __name__ == "__main__":
    sys.exit(main())
