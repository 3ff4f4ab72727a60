"""How many arguments a pickled call has, and what they are called, without unpickling anything.

A pickle is a program. Here it is only read: ``pickletools`` takes it apart, and a stack of placeholders follows what
the program would do. Texts, tuples and dictionaries are kept, as keywords are made of them; all else is a placeholder.
"""

from __future__ import annotations

import pickletools

from kinetic._wire import NamedTuple

MOST_BYTES = 1 << 20
_MOST_STEPS = 200_000
_SKIPPED = frozenset({"PROTO", "FRAME"})
_MARK, _OTHER = object(), object()


class ArgumentNames(NamedTuple):
    """The arguments of a call."""

    positional: int  # how many have no name
    keywords: tuple[str, ...]


def read(data: bytes) -> ArgumentNames | None:
    """Return the arguments of a pickled ``(args, kwargs)``; None where it is something else, or cannot be read."""
    stack: list[object] = []
    memo: dict[int, object] = {}
    try:
        for steps, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if opcode.name == "STOP" or steps > _MOST_STEPS:
                break
            if opcode.name not in _SKIPPED:
                _step(opcode, argument, stack, memo)
    except (ValueError, IndexError, KeyError, TypeError):  # cut off, damaged, or not a pickle
        return None
    match stack:
        case [(tuple() as args, dict() as kwargs)]:
            return ArgumentNames(len(args), tuple(name for name in kwargs if isinstance(name, str)))
    return None


def _step(opcode: pickletools.OpcodeInfo, argument: object, stack: list[object], memo: dict[int, object]) -> None:
    name = opcode.name
    if name == "MARK":
        stack.append(_MARK)
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name in {"PUT", "BINPUT", "LONG_BINPUT"}:
        memo[int(str(argument))] = stack[-1]
    elif name in {"GET", "BINGET", "LONG_BINGET"}:
        stack.append(memo[int(str(argument))])
    elif name == "EMPTY_DICT":
        stack.append({})
    elif name in {"SETITEM", "SETITEMS"}:
        items = [stack.pop() for _ in range(2)][::-1] if name == "SETITEM" else _to_the_mark(stack)
        if isinstance(made := stack[-1], dict):
            made.update({key: None for key in items[::2] if isinstance(key, str)})
    elif name in {"EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}:
        count = int(name[-1]) if name[-1].isdigit() else 0
        stack.append(tuple(_to_the_mark(stack) if name == "TUPLE" else [stack.pop() for _ in range(count)][::-1]))
    else:
        takes = list(opcode.stack_before)
        if pickletools.markobject in takes:
            _to_the_mark(stack)
            takes = takes[: takes.index(pickletools.markobject)]
        for _ in takes:
            stack.pop()
        stack.extend(
            argument if isinstance(argument, str) and "UNICODE" in name else _OTHER for _ in opcode.stack_after
        )


def _to_the_mark(stack: list[object]) -> list[object]:
    items: list[object] = []
    while (item := stack.pop()) is not _MARK:
        items.append(item)
    return items[::-1]
