"""From a word of the command line to a value: by the type that a function asks for, else as Python would read it."""

from __future__ import annotations

import ast
import collections.abc
import enum
import inspect
import pathlib
import types
import typing
import warnings
from typing import Any

ANY: Any = inspect.Parameter.empty  # no type is known: a Python literal, else text
_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})
_SEQUENCES: dict[object, type] = {
    list: list,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Iterable: list,
    collections.abc.Collection: list,
    collections.abc.Set: frozenset,
    collections.abc.MutableSet: set,
}
_BRACKETS = ("[", "(", "{")


class WordError(ValueError):
    """Say that a word is not what a type asks for; the text completes "NAME=WORD …"."""


def read(word: str, kind: Any) -> Any:
    """Return what a word means where a function asks for a type.

    Args:
        word: As it was typed.
        kind: An annotation, resolved; ``ANY`` where there is none.

    Raises:
        WordError: It cannot be read so.
    """
    kind = _bare(kind)
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin in {typing.Union, types.UnionType}:
        return _any_of(word, members)
    if origin is typing.Literal:
        return _choice(word, {str(member): member for member in members})
    if is_sequence(kind):
        return _sequence([word], kind)
    if (origin or kind) in {dict, collections.abc.Mapping, collections.abc.MutableMapping}:
        return _mapping(word)
    return _plain(word, kind)


def read_many(words: list[str], kind: Any) -> Any:
    """Return what an option means that was given several times: its type holds many values.

    Raises:
        WordError: One of the words cannot be read so.
    """
    return _sequence(words, _bare(kind))


def is_sequence(kind: Any) -> bool:
    """Say whether a type holds many values, or may."""
    kind = _bare(kind)
    origin = typing.get_origin(kind) or kind
    return origin is tuple or origin in _SEQUENCES


def is_flag(kind: Any) -> bool:
    """Say whether a type is bool, or bool or None."""
    kind = _bare(kind)
    return kind is bool or set(typing.get_args(kind)) == {bool, types.NoneType}


def told(kind: Any) -> str:
    """Return a type in the words of a usage message; "" where none is known."""
    kind = _bare(kind)
    if kind is ANY:
        return ""
    if typing.get_origin(kind) is typing.Literal:
        return "|".join(str(member) for member in typing.get_args(kind))
    if isinstance(kind, enum.EnumMeta):
        return "|".join(kind.__members__)
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else inspect.formatannotation(kind)


def literal(word: str) -> Any:
    """Return a Python literal, or the word itself where it is none."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of odd escapes: it is the user's text, not our program
            return ast.literal_eval(word)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return word


def _bare(kind: Any) -> Any:
    """Take away what says nothing about the values: Annotated and NewType; what is no type at all is ANY."""
    while True:
        if typing.get_origin(kind) is typing.Annotated:
            kind = typing.get_args(kind)[0]
        elif hasattr(kind, "__supertype__"):
            kind = kind.__supertype__
        else:
            return kind if _is_hashable(kind) else ANY


def _any_of(word: str, members: tuple[Any, ...]) -> Any:
    """Read by the first member that takes the word; text, which takes every word, is asked last."""
    if types.NoneType in members and word == "None":
        return None
    others = [member for member in members if member is not types.NoneType]
    for member in sorted(others, key=lambda member: member is str):
        try:
            return read(word, member)
        except WordError as error:
            problem = error
    raise problem if len(others) == 1 else WordError(f"is none of {', '.join(map(told, others))}")


def _choice(word: str, members: dict[str, Any]) -> Any:
    if word in members:
        return members[word]
    alike = [name for name in members if name.lower() == word.lower()]
    if len(alike) == 1:
        return members[alike[0]]
    raise WordError(f"is none of {', '.join(members)}")


def _sequence(words: list[str], kind: Any) -> Any:
    origin, members = typing.get_origin(kind) or kind, typing.get_args(kind)
    parts = [part for word in words for part in _parts(word)]
    if origin is tuple and members and members[-1] is not Ellipsis:
        if len(parts) != len(members):
            raise WordError(f"has {len(parts)} values, and {told(kind)} takes {len(members)}")
        return tuple(_part(part, member) for part, member in zip(parts, members, strict=True))
    each = members[0] if members else ANY
    return (tuple if origin is tuple else _SEQUENCES[origin])(_part(part, each) for part in parts)


def _parts(word: str) -> list[Any]:
    """Return the values of a list as it was typed: "1,2", or as Python writes lists."""
    if word.startswith(_BRACKETS):
        found = literal(word)
        if isinstance(found, list | tuple | set):
            return list(found)
        word = word[1:-1]  # [a, b] without quotes
    return [part.strip() for part in word.split(",")] if word.strip() else []


def _part(part: Any, kind: Any) -> Any:
    if isinstance(part, str):
        return read(part, kind)
    return part if _bare(kind) in {ANY, Any, object} else read(repr(part), kind)


def _mapping(word: str) -> Any:
    import json

    found = literal(word)
    if not isinstance(found, dict):
        try:
            found = json.loads(word)
        except ValueError:
            found = None
    if not isinstance(found, dict):
        raise WordError("is not a dict: write it as Python or as JSON does")
    return found


def _plain(word: str, kind: Any) -> Any:
    if kind is str:
        return word
    if kind is bool:
        if word.lower() in _TRUE | _FALSE:
            return word.lower() in _TRUE
        raise WordError("is neither true nor false")
    if kind in {int, float, complex}:
        return _number(word, kind)
    if kind in {None, types.NoneType}:
        if word == "None":
            return None
        raise WordError("is not None")
    if isinstance(kind, enum.EnumMeta):
        return _choice(word, dict(kind.__members__))
    if isinstance(kind, type) and issubclass(kind, pathlib.PurePath):
        return kind(word)
    return literal(word)


def _number(word: str, kind: Any) -> Any:
    try:
        return int(word, 0) if kind is int else kind(word)
    except ValueError:
        pass
    try:
        return kind(word)  # 007 is a number to a person
    except ValueError:
        raise WordError(f"is not {'an int' if kind is int else f'a {kind.__name__}'}") from None


def _is_hashable(kind: object) -> bool:
    try:
        hash(kind)
    except TypeError:
        return False
    return True
