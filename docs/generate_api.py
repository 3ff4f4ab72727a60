"""Write docs/api.md from the docstrings.

    python docs/generate_api.py

The page is committed, and tests/architecture compares it with what this makes. It needs nothing but kinetic itself.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).with_name("api.md")
sys.path.insert(0, str(PAGE.parents[1] / "src"))

sys.path.insert(0, str(PAGE.parent))

from api_examples import EXAMPLES  # noqa: E402 - the same

import kinetic  # noqa: E402 - the sources beside this file, whatever is installed
from kinetic._stores.protocol import Store  # noqa: E402 - the same

HEAD = """\
# Reference

Every public name, from the docstrings. Do not edit this page; edit those, and run `python docs/generate_api.py`.
"""
# Heading, what it says first, and the names below kinetic that follow.
CHAPTERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "Running a function",
        "[Getting started](getting-started.md) and [Command jobs](commands.md) tell how they are used.",
        ("run", "run_command", "RemoteCallable", "current", "is_remote"),
    ),
    ("Jobs", "[Jobs](jobs.md) tells how they are used.", ("JobHandle", "JobStatus", "attach", "list_jobs")),
    ("Batches", "[Batches](batches.md) tells how they are used.", ("BatchHandle", "attach_batch", "collections")),
    (
        "Data and outputs",
        "[Data](data.md) and [outputs](outputs.md) tell how they are used.",
        ("Data", "output_dir", "checkpoint_dir", "progress"),
    ),
    ("Modules", "", ("jobs", "job_status", "debug", "__version__")),
    ("Testing", "[Testing](testing.md) tells how it is used.", ("testing",)),
)
ABOUT = {"kinetic.__version__": "The version, as text."}  # its value would change this page with each release
# What an object of a class is called where a signature needs one.
CALLED = {
    "kinetic.BatchHandle": "batch",
    "kinetic.Data": "data",
    "kinetic.JobHandle": "job",
    "kinetic.jobs.CurrentJob": "current",
    "kinetic.jobs.HostUsage": "host",
    "kinetic.jobs.Progress": "progress",
    "kinetic.jobs.Usage": "usage",
    "kinetic.RemoteCallable": "f",
    "kinetic.testing.FakeBackend": "backend",
    "kinetic.testing.FakeClock": "clock",
    "kinetic.testing.MemoryStore": "store",
}
SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises|Source):\s*(.*)")
ITEM = re.compile(r"(\*{0,2}[\w.]+): (.*)")
TITLES = {"Args": "Arguments", "Yields": "Gives"}
CODE = ("    ", "def ")  # how lines of code in a docstring begin
# Not "python": a signature is no script, and the test of the snippets runs those.
SIGNATURE = "py"


def page() -> str:
    """Return the whole page."""
    parts = [HEAD, *(text for chapter in CHAPTERS for text in _chapter(*chapter)), *_errors()]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part.strip())


def _chapter(title: str, words: str, names: Sequence[str]) -> Iterator[str]:
    yield f"## {title}"
    yield words
    for name in names:
        yield from _thing(f"kinetic.{name}", getattr(kinetic, name))


def _thing(name: str, found: object, level: int = 3) -> Iterator[str]:
    """Describe one public thing, and what is public in it."""
    yield f"{'#' * level} `{name}`"
    if name in ABOUT:
        yield ABOUT[name]
    elif isinstance(found, ModuleType):
        yield _text(found)
        for inner in _public_of_module(found):
            yield from _thing(f"{name}.{inner}", getattr(found, inner), level + 1)
    elif isinstance(found, type):
        yield from _class(name, found, level)
    elif callable(found):
        yield _fenced(f"{name}{_signature(found)}", SIGNATURE)
        yield _text(found)
        yield _example(name)
    else:
        yield f"`{found!r}`" if not isinstance(found, frozenset) else _members(found)


def _public_of_module(module: ModuleType) -> list[str]:
    """Return what a module promises and no chapter tells already."""
    told = {name for _, _, names in CHAPTERS for name in names}
    return [name for name in module.__all__ if name not in told]


def _class(name: str, kind: type, level: int) -> Iterator[str]:
    if "__init__" in vars(kind) and not dataclasses.is_dataclass(kind) and name != "kinetic.RemoteCallable":
        yield _fenced(f"{name}{_signature(kind.__init__, skip_first=True)}", SIGNATURE)
    yield _text(kind)
    yield _example(name)
    if issubclass(kind, enum.Enum):
        yield "\n".join(f"* `{name}.{member.name}`" for member in kind)
    for inner, member in vars(kind).items():
        if inner.startswith("_") and inner != "__call__":
            continue
        found = member.__func__ if isinstance(member, classmethod | staticmethod) else getattr(kind, inner)
        if isinstance(member, property):
            yield f"{'#' * (level + 1)} `{name}.{inner}`"
            yield _text(member)
        elif inspect.isfunction(found) and found.__doc__:
            yield from _method(name, inner, member, found, level + 1)


def _method(name: str, inner: str, member: object, found: object, level: int) -> Iterator[str]:
    if inner != found.__name__:  # type: ignore[attr-defined] # isfunction said that it has one
        yield f"{'#' * level} `{name}.{inner}`"
        yield f"Another name of `{found.__name__}`."  # type: ignore[attr-defined] # as above
        return
    called = name if isinstance(member, classmethod) else CALLED[name]
    words = called if inner == "__call__" else f"{called}.{inner}"
    yield f"{'#' * level} {'Calling it' if inner == '__call__' else f'`{name}.{inner}`'}"
    yield _fenced(f"{words}{_signature(found, skip_first=True)}", SIGNATURE)
    yield _text(_explained(inner, found))
    yield _example(f"{name}.{inner}")


def _example(name: str) -> str:
    """Return the script that shows how a name is used, if it has one; the test of the snippets runs it."""
    return f"Example:\n\n{_fenced(EXAMPLES[name], 'python')}" if name in EXAMPLES else ""


def _explained(inner: str, found: object) -> object:
    """Return what has the explanation: a method of a store refers to the protocol that all stores follow."""
    return getattr(Store, inner) if "see the protocol" in (inspect.getdoc(found) or "") else found


def _errors() -> Iterator[str]:
    """Tell the classes as a tree; [Errors] has the codes."""
    yield "## Errors"
    yield (
        "All of them are in `kinetic.errors`; `kinetic.BatchError` is the one that is there as well. "
        "[Errors](errors.md) says what each code means and what to do."
    )
    errors = kinetic.errors
    known = [getattr(errors, name) for name in errors.__all__]
    roots = [kind for kind in known if not set(kind.__mro__[1:]) & set(known)]
    yield "\n".join(line for kind in roots for line in _branch(kind, known, 0))
    for kind in known:
        text = inspect.cleandoc(kind.__doc__ or "")
        if "\n" in text:
            yield from _thing(f"kinetic.errors.{kind.__name__}", kind)


def _branch(kind: type, known: Sequence[type], depth: int) -> Iterator[str]:
    also = [base.__name__ for base in kind.__bases__ if base not in known and base is not Exception]
    code = vars(kind).get("default_code")
    words = f"{'    ' * depth}* `{kind.__name__}`"  # four spaces: two nest on GitHub only, not on the site
    words += f" (also a `{'`, `'.join(also)}`)" if also else ""
    words += f", code `{code}`" if code else ""
    yield f"{words}: {inspect.cleandoc(kind.__doc__ or '').splitlines()[0]}"
    for below in known:
        if kind in below.__bases__:
            yield from _branch(below, known, depth + 1)


def _members(found: frozenset[object]) -> str:
    names = sorted(f"{type(one).__name__}.{one.name}" for one in found if isinstance(one, enum.Enum))
    return f"A set: `{'`, `'.join(names)}`."


# -- signatures, written alike by every version of Python


def _signature(function: object, *, skip_first: bool = False) -> str:
    found = inspect.signature(function)  # type: ignore[arg-type] # all of ours have one
    parameters = list(found.parameters.values())[1 if skip_first else 0 :]
    words = list(_words(parameters))
    returns = "" if found.return_annotation in {inspect.Signature.empty, "None", None} else found.return_annotation
    arrow = f" -> {_annotation(returns)}" if returns else ""
    line = f"({', '.join(words)}){arrow}"
    if len(line) <= 80:
        return line
    return "(\n" + "".join(f"    {word},\n" for word in words) + f"){arrow}"


def _words(parameters: Sequence[inspect.Parameter]) -> Iterator[str]:
    starred = False
    for parameter in parameters:
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        yield _word(parameter)


def _word(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    word = f"{stars}{parameter.name}"
    typed = parameter.annotation is not parameter.empty
    if typed:
        word += f": {_annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        word += f"{' = ' if typed else '='}{_value(parameter.default)}"
    return word


def _annotation(found: object) -> str:
    return found if isinstance(found, str) else inspect.formatannotation(found)


def _value(found: object) -> str:
    return f'"{found}"' if isinstance(found, str) else repr(found)


# -- docstrings, from Google's style to Markdown


def _text(thing: object) -> str:
    """Return a docstring as Markdown."""
    lines = inspect.cleandoc(getattr(thing, "__doc__", None) or "").splitlines()
    parts: list[str] = []
    while lines:
        section = SECTION.fullmatch(lines[0])
        if section:
            lines.pop(0)
            body = [section[2]] if section[2] else []
            parts.append(_section(section[1], body + _taken(lines, indented=True)))
        elif lines[0].startswith(CODE):
            code = [lines.pop(0), *_taken(lines, indented=True)]
            parts.append(_fenced(inspect.cleandoc("\n".join(["", *code])), SIGNATURE))
        else:
            parts.append(_prose(_taken(lines, indented=False)))
    return "\n\n".join(part for part in parts if part.strip())


def _taken(lines: list[str], *, indented: bool) -> list[str]:
    """Take the lines of one part off the front: those that are indented, or those up to the next other part."""
    taken: list[str] = []
    while lines and (not lines[0].strip() or lines[0].startswith("    ") == indented):
        if not indented and taken and (SECTION.fullmatch(lines[0]) or lines[0].startswith(CODE)):
            break
        taken.append(lines.pop(0))
    return taken


def _section(title: str, lines: Sequence[str]) -> str:
    body = inspect.cleandoc("\n".join(["", *lines])).splitlines()
    heading = f"{TITLES.get(title, title)}:"
    if title in {"Returns", "Yields", "Source"}:
        return f"{heading} {_prose(body)}"
    items: list[list[str]] = []
    rest: list[str] = []
    for line in body:
        item = ITEM.fullmatch(line)
        if item:
            items.append([f"* `{item[1]}`: {_prose([item[2]])}"])
        elif line.startswith("    ") and items:
            items[-1].append(f"  {_prose([line.strip()])}")
        elif line.strip():
            rest.append(line)
    told = "\n".join(line for item in items for line in item)
    return f"{heading}\n\n{told}" + (f"\n\n{_prose(rest)}" if rest else "")


def _prose(lines: Sequence[str]) -> str:
    return re.sub(r"``(.+?)``", r"`\1`", "\n".join(lines).strip("\n"))


def _fenced(text: str, language: str) -> str:
    return f"```{language}\n{text.strip()}\n```"


if __name__ == "__main__":
    PAGE.write_text(page())
