"""Warm pods from the client's side: a job is given to one that fits, or starts one; and what none carries out, cold.

Every decision is a key of the store that is created once, see ``_runner/supervisor/bindings.py``; what follows it can
be repeated by any process.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kinetic import _hardware as hardware
from kinetic._config import cluster
from kinetic._config import target as settings
from kinetic._config.cluster import PodRequirements
from kinetic._config.variables import read_variable
from kinetic._jobs import cold_start, job_cost, locate
from kinetic._output import notebook
from kinetic._output import terminal as output
from kinetic._output.format import duration_text
from kinetic._runner.supervisor import bindings
from kinetic._wire import NamedTuple, documents, folders, keys, warm_pods
from kinetic._wire.failpoints import step
from kinetic._wire.fields import seconds_of
from kinetic._wire.warm_pods import IDLE, Assignment, Greeting, WarmPod
from kinetic.errors import (
    AccessDeniedError,
    BackendError,
    BackendUnavailableError,
    CapacityError,
    ImageBuildError,
    KineticError,
    OptionError,
)

if TYPE_CHECKING:
    from kinetic._backends.kube.backend import KubeBackend
    from kinetic._backends.kube.warm_launcher import WarmState
    from kinetic._backends.protocol import Launch
    from kinetic._jobs.job_options import Options
    from kinetic._stores.protocol import Store

_MAX = "KINETIC_WARM_MAX"
_new: ContextVar[float | None] = ContextVar("kinetic_new_warm_pod", default=None)  # how long one is to take jobs
_ENDED_SECONDS = 3600.0  # that the Job of a task stays after its end: what reads its log from the pod, finds it
_PACKAGES = frozenset({"image", "packages"})  # what may be different where both have locks
_NOTEBOOK_SECONDS = 300.0  # between two looks of a notebook for warm pods that others may have started: two requests
_BATCH_SECONDS = 30.0  # the same of a batch, which launches again and again
_AWAY_SECONDS = 120.0  # in which a batch passes over a warm pod that could not be reached: each try may take 20 s
_away: dict[str, float] = {}  # until when, by warm pod
_none_since = [float("-inf")]  # when this process looked last and found none
_HINT = "warm-pods.json"  # in the home: until when this user may have warm pods, so that other jobs ask for none


class Place(NamedTuple):
    """Where a job goes."""

    backend: KubeBackend
    store: Store
    key: bytes  # the sealing key of the namespace
    mask: int  # the umask of this process, which its function is to have as well


class Listed(NamedTuple):
    """A warm pod and what it says of itself, as far as it can be reached."""

    state: WarmState
    greeting: Greeting | None
    dollars_per_hour: float | None  # None for a CPU, and where no price is known


# ------------------------------------------------------------------------------------------------------------- launches


def is_wanted(keep: float | None) -> bool:
    """Return whether a job may run in a warm pod: it asks for one, or this user has started some lately.

    A notebook, which often runs on another machine, looks for one now and then.
    """
    if keep is not None:
        return bool(keep)
    try:
        until = json.loads((settings.kinetic_home(os.environ) / _HINT).read_bytes())["until"]
        if isinstance(until, int | float) and time.time() < until:
            return True
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return notebook.is_kernel() and time.monotonic() - _none_since[-1] >= _NOTEBOOK_SECONDS


def begin(backend: Any, options: Options) -> None:
    """Begin to look for a warm pod and to connect to it, while the client asks what may run and packs the job."""
    if is_wanted(options.keep_warm) and _new.get() is None:
        backend.warm.begin(owner_here(), str(options.accelerator))


def launch(wanted: Launch, context: Place, keep: float) -> bool:
    """Give a job to a warm pod, or start one for it; False if it is to be launched as any other."""
    backend = context.backend
    if why := _why_not(wanted, context):
        if _new.get() is not None:
            raise OptionError("no warm pod can be started", why=why, next="submit jobs as they are", code="no-warm-pod")
        if keep:
            output.report_once(f"the pod is not kept warm: {why}")
        return False
    if (most := _new.get()) is not None:
        backend.warm.check_permissions()
        _start_with(wanted, context, keep, most)
        return True
    try:
        fits = backend.warm.fits(wanted, context.mask)
        known = [state for state in backend.warm.free() if state.fits == fits]
        told, _ = _offer(wanted, context, known, fits, keeps=bool(keep))
        if told:
            return True
        if keep:
            backend.warm.check_permissions()
        found = backend.warm.find(wanted.owner)
        if not found and not keep:
            _none_since[:] = [time.monotonic()]
            return False
        told, idle = _offer(wanted, context, found, fits, keeps=bool(keep))
        if told or _give_to_starting(wanted, context, found, fits):
            return True
    except BackendError as error:
        output.report_once(f"warm pods cannot be used, so the job starts in a pod of its own: {error.what}")
        return False
    if not keep:
        return False
    if idle:
        output.report(f"the pod is not kept warm: {idle}")
        return False
    _end_what_starts_for_nothing(wanted, context, found)
    _start_with(wanted, context, keep, _most_seconds())
    return True


def give_children(launches: Sequence[Launch], context: Place, keep: float) -> Iterator[Launch]:
    """Give the first children of a batch to warm pods, as far as some are idle, and yield each that one has.

    With ``keep``, one that fits is started for the first of them where there is none: a pod for each child that runs at
    the same time would be idle, and be paid for, once the batch has ended.
    """
    if not keep and time.monotonic() - _none_since[-1] < _BATCH_SECONDS:
        return
    reasons = {each.order.job_id: _why_not(each, context) for each in launches}
    left = [each for each in launches if not reasons[each.order.job_id]]
    if not left and keep:
        output.report_once(f"no pod is kept warm: {reasons[launches[0].order.job_id]}")
    try:
        yield from _give(left, context, keep) if left else ()
    except CapacityError:
        return  # the launch that follows says so, or makes room
    except BackendError as error:
        output.report_once(f"warm pods cannot be used, so jobs start in pods of their own: {error.what}")


def _give(left: list[Launch], context: Place, keep: float) -> Iterator[Launch]:
    backend, asked = context.backend, {name for name, until in _away.items() if time.monotonic() < until}
    fits = backend.warm.fits(left[0], context.mask)

    def offer(states: Sequence[WarmState]) -> Iterator[Launch]:
        for state in states:
            if left and state.name not in asked:
                asked.add(state.name)
                if _offer(left[0], context, [state], fits, keeps=bool(keep))[0]:
                    yield left.pop(0)

    yield from offer([state for state in backend.warm.free() if state.fits == fits])
    if not left:
        return
    found = backend.warm.find(left[0].owner)
    if not found and not keep:
        _none_since[:] = [time.monotonic()]
    yield from offer(found)
    if left and _give_to_starting(left[0], context, found, fits):
        yield left.pop(0)
    if left and keep and not any(state.fits == fits for state in found):
        backend.warm.check_permissions()
        _start_with(left[0], context, keep, _most_seconds())
        yield left[0]


def _end_what_starts_for_nothing(wanted: Launch, context: Place, found: list[WarmState]) -> None:
    """End warm pods that have no machine yet and whose job is over, as after a cancel: the next one gets the machine.

    Each would be idle once it has started, and be paid for beside the one that this job starts.
    """
    store, job_id, name = context.store, wanted.order.job_id, wanted.placement.name
    for state in [each for each in found if not each.pod and each.fits.get("accelerator") == name]:
        key, sequence = _pod_key(context, state.name), bindings.next_sequence(store, state.name)
        if not sequence or not _is_decided(store, bindings.assigned(store, state.name, sequence - 1, key)):
            continue
        if bindings.assign(store, state.name, sequence, job_id, key):  # so that no other client gives it a job now
            context.backend.warm.end_pod(state, delete=True)
            output.report(
                f"the warm {state.what} {state.name} is still starting, and its job is over: a new one replaces it"
            )


@contextlib.contextmanager
def starting_new(most: float | None) -> Iterator[None]:
    """Start a new warm pod for each job that is submitted inside, whatever others there are; ``most``: seconds."""
    token = _new.set(most or _most_seconds())
    try:
        yield
    finally:
        _new.reset(token)


def _most_seconds() -> float:
    """Return how long a warm pod takes jobs at most."""
    written = read_variable(_MAX, os.environ)
    found = seconds_of(written) if written else (warm_pods.MOST_SECONDS, True)
    if found is None or not found[0]:
        raise OptionError(
            f"{_MAX}={written!r} is not a valid duration",
            why="it is how long a warm pod takes jobs at most: a number and s, m, h, d or w",
            next=f"export {_MAX}=8h     or unset it",
        )
    return found[0]


def _offer(
    wanted: Launch, context: Place, found: list[WarmState], fits: Mapping[str, str], *, keeps: bool
) -> tuple[bool, str]:
    """Offer a job to warm pods, one after the other; return whether one took it, and why a new one is not made."""
    idle, reasons = "", []
    for state in found:
        unlike = [word for word, value in fits.items() if state.fits.get(word) != value]
        is_near = state.accelerator == wanted.placement.accelerator
        reason = ""
        if state.pod and (not unlike or is_near or keeps):
            told, may_be_idle, reason = _offer_to(wanted, context, state, unlike)
            if told:
                return True, ""
            idle = idle or may_be_idle
        if not reason and unlike and is_near:
            names = " and ".join(f"{'other' if word.endswith('s') else 'another'} {word}" for word in unlike[:3])
            reason = f"{state.name} has {names}{', without a lock' if unlike == ['packages'] else ''}"
        reasons += [reason] if reason else []
    if reasons:
        output.report_once(f"starts in a pod of its own: {'; '.join(reasons[:2])}")
    return False, idle


def _offer_to(wanted: Launch, context: Place, state: WarmState, unlike: Sequence[str]) -> tuple[bool, str, str]:
    """Offer a job to one warm pod, which is ``unlike`` in some words; where only packages differ, with what it lacks.

    Returns:
        Whether it took the job; a sentence if it is idle, or may be; and why it cannot get the packages.
    """
    told, greeting = _try(wanted, context, state, fits=not unlike)
    if told or (greeting is not None and greeting.state != IDLE):
        return told, "", ""
    why = "is idle already" if greeting is not None else "cannot be reached, and may be idle"
    idle = f"{state.name} {why}; to end that one: kinetic warm stop {state.name}"
    if greeting is None or not unlike or not _PACKAGES.issuperset(unlike):
        return False, idle, ""
    try:
        lacking = _lacking(wanted, context, state)
    except KineticError as error:
        return False, idle, f"{state.name} has other packages: {error.why or error.what}"
    if lacking is not None:
        told, _ = _try(wanted, context, state, fits=True, requirements=lacking)
    return told, idle, ""


def _lacking(wanted: Launch, context: Place, state: WarmState) -> dict[str, Any] | None:
    """Return what a job with other packages than a warm pod's installs there; None where only one has a lock.

    Raises ImageBuildError if the difference cannot be installed.
    """
    from kinetic._images import lock_difference, lock_store  # only where packages have changed

    own, there = PodRequirements.from_json(wanted.requirements), state.packages
    locks = [
        lock_store.find(at.rpartition("/")[2], context.store, os.environ) if at else None
        for at in (str(there.get("lock") or ""), own.lock)
    ]
    before, after = locks
    if before is None and after is None and state.fits.get("image") == own.image:
        return _lacking_lines(own.requirements, there.get("requirements"), context, state)
    if before is None or after is None:
        return None
    try:
        found = lock_difference.between(before, after, wanted.placement.kind)
        logins = after.with_logins(os.environ)
        page = lock_difference.requirements_of(found, after.lock, there.get("requirements"), context.store, logins)
    except ImageBuildError:
        if own.requirements and there.get("requirements") and before.base == after.base:
            return own.requirements  # all of its layers, as a pod of its own would unpack them
        raise
    output.report_once(f"the warm pod {state.name} gets what it lacks: {found.text or 'nothing'}")
    return page


def _lacking_lines(
    own: Mapping[str, Any] | None, there: Mapping[str, Any] | None, context: Place, state: WarmState
) -> dict[str, Any] | None:
    """Return the same where packages are installed from an index, without a lock: the pod has uv find what it lacks.

    Where all is there already, the job is one like the pod's own, forked from what has imported their packages.
    """
    from kinetic._project import requirements  # only where packages have changed

    if any("layers" in (each or {}) for each in (own, there)):
        return None
    if own is None:
        return dict(there) if there else None
    lines, known = _lines_of(own, context.store), _lines_of(there, context.store) if there else []
    with context.backend.warm.turn(state) as connection:
        installed = connection.installed()
    lacking = requirements.not_satisfied(lines, known, installed)
    what = f"gets what it lacks: {', '.join(lacking)}" if lacking else "has all packages of this job"
    output.report_once(f"the warm pod {state.name} {what}")
    return {"lines": dict(own), "like": None if lacking or not there else dict(there)}


def _lines_of(artifact: Mapping[str, Any], store: Store) -> list[str]:
    from kinetic._runner.worker import function_call  # as above
    from kinetic._wire.order import Artifact

    data = function_call.fetch_artifact(store, Artifact(**artifact), "the file with the requirements")
    return data.decode().split("\n")


def _why_not(wanted: Launch, context: Place) -> str:
    """Return why a job cannot run in a warm pod, whatever pods there are."""
    if wanted.placement.hosts > 1 and (why := context.backend.warm.why_not(wanted)):
        return why
    if wanted.order.after:
        return "it waits for other jobs"
    if wanted.programs_of or wanted.awaited_seconds:
        return "the first job of its batch compiles, and the others wait for that"
    if queue := PodRequirements.from_json(wanted.requirements).settings.queue:
        return f"the queue {queue} of Kueue admits each job by itself"
    if any(ref.fuse and ref.kind in {"prefix", "object"} for ref in wanted.order.data):
        return "it mounts a bucket, which only a pod of its own can"
    return ""


def _assignment(wanted: Launch, task: str, sequence: int, restarts: int = 0) -> Assignment:
    captured = dict(wanted.captured)
    return Assignment(sequence, wanted.order.job_id, task, wanted.key, captured, wanted.cache_key, restarts)


def _pod_key(context: Place, pod: str) -> bytes:
    return documents.job_key(context.key, pod, context.store.url)


def _try(
    wanted: Launch, context: Place, state: WarmState, *, fits: bool, requirements: Mapping[str, Any] | None = None
) -> tuple[bool, Greeting | None]:
    """Give a job to a warm pod that is idle; return whether it is launched, and what the pod said of itself."""
    greeting: Greeting | None = None
    made: Any = None
    backend, job_id, key = context.backend, wanted.order.job_id, _pod_key(context, state.name)
    try:
        with backend.warm.turn(state) as connection, contextlib.ExitStack() as undo:
            greeting = connection.greeting(functools.partial(_is_decided, context.store))
            if greeting.state != IDLE or not fits:
                return False, greeting
            task = backend.warm.task_of(wanted, context.mask, requirements)
            assignment = _assignment(wanted, task, greeting.sequence, greeting.restarts)
            is_slice = wanted.placement.hosts > 1
            differs = requirements is not None
            make = functools.partial(
                backend.warm.make_task, wanted, context.mask, state, at_once=not is_slice, differs=differs
            )
            sequence = greeting.sequence
            assign = functools.partial(_why_not_assigned, context.store, state.name, sequence, job_id, key)
            undo.callback(connection.close)  # so the pod gives up what it holds
            if is_slice:
                made = make()
                refused = assign()
            else:  # it gets ready, and begins when it hears that this job cannot be lost any more
                held = replace(assignment, is_held=True).to_bytes(key, greeting.nonce)
                refused, made = backend.warm.tell(connection, held, job_id, make, then=assign)
                step("client:task-held")
            backend.add(wanted, made)
            step("client:task-assigned")
            if not refused and is_slice:  # before any host begins: if one is lost, all find the task again
                backend.warm.write_assignment(state, assignment.to_bytes(key), key)
                refused = connection.ask(assignment.to_bytes(key, greeting.nonce), job_id)
            elif not refused:
                keep = functools.partial(_keep_assignment, backend, state, assignment, key)
                own = functools.partial(_own_secret, backend, made)
                confirm = warm_pods.request(warm_pods.CONFIRM, job_id=job_id)
                refused, *_ = backend.warm.tell(connection, confirm, job_id, keep, own)
            step("client:task-told")
            if not refused:
                undo.pop_all()
                connection.has_taken(greeting)
                return True, greeting
    except KineticError as error:
        if made is None and isinstance(error, AccessDeniedError | CapacityError):
            raise  # no pod can be told, and a new one would be idle for nothing; or a quota has no room for the job
        if made is None:
            output.report_once(f"the warm pod {state.name} cannot be reached: {error.what}")
            _away[state.name] = time.monotonic() + _AWAY_SECONDS
            return False, greeting
        refused = f"the warm pod {state.name} cannot be told: {error.what}"
    _start_cold(wanted, context, refused)
    return True, greeting


def _why_not_assigned(store: Store, pod: str, sequence: int, job_id: str, key: bytes) -> str:
    """Make a job the N-th task of a warm pod; return why it is not that, or ""."""
    try:
        is_assigned = bindings.assign(store, pod, sequence, job_id, key)
    except KineticError as error:  # what is created meanwhile must not be forgotten
        return f"the store does not take it as a task of {pod}: {error.what}"
    return "" if is_assigned else f"{pod} has taken another job meanwhile"


def _give_to_starting(wanted: Launch, context: Place, found: list[WarmState], fits: Mapping[str, str]) -> bool:
    """Give a job to a warm pod that is being started, as a slice is that lost a host, and that has nothing to do then.

    Its Secret tells it. A pod of its own would wait for the machine that this one gets, and that is idle afterwards.
    """
    backend, store, job_id = context.backend, context.store, wanted.order.job_id
    # A pod that runs would hear of it by its kubelet only, which may take two minutes.
    for state in [each for each in found if each.is_started and not each.pod and each.fits == fits]:
        key, sequence = _pod_key(context, state.name), bindings.next_sequence(store, state.name)
        if not sequence or not _is_decided(store, bindings.assigned(store, state.name, sequence - 1, key)):
            continue
        assignment = _assignment(wanted, backend.warm.task_of(wanted, context.mask), sequence, state.restarts)
        made = backend.warm.make_task(wanted, context.mask, state)
        backend.add(wanted, made)
        refused = ""
        if bindings.assign(store, state.name, sequence, job_id, key):
            try:
                backend.warm.write_assignment(state, assignment.to_bytes(key), key)
                output.report(f"waits for the warm {state.what} {state.name}, which is being started")
            except KineticError as error:
                refused = f"the warm {state.what} {state.name} cannot be told: {error.what}"
        else:
            refused = f"{state.name} has taken another job meanwhile"
        if refused:
            _start_cold(wanted, context, refused)
        return True
    return False


def _start_cold(wanted: Launch, context: Place, why: str) -> None:
    """Start a job in a pod of its own that is a task of a warm pod already, unless that has taken it."""
    job_id = wanted.order.job_id
    if cold_start.take(context.store, wanted.key, job_id):
        output.report(f"starts in a pod of its own: {why}")
        _is_started(job_id, lambda: context.backend.warm.start_cold(job_id))


def _is_started(job_id: str, start: Callable[[], object]) -> bool:
    """Start what carries out a job that is complete, or leave that to the next look if the cluster does not respond."""
    try:
        start()
    except BackendUnavailableError as error:  # nothing could be removed either
        output.report(f"{error.what}; {job_id} is submitted, and a later command that looks at it starts it")
        return False
    return True


def _is_decided(store: Store, job_id: str) -> bool:
    """Return whether a job that a warm pod says it has is over: then the pod is about to be idle."""
    if not keys.is_job_id(job_id):
        return False
    return store.size(keys.result(job_id)) is not None or store.size(keys.history(job_id)) is not None


def _keep_assignment(backend: KubeBackend, state: WarmState, assignment: Assignment, key: bytes) -> None:
    """Put an assignment where its pod finds it if it is started again; it is of no use where the pod refuses it."""
    try:
        backend.warm.write_assignment(state, assignment.to_bytes(key), key)
    except KineticError as error:
        what = f"if {state.name} is started again, the job starts in a pod of its own"
        output.report_once(f"{what}: {error.what}", about=what)


def _own_secret(backend: KubeBackend, made: Any) -> None:
    """Let the Secret of a job go with its Job: until then it goes with the warm pod, which is later."""
    try:
        backend.warm.own_secret(made)
    except KineticError as error:
        what = "its Secret goes with its warm pod"
        output.report_once(f"{what}, should it have to start in a pod of its own: {error.what}", about=what)


def _start_with(wanted: Launch, context: Place, keep: float, most: float) -> None:
    """Start a warm pod whose first task is this job."""
    backend, name = context.backend, keys.new_job_id(hardware.slug(wanted.placement.accelerator), "warm")
    page = WarmPod(name, context.store.url, keep, most, port=warm_pods.port_of(name))
    key = _pod_key(context, name)
    task = backend.warm.task_of(wanted, context.mask)
    assignment = _assignment(wanted, task, 0)
    state = backend.warm.make_pod(wanted, context.mask, page, key, assignment.to_bytes(key))
    try:
        made = backend.warm.make_task(wanted, context.mask, state)
        backend.add(wanted, made)
        bindings.assign(context.store, name, 0, wanted.order.job_id, key)
        step("client:task-assigned")
        if not _is_started(wanted.order.job_id, lambda: backend.warm.start_pod(state)):
            return
    except BaseException:
        with contextlib.suppress(KineticError):  # this must not hide what went wrong
            backend.warm.end_pod(state, delete=True)
        raise
    _note(most)
    hosts = wanted.placement.hosts
    stays = "its pod stays" if hosts == 1 else f"its {hosts} hosts stay"
    kept = f"the warm {'pod' if hosts == 1 else 'slice'} {name}{_price_text(wanted)}"
    output.report(f"{stays} for {duration_text(keep)} after the last job as {kept}")
    try:
        remove_ended_tasks(backend, wanted.owner, context.store)
    except KineticError as error:
        locate.log().info("what ended tasks left in the cluster stays: %s", error)


def remove_ended_tasks(backend: KubeBackend, owner: str, store: Store) -> None:
    """Remove the Jobs of tasks that ended an hour ago: no server does, since they were never started.

    Their results, logs and records are in the store and stay there.
    """
    latest = backend.warm.now() - _ENDED_SECONDS
    old = [job_id for job_id, submitted in backend.warm.tasks(owner).items() if submitted < latest]
    backend.warm.remove_tasks([job_id for job_id in old if _is_over(backend, store, job_id, latest)])


def _is_over(backend: KubeBackend, store: Store, job_id: str, latest: float) -> bool:
    """Return whether a job ended before a time, or was never submitted; one of another store is left alone."""
    found = store.entry(keys.result(job_id))
    if found is not None:
        return found.modified < latest
    if store.size(keys.history(job_id)) is not None:
        return True
    return store.size(keys.record(job_id)) is None and backend.warm.store_of(job_id) == store.url


def _price_text(wanted: Launch) -> str:
    placement, rates = wanted.placement, job_cost.kept_rates(os.environ)
    price = job_cost.dollars_per_hour(placement.accelerator, rates, spot=placement.spot)
    return "" if price is None else f"; it costs about ${price:.2f} per hour"


def _note(seconds: float) -> None:
    """Remember on this machine that there may be warm pods, for jobs that do not ask for one."""
    path = settings.kinetic_home(os.environ) / _HINT
    try:
        folders.write_whole(path, json.dumps({"until": time.time() + seconds}).encode())
    except OSError as error:
        locate.log().info("cannot write %s: %s", path, error)


# -------------------------------------------------------------------------------------------------- for kinetic warm


def listed(backend: KubeBackend, owner: str) -> Iterator[Listed]:
    """Yield an owner's warm pods, each with what it says of itself."""
    rates = job_cost.kept_rates(os.environ)
    for state in backend.warm.find_all(owner):
        greeting = None
        if state.pod:
            try:
                with backend.warm.dial(state) as connection:
                    greeting = connection.greeting()
            except KineticError as error:
                locate.log().info("%s cannot be reached: %s", state.name, error)
        yield Listed(state, greeting, job_cost.dollars_per_hour(state.accelerator, rates, spot=state.is_spot))


def find_one(backend: KubeBackend, owner: str, beginning: str) -> WarmState:
    """Return the warm pod whose name begins so.

    Raises:
        OptionError: None, or several.
    """
    found = {state.name: state for state in backend.warm.find_all(owner)}
    alike = [each for each in found if beginning and each.startswith(beginning)]
    name = keys.only_match(beginning, alike, "warm pods")
    if name is None:
        raise OptionError(
            f"there is no warm pod {beginning!r}",
            why=f"running: {', '.join(found) or 'none'}",
            next="kinetic warm list",
            code="no-warm-pod",
        )
    return found[name]


def owner_here() -> str:
    """Return the owner by whose name this user's warm pods are found."""
    return cluster.owner(os.environ)
