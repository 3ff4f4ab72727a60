"""The words behind ``FILE.py::func``: which argument of the function each one is, and how a function is explained."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kinetic._cli import words as words_
from kinetic.errors import OptionError

_HELP = frozenset({"--help", "-h"})
_NUMBER = re.compile(r"-(\d|\.\d|inf|nan)")  # what looks like an option and is a negative number
_POSITIONAL = frozenset({inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD})
_MANY = frozenset({inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD})
_LONGEST_DEFAULT = 40  # characters
EMPTY = inspect.Parameter.empty


class Arguments(NamedTuple):
    """What a function is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def wants_help(words: Sequence[str]) -> bool:
    """Say whether the words ask for the function's usage."""
    own = _without_separator(words)
    return bool(_HELP.intersection(own[: own.index("--")] if "--" in own else own))


def read(function: Callable[..., Any], words: Sequence[str], target: str) -> Arguments:
    """Return the arguments that the words stand for.

    Args:
        function: What will be called.
        words: What was typed behind it: values by position, ``--name value``, ``--name=value``, ``--flag`` and
            ``--no-flag``; ``--`` ends the names.
        target: As the user wrote it, e.g. "train.py::train".

    Raises:
        OptionError: They do not fit; the function's usage is its note.
    """
    try:
        return _Reading(_parameters(function)).read(_without_separator(words))
    except _Misfit as misfit:
        error = OptionError(misfit.what, why=misfit.why, next=f"kinetic run {target} --help", code="arguments")
        error.add_note(usage(function, target))
        raise error from None


def usage(function: Callable[..., Any], target: str) -> str:
    """Explain a function: its signature, the first line of its docstring, and each argument."""
    parameters = _parameters(function)
    name = getattr(function, "__name__", type(function).__name__)
    lines = [f"Usage: kinetic run [OPTIONS] {target} [ARGUMENTS]", "", f"  {name}{inspect.Signature(parameters)}"]
    first, *_ = (inspect.getdoc(function) or "").splitlines() or [""]
    if first:
        lines.append(f"  {first}")
    if parameters:
        rows = [_row(parameter) for parameter in parameters]
        widths = [max(len(row[column]) for row in rows) for column in range(2)]
        lines += ["", "Arguments, by position or by name:"]
        lines += [f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}".rstrip() for row in rows]
    return "\n".join(lines)


class _Misfit(Exception):  # noqa: N818 - never leaves this file
    def __init__(self, what: str, why: str | None = None) -> None:
        super().__init__(what)
        self.what, self.why = what, why


class _Reading:
    """One line of words on its way to one function."""

    def __init__(self, parameters: list[inspect.Parameter]) -> None:
        self._parameters = {parameter.name: parameter for parameter in parameters}
        self._named = {name: one for name, one in self._parameters.items() if one.kind not in _MANY}
        self._rest = next((one for one in parameters if one.kind is inspect.Parameter.VAR_POSITIONAL), None)
        self._others = next((one for one in parameters if one.kind is inspect.Parameter.VAR_KEYWORD), None)
        self._given: dict[str, list[str]] = {}
        self._extra: dict[str, Any] = {}
        self._by_position: list[str] = []

    def read(self, words: list[str]) -> Arguments:
        left = list(words)
        while left:
            word = left.pop(0)
            if word == "--":
                self._by_position += left
                break
            if word.startswith("--"):
                self._name(word[2:], left)
            elif word.startswith("-") and len(word) > 1 and not _NUMBER.match(word):
                raise _Misfit(f"there is no argument {word}", "names of arguments begin with two dashes")
            else:
                self._by_position.append(word)
        return self._bound()

    def _name(self, written: str, left: list[str]) -> None:
        """Take in ``--name``, with its value if it has one."""
        name, equals, value = written.partition("=")
        name = name.replace("-", "_")
        parameter = self._named.get(name)
        if parameter is None and name.startswith("no_") and _is_flag(self._named.get(name[3:])) and not equals:
            self._put(name[3:], "false")
        elif parameter is None:
            self._name_of_others(name, value if equals else None, left)
        elif equals:
            self._put(name, value)
        elif _is_flag(parameter):
            said = bool(left) and left[0].lower() in {"true", "false"}
            self._put(name, left.pop(0) if said else "true")
        elif not left or left[0].startswith("--"):
            raise _Misfit(f"--{_dashed(name)} has no value", f"write --{_dashed(name)} VALUE")
        else:
            self._put(name, left.pop(0))

    def _name_of_others(self, name: str, value: str | None, left: list[str]) -> None:
        if self._others is None or not name.isidentifier():
            raise _Misfit(f"there is no argument --{_dashed(name)}", self._nearest(name))
        if value is None:
            value = left.pop(0) if left and not left[0].startswith("--") else "True"
        if name in self._extra:
            raise _Misfit(f"--{_dashed(name)} is given twice")
        self._extra[name] = _value(name, value, self._others)

    def _put(self, name: str, value: str) -> None:
        if name in self._given and not words_.is_sequence(_core(self._named[name])):
            raise _Misfit(f"--{_dashed(name)} is given twice")
        self._given.setdefault(name, []).append(value)

    def _bound(self) -> Arguments:
        for name, parameter in self._named.items():
            if parameter.kind in _POSITIONAL and name not in self._given and self._by_position:
                self._given[name] = [self._by_position.pop(0)]
        if self._by_position and self._rest is None:
            places = sum(one.kind in _POSITIONAL for one in self._named.values())
            takes = "no argument" if not places else "1 argument" if places == 1 else f"{places} arguments"
            raise _Misfit(f"{self._by_position[0]!r} is one argument too many", f"it takes {takes} by position")
        missing = [name for name, one in self._named.items() if name not in self._given and one.default is EMPTY]
        if missing:
            raise _Misfit(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
        return self._called_with()

    def _called_with(self) -> Arguments:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, parameter in self._named.items():
            given = self._given.get(name)
            value = parameter.default if given is None else _values(name, given, parameter)
            by_place = parameter.kind is inspect.Parameter.POSITIONAL_ONLY or (
                parameter.kind in _POSITIONAL and self._by_position
            )
            if by_place:
                args.append(value)
            elif given is not None:
                kwargs[name] = value
        if self._rest is not None:
            args += [_value(self._rest.name, word, self._rest) for word in self._by_position]
        return Arguments(tuple(args), {**kwargs, **self._extra})

    def _nearest(self, name: str) -> str | None:
        import difflib  # 5 ms; only on the way to an error

        near = difflib.get_close_matches(name, self._named, 1)
        known = ", ".join(f"--{_dashed(one)}" for one in self._named)
        if near:
            return f"nearest: --{_dashed(near[0])}"
        return f"it knows {known}" if known else "it takes no arguments"


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function with their annotations resolved; what cannot be resolved is left out."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # builtins tell none: anything by position or by name
        kinds = (("values", inspect.Parameter.VAR_POSITIONAL), ("names", inspect.Parameter.VAR_KEYWORD))
        return [inspect.Parameter(name, kind) for name, kind in kinds]
    names = getattr(inspect.unwrap(function), "__globals__", {})
    return [one.replace(annotation=_resolved(one.annotation, names)) for one in signature.parameters.values()]


def _resolved(annotation: Any, names: dict[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, names)  # noqa: S307 - as typing.get_type_hints does, which fails for all when one fails
    except Exception:  # noqa: BLE001 - the user's names; one that is imported for type checkers only, for example
        return EMPTY


def _value(name: str, word: str, parameter: inspect.Parameter) -> Any:
    try:
        return words_.read(word, _kind(parameter))
    except words_.WordError as error:
        raise _Misfit(f"{name}={word!r} {error}") from None


def _values(name: str, given: list[str], parameter: inspect.Parameter) -> Any:
    if len(given) == 1:
        return _value(name, given[0], parameter)
    try:
        return words_.read_many(given, _core(parameter))
    except words_.WordError as error:
        raise _Misfit(f"{name}={', '.join(given)!r} {error}") from None


def _kind(parameter: inspect.Parameter) -> Any:
    """Return the annotation, or what the default shows where there is none and it is a flag."""
    if parameter.annotation is EMPTY and isinstance(parameter.default, bool):
        return bool
    return parameter.annotation


def _core(parameter: inspect.Parameter) -> Any:
    """Return the one type besides None that a parameter takes."""
    import typing

    kind = _kind(parameter)
    members = [member for member in typing.get_args(kind) if member is not type(None)]
    return members[0] if len(members) == 1 and type(None) in typing.get_args(kind) else kind


def _is_flag(parameter: inspect.Parameter | None) -> bool:
    return parameter is not None and words_.is_flag(_kind(parameter))


def _row(parameter: inspect.Parameter) -> tuple[str, str, str]:
    kind = words_.told(_kind(parameter))
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return f"[{parameter.name} ...]", kind, "any number, by position"
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return "--ANY-NAME VALUE", kind, "any others, by name"
    name = f"--{_dashed(parameter.name)}"
    if _is_flag(parameter):
        name += f", --no-{_dashed(parameter.name)}"
    if parameter.default is EMPTY:
        return name, kind, "needed"
    default = repr(parameter.default)
    return name, kind, f"{default if len(default) <= _LONGEST_DEFAULT else default[:_LONGEST_DEFAULT] + '…'} without it"


def _without_separator(words: Sequence[str]) -> list[str]:
    """Drop the ``--`` that may stand between the function and its arguments."""
    return list(words[1:] if words[:1] == ("--",) or words[:1] == ["--"] else words)


def _dashed(name: str) -> str:
    return name.replace("_", "-")
