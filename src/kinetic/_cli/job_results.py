"""``kinetic jobs result`` and ``kinetic jobs logs``: what a job returned and what it printed.

What is printed is not a copy: a value may not be printable, a terminal forgets. So nothing is removed unless
``--cleanup`` asks for it, and then only after the value has been written.
"""

from __future__ import annotations

import codecs
import functools
import re
import sys
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

import click

from kinetic._cli import error_output, shared_options
from kinetic._output import format as output_format
from kinetic._output import terminal as output
from kinetic._output.job_text import FileText, JobOutput, write_value
from kinetic._wire import NamedTuple, keys
from kinetic.errors import KineticError, OptionError

if TYPE_CHECKING:
    from kinetic._backends.protocol import LiveLog
    from kinetic._jobs.log_times import Timeline
    from kinetic._jobs.status import Snapshot
    from kinetic._wire.outcomes import Outcome
    from kinetic._wire.records import JobRecord

_MOST_LINE_BYTES = 1 << 20  # a longer line is written in pieces, each as a line: it need not fit into memory
_BLOCK_BYTES = 1 << 20


def load_value(handle: JobRecord, outcome: Outcome) -> Any:
    """Open the value; where its modules are missing, advise how to load it."""
    from kinetic._cli import main
    from kinetic._jobs import locate, results
    from kinetic.errors import ResultUnreadableError

    main.freeze_own_objects()
    try:
        return results.value_of(locate.store_of(handle), outcome, handle.func_name)
    except ResultUnreadableError as error:
        if isinstance(error.__cause__, ImportError):
            error.next = (
                f"run in the project's folder, with its Python: PYTHONPATH=. python -m kinetic jobs result "
                f"{handle.job_id}     "
                f"or save it without loading: kinetic jobs result {handle.job_id} --save result.pkl"
            )
        raise


def job_page(handle: JobRecord, outcome: Outcome | None, *, status: str = "SUCCEEDED") -> dict[str, Any]:
    """Return for JSON which job it was, and when it ran."""
    return {
        "job_id": handle.job_id,
        "function": handle.func_name,
        "status": status,
        "started_at": keys.format_utc(outcome.started) if outcome and outcome.started else None,
        "ended_at": keys.format_utc(outcome.ended) if outcome and outcome.ended else None,
    }


def failure_page(handle: JobRecord, seen: Snapshot, failure: KineticError) -> dict[str, Any]:
    """Return for JSON what is known of a job that left no value."""
    error = dict(seen.outcome.error) if seen.outcome is not None else {}
    error = error if output_format.is_json(error) else {"message": str(error.get("message", ""))}
    told = {**error, "told": failure.what, "code": failure.code}
    return {**job_page(handle, seen.outcome, status=seen.status.value), "error": told}


def failure_of(
    handle: JobRecord, seen: Snapshot, *, as_json: bool, log_is_shown: bool = True, **more: object
) -> KineticError:
    """Return the error of a job that left no value; it is printed as JSON already, where that is wanted."""
    from kinetic._inspect import explanation

    failure = explanation.job_error(handle, seen, log_is_shown=log_is_shown)
    if as_json:
        output_format.print_document(**failure_page(handle, seen, failure), **more)
        sys.stdout.flush()
    return failure


def follow_to_end(handle: JobRecord, stream: TextIO) -> Snapshot:
    """Write the log of a job to a stream until the job ends; Ctrl-C detaches."""
    from kinetic._jobs import wait

    log, progress = _Log(stream), output.Progress()
    try:
        with error_output.job_keeps_running(handle):
            seen = wait.wait(handle, follow=log, progress=progress)
    except SystemExit:  # `kinetic dev` ends this process, and writes to the same terminal
        log.end_line()
        progress.end()
        raise
    log.end_line()
    progress.wrote("\n")
    progress.end()
    return seen


class _Log:
    """Writes the log of a job, and knows whether it left a line open."""

    def __init__(self, stream: TextIO) -> None:
        self._output = JobOutput(lambda: stream)
        self._last = "\n"

    def __call__(self, text: str) -> None:
        """Write what is new."""
        self._output.write(text)
        self._last = text[-1:] or self._last

    def end(self) -> None:
        """Write what is held back."""
        self._output.end()

    def end_line(self) -> None:
        """Let what follows begin on a new line."""
        if self._last != "\n":
            self("\n")
            self.end()


@click.command
@shared_options.job_argument
@shared_options.timeout_option("Stop waiting")
@shared_options.save_options(
    "Save the value as a pickle instead of printing it; it is verified, but not loaded.", "Remove the job"
)
@shared_options.cleanup_options
@shared_options.json_option
@click.pass_context
def result(
    ctx: click.Context,
    handle: JobRecord,
    timeout: float | None,
    save: Path | None,
    force: bool,
    cleanup: bool,
    cleanup_timeout: float,
    as_json: bool,
) -> None:
    """Wait for a job and print its value, or save it.

    A string is printed as it is, other values by their repr. For a failed job it prints the traceback, with exit code
    125. The result is kept unless you pass --cleanup.

    Example: kinetic jobs result @last --save result.pkl
    """
    from kinetic._jobs import collect, locate, wait

    check_save_path(save, force=force)
    with error_output.job_keeps_running(handle):
        seen = wait.wait(handle, timeout=timeout)
    code = 0
    if seen.outcome is not None:
        locate.key_to_read(handle)  # nothing of a store is used unverified
    if seen.outcome is not None and seen.outcome.succeeded:
        _deliver(handle, seen.outcome, save, as_json=as_json)
    else:
        code = error_output.report(failure_of(handle, seen, as_json=as_json, log_is_shown=False))
    if cleanup and seen.outcome is not None:
        collect.after_collection(handle, seen, wait=cleanup_timeout)
    ctx.exit(code)


_OTHER_FORMATS = frozenset((".csv", ".h5", ".json", ".npy", ".npz", ".parquet", ".txt", ".yaml"))  # by their names


def check_save_path(save: Path | None, *, force: bool) -> None:
    """Refuse, before waiting, a file that cannot be written or would be replaced without --force."""
    if save is None:
        return
    if not save.parent.is_dir():
        raise OptionError(
            f"there is no folder {save.parent}", why=f"--save {save} writes to it", next=f"mkdir -p {save.parent}"
        )
    if save.exists() and not save.is_file():
        raise OptionError(
            f"{save} is not a regular file",
            why="--save would put one in its place",
            next=f"save to a file and read it: --save result.pkl && cat result.pkl > {save}",
            code="file-exists",
        )
    if save.exists() and not force:
        raise OptionError(
            f"{save} exists already",
            why="--save does not replace files",
            next="use another name, or add --force",
            code="file-exists",
        )
    if str(save) == "-":
        raise OptionError("--save writes into a file, and not to standard output", next="leave it out, or pass --json")
    if save.suffix.lower() in _OTHER_FORMATS:
        json = "; for JSON, instead of --save: --json" if save.suffix.lower() == ".json" else ""
        output.warn(f"{save} will be a pickle, whatever its name", next=f"--save {save.with_suffix('.pkl')}{json}")


def _deliver(handle: JobRecord, outcome: Outcome, save: Path | None, *, as_json: bool) -> None:
    """Save the value, or open and print it; it has left this process when this returns."""
    if save is not None:
        size = _save(handle, outcome, save)
        if as_json:
            output_format.print_document(**job_page(handle, outcome), saved_to=str(save), size_bytes=size)
        click.echo(f"saved the result to {save}, a pickle of {size} bytes", err=True)
    else:
        value = load_value(handle, outcome)
        if as_json:
            output_format.print_document(**job_page(handle, outcome), **output_format.value_page(value))
        else:
            write_value(sys.stdout, f"{value if isinstance(value, str) else output_format.value_repr(value)}\n")
    sys.stdout.flush()


def _save(handle: JobRecord, outcome: Outcome, path: Path) -> int:
    from kinetic._jobs import locate, results

    try:
        return results.save(locate.store_of(handle), outcome, path)
    except OSError as error:
        if isinstance(error, KineticError):
            raise
        raise KineticError(
            f"the result could not be saved to {path}",
            why=f"{type(error).__name__}: {error.strerror or error}; the result is still in the store",
            next="use a file on another disk or in your own folder",
            code="not-saved",
        ) from error


class _Bytes(Protocol):
    """What the bytes of a log are written to."""

    def write_bytes(self, data: bytes) -> int: ...

    def end(self) -> None: ...


class LogLines:
    """Writes the lines of one host's log with what comes before each, or only those that have a text in them.

    Half a line waits for its other half.
    """

    def __init__(self, out: _Bytes, *, host: int | None = None, times: bool = False, search: str = "") -> None:
        self._out, self._times, self._search = out, times, search
        self._folds = search == search.lower()
        self._prefix = b"" if host is None else f"[host {host}] ".encode()
        self._half = bytearray()
        self._text, self._decoder = FileText(), codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self.time = 0.0  # at which what comes next was there (Unix time)

    def write_bytes(self, data: bytes) -> int:
        """Write the lines that are complete by now."""
        self._take(self._text.feed(self._decoder.decode(data)).encode(errors="surrogateescape"))
        return len(data)

    def _take(self, data: bytes) -> None:
        *lines, half = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._half) + lines[0]
            self._half.clear()
        self._half += half
        if len(self._half) >= _MOST_LINE_BYTES:
            lines.append(bytes(self._half))
            self._half.clear()
        self._put(lines)

    def _put(self, lines: list[bytes]) -> None:
        if self._search:  # most pieces of a log have it nowhere
            lines = [line for line in lines if self._is_in(line)] if self._is_in(b"\n".join(lines)) else []
        if lines:
            time_ = f"{keys.format_utc(self.time)} ".encode() if self._times else b""
            self._out.write_bytes(b"".join(b"%b%b%b\n" % (self._prefix, time_, line) for line in lines))

    def _is_in(self, line: bytes) -> bool:
        text = re.sub("\x1b\\[[0-9;:]*m", "", line.decode(errors="replace"))
        return self._search in (text.lower() if self._folds else text)

    def end(self) -> None:
        """Write the last line, if it has no line break."""
        self._take(self._text.end().encode(errors="surrogateescape"))
        if self._half:
            self._put([bytes(self._half)])
            self._half.clear()


class _RawLog:
    """Writes the bytes of a log as they are stored."""

    def write_bytes(self, data: bytes) -> int:
        return sys.stdout.buffer.write(data)

    def end(self) -> None:
        pass


class _LastLines:
    """Holds the last lines that were written until the end; they come as a whole."""

    def __init__(self, out: _Bytes, count: int) -> None:
        self._out, self._lines = out, deque[bytes](maxlen=count)

    def write_bytes(self, data: bytes) -> int:
        self._lines.extend(b"%b\n" % line for line in data.split(b"\n")[:-1])
        return len(data)

    def end(self) -> None:
        self._out.write_bytes(b"".join(self._lines))
        self._out.end()


class _LogRequest(NamedTuple):
    """What of a log is asked for."""

    attempt: int | None
    tail: int | None
    since: float | None
    until: float | None
    timestamps: bool
    search: str

    @property
    def needs_times(self) -> bool:
        return self.timestamps or self.since is not None or self.until is not None


@click.command
@shared_options.job_argument
@shared_options.log_options
def logs(handle: JobRecord, follow: bool, host: str, raw: bool, **given: Any) -> None:
    """Print the log of a job.

    Without options, it prints the log so far. Ctrl-C stops printing and does not end the job. A progress bar is one
    line that changes; in a file or a pipe, its last state. --raw writes every byte as the job printed it.

    Times are known to a second at the beginning of a job, later to five seconds, and less exactly in old parts of a
    long log: --since and --until print all lines that may be meant.

    Example: kinetic jobs logs @last --follow

    Example: kinetic jobs logs @last --since 10m --search error --timestamps
    """
    from kinetic._jobs.locate import past_of

    request = _LogRequest(**{**given, "search": given["search"] or ""})
    _check(handle, request, follow=follow)
    hosts = _hosts(handle, host)
    out: _Bytes = _RawLog() if raw else JobOutput(lambda: sys.stdout)
    if request.search and request.tail is not None:
        out = _LastLines(out, request.tail)
    outs: dict[int, _Bytes] = dict.fromkeys(hosts, out)
    if host == "all" or request.timestamps or request.search:
        line = functools.partial(LogLines, out, times=request.timestamps, search=request.search)
        outs = {number: line(host=number if host == "all" else None) for number in hosts}
    if follow and past_of(handle) is None:  # there is nothing to follow of a collected job, only a log to print
        with error_output.job_keeps_running(handle):
            seen = _follow(handle, outs, request)
        if seen.status.is_final and (seen.outcome is None or not seen.outcome.succeeded):
            raise failure_of(handle, seen, as_json=False)
        return
    for number, each in outs.items():
        _print_log(handle, number, each, request)
        each.end()
    if isinstance(out, _LastLines):
        out.end()


def _print_log(handle: JobRecord, host: int, out: _Bytes, request: _LogRequest) -> None:
    """Write what there is now of one host's log."""
    from kinetic._jobs import logs as job_logs

    attempt = request.attempt
    if request.needs_times and attempt is None:
        attempt = job_logs.newest_attempt(handle, host=host)
    log = job_logs.log_of(handle, attempt=attempt, host=host)
    if log is None:
        _report_no_log(handle, host)
        return
    timeline, start, end = _selected(handle, log, attempt, host, request)
    if request.tail is not None and not request.search:
        data = job_logs.tail_bytes(log, request.tail, start=start, end=end)
        _write(out, timeline, end - len(data), data)
        return
    while start < end and (data := log.read(start, min(_BLOCK_BYTES, end - start))):  # it may exceed the memory
        _write(out, timeline, start, data)
        start += len(data)


def _selected(
    handle: JobRecord, log: LiveLog, attempt: int | None, host: int, request: _LogRequest
) -> tuple[Timeline | None, int, int]:
    """Return when the parts of a log were written, where that matters, and from where to where to write it."""
    if attempt is None or not request.needs_times:
        return None, 0, log.size()
    from kinetic._jobs import log_times

    left_out = getattr(log, "left_out", 0)  # of a collected job
    timeline = log_times.timeline_of(handle, attempt=attempt, host=host, left_out=left_out)
    return timeline, *log_times.selected(log, timeline, request.since, request.until)


def _write(out: _Bytes, timeline: Timeline | None, position: int, data: bytes) -> None:
    if timeline is None:
        out.write_bytes(data)
        return
    for when, piece in timeline.split(position, data):
        if isinstance(out, LogLines):
            out.time = when
        out.write_bytes(piece)


def _hosts(handle: JobRecord, wanted: str) -> list[int]:
    """Return the hosts whose logs are wanted."""
    from kinetic._jobs import locate

    count = locate.hosts_of(handle)
    if wanted == "all":
        return list(range(count))
    if wanted.isdigit() and int(wanted) < count:
        return [int(wanted)]
    raise locate.no_host(handle, wanted, f"kinetic jobs logs {handle.job_id} --host all")


def _check(handle: JobRecord, request: _LogRequest, *, follow: bool) -> None:
    """Refuse options that exclude each other, and an attempt that does not exist."""
    from kinetic._jobs import logs as job_logs
    from kinetic._jobs.locate import past_of

    attempt = request.attempt
    if follow and request.tail is not None:
        raise OptionError(
            "--follow and --tail cannot be used together",
            why="--follow prints the whole log and new lines, --tail only its end",
            next=f"kinetic jobs logs {handle.job_id} --follow     or from some minutes ago: --follow --since 10m",
        )
    if follow and request.until is not None:
        raise OptionError(
            "--follow and --until cannot be used together",
            why="--follow prints what is still to come, --until only what was there before",
            next=f"kinetic jobs logs {handle.job_id} --follow --since 10m",
        )
    if request.since is not None and request.until is not None and request.since > request.until:
        raise OptionError(
            "--since is later than --until",
            why=f"from {keys.format_utc(request.since)} to {keys.format_utc(request.until)} there is no time",
            next=f"kinetic jobs logs {handle.job_id} --since 2h --until 1h     from two hours to one hour ago",
        )
    if attempt is None:
        return
    if (past := past_of(handle)) is not None:
        latest = job_logs.latest_attempt_in_history(past)
    else:
        latest = job_logs.latest_attempt(handle)
    if attempt > latest:
        raise OptionError(
            f"{handle.job_id} has no attempt {attempt}",
            why=f"attempts are counted from 0, and the newest is {latest}",
            next=f"kinetic jobs logs {handle.job_id} --attempt {latest}",
        )


def _follow(handle: JobRecord, outs: dict[int, _Bytes], request: _LogRequest) -> Snapshot:
    """Print a log as it grows, until the job ends or an attempt begins that is later than the requested one."""
    from kinetic._jobs import activity, wait

    stall, reported = activity.StallWatch(handle), ""

    def look(seen: Snapshot) -> None:
        nonlocal reported
        sys.stdout.flush()
        reason = seen.observation.reason if seen.observation is not None else ""
        if reason and reason != reported:
            click.echo(f"{seen.status.value}: {output_format.plain(reason)}", err=True)
        reported = reason
        stall.look(seen)

    timelines, positions = _starts(handle, outs, request)
    news = wait.follow_logs(handle, outs, attempt=request.attempt, start=positions, look=look)
    try:
        while True:
            try:
                host, data = next(news)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return] # what the generator returns
            _write(outs[host], timelines.get(host), positions.get(host, 0), data)
            positions[host] = positions.get(host, 0) + len(data)
    finally:
        news.close()
        for out in outs.values():
            out.end()
        sys.stdout.flush()


def _starts(handle: JobRecord, outs: Iterable[int], request: _LogRequest) -> tuple[dict[int, Timeline], dict[int, int]]:
    """Return when what is there already was written, and from where on to follow each host's log."""
    if not request.needs_times:
        return {}, {}
    from kinetic._jobs import log_times
    from kinetic._jobs import logs as job_logs

    timelines, positions = {}, {}
    for host in outs:
        timelines[host] = log_times.NOW
        attempt = job_logs.newest_attempt(handle, host=host) if request.attempt is None else request.attempt
        log = job_logs.log_of(handle, attempt=attempt, host=host)
        if log is not None:
            found, positions[host], _ = _selected(handle, log, attempt, host, request)
            timelines[host] = found or log_times.NOW
            job_logs.close(log)
    return timelines, positions


def _report_no_log(handle: JobRecord, host: int) -> None:
    from kinetic._jobs import status

    page = status.job_to_json(handle, status.observe(handle))
    of_host = f" of host {host}" if host else ""
    state = ": ".join(filter(None, (output_format.status_text(page, time.time()), output_format.plain(page["reason"]))))
    click.echo(f"There is no log{of_host}: the job is {state}", err=True)
