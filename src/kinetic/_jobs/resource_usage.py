"""What a job used while it ran, on each of its hosts: CPU, memory, disk, GPUs and TPU chips, as samples and peaks."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kinetic._jobs import locate, logs
from kinetic._wire import documents, fields, keys, measurements
from kinetic._wire.measurements import CPU, DEVICES, DISK, MEMORY, PAGE, READ, SECONDS, WRITTEN, Measurements, Row
from kinetic.errors import KeyMissingError, KineticError, OptionError

if TYPE_CHECKING:
    from kinetic._stores.protocol import Entry, Store
    from kinetic._wire.outcomes import Outcome
    from kinetic._wire.records import JobRecord

SCHEMA = 1  # of the JSON
_KEPT_ROWS, _KEPT_IN_ALL = 60, 3000  # of one host, and of all together, once a job was collected


@dataclass(frozen=True)
class DeviceSample:
    """How one GPU or TPU chip was used at one moment.

    Attributes:
        percent: Share of the time in which it was busy, 0 to 100; None where the driver does not tell.
        memory_bytes: Bytes of its own memory that were used; None where the driver does not tell.
    """

    percent: float | None
    memory_bytes: int | None


@dataclass(frozen=True)
class UsageSample:
    """What one host used at one moment; None stands for what the system does not tell.

    Attributes:
        seconds: Seconds since the attempt began.
        cpu_percent: Average since the sample before; 100 is one core, so 16 busy cores are 1600.
        memory_bytes: Bytes of memory, without what the kernel only caches.
        read_bytes: Bytes read from disks so far; what came from the page cache does not count.
        written_bytes: Bytes written to disks so far.
        disk_used_bytes: Bytes used, by all of its users, on the file system of the job's working folder.
        devices: One for each GPU or TPU chip, in the order of ``HostUsage.devices``; empty until a program uses them.
    """

    seconds: float
    cpu_percent: float
    memory_bytes: int | None
    read_bytes: int | None
    written_bytes: int | None
    disk_used_bytes: int | None
    devices: tuple[DeviceSample, ...] = ()


@dataclass(frozen=True)
class UsageDevice:
    """One GPU or TPU chip of a host.

    Attributes:
        kind: "gpu" or "tpu".
        name: As the driver names it.
        memory_bytes: Bytes of memory that it has.
    """

    kind: str
    name: str
    memory_bytes: int


@dataclass(frozen=True)
class UsageSummary:
    """Peaks or means; None stands for what was not measured.

    Attributes:
        cpu_percent: 100 is one core. Of a peak: the largest average between two samples.
        memory_bytes: Bytes of memory.
        disk_used_bytes: Bytes used on the file system of the working folder.
        device_percent: Of the busiest device for a peak, of all devices for a mean; 0 to 100.
        device_memory_bytes: Bytes of device memory, of the fullest or of all, as above.
    """

    cpu_percent: float | None = None
    memory_bytes: int | None = None
    disk_used_bytes: int | None = None
    device_percent: float | None = None
    device_memory_bytes: int | None = None


@dataclass(frozen=True)
class HostUsage:
    """What one host of an attempt used.

    Attributes:
        host: Which host, from 0.
        began: Unix time at which the attempt began there.
        seconds: How long it had run when it was measured last.
        cpu_seconds: CPU time until then, with that of processes that had ended.
        cores: How many cores it might use (count); a share of one is possible in a container.
        memory_limit_bytes: Bytes of memory that it might use: as the job asked for, else all of container or machine.
        disk_bytes: Size of the file system of the working folder in bytes; 0 where that is not known.
        devices: Its GPUs or TPU chips.
        source: "cgroup" where the kernel counted for its container, "processes" where its processes were added up.
        samples: At most 240, oldest first: at first one each second, then one every 5 s; older ones are put together.
    """

    host: int
    began: float
    seconds: float
    cpu_seconds: float
    cores: float
    memory_limit_bytes: int
    disk_bytes: int
    devices: tuple[UsageDevice, ...]
    source: str
    samples: tuple[UsageSample, ...] = field(repr=False)
    _peak_cores: float = field(default=0.0, repr=False)
    _peak_memory: int = field(default=0, repr=False)

    @property
    def peak(self) -> UsageSummary:
        """The largest values."""
        rates = [sample.cpu_percent for sample in self.samples]
        return UsageSummary(
            cpu_percent=max([*rates, 100 * self._peak_cores]),
            memory_bytes=max([self._peak_memory, *_known(sample.memory_bytes for sample in self.samples)]) or None,
            disk_used_bytes=max(_known(sample.disk_used_bytes for sample in self.samples), default=None),
            device_percent=max(_known(each.percent for each in self._of_devices()), default=None),
            device_memory_bytes=max(_known(each.memory_bytes for each in self._of_devices()), default=None),
        )

    @property
    def mean(self) -> UsageSummary:
        """The averages over the time that was measured."""
        seconds = [after - before for before, after in pairwise([0.0, *(sample.seconds for sample in self.samples)])]

        def mean(values: Iterable[float | None]) -> float | None:
            pairs = [(value, span) for value, span in zip(values, seconds, strict=True) if value is not None]
            whole = sum(span for _, span in pairs)
            return sum(value * span for value, span in pairs) / whole if whole else None

        def of_devices(of: Callable[[DeviceSample], float | None]) -> Iterator[float | None]:
            for sample in self.samples:
                found = _known(map(of, sample.devices))
                yield sum(found) / len(found) if found else None

        return UsageSummary(
            cpu_percent=100 * self.cpu_seconds / self.seconds if self.seconds else None,
            memory_bytes=_whole(mean(sample.memory_bytes for sample in self.samples)),
            disk_used_bytes=_whole(mean(sample.disk_used_bytes for sample in self.samples)),
            device_percent=mean(of_devices(lambda each: each.percent)),
            device_memory_bytes=_whole(mean(of_devices(lambda each: each.memory_bytes))),
        )

    def _of_devices(self) -> Iterator[DeviceSample]:
        for sample in self.samples:
            yield from sample.devices

    def to_dict(self, *, samples: bool = True) -> dict[str, Any]:
        """Return JSON values: the fields, ``peak``, ``mean``, and with ``samples`` those as well."""
        page = {name: value for name, value in vars(self).items() if not name.startswith("_") and name != "samples"}
        page |= {"devices": [asdict(device) for device in self.devices]}
        page |= {"peak": _rounded(self.peak), "mean": _rounded(self.mean)}
        return page | ({"samples": [asdict(sample) for sample in self.samples]} if samples else {})


@dataclass(frozen=True)
class Usage:
    """What a job used.

    Attributes:
        job_id: The job.
        attempt: Which attempt, from 0.
        hosts: What each host used, host 0 first; empty for a job that took less than a second, or has not begun.
    """

    job_id: str
    attempt: int
    hosts: tuple[HostUsage, ...]

    @property
    def peak(self) -> UsageSummary:
        """The largest values of any host."""
        peaks = [host.peak for host in self.hosts]
        return UsageSummary(**{name: max(_known(vars(peak)[name] for peak in peaks), default=None) for name in _NAMES})

    @property
    def mean(self) -> UsageSummary:
        """The averages over all hosts."""
        means = [host.mean for host in self.hosts]
        found = {name: _known(vars(mean)[name] for mean in means) for name in _NAMES}
        averages = {name: sum(values) / len(values) if values else None for name, values in found.items()}
        return UsageSummary(**{name: _whole(value) if "bytes" in name else value for name, value in averages.items()})

    def to_dict(self, *, samples: bool = True) -> dict[str, Any]:
        """Return JSON values, whose ``schema_version`` is 1; without ``samples`` only peaks and means."""
        return {
            "schema_version": SCHEMA,
            "job_id": self.job_id,
            "attempt": self.attempt,
            "peak": _rounded(self.peak),
            "mean": _rounded(self.mean),
            "hosts": [host.to_dict(samples=samples) for host in self.hosts],
        }


_NAMES = tuple(UsageSummary.__dataclass_fields__)


def _known(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _rounded(found: UsageSummary) -> dict[str, Any]:
    return {name: round(value, 2) if isinstance(value, float) else value for name, value in vars(found).items()}


def usage_of(job: JobRecord, *, attempt: int | None = None) -> Usage:
    """Return what a job used, as far as that is known now; see ``JobHandle.usage``."""
    if attempt is not None and (type(attempt) is not int or attempt < 0):
        raise OptionError(
            f"attempt must be 0 or more, got {attempt!r}",
            why="the attempts of a job are counted from 0",
            next="job.usage(attempt=0), or job.usage() for the last attempt",
        )
    return usage_from(job, *measurements_of(job, attempt=attempt))


def usage_from(
    job: JobRecord, attempt: int, found: Sequence[Measurements], *, most_samples: int | None = None
) -> Usage:
    """Return the same from what was read already, with at most so many samples of all hosts together."""
    measured = [host for host in found if host.rows]  # a short job that reported its progress has none
    most = measurements.MOST_ROWS if most_samples is None else max(most_samples // max(len(measured), 1), 2)
    thinned = (replace(host, rows=tuple(measurements.thinned(host.rows, most))) for host in measured)
    return Usage(job.job_id, attempt, tuple(map(_host_usage, thinned)))


def measurements_of(job: JobRecord, *, attempt: int | None = None) -> tuple[int, list[Measurements]]:
    """Return the number of an attempt, and what is known of its hosts, host 0 first; see ``usage_of``."""
    store = locate.store_of(job)
    past = locate.past_of(job)
    if not locate.is_collected(past):
        number = _latest(job, store) if attempt is None else attempt
        if found := _measured(job, store, number):
            return number, found
        past = locate.read_page(store, job.job_id)  # it may have been collected meanwhile
    read = fields.nested(Measurements, measurements.READERS)
    kept = [fields.read_one(read, each, "the history") for each in (past or {}).get("usage") or ()]
    last = max((each.attempt for each in kept), default=0) if attempt is None else attempt
    return last, sorted((each for each in kept if each.attempt == last), key=lambda each: each.host)


def _latest(job: JobRecord, store: Store) -> int:
    if locate.can_be_seen(job):
        with contextlib.suppress(KineticError):
            return logs.latest_attempt(job)
    return logs.latest_noted_attempt(store, job.job_id)


def _measured(job: JobRecord, store: Store, attempt: int) -> list[Measurements]:
    """Read what is known of the hosts of an attempt that was not collected, host 0 first."""
    found: dict[int, Measurements] = {}
    hosts = locate.hosts_or_one(job)
    for host in range(hosts) if locate.is_here(job) else ():
        data = locate.backend_of(job).live_usage(job.job_id, host=host, attempt=attempt)
        if data is not None:
            page = documents.read(data, "the usage", most_bytes=PAGE.most_bytes)
            found[host] = PAGE.build(page, "the usage")
    stored = [0]
    if hosts > 1:
        stored = [number for number, _ in keys.numbered(store.entries(keys.usage(job.job_id, attempt, 0)[:-1]))]
    missing = [host for host in stored if host not in found]
    if missing:
        key = locate.key_to_read(job)
        places = [keys.usage(job.job_id, attempt, host) for host in missing]
        reads = [(store.url, functools.partial(_stored, store, at, key)) for at in places]
        found |= {each.host: each for each in locate.in_order(reads) if each is not None}
    return [found[host] for host in sorted(found)]


def _stored(store: Store, at: str, key: bytes | None) -> Measurements | None:
    try:
        return documents.open_page(PAGE, store, at, key)
    except KeyMissingError:
        return None


def to_keep(job: JobRecord, inside: Sequence[Entry], outcome: Outcome | None) -> list[dict[str, Any]]:
    """Return what the history keeps of a job that is collected: of each attempt and host, with fewer samples."""
    store, prefix = locate.store_of(job), f"{job.job_id}/usage/"
    stored = {entry.key.split("/")[-2] for entry in inside if entry.key.startswith(prefix)}
    attempts = {int(word) for word in stored if keys.is_number(word)} | {outcome.attempt if outcome is not None else 0}
    found = []
    for attempt in sorted(attempts):
        with contextlib.suppress(KineticError):  # what cannot be read is not kept, and the result is worth more
            found += _measured(job, store, attempt)
    most = max(min(_KEPT_ROWS, _KEPT_IN_ALL // max(len(found), 1)), 2)

    def thin(rows: Sequence[Row]) -> tuple[Row, ...]:
        return tuple(measurements.thinned(rows, most))

    return [replace(each, rows=thin(each.rows), log=thin(each.log)).to_json() for each in found]


def _host_usage(found: Measurements) -> HostUsage:
    return HostUsage(
        host=found.host,
        began=found.began,
        seconds=found.seconds,
        cpu_seconds=found.cpu_seconds,
        cores=found.cores,
        memory_limit_bytes=found.memory_limit_bytes,
        disk_bytes=found.disk_bytes,
        devices=tuple(UsageDevice(each.kind, each.name, each.memory_bytes) for each in found.devices),
        source=found.source,
        samples=tuple(_samples(found)),
        _peak_cores=found.peak_cores,
        _peak_memory=found.peak_memory_bytes,
    )


def _samples(found: Measurements) -> Iterator[UsageSample]:
    before, cpu_before = 0.0, 0.0
    for row in found.rows:
        seconds, cpu = row[SECONDS] or 0.0, row[CPU] or 0.0
        pairs = row[DEVICES : DEVICES + 2 * len(found.devices)]
        devices = tuple(
            DeviceSample(busy, _whole(memory)) for busy, memory in zip(pairs[::2], pairs[1::2], strict=False)
        )
        yield UsageSample(
            seconds=seconds,
            cpu_percent=round(100 * max(cpu - cpu_before, 0.0) / (seconds - before), 2) if seconds > before else 0.0,
            memory_bytes=_whole(row[MEMORY]),
            read_bytes=_whole(row[READ]),
            written_bytes=_whole(row[WRITTEN]),
            disk_used_bytes=_whole(row[DISK]),
            devices=devices,
        )
        before, cpu_before = seconds, cpu
