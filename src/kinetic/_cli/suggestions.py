"""What other tools call our commands: kubectl, docker, Slurm, ps. Who types their words is shown ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Words of other tools (and ours without their group), and the command of ours. The job is what was typed behind the
# word, else @last; what takes neither a job nor a file takes nothing over.
_ANYWHERE = """
    logs log tail attach follow       | jobs logs @last
    status stat state                 | jobs status @last
    ps ls list get top queue squeue   | jobs list
    describe show info inspect        | jobs show @last
    cancel kill stop scancel abort    | jobs cancel @last
    rm delete del remove cleanup      | jobs cleanup @last
    explain why events                | jobs explain @last
    result results fetch              | jobs result @last
    wait                              | jobs wait @last
    exec ssh shell                    | jobs shell @last
    stacks py-spy                     | jobs stacks @last
    debug                             | jobs debug @last
    submit sbatch srun apply start    | run FILE.py::FUNCTION
    map batches                       | batch list
    context contexts use              | profile list
    images install                    | package
    tpus gpus nodes hardware          | accelerators
"""
_OF_A_BATCH = """
    ps get top                        | batch list
    show describe info inspect wait   | batch status @last
    kill stop abort                   | batch cancel @last
    rm delete del remove              | batch cleanup @last
    result fetch collect              | batch results @last
    log tail                          | batch logs @last
    retry restart start continue      | batch resume @last
"""
_TABLES = {"kinetic": _ANYWHERE, "kinetic jobs": _ANYWHERE, "kinetic batch": _OF_A_BATCH}


class Suggestion(NamedTuple):
    """What was probably meant.

    Attributes:
        command: Ours, without ``kinetic``.
        line: A command line that can be pasted.
    """

    command: str
    line: str


def suggestion(group: str, word: str, words: Sequence[str]) -> Suggestion | None:
    """Return our command for a word of another tool, or None where it is nobody's word.

    Args:
        group: As it was typed: "kinetic", "kinetic jobs" or "kinetic batch".
        word: What stands there in place of a command, in lower case.
        words: What was typed behind it.
    """
    for theirs, ours in rows(_TABLES.get(group, "")):
        if word in theirs:
            command = " ".join(part for part in ours if not _is_example(part))
            typed = _shown(words) if _is_example(ours[-1]) else ""
            return Suggestion(
                command, f"kinetic {command} {typed or ours[-1]}" if _is_example(ours[-1]) else f"kinetic {command}"
            )
    return None


def rows(table: str) -> list[tuple[list[str], list[str]]]:
    """Return the lines of a table: words of theirs, and the words of our command."""
    return [
        (theirs.split(), ours.split())
        for theirs, ours in (line.split("|") for line in table.strip().splitlines() if line)
    ]


def _is_example(part: str) -> bool:
    return part.startswith(("@", "FILE"))


def _shown(words: Sequence[str]) -> str:
    """Return the words as a shell would take them; "" where one of them has no business on a screen."""
    from shlex import join  # 2 ms; only on the way to an error

    return join(words) if all(word.isprintable() for word in words) else ""
