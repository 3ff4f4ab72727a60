"""Jobs that follow other jobs: which handles a submission names, what it must know of them, and what is kept for it.

A handle among the arguments, or in ``after=``, is a predecessor. Its value is never opened here: the job reads it from
the store. What a job that has not ended may still read is not removed when it is collected.
"""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kinetic._backends import registry
from kinetic._jobs import locate
from kinetic._output import terminal as output
from kinetic._output.format import names_text
from kinetic._runner.supervisor import attempts, predecessors
from kinetic._stores import put_many
from kinetic._wire import NamedTuple, documents, keys
from kinetic._wire.failpoints import step
from kinetic._wire.input_table import read_table
from kinetic._wire.order import MOST_PREDECESSOR_KEYS, MOST_PREDECESSORS, Predecessor
from kinetic._wire.outcomes import FAILED, SUCCEEDED
from kinetic.errors import CredentialsError, DataError, KeyMissingError, KineticError, OptionError, PredecessorError

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend
    from kinetic._jobs.data_refs import HandedOver
    from kinetic._stores.protocol import Entry, Store
    from kinetic._wire.records import Group, JobRecord

_MOST_BYTES = 1 << 20  # of what a follower says about itself
_LOOK_SECONDS = 2.0  # between two looks at a first child for whose programs others wait, or at what one follows
_LAUNCH_SECONDS = 3600.0  # from a job's record to its launch, at most: its image may be built in between
_LATER = "~collected"  # among the followers: what was collected, and is removed once none of them needs it


HasEnded = Callable[["JobRecord"], bool]


class Here(NamedTuple):
    """Where a job is submitted to."""

    store_url: str
    fields: Mapping[str, Any]  # of its record
    is_here: bool  # whether it runs on this machine


class Followed(NamedTuple):
    """What a job is submitted to follow."""

    after: tuple[Predecessor, ...] = ()
    keys: bytes = b""  # what verifies it; see ``Predecessor.ids``
    outputs: Mapping[str, str] = {}  # of jobs: the folders that they may still write to

    @property
    def names(self) -> list[str]:
        """Their ids, for the record of the job that follows."""
        return [each.job_id for each in self.after]


def resolve(handed: HandedOver, after: Sequence[Any] | None, here: Here) -> Followed:
    """Return what a submission follows: handles among its arguments by their numbers, then those of ``after=``.

    Raises:
        OptionError: One is elsewhere, or there are too many.
        CredentialsError: The key of one is not here.
    """
    named = {**handed.handles}
    for handle in after or ():
        named.setdefault(str(getattr(handle, "job_id", None) or handle.group_id), handle)
    if not named:
        return Followed()
    found: list[Predecessor] = []
    outputs: dict[str, str] = {}
    data = bytearray()
    for name, handle in named.items():
        each, about = handle._followed()  # noqa: SLF001 - ours
        _check_place(each, about, here)
        outputs |= {each.job_id: str(about["output_dir"])} if about.get("output_dir") else {}
        found.append(replace(each, key_id=str(about.get("key_id") or ""), value=name in handed.handles))
        data += b"".join(_keys_of(each, about, here))
    count = len(data) // documents.KEY_BYTES
    if len(found) > MOST_PREDECESSORS or count > MOST_PREDECESSOR_KEYS:
        raise OptionError(
            f"this job follows too many others: {len(found)}, with {count} attempts at their inputs",
            why=f"at most {MOST_PREDECESSORS}, and {MOST_PREDECESSOR_KEYS} attempts, fit beside its key",
            next="follow one job that waits for them, or fewer",
        )
    return Followed(tuple(found), bytes(data), outputs)


def refuse_early(followed: Followed, paths: Iterable[str], store: Store) -> None:
    """Refuse data that a predecessor may still write to: it is sent now, and the rest of it would be missing."""
    folders = followed.outputs.items()
    inside = {job_id: path for path in paths for job_id, folder in folders if f"{path}/".startswith(f"{folder}/")}
    for job_id in check(followed, store) if inside else ():
        if job_id in inside:
            raise DataError(
                f"{inside[job_id]} is in the output folder of {job_id}, which has not ended",
                why="data is sent when a job is submitted, so what that job writes afterwards would be missing",
                next="pass job.output_dir itself, a path that is read when the new job runs; or wait for the first job",
            )


def _check_place(each: Predecessor, about: Mapping[str, Any], here: Here) -> None:
    """Refuse to follow a job of another place or store: the process that ends it could not start this one."""
    store, is_here = str(about.get("store") or "") or locate.local_store().url, registry.is_here(str(about["backend"]))
    theirs, ours = _place(about, is_here=is_here), _place(here.fields, is_here=here.is_here)
    if store == here.store_url and theirs == ours:
        return
    differ = f"it runs {theirs}, and this job would run {ours}"
    raise OptionError(
        f"this job cannot follow {each.shown}",
        why=differ if theirs != ours else f"its result is in {store}, and those of this job are in {here.store_url}",
        next="submit both to the same place; or collect its value, and pass the value",
        code="after-elsewhere",
    )


def _place(about: Mapping[str, Any], *, is_here: bool) -> str:
    """Return where a job runs, for humans; equal for two jobs of which one can follow the other."""
    if is_here:
        return "on this machine" if about.get("host") in {None, "", locate.machine()} else "on another machine"
    names = ("context",) if about.get("context") else ("project", "zone", "cluster_name")
    cluster = "/".join(str(about.get(name) or "") for name in names)
    return f"in the namespace {about.get('namespace')} of {cluster or 'a cluster'}"


def _keys_of(each: Predecessor, about: Mapping[str, Any], here: Here) -> Iterable[bytes]:
    key_id = str(about.get("key_id") or "")
    root = locate.namespace_key(key_id)
    if root is None:
        raise locate.key_missing(f"this job cannot follow {each.shown} from here", "it is sealed with", key_id)
    return [documents.job_key(root, name, here.store_url) for name in each.ids()]


def follow(followed: Followed, store: Store, job_id: str, job: JobRecord | None = None) -> None:
    """Register a job, or a batch, as one that follows others, and check these; see `register` and `check`.

    Of those that have ended and whose value is not read, nothing is kept: they may have been removed before.
    """
    register(followed, store, job_id, job)
    waits = check(followed, store)
    needed = {each.owner for each in followed.after if each.value or each.job_id in waits}
    withdraw(followed, store, job_id, needed)


def check(followed: Followed, store: Store) -> list[str]:
    """Return what has not ended; called once it is known that the job waits, so what it needs is not removed.

    Raises:
        PredecessorError: One did not succeed, or a value that is an argument was collected already.
    """
    key_of = predecessors.key_finder(followed.after, followed.keys)
    waits = []
    findings = predecessors.look_at_all(store, followed.after, key_of)
    for each, finding in zip(followed.after, findings, strict=True):
        if finding.is_over:
            raise _not_submitted(predecessors.why_closed(each, finding))
        if finding.status and each.value and not finding.has_value:
            raise _not_submitted(predecessors.value_gone(each))
        if not finding.status:
            waits.append(each.job_id)
    return waits


def _not_submitted(error: PredecessorError) -> PredecessorError:
    error.add_note("Nothing was submitted.")
    return error


def register(followed: Followed, store: Store, job_id: str, job: JobRecord | None = None) -> None:
    """Make known to those who collect or end the predecessors that a job, or a batch, follows them.

    ``job``: of a job on a cluster, its record. Then the page below a predecessor also has the verdict for its failure,
    sealed already: the pod that fails has no key of this job, and can write it all the same.
    """
    page: dict[str, Any] = {
        "schema": documents.SCHEMA,
        "values": [each.job_id for each in followed.after if each.value],
        "after": followed.names,
        "inputs": {each.job_id: each.inputs for each in followed.after if each.inputs},
    }
    of: dict[str, dict[str, Any]] = {each.owner: {} for each in followed.after}
    if job is not None:
        for each in followed.after:
            more = of[each.owner]
            more["name"] = job.k8s_name
            more.setdefault("closed", {})[each.job_id] = _closed(each, job)
    put_many(store, [(keys.follower(owner, job_id), documents.write(page | more)) for owner, more in of.items()])
    step("client:follows")


def _closed(each: Predecessor, job: JobRecord) -> str:
    """Return the sealed verdict of a job that is closed because this predecessor did not succeed."""
    error = predecessors.why_closed(each, predecessors.Finding("failed"))
    verdict = predecessors.verdict_of(job.job_id, job.key_id or "", error, witness="runner")
    return base64.b64encode(replace(verdict, ended=None).footer(locate.key_to_seal(job))).decode()


def withdraw(followed: Followed, store: Store, job_id: str, needed: Collection[str] = ()) -> None:
    """Take that back, but for the owners that are ``needed``: of none where the job was not submitted."""
    for owner in dict.fromkeys(each.owner for each in followed.after if each.owner not in needed):
        with contextlib.suppress(KineticError, OSError):
            store.delete(keys.follower(owner, job_id))


# ------------------------------------------------------------------------------------------- who looks at a waiting job
# On this machine supervisors decide. On a cluster the end of a pod may do so; what it could not do, whoever looks does.

_orders: dict[tuple[str, str], tuple[Predecessor, ...]] = {}  # by store and job or batch: an order never changes


def settle(job: JobRecord, has_ended: HasEnded) -> bool:
    """Start a job on a cluster that waits, or close it, if what it follows has ended; return whether it was so.

    ``has_ended`` looks at a job, which in turn settles what that one follows.

    Each step may be repeated, by several processes at once: the outcome is created once, and a job that runs already is
    not started again.
    """
    store = locate.store_of(job)
    if job.group_id and not job.after:
        return _start_without_first(job, store, has_ended)
    after = _predecessors_of(job, store)
    try:
        for each in after:
            key_of = _own_keys(each, store)
            finding = predecessors.look(store, each, key_of)
            if each.inputs and not finding.status:
                if _has_lost_input(each, store, key_of, has_ended, locate.backend_of(job)):
                    finding = predecessors.Finding("failed", "an input of it ended without a result")
            elif not finding.status and _look_further(each, store, has_ended):
                finding = predecessors.look(store, each, key_of)
                if not finding.status and _is_lost(each, store):
                    finding = predecessors.Finding("failed", "it ended without a result")
            if finding.is_over:
                raise predecessors.why_closed(each, finding)
            if not finding.status:
                return False
            if each.value and not finding.has_value:
                raise predecessors.value_gone(each)
    except PredecessorError as error:
        close(job, store, error)
        return True
    locate.backend_of(job).release([job.job_id])
    return True


_looks: dict[tuple[str, str], tuple[float, bool]] = {}  # by store and what was looked at, a key: when, and what came


def _now_and_then(store: Store, at: str, backend: Backend, look: Callable[[], bool]) -> bool:
    """Return what a look returns, or the last one did: of many jobs that wait for the same, only one asks."""
    now = backend.clock.monotonic()
    looked_at, found = _looks.get((store.url, at), (-_LOOK_SECONDS, False))
    if now - looked_at >= _LOOK_SECONDS:
        found = look()
        _looks[store.url, at] = now, found
    return found


def _start_without_first(job: JobRecord, store: Store, has_ended: HasEnded) -> bool:
    """Start the children that wait for the programs of their batch's first one, if that has compiled or ended."""
    group_id, backend = job.group_id or "", locate.backend_of(job)

    def look() -> bool:
        group = locate.verified_group(store, group_id)
        if group is None:
            return False
        if store.size(keys.group_compiled(group_id)) is None:
            with contextlib.suppress(KeyMissingError):  # it was removed
                first = locate.verified_job(store, group.child_id(group.first_index, 0))
                if first is None or not has_ended(first):
                    return False
        _start_held(group_id, store, backend)
        return True

    return _now_and_then(store, keys.group_compiled(group_id), backend, look)


def start_others(job: JobRecord, store: Store) -> None:
    """Start the children that wait for programs of this one, which was cancelled; do nothing where none does."""
    group = locate.verified_group(store, job.group_id or "")
    is_first = group is not None and (job.group_index, job.group_attempt or 0) == (group.first_index, 0)
    if group is not None and is_first and group.first_seconds:
        _start_held(group.group_id, store, locate.backend_of(job))


def _start_held(group_id: str, store: Store, backend: Backend) -> None:
    store.put(keys.group_compiled(group_id), b"", if_absent=True)
    found = backend.observe_group(group_id)
    backend.release([name for name, observation in found.items() if observation.waits_for_others])


def _look_further(each: Predecessor, store: Store, has_ended: HasEnded) -> bool:
    """Look at a predecessor without a verdict, and return whether it has ended; one that waits is started or closed."""
    with contextlib.suppress(KeyMissingError):
        job = locate.verified_job(store, each.job_id)
        if job is None:
            return False
        if job.after:
            return has_ended(job)
        return _now_and_then(store, keys.result(each.job_id), locate.backend_of(job), lambda: has_ended(job))
    return False


def _has_lost_input(
    each: Predecessor, store: Store, key_of: predecessors.KeyOf, has_ended: HasEnded, backend: Backend
) -> bool:
    """Return whether the last attempt at an input of a batch has ended without a verdict, as where a pod was killed.

    Such an attempt leaves no mark. Earlier ones count as little as elsewhere: the batch may be resumed.
    """
    allowed = predecessors.attempts_of_inputs(store, each, key_of)

    def is_lost(index: int) -> bool:
        child = replace(each, job_id=each.child_id(index, allowed(index) - 1), group=each.job_id, inputs=0)
        ended = _look_further(child, store, has_ended) and not predecessors.look(store, child, key_of).status
        return ended and _is_lost(child, store)

    def look() -> bool:
        listed = (keys.parse_children(entry.key) for entry in store.entries(keys.children(each.job_id)))
        launched = [(found[0][: each.inputs], found[1]) for found in listed if found]
        seen = backend.observe_group(each.job_id)
        succeeded, ended = predecessors.read_marks(store, each, key_of)
        for index, last in ((index, attempt) for indexes, attempt in launched for index in indexes):
            if last != allowed(index) - 1:
                continue
            observation = seen.get(each.child_id(index, last))
            is_marked = index in succeeded or ended.get(index, (-1, ""))[0] == last
            if not is_marked and (observation is None or observation.status.is_final) and is_lost(index):
                return True
        return False

    return _now_and_then(store, keys.children(each.job_id), backend, look)


def _is_lost(each: Predecessor, store: Store) -> bool:
    """Return whether a job without a verdict has begun or failed in its cluster, and if not, will not be launched.

    A child of a batch may be launched as long as that can be resumed.
    """
    if any(True for _ in store.entries(keys.attempts(each.job_id))):
        return True
    record = store.entry(keys.record(each.job_id))
    if not each.group and (record is None or time.time() - record.modified > _LAUNCH_SECONDS):
        return True
    job = locate.verified_job(store, each.job_id)
    if job is None:
        return False
    seen = locate.backend_of(job).observe([each.job_id]).get(each.job_id)
    return seen is not None and seen.status.is_final


def close(job: JobRecord, store: Store, error: PredecessorError) -> None:
    """Write the verdict of a job that cannot start, and remove what is left of it in its cluster."""
    verdict = predecessors.verdict_of(job.job_id, job.key_id or "", error, witness="observer")
    key = locate.key_to_seal(job)
    mark = keys.mark(job.group_id, job.group_index or 0, job.group_attempt or 0) if job.group_id else ""
    attempts.seal_outcome(store, verdict, key, mark=mark)
    step("follower:sealed")
    locate.backend_of(job).remove([job.job_id])


def _own_keys(each: Predecessor, store: Store) -> predecessors.KeyOf:
    """Return what finds keys in this caller's own ring."""

    def key_of(name: str) -> bytes | None:
        if locate.trusts_the_store():
            return None
        key = locate.key_for(name, each.key_id, store.url)
        if key is None:
            raise CredentialsError(f"{name} cannot be verified here", code="key-missing-here")
        return key

    return key_of


def _predecessors_of(job: JobRecord, store: Store) -> tuple[Predecessor, ...]:
    """Return what a job follows, by the order that its sealed record names."""
    at = store.url, job.group_id or job.job_id
    if at not in _orders:
        _orders[at] = locate.order_of(job).after
    return _orders[at]


# ------------------------------------------------------------------------------------------ what is kept for followers


def readers_of(store: Store, owner: str, inside: Sequence[Entry], has_ended: HasEnded) -> list[str]:
    """Return the jobs and batches that have not ended and may still read a value.

    It is that of the owner, or of a child of that batch; ``inside`` is what a listing of the owner's keys has.
    """
    prefix = keys.followers(owner)
    names = [entry.key.removeprefix(prefix) for entry in inside if entry.key.startswith(prefix)]
    return [
        name
        for name in names
        if not _is_later(name) and _reads(store, f"{prefix}{name}") and _is_open(store, name, has_ended)
    ]


def _reads(store: Store, at: str) -> bool:
    """Return whether a follower reads a value too; True for one that cannot be read, so that no value is lost."""
    with contextlib.suppress(KineticError):
        return bool(documents.read(documents.fetch(store, at, _MOST_BYTES, at), at).get("values", True))
    return True


def _is_open(store: Store, name: str, has_ended: HasEnded) -> bool:
    if keys.is_group_id(name):
        return _is_batch_open(store, name)
    if not keys.is_job_id(name) or store.size(keys.result(name)) is not None:
        return False
    with contextlib.suppress(KeyMissingError):  # removed, or never submitted
        job = locate.verified_job(store, name)
        return job is not None and not has_ended(job)
    return False


def _is_batch_open(store: Store, group_id: str) -> bool:
    """Return whether an attempt at an input of a batch has not ended, or another one may follow."""
    with contextlib.suppress(KeyMissingError):  # removed
        group = locate.verified_group(store, group_id)
        if group is None:
            return False
        marks, launched = (list(_attempts_in(group, store, each)) for each in (keys.marks, keys.children))
        ended = {(index, attempt) for index, attempt, _ in marks}
        if any((index, attempt) not in ended for index, attempt, _ in launched):
            return True
        each = Predecessor(group_id, key_id=group.key_id)
        if predecessors.stop_of(store, each, _own_keys(each, store)):
            return False
        last = group.settings.retries
        over = {index for index, attempt, word in marks if word != FAILED or attempt >= last}
        inputs = enumerate(read_table(store, group).inputs)
        return any(index not in over for index, item in inputs if item.arguments is not None)
    return False


def _attempts_in(group: Group, store: Store, where: Callable[[str], str]) -> Iterator[tuple[int, int, str]]:
    """Yield the attempts that keys name, each with its input, and how it ended or where it was launched."""
    for found in filter(None, (keys.parse_children(entry.key) for entry in store.entries(where(group.group_id)))):
        if found[0].stop <= group.total_expected:  # else it is not a key of ours
            yield from ((index, *found[1:]) for index in found[0])


def keep_for(store: Store, owner: str, readers: Sequence[str], collected: Sequence[str]) -> None:
    """Note that collected jobs, or children of a batch, are to be removed when the readers of it have ended."""
    store.put(f"{keys.followers(owner)}{_LATER}.{collected[0]}", "\n".join(collected).encode())
    verb = "has" if len(readers) == 1 else "have"
    output.report(f"{owner} is kept until {names_text(readers, 3)} {verb} read its value")


def kept_before(job: JobRecord, store: Store, has_ended: HasEnded) -> list[str]:
    """Return the predecessors of a collected job that were collected before it, and that no other job reads.

    Of a batch, its children that were collected.
    """
    found: list[str] = []
    for name in filter(keys.is_job_id, job.after or ()):
        inside = list(store.entries(keys.followers(name)))
        later = [entry.key for entry in inside if _is_later(entry.key.rpartition("/")[2])]
        if later and not readers_of(store, name, inside, has_ended):
            noted = {each for key in later for each in store.get(key, length=_MOST_BYTES).decode().split("\n")}
            found += noted & {name, *_children_that_succeeded(store, name)}  # others can write there
    return found


def _is_later(name: str) -> bool:
    return name.startswith(f"{_LATER}.")


def _children_that_succeeded(store: Store, name: str) -> Iterator[str]:
    if keys.is_group_id(name) and (group := locate.verified_group(store, name)) is not None:
        for index, attempt, word in _attempts_in(group, store, keys.marks):
            if word == SUCCEEDED:
                yield group.child_id(index, attempt)
