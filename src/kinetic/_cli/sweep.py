"""``kinetic run --sweep NAME=VALUES``: from what was typed to the inputs of a batch of commands."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence

from kinetic._runner.worker import command
from kinetic._wire import NamedTuple
from kinetic.errors import OptionError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(\d+))?")
_MOST = 100_000  # commands of one sweep: far more than a typing error should submit


class Sweep(NamedTuple):
    """A command with placeholders, and what replaces them in each job."""

    words: tuple[str, ...]
    inputs: tuple[dict[str, str], ...]

    def commands(self) -> Iterator[list[str]]:
        """Yield the command of each job."""
        return (command.filled(self.words, values) for values in self.inputs)


def read(words: Sequence[str], written: Sequence[str]) -> Sweep:
    """Return the product of some sweeps; a name without a placeholder in the words is appended as ``--name``.

    Raises:
        OptionError: A sweep cannot be read, has no values, or occurs twice.
    """
    values: dict[str, list[str]] = {}
    for text in written:
        name, separator, listed = text.partition("=")
        if not separator or _NAME.fullmatch(name) is None:
            raise _invalid(text, "it is not NAME=VALUES")
        if name in values:
            raise _invalid(text, f"{name} is swept twice", f"--sweep {name}={','.join(values[name])},{listed}")
        values[name] = _values(text, listed)
    count = math.prod(map(len, values.values()))
    if count > _MOST:
        sizes = " x ".join(str(len(each)) for each in values.values())
        raise OptionError(
            f"the sweeps make {count:,} jobs", why=f"{sizes}; at most {_MOST:,} can be submitted", next="sweep less"
        )
    there = command.placeholders(words)
    appended = [word for name in values if name not in there for word in (f"--{name}", f"{{{name}}}")]
    products = itertools.product(*values.values())
    return Sweep((*words, *appended), tuple(dict(zip(values, each, strict=True)) for each in products))


def _values(text: str, listed: str) -> list[str]:
    if listed.startswith("["):
        return _json_values(text, listed)
    found: list[str] = []
    for part in listed.split(","):
        if not part:
            raise _invalid(text, "a value is empty")
        bounds = _RANGE.fullmatch(part)
        found += _range(text, bounds) if bounds else [part]
    return found


def _range(text: str, bounds: re.Match[str]) -> list[str]:
    first, last, step = int(bounds[1]), int(bounds[2]), int(bounds[3] or 1)
    if not step:
        raise _invalid(text, "the step is 0")
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    if len(numbers) > _MOST:
        raise _invalid(text, f"it has {len(numbers):,} values")
    return [str(number) for number in numbers]


def _json_values(text: str, listed: str) -> list[str]:
    try:
        found = json.loads(listed)
    except ValueError as error:
        raise _invalid(text, f"it is not a JSON list: {error}") from None
    if not isinstance(found, list) or not found:
        raise _invalid(text, "it has no values")
    return [each if isinstance(each, str) else json.dumps(each) for each in found]


def _invalid(text: str, why: str, next_: str = "") -> OptionError:
    example = '--sweep lr=1e-2,1e-3, or --sweep seed=0..4, or --sweep \'text=["a, b", "c"]\''
    return OptionError(f"--sweep {text} cannot be read", why=why, next=next_ or f"write {example}")
