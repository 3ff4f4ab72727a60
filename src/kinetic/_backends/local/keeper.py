"""A keeper: claims the oldest job that fits, keeps it until it has its verdict, and claims again.

It holds its life lock from its first moment to its last, holds at most one job, and leaves after a minute without any.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from kinetic._backends.local import burying, environment, launching, life, pulse, queue_repair, soil, spawning
from kinetic._backends.local.paths import Paths
from kinetic._backends.local.queue import Limits, Queue, Row
from kinetic._runner import judging, keeping, patience, processes, retries, sealing
from kinetic._runner.work import Work
from kinetic._stores.opening import CREDENTIAL_VARIABLES, open_anew, open_store
from kinetic._wire import fingerprint, keys, seal
from kinetic._wire import note as notes
from kinetic._wire.note import Note
from kinetic._wire.outcome import Outcome
from kinetic._wire.steps import step
from kinetic.errors import (
    BackendUnavailableError,
    CredentialsError,
    IntegrityError,
    KeyMissingError,
    KineticError,
    StoreUnreachableError,
)

T = TypeVar("T")

_IDLE_SECONDS = 60.0
_ATTEMPTS = 1000


class Keeper:
    """One keeper's process."""

    def __init__(self, name: str, soil: str, runtime: Path, limits: Limits, runner: str) -> None:
        self.name, self.soil, self.limits, self.runner = name, soil, limits, runner
        self.paths = Paths(runtime)
        held = life.take(self.paths.lock(name))
        if held is None:
            raise SystemExit(f"keeper {name} runs already")
        self.life = held
        step("keeper:alive")
        pulse.make(self.paths.wake(name))
        self.wake = os.open(self.paths.wake(name), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.libc = keeping.use_linux()
        keeping.adopt_orphans(self.libc)
        self.title = processes.Title(self.libc)
        self.bell = keeping.Bell()
        self.queue = Queue(self.paths.queue)
        self.ending = False
        signal.signal(signal.SIGTERM, self._on_term)

    def run(self) -> None:
        """Keep jobs until there are none for a minute."""
        soil.become(self.queue.recipe(self.soil))
        self.queue.register(self.name, self.soil)
        step("keeper:registered")
        while not self.ending:
            row_ = self.queue.claim(self.name, self.soil, self.limits)
            if row_ is not None:
                step("keeper:claimed")
                self._keep(row_)
                step("keeper:ended")
                self._help_others()
            elif not self._wait() and self._leave():
                return
        self._leave()

    def _keep(self, row: Row) -> None:
        """Carry out a job; whatever goes wrong here becomes its verdict, so that no job ends keeper after keeper.

        What only goes wrong with the queue ends this keeper instead: no worker of it runs then, its lock is free, and
        whoever looks next finishes the job from what is in the store.
        """
        try:
            self._carry(row)
        except BackendUnavailableError:
            raise
        except (KineticError, OSError) as error:
            _print_traceback()
            burying.end_marked(self.name)
            self._give_up(row.job_id, error)
        self.paths.held(self.name).unlink(missing_ok=True)

    def _give_up(self, job_id: str, error: Exception) -> None:
        """Say what became of a job that this keeper could not bring to its end."""
        now = self.queue.jobs([job_id]).get(job_id)  # it knows the attempt
        if now is None or now.state == "ended":  # it was removed; or its verdict is there, and what is left is swept
            return
        is_away = isinstance(error, patience.PASSES)
        if is_away and now.stop:
            self.queue.end(job_id, f"it was stopped while its store was out of reach: {_in_words(error)}")
            burying.clear_attempt(self.paths, now)
            burying.drop_data(self.paths, job_id)
        elif is_away and (self.ending or burying.is_finished(self.paths, now)):
            self.ending = True  # whoever looks next finds the row of a keeper that is gone: a value is sealed then
        else:
            burying.settle(self.paths, self.queue, now, why=f"the job could not be carried out: {_in_words(error)}")

    def _carry(self, row: Row) -> None:
        page = launching.read(self.paths, row.job_id)
        if page is None:
            self.queue.end(row.job_id, burying.NO_PAGE)
            return
        _lend_credentials(page)
        store = open_store(page.store_url)
        if self._patiently(page, lambda: store.size(keys.result(page.job_id))) is not None:
            self.queue.end(row.job_id, "ended")
            return
        if self._patiently(page, lambda: burying.was_removed(store, row.job_id, self.paths.key(row.job_id))):
            self.queue.forget([row.job_id])
            burying.forsake(self.paths, store, row.job_id)
            return
        started = time.time()
        attempt = self._patiently(page, lambda: self._claim_attempt(store, page, started))
        if attempt is None:  # another machine began with it: this row is none of ours
            self.queue.forget([row.job_id])
            burying.remove_job(self.paths, row.job_id)
            return
        step("keeper:attempt-noted")
        queue_repair.hold(self.paths, self.name, row.job_id, attempt, row.devices)
        if not self.queue.running(row.job_id, self.name, attempt):
            now = self.queue.jobs([row.job_id]).get(row.job_id)
            if now is None:  # removed
                burying.forsake(self.paths, store, row.job_id)
            elif now.stop:
                self.queue.end(row.job_id, "ended")
            return  # else it is somebody else's: the queue was rebuilt before it could know that we had the job
        step("keeper:marked-running")
        meet = keeping.free_address() if page.hosts > 1 else ""
        marks = self._marks(row, attempt)
        tasks = launching.works_of(self.paths, page, attempt, runner=self.runner, more=marks, coordinator=meet)
        spare = sealing.Reserve(store)
        heart = pulse.Heart(self.paths.pulse(row.job_id))
        try:
            again = row.requeues < burying.REQUEUES
            verdict = self._carry_out(store, page, tasks, heart, started, spare, again=again)
        finally:
            self.title.reset()
            heart.stop()
            spare.release()
        step("keeper:told")
        if verdict is None:
            return
        store = open_store(page.store_url)  # it may have been opened anew
        burying.finish(self.paths, self.queue, store, tasks, verdict.status)
        for task in tasks if verdict.succeeded else ():
            burying.remove_folder(task.folder)  # a failed one keeps its working folder for a day
        burying.tidy(self.paths, row.job_id, page)

    def _carry_out(
        self,
        store: Any,
        page: launching.LaunchPage,
        tasks: Sequence[Work],
        heart: pulse.Heart,
        started: float,
        spare: sealing.Reserve,
        *,
        again: bool,
    ) -> Outcome | None:
        """Fork a worker for each host, watch, judge and seal; the Outcome is in the store when this returns.

        Returns:
            The verdict; None when a worker was killed before the function began and may be started ``again``, or when
            the job failed and has retries left.
        """
        self.queue.close()  # until it is used next: SQLite's connections must not cross a fork
        hosts = [keeping.start(task, self.libc) for task in tasks]
        self.title.set(page.job_id, f"supervisor {tasks[0].folder}")
        step("keeper:forked")
        heart.running()
        unwanted = functools.partial(self._is_unwanted, store, page.job_id)
        endings = keeping.watch(hosts, self.bell, wake=self.wake, stop=unwanted)
        step("keeper:worker-ended")
        if self.libc is None:
            burying.end_marked(self.name)  # where orphans cannot be adopted, they are found by their mark
        decisive = judging.together(tasks, endings)
        task, ending = tasks[decisive], endings[decisive]
        if again and ending.was_killed and not any(task.began.exists() for task in tasks):
            self._requeue(tasks)
            return None
        verdict = judging.judge(task, ending, started=started, ended=time.time(), machine_bytes=_memory())
        if verdict.cause == "stopped" and self.ending:
            verdict = replace(verdict, error={**verdict.error, "message": _TOLD_TO_END})
        key = launching.key_of(self.paths, task.job_id)
        if (
            page.retries
            and not self.ending
            and self._patiently(page, lambda: _is_tried_again(store, page, verdict, tasks, key))
        ):
            self._requeue(tasks, counted=False)
            return None
        verdict = replace(verdict, key_id=page.key_id, logs=burying.log_digests(tasks))
        step("keeper:judged")

        def seal(anew: bool) -> bool:
            now = open_anew(page.store_url) if anew else store
            return sealing.seal(now, verdict, key, body=task.body, spare=spare, mark=page.mark)

        self._seal_patiently(page, seal)
        step("keeper:sealed")
        return verdict

    def _requeue(self, tasks: Sequence[Work], *, counted: bool = True) -> None:
        """Free what an attempt held, and put its job back to its old place, where any keeper may take it."""
        burying.clear_scratch(tasks)
        burying.drop_data(self.paths, tasks[0].job_id)
        for task in tasks:
            task.began.unlink(missing_ok=True)
        self.queue.requeue(tasks[0].job_id, self.name, counted=counted)

    def _patiently(self, page: launching.LaunchPage, do: Callable[[], T]) -> T:
        """Do something with a job's store; one in a cloud is waited for while it is out of reach."""
        if not environment.is_cloud(page.store_url):
            return do()
        return patience.keep_trying(
            do,
            StoreUnreachableError,
            wait=lambda seconds: self._is_over(page.job_id, seconds),
            say=lambda error: sys.stderr.write(f"{page.job_id} waits for its store: {_in_words(error)}\n"),
        )

    def _seal_patiently(self, page: launching.LaunchPage, seal: Callable[[bool], bool]) -> None:
        """Bring a verdict into its store; in a cloud it waits for the store, and for credentials that expired.

        What it waits for is written into the queue. After an hour, or when this keeper is told to end, whoever looks
        next seals it, with what credentials they have.
        """
        refused = False

        def waits(error: Exception) -> None:
            nonlocal refused
            refused = refused or isinstance(error, CredentialsError)
            said = patience.waits_for(error)
            sys.stderr.write(f"{page.job_id} {said}\n")
            self.queue.note(page.job_id, said)

        if not environment.is_cloud(page.store_url):
            seal(False)  # noqa: FBT003 - it has one meaning here
            return
        over = functools.partial(self._is_over, page.job_id)
        patience.keep_trying(lambda: seal(refused), patience.PASSES, wait=over, say=waits)

    def _is_over(self, job_id: str, seconds: float) -> bool:
        """Wait; say whether there is no use in it any more: the job was stopped or removed, or this keeper must end."""
        select.select([self.wake], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)
        with contextlib.suppress(BackendUnavailableError):  # a queue that is out of reach as well ends no job
            row = self.queue.jobs([job_id]).get(job_id)
            return self.ending or row is None or bool(row.stop)
        return self.ending

    def _claim_attempt(self, store: Any, page: launching.LaunchPage, started: float) -> int | None:
        """Create the Note of the next attempt; creating it is what makes the attempt ours.

        Returns:
            Its number; None when another machine has begun: two of them were given the same child of a batch.
        """
        job_id = page.job_id
        details: dict[str, object] = {"keeper": self.name, "machine_id": page.machine}
        note = Note(job_id, 0, os.uname().nodename, started, Path(self.runner).name, fingerprint.python())
        with seal.borrowed(self.paths.key(job_id)) as key:
            for attempt in range(_ATTEMPTS):
                ours = replace(note, attempt=attempt, details=details)
                if store.put(ours.key, ours.to_bytes(key), if_absent=True):
                    return attempt
                if self._is_of_another_machine(store, job_id, attempt, page.machine, key):
                    return None
        raise KineticError(f"{job_id} has used up {_ATTEMPTS} attempts", code="attempts")

    def _is_of_another_machine(self, store: Any, job_id: str, attempt: int, machine: str, key: bytes) -> bool:
        with contextlib.suppress(KeyMissingError, IntegrityError):
            return notes.read(store, job_id, attempt, key).details.get("machine_id", machine) != machine
        return False

    def _marks(self, row: Row, attempt: int) -> dict[str, str]:
        marks = {burying.MARK: self.name, "KINETIC_ATTEMPT": str(attempt)}
        return marks | ({"CUDA_VISIBLE_DEVICES": row.devices} if row.devices else {})

    def _is_unwanted(self, store: Any, job_id: str) -> bool:
        """Say whether the job shall end: asked to, removed, or cancelled by somebody who died before telling us."""
        with contextlib.suppress(KineticError):  # a store or a queue that is out of reach for a while ends no job
            row = self.queue.jobs([job_id]).get(job_id)
            asked = self.ending or row is None or bool(row.stop) or store.size(keys.result(job_id)) is not None
            return asked or burying.was_removed(store, job_id, self.paths.key(job_id))
        return self.ending

    def _help_others(self) -> None:
        """Start keepers of another kind if those are next in line; nobody else may be looking.

        Meanwhile this keeper adopts no orphans: a keeper that detaches itself would become its child, and be ended as
        a left-over of its next job.
        """
        keeping.adopt_orphans(self.libc, on=False)
        with contextlib.suppress(KineticError, OSError):
            spawning.advance(self.paths, self.queue, self.limits, collect=True)
        keeping.adopt_orphans(self.libc)

    def _wait(self) -> bool:
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        rang = bool(poll.poll(_IDLE_SECONDS * 1000))
        with contextlib.suppress(BlockingIOError):
            while rang and os.read(self.wake, 4096):
                pass
        return rang

    def _leave(self) -> bool:
        """Sign off, unless a job came in the same moment."""
        if not self.queue.leave(self.name, self.soil, at_once=self.ending):
            return False
        self.paths.wake(self.name).unlink(missing_ok=True)
        log = self.paths.keeper_log(self.name)
        with contextlib.suppress(OSError):
            if log.stat().st_size == 0:
                log.unlink()
        self.life.release(remove=True)
        return True

    def _on_term(self, *_: object) -> None:
        """Pass the end on to the worker: the machine or somebody wants this keeper gone."""
        self.ending = True
        pulse.poke(self.paths.wake(self.name))


def _is_tried_again(
    store: Any, page: launching.LaunchPage, verdict: Outcome, tasks: Sequence[Work], key: bytes
) -> bool:
    """Say whether a job that failed is tried again; its log and its Note know of it before the next attempt begins."""
    words = retries.next_try(store, verdict, page.retries, key)
    if not words:
        return False
    log = next(task.log for task in tasks if task.host == verdict.host)
    line = f"kinetic: {words}\n"
    with contextlib.suppress(OSError):
        if not judging.last_lines(log).endswith(line.rstrip()):  # this is tried again when the store does not answer
            with log.open("a") as file:
                file.write(line)
    retries.write_down(store, replace(verdict, logs=burying.log_digests(tasks)), key)
    return True


_TOLD_TO_END = "the job was ended because its keeper was told to end (SIGTERM), as at a shutdown of the machine"


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _lend_credentials(page: launching.LaunchPage) -> None:
    """Let this keeper open the store of a job as the job itself could: with what its client had."""
    for name in CREDENTIAL_VARIABLES if page.store_url.startswith(("gs://", "s3://")) else ():
        if name in page.environment:
            os.environ[name] = page.environment[name]
        else:
            os.environ.pop(name, None)


def _in_words(error: Exception) -> str:
    """Return what went wrong in one line: ours have a sentence and a reason, the system's have a file."""
    if isinstance(error, KineticError):
        return f"{error.what}, {error.why}" if error.why else str(error.what)
    return f"{type(error).__name__}: {error}"


def _print_traceback() -> None:
    """Write what went wrong into this keeper's own log."""
    import traceback  # 5 ms; a keeper's start is what a first call waits for

    traceback.print_exc()


def main(words: list[str]) -> None:
    """Be a keeper: ``NAME SOIL RUNTIME SLOTS GPUS``; already detached."""
    name, soil, runtime, slots, gpus = words
    runner = str(Path(sys.argv[0]).parent)
    os.chdir("/")
    try:
        limits = Limits(int(slots), tuple(filter(None, gpus.split(","))))
        keeper = Keeper(name, soil, Path(runtime), limits, runner)
        keeping.load_ahead()
        gc.collect()
        gc.freeze()
        gc.disable()
        keeper.run()
    except Exception:  # noqa: BLE001 - the last frame: into the keeper's log; whoever looks next buries us
        _print_traceback()
        os._exit(1)
    os._exit(0)
