"""``kinetic top``: what the running jobs use, live in the terminal, or once."""

from __future__ import annotations

import contextlib
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from kinetic._cli import shared_options
from kinetic._output import format as output_format
from kinetic._output import terminal as output
from kinetic._output.format import Column, count_text, duration_cell, left_out, size_text, table_lines
from kinetic._wire import NamedTuple
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic._jobs.resource_usage import HostUsage, Usage
    from kinetic._wire.progress import Progress
    from kinetic._wire.records import JobRecord

COLUMNS = (
    Column("JOB ID"),  # never cut: ids of one function differ at their ends
    Column("FUNCTION", flexible=True, spare=8),  # its name is in the id
    Column("STATUS", spare=7),
    Column("CPU", right=True, spare=1),
    Column("MEMORY", right=True, spare=4),
    Column("GPU/TPU", right=True, spare=2),
    Column("DISK", right=True, spare=9),
    Column("TIME", right=True, spare=6),
    Column("DONE", right=True, spare=3),
    Column("LEFT", right=True, spare=5),
)
_IF_ANY = {"GPU/TPU", "DONE", "LEFT"}  # columns that are only there where a job has some
_LEAST_SECONDS = 1.0
_SECONDS = 2.0
_AGAIN_SECONDS = 5.0  # between two readings of a usage that a pod writes every ten seconds
_MOST_READ = 200  # jobs whose usage is read for one picture (count); the newest
_HEAD_LINES = 5  # of a picture: summary, headings, two lines below the table, the cursor
_PENDING, _RUNNING = "PENDING", "RUNNING"


class Row(NamedTuple):
    """One job that has not ended."""

    page: dict[str, Any]  # as ``kinetic jobs status --json``
    usage: Usage | None
    progress: Progress | None = None  # as its own code reported it


class Seen(NamedTuple):
    """What was read of a running job."""

    usage: Usage | None = None
    progress: Progress | None = None


class Looker:
    """Finds the jobs and their usage; what pods wrote is not read more often than it changes."""

    def __init__(self, place: dict[str, str | None], clock: Callable[[], float] = time.monotonic) -> None:
        self._place, self._clock = place, clock
        self._read: dict[str, tuple[float, Seen]] = {}
        self.unread: KineticError | None = None  # why the last look found jobs of this machine only

    def look(self, most: int = _MOST_READ) -> list[Row]:
        """Return the jobs that have not ended, running ones first, newest first; ``most`` with their usage."""
        from kinetic._jobs import index, job_list
        from kinetic._jobs import status as job_status

        live, self.unread = job_list.readable(shared_options.target_of(self._place), job_list.live)
        found = [job for job in live if not isinstance(job, index.Row)]
        seen = job_status.observe_many(found, from_index=True)
        pages = [(job, job_status.job_to_json(job, each)) for job, each in zip(found, seen, strict=True)]
        active = [(job, page) for job, page in pages if page["status"] in {_RUNNING, _PENDING}]
        active.sort(key=lambda pair: pair[1]["status"] != _RUNNING)
        running = [job for job, page in active if page["status"] == _RUNNING][:most]
        read = dict(zip((job.job_id for job in running), self._seen(running), strict=True))
        self._read = {job_id: each for job_id, each in self._read.items() if job_id in read}
        return [Row(page, *read.get(job.job_id, Seen())) for job, page in active]

    def _seen(self, jobs: Sequence[JobRecord]) -> Iterator[Seen]:
        for job in jobs:
            when, seen = self._read.get(job.job_id, (float("-inf"), Seen()))
            if self._clock() - when >= self._pause(job):
                with contextlib.suppress(KineticError):  # a store that is away, or a key that is not here
                    seen = self._look_at(job)
                self._read[job.job_id] = self._clock(), seen
            yield seen

    @staticmethod
    def _pause(job: JobRecord) -> float:
        from kinetic._backends import registry

        return 0.0 if registry.is_here(job.backend) else _AGAIN_SECONDS

    @staticmethod
    def _look_at(job: JobRecord) -> Seen:
        from kinetic._jobs import activity, resource_usage

        attempt, measured = resource_usage.measurements_of(job)
        reported = activity.progress_from(job, attempt, measured)
        return Seen(resource_usage.usage_from(job, attempt, measured), reported)


@click.command
@click.option("--once", is_flag=True, help="Print one snapshot, as without a terminal.")
@click.option(
    "--interval",
    type=shared_options.Duration(least=_LEAST_SECONDS, example=f"{_SECONDS:g}s"),
    default=_SECONDS,
    metavar="TIME",
    help=f"Refresh this often, at least every {_LEAST_SECONDS:g} s.  [default: {_SECONDS:g}s]",
)
@shared_options.namespace_option
@shared_options.place_options
@shared_options.json_option
def top(once: bool, interval: float, as_json: bool, **place: str | None) -> None:
    """Show what running jobs use, live.

    CPU (100 % is one core), memory of the limit, GPUs and TPU chips, the disk of the working folder, and how much is
    done where a job reports it with kinetic.progress: of all jobs of this machine and of the configured cluster.
    q or Ctrl-C ends it; no job is affected. Without a terminal it prints one snapshot. Pods report every 10 s, after
    ten minutes every 30 s.

    Example: kinetic top --once
    """
    looker = Looker(place)
    if as_json or once or not (sys.stdout.isatty() and output.is_possible()):
        with output.phase("looking at the jobs", summary=False):
            rows = looker.look()
        if as_json:
            output_format.print_document(jobs=[_page(row) for row in rows])
        elif rows:
            output_format.print_table(*table_of(rows))
        else:
            click.echo("There are no running or pending jobs", err=True)
        if looker.unread is not None:
            raise looker.unread
        return
    _live(looker, interval)


# ----------------------------------------------------------------------------------------------------------------- live


class _Screen:
    """Owns what is shown; a thread looks, so that a key is heard while a cluster does not answer."""

    def __init__(self, looker: Looker, seconds: float) -> None:
        self._looker, self._seconds = looker, seconds
        self._over = threading.Event()
        self.rows: list[Row] | None = None
        self.problem: Exception | None = None
        self.news = threading.Event()

    def look(self) -> None:
        """Look until the end."""
        while not self._over.is_set():
            try:
                self.rows = self._looker.look(_room())
                self.problem = self._looker.unread
            except Exception as error:  # noqa: BLE001 - the next look may succeed, and the screen says what is wrong
                self.problem = error
            self.news.set()
            self._over.wait(self._seconds)

    def end(self) -> None:
        """Stop looking."""
        self._over.set()

    def lines(self) -> list[str]:
        """Return what is shown now."""
        width = output.size().columns - 1
        said = "looking at the jobs" if self.rows is None else summary(self.rows, _room())
        head = [f"{said}    q: quit" if len(said) + 12 <= width else said]
        if self.problem is not None:
            what = self.problem.what if isinstance(self.problem, KineticError) else str(self.problem)
            head.append(f"the last look failed: {what}")
        rows = (self.rows or [])[: max(_room() - len(head) + 1, 1)]
        left = len(self.rows or []) - len(rows)
        columns, cells = table_of(rows)
        table = table_lines(columns, cells, columns_wide=width) if rows else []
        hidden = left_out(columns, cells, width) if rows else ""
        notes = [f"and {count_text(left, 'more job')}"] if left else []
        notes += [f"the terminal is too narrow for {hidden}"] if hidden else []
        return [*head, *table, *notes]


def _room() -> int:
    return max(output.size().lines - _HEAD_LINES, 1)


def _live(looker: Looker, seconds: float) -> None:
    """Refresh the picture until q or Ctrl-C."""
    from kinetic._wire import python_runtime

    screen = _Screen(looker, seconds)
    try:
        with _keys() as pressed:
            python_runtime.start_thread(screen.look, "kinetic-top")
            while True:
                output.show_lines(screen.lines(), owner=screen)
                if _ends(pressed, screen.news, seconds):
                    break
    except KeyboardInterrupt:
        pass  # it is how one leaves
    finally:
        screen.end()
        output.release(screen)


def _ends(pressed: Callable[[float], bytes | None], news: threading.Event, seconds: float) -> bool:
    """Wait for something new to show, or some seconds; return whether to end: q was pressed, or input has ended."""
    until = time.monotonic() + seconds
    while not news.is_set() and time.monotonic() < until:
        keys = pressed(0.1)
        if keys is not None and (not keys or b"q" in keys.lower()):
            return True
    news.clear()
    return False


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bytes | None]]:
    """Read keys as they are pressed, without an echo; give a function that waits for some: None where none came."""
    if not sys.stdin.isatty():
        yield time.sleep
        return
    import os
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> bytes | None:
        return os.read(descriptor, 64) if select.select([descriptor], [], [], seconds)[0] else None

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


# ---------------------------------------------------------------------------------------------------------------- texts


class Now(NamedTuple):
    """What a job uses now: its hosts together; None for what is not known."""

    cpu_percent: float
    cores: float
    memory_bytes: int | None
    memory_limit_bytes: int
    device_percent: float | None
    device_memory_bytes: int | None
    disk_used_bytes: int | None
    disk_bytes: int


def now_of(usage: Usage | None) -> Now | None:
    """Return the last samples of all hosts together; the disk is that of the fullest host, devices are a mean."""
    hosts = [host for host in usage.hosts if host.samples] if usage is not None else []
    if not hosts:
        return None
    last = [host.samples[-1] for host in hosts]
    devices = [device for sample in last for device in sample.devices]
    busy = [device.percent for device in devices if device.percent is not None]
    held = [device.memory_bytes for device in devices if device.memory_bytes is not None]
    memory = [sample.memory_bytes for sample in last if sample.memory_bytes is not None]
    fullest = max(hosts, key=_share_of_disk)
    return Now(
        cpu_percent=sum(sample.cpu_percent for sample in last),
        cores=sum(host.cores for host in hosts),
        memory_bytes=sum(memory) if memory else None,
        memory_limit_bytes=sum(host.memory_limit_bytes for host in hosts),
        device_percent=sum(busy) / len(busy) if busy else None,
        device_memory_bytes=sum(held) if held else None,
        disk_used_bytes=fullest.samples[-1].disk_used_bytes,
        disk_bytes=fullest.disk_bytes,
    )


def _share_of_disk(host: HostUsage) -> float:
    return (host.samples[-1].disk_used_bytes or 0) / (host.disk_bytes or 1)


def table_of(rows: Sequence[Row]) -> tuple[list[Column], list[list[str]]]:
    """Return columns and rows of the table; columns of what no job has are left out, as that of GPUs."""
    cells = list(map(_cells, rows))
    shown = [at for at, column in enumerate(COLUMNS) if column.name not in _IF_ANY or any(row[at] for row in cells)]
    return [COLUMNS[at] for at in shown], [[row[at] for at in shown] for row in cells]


def _cells(row: Row) -> tuple[str, ...]:
    page, now = row.page, now_of(row.usage)
    name = shared_options.function_text(page["name"], page["command"], page["function"])
    name = f"{name} [{page['group_index']}]" if page["group_index"] is not None else name
    head = page["job_id"], name, page["status"]
    share = row.progress.share if row.progress is not None else None
    left = row.progress.seconds_left() if row.progress is not None else None
    done = f"{100 * share:.0f} %" if share is not None else ""
    tail = duration_cell(page["duration_seconds"]), done, duration_cell(left)
    if now is None:
        return (*head, "", "", "", "", *tail)
    device = [f"{now.device_percent:.0f} %"] if now.device_percent is not None else []
    device += [size_text(now.device_memory_bytes)] if now.device_memory_bytes is not None else []
    return (
        *head,
        f"{now.cpu_percent:.0f} %",
        _of(now.memory_bytes, now.memory_limit_bytes),
        ", ".join(device),
        _of(now.disk_used_bytes, now.disk_bytes),
        *tail,
    )


def _of(part: int | None, whole: int) -> str:
    return f"{size_text(part)} of {size_text(whole)}" if part is not None and whole else ""


def summary(rows: Sequence[Row], most: int) -> str:
    """Return one line about all jobs; the sum of what they use only if it was read of all that run."""
    running = sum(row.page["status"] == _RUNNING for row in rows)
    pending = len(rows) - running
    every = [now for row in rows if (now := now_of(row.usage)) is not None]
    parts = [f"{count_text(running, 'job')} running" + (f", {pending} pending" if pending else "")]
    if every and running <= most:
        parts.append(f"CPU {sum(now.cpu_percent for now in every):.0f} %")
        parts.append(f"memory {size_text(sum(now.memory_bytes or 0 for now in every))}")
    return "; ".join(parts)


def _page(row: Row) -> dict[str, Any]:
    """Return a job for JSON: its status, its progress, what it uses now, and its peaks so far."""
    from kinetic._jobs import activity

    now = now_of(row.usage)
    return {
        **row.page,
        "progress": activity.progress_page(row.progress),
        "now": now._asdict() if now is not None else None,
        "usage": row.usage.to_dict(samples=False) if row.usage is not None and row.usage.hosts else None,
    }
