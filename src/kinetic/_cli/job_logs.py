"""``kinetic jobs logs``: what a job printed, or the part of it that is asked for."""

from __future__ import annotations

import codecs
import functools
import re
import sys
import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import click

from kinetic._cli import error_output, shared_options
from kinetic._cli.job_results import failure_of
from kinetic._output import format as output_format
from kinetic._output import tracebacks
from kinetic._output.job_text import FileText, JobOutput
from kinetic._wire import NamedTuple, keys
from kinetic.errors import OptionError

if TYPE_CHECKING:
    from kinetic._backends.protocol import LiveLog
    from kinetic._jobs.log_times import Timeline
    from kinetic._jobs.status import Snapshot
    from kinetic._wire.records import JobRecord

_MOST_LINE_BYTES = 1 << 20  # a longer line is written in pieces, each as a line: it need not fit into memory
_BLOCK_BYTES = 1 << 20


class LogOutput(Protocol):
    """What the bytes of a log are written to."""

    def write_bytes(self, data: bytes) -> int: ...

    def end(self) -> None: ...


class LogLines:
    """Writes the lines of one host's log with what comes before each, or only those that have a text in them.

    Half a line waits for its other half.
    """

    def __init__(self, out: LogOutput, *, prefix: str = "", times: bool = False, search: str = "") -> None:
        self._out, self._times, self._search = out, times, search
        self._folds = search == search.lower()
        self._prefix = prefix.encode()
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


class LastLines:
    """Holds the last lines that were written until the end; they come as a whole."""

    def __init__(self, out: LogOutput, count: int) -> None:
        self._out, self._lines = out, deque[bytes](maxlen=count)

    def write_bytes(self, data: bytes) -> int:
        self._lines.extend(b"%b\n" % line for line in data.split(b"\n")[:-1])
        return len(data)

    def end(self) -> None:
        self._out.write_bytes(b"".join(self._lines))
        self._out.end()


class LogRequest(NamedTuple):
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

    request = LogRequest(**{**given, "search": given["search"] or ""})
    _check(handle, request, follow=follow)
    hosts = hosts_of(handle, host)
    out: LogOutput = _RawLog() if raw else JobOutput(lambda: sys.stdout)
    if request.search and request.tail is not None:
        out = LastLines(out, request.tail)
    outs: dict[int, LogOutput] = dict.fromkeys(hosts, out)
    if host == "all" or request.timestamps or request.search:
        line = functools.partial(LogLines, out, times=request.timestamps, search=request.search)
        outs = {number: line(prefix=f"[host {number}] " if host == "all" else "") for number in hosts}
    if follow and past_of(handle) is None:  # there is nothing to follow of a collected job, only a log to print
        with error_output.job_keeps_running(handle):
            try:
                seen = _follow(handle, outs, request)
            except OSError as error:  # of standard output; the job may have ended long ago
                tracebacks.mark_told(error)
                raise
        if seen.status.is_final and (seen.outcome is None or not seen.outcome.succeeded):
            raise failure_of(handle, seen, as_json=False)
        return
    for number, each in outs.items():
        if not print_log(handle, number, each, request):
            _report_no_log(handle, number)
        each.end()
    if isinstance(out, LastLines):
        out.end()


def print_log(handle: JobRecord, host: int, out: LogOutput, request: LogRequest) -> bool:
    """Write what there is now of one host's log; return whether there is one."""
    from kinetic._jobs import logs as job_logs

    attempt = request.attempt
    if request.needs_times and attempt is None:
        attempt = job_logs.newest_attempt(handle, host=host)
    log = job_logs.log_of(handle, attempt=attempt, host=host)
    if log is None:
        return False
    try:
        timeline, start, end = _selected(handle, log, attempt, host, request)
        if request.tail is not None and not request.search:
            data = job_logs.tail_bytes(log, request.tail, start=start, end=end)
            _write(out, timeline, end - len(data), data)
            return True
        while start < end and (data := log.read(start, min(_BLOCK_BYTES, end - start))):  # it may exceed the memory
            _write(out, timeline, start, data)
            start += len(data)
    finally:
        job_logs.close(log)
    return True


def _selected(
    handle: JobRecord, log: LiveLog, attempt: int | None, host: int, request: LogRequest
) -> tuple[Timeline | None, int, int]:
    """Return when the parts of a log were written, where that matters, and from where to where to write it."""
    if attempt is None or not request.needs_times:
        return None, 0, log.size()
    from kinetic._jobs import log_times

    left_out = getattr(log, "left_out", 0)  # of a collected job
    timeline = log_times.timeline_of(handle, attempt=attempt, host=host, left_out=left_out)
    return timeline, *log_times.selected(log, timeline, request.since, request.until)


def _write(out: LogOutput, timeline: Timeline | None, position: int, data: bytes) -> None:
    if timeline is None:
        out.write_bytes(data)
        return
    for when, piece in timeline.split(position, data):
        if isinstance(out, LogLines):
            out.time = when
        out.write_bytes(piece)


def hosts_of(handle: JobRecord, wanted: str) -> list[int]:
    """Return the hosts whose logs are wanted."""
    from kinetic._jobs import locate

    count = locate.hosts_of(handle)
    if wanted == "all":
        return list(range(count))
    if wanted.isdigit() and int(wanted) < count:
        return [int(wanted)]
    raise locate.no_host(handle, wanted, f"kinetic jobs logs {handle.job_id} --host all")


def _check(handle: JobRecord, request: LogRequest, *, follow: bool) -> None:
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
    check_times(request, f"kinetic jobs logs {handle.job_id}")
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


def check_times(request: LogRequest, command: str) -> None:
    """Refuse a time that ends before it begins."""
    if request.since is not None and request.until is not None and request.since > request.until:
        raise OptionError(
            "--since is later than --until",
            why=f"from {keys.format_utc(request.since)} to {keys.format_utc(request.until)} there is no time",
            next=f"{command} --since 2h --until 1h     from two hours to one hour ago",
        )


def _follow(handle: JobRecord, outs: dict[int, LogOutput], request: LogRequest) -> Snapshot:
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


def _starts(handle: JobRecord, outs: Iterable[int], request: LogRequest) -> tuple[dict[int, Timeline], dict[int, int]]:
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
    click.echo(f"The log{of_host} is empty: the job is {state}", err=True)
