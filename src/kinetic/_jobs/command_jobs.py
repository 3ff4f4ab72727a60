"""Commands as jobs: what is checked before a machine is asked for, and how a command becomes a call.

The call is of ``_runner/worker/command.py``, with the words and the data; what comes after that is the same as for a
function.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic._backends import registry
from kinetic._jobs import submit, submit_context
from kinetic._jobs.job_options import Fallback, Options, check_names, why_no_submission
from kinetic._output import tracebacks
from kinetic._project import ignore, pickler, root
from kinetic._runner.worker import command
from kinetic._wire import NamedTuple
from kinetic.errors import CallableError, OptionError, OptionTypeError

if TYPE_CHECKING:
    from kinetic._data.data import Data
    from kinetic._jobs.handle import JobHandle
    from kinetic._project.root import Plan

_LONGEST_NAME = 40  # characters
_VALUE_OPTIONS = frozenset({"-W", "-X", "--check-hash-based-pycs"})  # of Python, with a value in the next word


class CommandRequest(NamedTuple):
    """A command that can be submitted, once or with many values."""

    words: tuple[str, ...]  # the program and its arguments
    name: str  # of the script, the module or the program
    links: dict[str, Data]  # by the names under which the command finds it below its working folder
    variables: dict[str, str]  # environment variables that it gets besides the captured ones
    options: Options
    plan: Plan  # the project that is sent


@tracebacks.hides_frames
def run_command(
    words: Sequence[str],
    *,
    data: Mapping[str, Data | str] | None = None,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> JobHandle[int]:
    """Submit a command as a job, and return its handle at once.

    The project of the current directory is sent, and the command starts in the same folder of it. "python" is the
    job's own interpreter; the environment is that of functions. The command reads nothing from standard input; what
    it prints is the job's log. A job on a slice of several hosts runs it on each of them.

    Args:
        words: The program and its arguments, e.g. ["python", "train.py", "--lr", "1e-3"]. No shell reads them:
            ["sh", "-c", "…"] is one.
        data: Data by name. A relative name is a path below the working folder, at which the command finds it; an
            absolute one is where a volume is mounted. A plain string is the path of a ``kinetic.Data``.
        env: Environment variables, as names and values. Like captured ones they are in no store.
        **options: Those of ``kinetic.run``. The accelerator falls back to "cpu".

    Returns:
        A handle whose ``result()`` is 0.

    Raises:
        OptionError: A value that cannot work, a file or program that does not exist (also a ValueError).
        CallableError: In a pod of a cluster, which cannot submit jobs.

    The handle's ``result()`` raises ``kinetic.errors.CommandError``, with the ``exit_code``, if the command failed.
    """
    request = request_of(words, data=data, env=env, **options)
    return submit_request(request)


def request_of(
    words: Sequence[str],
    *,
    data: Mapping[str, Data | str] | None = None,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> CommandRequest:
    """Check a command and its options; see ``run_command``."""
    checked = _checked_words(words)
    if reason := why_no_submission(os.environ):
        raise CallableError(
            f"{checked[0]} cannot be submitted from inside a job on a cluster",
            why=reason,
            next="start it here: subprocess.run(...); or submit it beside this job: run_command(..., after=job)",
        )
    links, volumes = _placed_data(data or {})
    if volumes:
        options = {**options, "volumes": {**(options.get("volumes") or {}), **volumes}}
    script = _script_of(checked)
    plan = root.plan_for_command(script)
    _check_links(links)
    _check_files(checked, script, plan)
    check_names(options, "kinetic.run_command(…, ")
    given = Options().changed(**{"accelerator": Fallback("cpu"), **options})
    return CommandRequest(checked, _short_name(checked, script), links, _checked_variables(env or {}), given, plan)


def submit_request(request: CommandRequest) -> JobHandle[int]:
    """Submit a command."""
    check_program(request)
    context = submit_context.prepare(request.options, may_be_warm=True)
    arguments = (list(request.words), dict(request.links))
    call = pickler.Call(command.run, arguments, {}, request.name, command=request.words)
    try:
        return submit.submit(call, request.options, context, plan=request.plan, secrets=request.variables)
    except KeyboardInterrupt:
        raise submit_context.interrupted() from None


def check_program(request: CommandRequest) -> None:
    """Refuse a program that this machine does not have, where the job runs here in this very environment."""
    program = request.words[0]
    is_same = os.environ.get("KINETIC_LOCAL_ENV", "") in {"", "same"}
    if command.is_python(program) or os.sep in program or not is_same or not _is_here(request.options):
        return
    path = command.environment({**os.environ, **request.variables}, ())["PATH"]
    if shutil.which(program, path=path) is None:
        raise _no_program(request.words)


def _is_here(options: Options) -> bool:
    from kinetic._config import target as settings

    return registry.is_here(settings.resolve(**options.place).backend.value)


def _no_program(words: Sequence[str]) -> OptionError:
    program = words[0]
    if os.path.isfile(program):
        runner = "python" if program.endswith(".py") else "sh"
        instead = f"./{program}" if os.access(program, os.X_OK) else f"{runner} {program}"
        next_ = f"kinetic run -- {' '.join([instead, *map(shlex.quote, words[1:])])}"
    elif " " in program and len(words) == 1:
        next_ = f"no shell reads it: kinetic run -- {shlex.join(_separate(program))}"
    else:
        next_ = "install it, or correct its name"
    return OptionError(
        f"there is no program {program}", why="it is in none of the folders of PATH", next=next_, code="no-program"
    )


def _checked_words(words: object) -> tuple[str, ...]:
    if isinstance(words, str):
        raise OptionTypeError(
            f"the command {words!r} is one string",
            why="no shell reads it, so its words must be separate",
            next=f"kinetic.run_command({_separate(words)!r})",
        )
    if not isinstance(words, Sequence) or not all(isinstance(word, str | os.PathLike) for word in words):
        raise OptionTypeError(f"the command {words!r} is not a list of strings", next='["python", "train.py"]')
    found = tuple(os.fspath(word) for word in words)
    if not found or not found[0]:
        raise OptionError("there is no command", why="its first word is the program", next='["python", "train.py"]')
    for word in found:
        if "\0" in word:
            raise OptionError(f"the word {word!r} has a NUL character", why="no program can be given one")
    return found


def _separate(text: str) -> list[str]:
    """Return the words of a command that was written as one; what only a shell can read is left to one."""
    if not set(text) & set("|&;<>()$`*?\n"):
        with contextlib.suppress(ValueError):
            return shlex.split(text) or ["sh", "-c", text]
    return ["sh", "-c", text]


def _short_name(words: Sequence[str], script: str | None) -> str:
    module = (
        words[words.index("-m") + 1 : words.index("-m") + 2] if command.is_python(words[0]) and "-m" in words else ()
    )
    return (os.path.basename(script or (module[0] if module else words[0])) or "command")[:_LONGEST_NAME]


def _checked_variables(env: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(env, Mapping):
        why = f"it is of type {type(env).__qualname__}"
        raise OptionTypeError("env must map strings to strings", why=why, next='env={"SEED": "1"}')
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise OptionTypeError(f"env={{{name!r}: …}} must map strings to strings", next='env={"SEED": "1"}')
        if not name or "=" in name or "\0" in name + value:
            raise OptionError(f"{name!r} cannot be the name of an environment variable", next='env={"SEED": "1"}')
    return dict(env)


def _placed_data(data: Mapping[str, Data | str]) -> tuple[dict[str, Data], dict[str, Data]]:
    """Return what appears below the working folder, and what is mounted at an absolute path."""
    from kinetic._data.data import Data  # only for commands that read data

    links: dict[str, Data] = {}
    volumes: dict[str, Data] = {}
    if not isinstance(data, Mapping):
        why = f"it is of type {type(data).__qualname__}"
        raise OptionTypeError(f"data={data!r} is not a dict", why=why, next='data={"digits": "./digits"}')
    for name, value in data.items():
        found = value if isinstance(value, Data) else Data(value)
        if not isinstance(name, str) or not name.strip("/") or ".." in name.split("/"):
            raise OptionError(
                f"data cannot appear at {name!r}",
                why="it is a path below the working folder of the job, or an absolute path",
                next='data={"digits": "./digits"}, or data={"/data/digits": "./digits"}',
                code="data-position",
            )
        if os.path.isabs(name):
            volumes[name] = found
        else:
            links[os.path.normpath(name)] = found
    return links, volumes


def _check_links(links: Mapping[str, Data]) -> None:
    """Refuse a name at which the project has something else; what is sent as data is not sent with the project."""
    for name, data in links.items():
        own = data.is_local and os.path.realpath(data.path) == os.path.realpath(name)
        if os.path.lexists(name) and not own:
            raise OptionError(
                f"data cannot appear at {name}",
                why=f"there is something at {os.path.abspath(name)} already",
                next=f"choose another name: --data NAME={data.path}",
                code="data-position",
            )


def _script_of(words: Sequence[str]) -> str | None:
    """Return the Python file that a command runs; None for ``python -m`` and other programs."""
    if not command.is_python(words[0]):
        return words[0] if words[0].endswith(".py") and os.sep in words[0] else None
    rest = iter(words[1:])
    for word in rest:
        if word in _VALUE_OPTIONS:
            next(rest, None)
        elif word in {"-m", "-c", "-", "-V", "--version", "-h", "--help"} or word.startswith(("-m", "-c")):
            return None
        elif not word.startswith("-"):
            return word
    return None


def _check_files(words: Sequence[str], script: str | None, plan: Plan) -> None:
    """Refuse a program or script of the project that does not exist or is not sent."""
    program = words[0]
    if script is not None and command.is_python(program):
        _check_file(script, plan)
    elif os.sep in program and not os.path.isabs(program):
        _check_file(program, plan)
        if not os.access(program, os.X_OK):
            runner = "python" if program.endswith(".py") else "sh"
            others = [*map(shlex.quote, words[1:])]
            raise OptionError(
                f"{program} is not executable",
                why="it has no permission to be executed, here and in the job",
                next=f"chmod +x {program}     or: kinetic run -- {' '.join([runner, program, *others])}",
                code="no-program",
            )


def _check_file(file: str, plan: Plan) -> None:
    if os.path.isabs(file):
        return  # of the job's machine, or of its image
    where = os.path.abspath(file)
    if not os.path.isfile(file):
        from difflib import get_close_matches  # 2 ms; only on the way to an error

        above = os.path.dirname(file)
        there = sorted(os.listdir(above or ".")) if os.path.isdir(above or ".") else []
        near = get_close_matches(os.path.basename(file), there, 1)
        next_ = f"write {os.path.join(above, near[0])}" if near else "correct its name"
        raise OptionError(f"there is no file {file}", why=f"looked for {where}", next=next_, code="no-program")
    relative = root.below(where, str(plan.root))
    if relative is None:
        raise OptionError(
            f"{file} is not in the project that is sent",
            why=f"the project is {plan.root}, and the file is {where}",
            next=f"run it from its own project: cd {os.path.dirname(where)}",
            code="no-program",
        )
    rules, _ = ignore.read_rules(str(plan.root))
    if rule := rules.above(relative):
        raise OptionError(
            f"{file} is not sent with the project",
            why=rule.reason,
            next="kinetic package --dry-run lists what is sent; .kineticignore decides",
            code="no-program",
        )


def data_of_text(written: Sequence[str]) -> dict[str, str]:
    """Read what was typed as --data NAME=PATH."""
    found: dict[str, str] = {}
    for text in written:
        name, separator, path = text.partition("=")
        if not separator or not name or not path:
            raise OptionError(
                f"--data {text} is not NAME=PATH",
                why="NAME is where the command finds it, PATH is a file, a folder or an address",
                next=f"--data {Path(text).name or 'data'}={text or './data'}",
            )
        if found.setdefault(name, path) != path:
            raise OptionError(
                f"--data {name} is given twice", why=f"it is {found[name]} and {path}", next=f"--data {name}2={path}"
            )
    return found
