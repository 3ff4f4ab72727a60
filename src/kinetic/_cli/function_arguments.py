"""The words behind ``kinetic run FILE.py::func`` as arguments: a click command is made from the signature."""

from __future__ import annotations

import ast
import collections.abc
import dataclasses
import enum
import inspect
import itertools
import json
import numbers
import types
import typing
import warnings
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any

import click
from click.core import ParameterSource

from kinetic._cli import target_function
from kinetic._cli.error_output import in_front
from kinetic._output.format import shortened
from kinetic._wire import NamedTuple, deferred_annotations
from kinetic.errors import OptionError

EMPTY = inspect.Parameter.empty
_HELP = frozenset({"--help", "-h"})
_POSITIONAL = frozenset({inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD})
_VALUES = "kinetic values"  # the click argument that collects values by position; no parameter can have this name
_COLLECTIONS: dict[object, Callable[[Any], Any]] = {
    list: list,
    set: set,
    tuple: tuple,
    frozenset: frozenset,
    collections.abc.Collection: list,
    collections.abc.Iterable: list,
    collections.abc.MutableSequence: list,
    collections.abc.MutableSet: set,
    collections.abc.Sequence: list,
    collections.abc.Set: frozenset,
}
_MAPPINGS = frozenset({dict, collections.abc.Mapping, collections.abc.MutableMapping})
_SIMPLE: dict[object, click.ParamType[Any]] = {
    bool: click.BOOL,
    complex: click.types.FuncParamType(complex),
    float: click.FLOAT,
    int: click.INT,
    str: click.STRING,
}


class Arguments(NamedTuple):
    """The arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def wants_help(words: Sequence[str]) -> bool:
    """Return whether the words ask for the function's usage."""
    return bool(_HELP.intersection(_split(words)[0]))


def read_arguments(function: Callable[..., Any], words: Sequence[str], target: str) -> Arguments:
    """Convert the words after the function to its arguments; all words after ``--`` are values by position."""
    options, values = _split(words)
    parameters = _parameters(function)
    command = _command(function, parameters, options)
    try:
        context = command.make_context(
            f"{target_function.program()} [OPTIONS] {target}", [*options], ignore_unknown_options=True
        )
        given = [*context.params[_VALUES]]
        _check_options(command, given)
        _check_flags(command, options)
        return _bound(context, parameters, [*given, *values])
    except click.UsageError as error:
        refused = OptionError(
            error.format_message(), next=f"{target_function.program()} {target} --help", code="arguments"
        )
        ours = click.get_current_context(silent=True)
        name = error.option_name if isinstance(error, click.NoSuchOption) else ""
        if ours is not None and any(name in (*each.opts, *each.secondary_opts) for each in ours.command.params):
            refused.what = f"{target} has no option {name}"
            refused.why = f"{name} is an option of {target_function.program()}, and those come before the file"
            refused.next = in_front(name, ours) or f"{target_function.program()} {name} … {target}"
        refused.add_note(usage(function, target))
        raise refused from None


def usage(function: Callable[..., Any], target: str) -> str:
    """Return the help of a function: its signature, the first line of its docstring, and its options."""
    command = _command(function, _parameters(function), ())
    title = f"{target_function.program()} [OPTIONS] {target}"
    return command.get_help(click.Context(command, info_name=title, max_content_width=100))


class Value(click.ParamType):  # type: ignore[type-arg] # not generic before click 8.3
    """A value of an annotated type; without annotation a Python literal or else a string."""

    def __init__(self, kind: Any) -> None:
        self.kind = _bare(kind)
        self.name = _type_name(self.kind)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert one word, or a tuple of the words of an option that was repeated."""
        words = [value] if isinstance(value, str) else list(value)
        try:
            return _converted(words[0], self.kind) if len(words) == 1 else _collection(words, _without_none(self.kind))
        except click.BadParameter as error:
            self.fail(error.message, param, ctx)


def _command(function: Callable[..., Any], parameters: list[inspect.Parameter], words: Sequence[str]) -> click.Command:
    """Return a command with one option for each parameter, and one argument for the values by position."""
    taken = {f"--{_dashed(one.name)}" for one in parameters}
    options: list[click.Parameter] = []
    values = None
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            values = parameter
        elif parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            options.append(_option(parameter, taken))
        else:
            own = {flag for option in options for flag in (*option.opts, *option.secondary_opts)}
            others = {word.partition("=")[0] for word in words if word.startswith("--")} - own
            for option in sorted(others):
                name = option[2:].replace("-", "_")
                if name.isidentifier():  # for **kwargs; without a value it is True
                    value = Value(parameter.annotation)
                    options.append(
                        click.Option([name, option], type=value, is_flag=False, flag_value="True", hidden=True)
                    )
    signature = f"{getattr(function, '__name__', type(function).__name__)}{inspect.Signature(parameters)}"
    first, *_ = (inspect.getdoc(function) or "").splitlines() or [""]
    many = f" More values go to *{values.name}." if values is not None else ""
    return click.Command(
        None,
        params=[click.Argument([_VALUES], nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]"), *options],
        help=f"\b\n{signature}\n{first}",
        options_metavar=None,
        epilog=f"Arguments can be given by position or by name.{many}",
    )


def _option(parameter: inspect.Parameter, taken: set[str]) -> click.Option:
    value = Value(_kind(parameter))
    names = [parameter.name, f"--{_dashed(parameter.name)}"]
    default = "required" if parameter.default is EMPTY else f"default: {shortened(_typed(parameter.default), 40)}"
    help_ = f"[{default}]"
    if set(typing.get_args(value.kind)) == {bool, types.NoneType} or value.kind is bool:
        no = f"--no-{_dashed(parameter.name)}"
        return click.Option([names[0], names[1] + (f"/{no}" if no not in taken else "")], default=None, help=help_)
    names += [f"--{parameter.name}"] if "_" in parameter.name else []
    kind = _without_none(value.kind)
    many = (typing.get_origin(kind) or kind) in _COLLECTIONS
    words = click.UNPROCESSED if many else value
    return click.Option(names, type=words, multiple=many, metavar=value.name or "VALUE", help=help_)


def _typed(default: object) -> str:
    """Return a default as it is typed: the name of an enum's member, a path without its class, else its repr."""
    if isinstance(default, enum.Enum):
        return default.name
    return repr(str(default) if isinstance(default, PurePath) else default)


def _check_options(command: click.Command, values: list[str]) -> None:
    """Refuse values that look like an option that the function does not have; a negative number is a value."""
    for word in values:
        if word.startswith("-") and len(word) > 1 and not _is_number(word):
            name = word.partition("=")[0]
            known = [flag for option in command.params for flag in (*option.opts, *option.secondary_opts)]
            raise click.NoSuchOption(name, possibilities=get_close_matches(name, known, 1))


def _check_flags(command: click.Command, words: list[str]) -> None:
    """Refuse a flag with a value behind it, which would be one by position of another parameter."""
    flags = {name: option for option in command.params for name in option.opts if getattr(option, "is_flag", False)}
    for word, value in itertools.pairwise(words):
        if word in flags and value.lower() in {"true", "false"}:
            either = " or ".join((word, *flags[word].secondary_opts))
            raise click.UsageError(f"Option '{word}' does not take a value, got '{value}': write {either}.")


def _bound(context: click.Context, parameters: list[inspect.Parameter], values: list[str]) -> Arguments:
    """Assign the values to the parameters that have none, and convert what click has not converted."""
    declared = {option.name: option for option in context.command.params}
    named = {
        name: context.params[name]
        for name in declared
        if name != _VALUES and name and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    missing, rest = [], False
    for parameter in parameters:
        name, value = parameter.name, Value(_kind(parameter))
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            args += [value.convert(word, None, context) for word in values]
            values, rest = [], True
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        if name in named:
            found = named.pop(name)
            found = value.convert(found, declared[name], context) if isinstance(found, tuple) else found
        elif parameter.kind in _POSITIONAL and values:
            found = value.convert(values.pop(0), declared[name], context)
        elif parameter.default is EMPTY:
            missing.append(name)
            continue
        else:
            found = parameter.default
        if parameter.kind in _POSITIONAL and not missing:
            args.append(found)
        else:
            kwargs[name] = found
    if missing:
        raise click.UsageError(f"Missing argument{'s' if missing[1:] else ''}: {', '.join(missing)}", context)
    if values and not rest:
        raise click.UsageError(f"Got unexpected extra argument{'s' if values[1:] else ''}: {' '.join(values)}", context)
    return Arguments(tuple(args), {**kwargs, **named})


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before and after the ``--`` that ends the options; a leading ``--`` is dropped."""
    own = list(words[1:] if tuple(words[:1]) == ("--",) else words)
    at = own.index("--") if "--" in own else len(own)
    return own[:at], own[at + 1 :]


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function with their annotations resolved."""
    try:
        signature = deferred_annotations.signature_of(function)
    except (ValueError, TypeError):  # some builtins have no signature
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


def _kind(parameter: inspect.Parameter) -> Any:
    """Return the annotation; without one, a default that is a bool makes a flag."""
    return bool if parameter.annotation is EMPTY and isinstance(parameter.default, bool) else parameter.annotation


def _bare(kind: Any) -> Any:
    """Return the type inside Annotated and NewType; ``EMPTY`` for what is not a type."""
    while True:
        if typing.get_origin(kind) is typing.Annotated:
            kind = typing.get_args(kind)[0]
        elif hasattr(kind, "__supertype__"):
            kind = kind.__supertype__
        else:
            return kind if isinstance(kind, collections.abc.Hashable) and kind not in {Any, object} else EMPTY


def _without_none(kind: Any) -> Any:
    """Return the one type besides None of an optional type; other types as they are."""
    members = typing.get_args(kind)
    others = [member for member in members if member is not types.NoneType]
    return _bare(others[0]) if len(others) == 1 < len(members) and types.NoneType in members else kind


def _type_name(kind: Any) -> str:
    """Return a type as the help shows it; "" if it is not known."""
    if kind is EMPTY:
        return ""
    if typing.get_origin(kind) is typing.Literal:
        return "|".join(map(str, typing.get_args(kind)))
    if isinstance(kind, enum.EnumMeta):
        return "|".join(kind.__members__)
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else inspect.formatannotation(kind)


def _converted(word: str, kind: Any) -> Any:
    """Convert a word, or raise click.BadParameter."""
    kind = _bare(kind)
    origin, members = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in {typing.Union, types.UnionType}:
        return _member(word, members)
    if origin is typing.Literal:
        return _choice(word, {str(member): member for member in members})
    if isinstance(kind, enum.EnumMeta):
        return _choice(word, dict(kind.__members__))
    if origin in _COLLECTIONS:
        return _collection([word], kind)
    if origin in _MAPPINGS:
        return _mapping(word)
    if kind in _SIMPLE:
        return _SIMPLE[kind].convert(word, None, None)
    if kind in {None, types.NoneType}:
        return _choice(word, {"None": None})
    return _made(word, kind)


def _made(word: str, kind: Any) -> Any:
    """Make what is written as one word, such as a path, a date or a Decimal; a dataclass is written as a dict."""
    if not isinstance(kind, type) or kind is EMPTY:
        return _literal(word)
    try:
        if dataclasses.is_dataclass(kind):
            return kind(**_mapping(word))
        if issubclass(kind, (PurePath, numbers.Number)):
            return kind(word)  # type: ignore[call-arg] # of a class that is a number, as Decimal
        return kind.fromisoformat(word) if hasattr(kind, "fromisoformat") else _literal(word)
    except (ValueError, TypeError, ArithmeticError) as error:
        why = f" ({error})" if dataclasses.is_dataclass(kind) else ""
        raise click.BadParameter(f"{word!r} is not a valid {_type_name(kind)}{why}.") from None


def _member(word: str, members: tuple[Any, ...]) -> Any:
    """Convert to the first member of a union that accepts the word; str, which accepts every word, is tried last."""
    if types.NoneType in members and word == "None":
        return None
    others = [member for member in members if member is not types.NoneType]
    for member in sorted(others, key=lambda member: member is str):
        try:
            return _converted(word, member)
        except click.BadParameter as error:
            problem = error
    if len(others) == 1:
        raise problem
    raise click.BadParameter(f"{word!r} is not a valid {' or '.join(map(_type_name, others))}.")


def _choice(word: str, members: dict[str, Any]) -> Any:
    try:
        return members[click.Choice([*members], case_sensitive=False).convert(word, None, None)]
    except click.BadParameter:  # click names them in lower case
        raise click.BadParameter(f"{word!r} is not one of {', '.join(map(repr, members))}.") from None


def _collection(words: list[str], kind: Any) -> Any:
    """Convert "1,2", "[1, 2]" or repeated words."""
    origin, members = typing.get_origin(kind) or kind, typing.get_args(kind)
    parts = [part for word in words for part in _parts(word)]
    if origin is tuple and members and members[-1] is not Ellipsis:
        if len(parts) != len(members):
            raise click.BadParameter(f"{_type_name(kind)} takes {len(members)} values, got {len(parts)}.")
        return tuple(_part(part, member) for part, member in zip(parts, members, strict=True))
    return _COLLECTIONS[origin](_part(part, members[0] if members else EMPTY) for part in parts)


def _parts(word: str) -> list[Any]:
    if word.startswith(("[", "(", "{")):
        found = _literal(word)
        if isinstance(found, list | tuple | set):
            return list(found)
        word = word[1:-1]  # [a, b] without quotes
    return [part.strip() for part in word.split(",")] if word.strip() else []


def _part(part: Any, kind: Any) -> Any:
    if isinstance(part, str):
        return _converted(part, kind)
    return part if _bare(kind) is EMPTY else _converted(repr(part), kind)


def _mapping(word: str) -> Any:
    found = _literal(word)
    if not isinstance(found, dict):
        try:
            found = json.loads(word)
        except ValueError:
            found = None
    if not isinstance(found, dict):
        raise click.BadParameter(f"{word!r} is not a valid dict, as Python or JSON write it.")
    return found


def _literal(word: str) -> Any:
    """Return a Python literal, or the word itself if it is none."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about escapes: it is the user's text, not our program
            return ast.literal_eval(word)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return word


def _is_number(word: str) -> bool:
    try:
        complex(word.replace("_", ""))
    except ValueError:
        return False
    return True


def _dashed(name: str) -> str:
    return name.replace("_", "-")
