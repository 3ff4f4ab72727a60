"""Keys and ids: where everything is in a store, and what jobs and batches are called.

Each key or prefix below is a function that fills in its template; its comment says who writes what there. A key that
ends in ``{word}.{seal}`` says something by being there: its object is empty, and its seal is part of its name.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from kinetic._wire import fields
from kinetic.errors import OptionError

HISTORY = "history/"
_BESIDE = f"{HISTORY}~"  # sorts after every id, so a listing of the pages ends where the logs begin
HISTORY_CLOCK, HISTORY_LOGS = f"{_BESIDE}clock", f"{_BESIDE}logs/"
OUTPUTS = "outputs/"
GROUPS = "_groups/"
_DIGITS = 12
SHARD = 1000  # children to a folder: a listing of what still runs need not read what has ended
DATA_BLOBS = "data/blobs/"
DATA_MANIFESTS = "data/manifests/"
RESERVED = frozenset({"history", "outputs", "_groups", "data", "warm"})


class Listed(Protocol):
    """An entry of a listing."""

    @property
    def key(self) -> str:
        """Its whole key."""


E = TypeVar("E", bound=Listed)


# A function of a job or batch; of one and a number, as an attempt; of one, an attempt and a host; ...
_Of1 = Callable[[str], str]
_Of2 = Callable[[str, int], str]
_Of3 = Callable[[str, int, int], str]
_Of4 = Callable[[str, int, int, int], str]

# ----------------------------------------------------------------------------------------------------- a job: (job_id)

job: _Of1 = "{}/".format
record: _Of1 = "{}/handle.json".format  # client: the record
order: _Of1 = "{}/order.json".format  # client: the order
function: _Of1 = "{}/function.pkl".format  # client: what is too large to travel inside the order
arguments: _Of1 = "{}/arguments.pkl".format  # the same
result: _Of1 = "{}/result.pkl".format  # runner, supervisor or canceller: the outcome
outputs: _Of1 = "outputs/{}/".format  # the user's code: never deleted by kinetic
history: _Of1 = "history/{}.json".format  # client: the history record of a job that was collected or removed

# (job_id, attempt), and (job_id, attempt, host)
attempts: _Of1 = "{}/attempts/".format
attempt: _Of2 = "{}/attempts/{}".format  # runner: the note of one attempt; creating it claims the attempt
hosts: _Of2 = "{}/hosts/{}/".format
# Runner, in a slice of pods: a stem, with {word}.{seal} behind it: "begun", "here", or the status of the host's end.
host: _Of3 = "{}/hosts/{}/{}".format
host_address: _Of2 = "{}/hosts/{}/0/address".format  # runner: where the first host of a slice listens for notifications
debug: _Of3 = "{}/debug/{}/{}".format  # runner, of a pod of a debug job: whether its debug server waits
# Runner: a stem, with begun.{seal} behind it: a debugger came to one host of a slice.
debug_begun: _Of2 = "{}/debug/{}/slice".format
# (job_id, attempt, library), runner, once: which compiled programs all hosts of a slice use
compiled: Callable[[str, int, str], str] = "{}/compiled/{}/{}".format
logs: _Of3 = "{}/logs/{}/{}/".format
# Runner or supervisor: part of a log, by the offset of its first byte; twelve digits keep key order the order of bytes.
log_segment: _Of4 = "{}/logs/{}/{}/{:012d}".format
usage: _Of3 = "{}/usage/{}/{}".format  # runner or supervisor, while the job runs: what one host used, sealed
# (job_id, number), warm pod or client: which pod the job is bound to. The first is created once; the next only when the
# warm pod that it names is gone for good. Stores have it under an older name.
binding: _Of2 = "{}/placements/{}".format
# Client, before the history record: the end of the log of a collected job. history/~clock, empty: the store's time.
history_log: _Of3 = (HISTORY_LOGS + "{}.{}.{}.gz").format

# -------------------------------------------------------------------------------------------- data: (sha256) or (hash)

data_blob: _Of1 = "data/blobs/{}".format  # client: a pack of small files, or a chunk of a large one
data_manifests: _Of1 = "data/manifests/{}/".format
# Client, last: (hash, sha256), the manifest of shipped data, which promises its blobs.
data_manifest: Callable[[str, str], str] = "data/manifests/{}/{}".format
data_tree: _Of1 = "data/trees/{}/".format  # client: shipped data as plain files, for FUSE mounts
data_tree_marker: _Of1 = "data/trees-complete/{}".format  # client, last: promises that such a tree is complete
IMAGES = "data/images/"
image: _Of1 = (IMAGES + "{}").format  # client: an image that was built, sealed; its age says when it was last used
lock: _Of1 = "data/locks/{}".format  # client: the lock of some requirement lines, sealed
BUILDS = "data/builds/"
# Client: which job, or which build of Cloud Build, makes an image, sealed; (tag-key id).
image_build: _Of1 = (BUILDS + "{}").format
build_source: _Of1 = (BUILDS + "{}.tar.gz").format  # client: what Cloud Build builds; removed when the build has ended
build_log: _Of1 = (BUILDS + "{}").format  # Cloud Build: its log, while the build runs
build_made: _Of1 = (BUILDS + "made-{}").format  # Cloud Build: what a build leaves for its client, by its hash
LAYERS, WHEELS = "data/layers/", "data/wheels/"
COMPILED = "data/compiled/"
COMPILED_ENTRIES, COMPILED_BLOBS = COMPILED + "entries/", COMPILED + "blobs/"
# Runner, at the end: how long compiling took the last time; (of which function and hardware), sealed. With ".differs"
# behind it, empty: children of a batch that waited for another one's programs compiled their own.
compiled_measurement: _Of1 = (COMPILED + "measurements/{}").format
compiled_blob: _Of1 = (COMPILED_BLOBS + "{}").format  # runner: the bytes of a compiled program
built_wheel: _Of1 = (WHEELS + "{}").format  # client: a wheel that was built from source, by its hash
layer: _Of1 = (LAYERS + "{}").format  # client: packages as a layer of an image, by the hash of its bytes
layer_list: _Of1 = (LAYERS + "of-{}").format  # client, last: the layers of a lock, sealed
requirements: _Of1 = "data/requirements/{}".format  # client: what a job on a cluster installs first, where that is long

# ------------------------------------------------------------------------------------------------ a warm pod: (its id)

warm_tasks: _Of1 = "warm/{}/".format
warm_task: _Of2 = "warm/{}/{:06d}".format  # (id, number), client: which job is the pod's task with this number

# ---------------------------------------------------------------------------------- a batch: (group_id), of a submitter

group: _Of1 = "_groups/{}/".format
group_manifest: _Of1 = "_groups/{}/manifest.json".format  # what a batch is: names, settings, what its children share
group_clock: _Of1 = "_groups/{}/clock".format  # first, empty: takes the id; its age tells the time by the store's clock
group_order: _Of1 = "_groups/{}/order.json".format  # the order that its children share
group_table: _Of1 = "_groups/{}/inputs.json".format  # where each input is
group_inputs: _Of2 = "_groups/{}/inputs/{:05d}".format  # (group_id, number): pickled inputs, many to an object
group_function: _Of1 = "_groups/{}/function.pkl".format
# Runner or anybody, empty: the first child has compiled, or has ended, so no other child waits for its programs.
group_compiled: _Of1 = "_groups/{}/compiled".format
children: _Of1 = "_groups/{}/children/".format
leases: _Of1 = "_groups/{}/leases/".format
lease: _Of2 = "_groups/{}/leases/{:06d}".format  # (group_id, epoch), driver: who drives it; the highest epoch does
control_entries: _Of1 = "_groups/{}/control/".format
# (group_id, number), anybody: nothing more is launched; or some inputs are tried again.
control_entry: _Of2 = "_groups/{}/control/{:06d}".format


def followers(owner: str) -> str:
    """Return the prefix of the keys of the jobs that wait for a job, or for a batch or one of its children."""
    return f"{GROUPS}{owner}/followers/" if is_group_id(owner) else f"{owner}/followers/"


def follower(owner: str, job_id: str) -> str:
    """Return the key by which a job that is submitted makes known that it waits for another one; see ``followers``."""
    return f"{followers(owner)}{job_id}"


def parse_host(key: str) -> tuple[int, str] | None:
    """Return host and word of the key of a host's word, or None. The caller verifies its seal."""
    index, _, rest = key.rpartition("/")[2].partition(".")
    word, dot, _ = rest.rpartition(".")
    return (int(index), word) if dot and is_number(index) else None


def job_of_history(key: str) -> str:
    """Return the job that a page of the history is about, or "" for what is beside the pages."""
    return "" if key.startswith(_BESIDE) else key.removeprefix(HISTORY).removesuffix(".json")


def children_of(group_id: str, indexes: range, attempt: int) -> str:
    """Return the stem of a key by the driver, {machine}.{seal} behind it: this attempt at inputs was submitted."""
    last = f"-{indexes[-1]:07d}" if len(indexes) > 1 else ""
    return f"_groups/{group_id}/children/{indexes[0] // SHARD:04d}/{indexes[0]:07d}{last}.{attempt}"


def marks(group_id: str, shard: int | None = None) -> str:
    """Return the prefix of the marks of a batch's ended children, of one shard or of all."""
    return f"_groups/{group_id}/marks/" if shard is None else f"_groups/{group_id}/marks/{shard:04d}/"


def mark(group_id: str, index: int, attempt: int) -> str:
    """Return the stem of a mark, {word}.{seal} behind it: how this attempt of a child ended, or "removed"."""
    return f"_groups/{group_id}/marks/{index // SHARD:04d}/{index:07d}.{attempt}"


def group_of_mark(stem: str) -> str:
    """Return the batch that the stem of a mark is below; "" for an empty one."""
    return stem.removeprefix(GROUPS).partition("/")[0]


def parse_children(key: str) -> tuple[range, int, str] | None:
    """Return the inputs, the attempt, and the word or machine (or "") of the key of a mark or of children, or None.

    The caller verifies its seal: this only takes the name apart.
    """
    indexes, _, rest = key.rpartition("/")[2].partition(".")
    attempt, _, rest = rest.partition(".")
    word, dot, _ = rest.rpartition(".")
    first, dash, last = indexes.partition("-")
    last = last if dash else first
    if not (dot and is_number(first) and is_number(last) and is_number(attempt)):
        return None
    return range(int(first), int(last) + 1), int(attempt), word


def is_number(text: str) -> bool:
    """Return whether this part of a key is a number as we write them: a few digits."""
    return 0 < len(text) <= _DIGITS and text.isascii() and text.isdigit()


def numbered(listed: Iterable[E]) -> list[tuple[int, E]]:
    """Return the entries of a listing whose keys end in a number, with it, in the order of the numbers."""
    found = [(text, entry) for entry in listed if is_number(text := entry.key.rpartition("/")[2])]
    return sorted(((int(text), entry) for text, entry in found), key=lambda pair: pair[0])


# ------------------------------------------------------------------------------------------------------------------ ids

_JOB = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_MADE = re.compile(r"[a-z0-9-]+-[0-9]{8}-[0-9]{6}-[0-9a-f]{7}(?:[0-9a-f]{6})?")
_GROUP = re.compile(r"grp-[0-9a-f]{8}")
CHILD_FUNCTION, _CHILD_HASH = 14, 13  # characters; 52 bits: two of 10,000 children share an id once in 10^8 batches
_NAMED = 5  # in a message
MOST_OF_AN_OBJECT = 63  # characters: of a label's value, of a hostname, of a Service
_OBJECT_HASH = 8  # hexadecimal digits
MOST_INPUTS = 10_000_000  # of a batch: their keys have seven digits
MOST_ATTEMPTS = 1_000_000  # at one job, or at one input
_FUNCTION_LENGTH = 20  # accelerator 16 + function 20 + time 15 + random 7 + three dashes fits Kubernetes' 63 characters


def new_job_id(accelerator: str, function: str, *, now: float | None = None) -> str:
    """Make a job id that says what runs, where and since when.

    Returns:
        ``{accelerator}-{function}-{YYYYMMDD-HHMMSS}-{7 hex}``, UTC, at most 63 characters.
    """
    when = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    return f"{accelerator}-{slug(function)}-{when}-{os.urandom(4).hex()[:7]}"


def child_id(accelerator: str, function: str, group_id: str, created: float, index: int, attempt: int) -> str:
    """Derive the id of a batch's child, so that nobody can launch the same attempt under two names.

    Returns:
        ``{accelerator}-{function}-{YYYYMMDD-HHMMSS}-{13 hex}``, UTC, at most 63 characters.
    """
    prefix = _child_prefix(accelerator, function, created)
    return sys.intern(f"{prefix}-{child_word(group_id, index, attempt)}")  # all who name it share it


def child_word(group_id: str, index: int, attempt: int) -> str:
    """Return how the id of an attempt at an input ends."""
    import hashlib  # 3 ms; not to list jobs, here and below

    return hashlib.sha256(f"{group_id}/{index}/{attempt}".encode()).hexdigest()[:_CHILD_HASH]


@functools.lru_cache(maxsize=8)
def _child_prefix(accelerator: str, function: str, created: float) -> str:
    when = time.strftime("%Y%m%d-%H%M%S", time.gmtime(created))
    return f"{accelerator}-{slug(function, CHILD_FUNCTION)}-{when}"


def slug(text: str, limit: int = _FUNCTION_LENGTH) -> str:
    """Turn any name into a short word of lower-case letters, digits and dashes."""
    word = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:limit].strip("-")
    return word or "job"


def object_name(job_id: str, most: int = MOST_OF_AN_OBJECT) -> str:
    """Name a job's object in its cluster: ``kinetic-JOB``, or as much of it as fits with a digest behind it."""
    whole = f"kinetic-{job_id}"  # the prefix, because a Service must begin with a letter, and an id need not
    if len(whole) <= most:
        return whole
    import hashlib

    digest = hashlib.sha256(job_id.encode()).hexdigest()[:_OBJECT_HASH]
    return f"{whole[: most - _OBJECT_HASH - 1].rstrip('-')}-{digest}"


def is_job_id(job_id: object) -> bool:
    """Return whether this can be the id of a job; the names of a store's own folders cannot."""
    return isinstance(job_id, str) and _JOB.fullmatch(job_id) is not None and job_id not in RESERVED


def is_made(job_id: str) -> bool:
    """Return whether kinetic makes such ids: a folder of a store with another name may be the user's."""
    return _MADE.fullmatch(job_id) is not None


def check_job_id(job_id: str) -> str:
    """Return the id if it can be one."""
    if is_job_id(job_id):
        return job_id
    raise OptionError(
        f"{job_id!r} cannot be a job id",
        why="no job has this name; an id has 1 to 63 lower-case letters, digits and dashes, "
        "like cpu-train-20261120-143000-1a2b3c4",
        next="kinetic.jobs.list_jobs()[0] is the newest job" if job_id == "@last" else "kinetic jobs list --all",
    )


def new_group_id() -> str:
    """Make the id of a batch: ``grp-`` and 8 hexadecimal digits."""
    return f"grp-{os.urandom(4).hex()}"


def is_group_id(group_id: object) -> bool:
    """Return whether this can be the id of a batch."""
    return isinstance(group_id, str) and _GROUP.fullmatch(group_id) is not None


def check_group_id(group_id: str) -> str:
    """Return the id if it can be one of a batch."""
    if is_group_id(group_id):
        return group_id
    raise OptionError(
        f"{group_id!r} cannot be the id of a batch",
        why='it has "grp-" and 8 hexadecimal digits, like grp-a1b2c3d4',
        next="kinetic batch list",
    )


def only_match(beginning: str, found: Sequence[str], what: str = "job ids") -> str | None:
    """Return the only id that begins so, or None where there is none; one that two stores have is one."""
    found = list(dict.fromkeys(found))
    if len(found) > 1:
        raise OptionError(
            f"{beginning!r} is the beginning of {len(found)} {what}",
            why=", ".join(found[:_NAMED]),
            next="give more of it",
            code="ambiguous-id",
        )
    return found[0] if found else None


def parse_utc(written: str) -> float | None:
    """Return the Unix time of a time that ``format_utc`` wrote, or None."""
    from datetime import datetime  # commands have it loaded already; strptime would cost 2 ms more

    try:
        return datetime.fromisoformat(written).timestamp()
    except (TypeError, ValueError):
        return None


def format_utc(seconds: float) -> str:
    """Write a time as everything durable does: UTC, ISO 8601, whole seconds, ending in Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _job_id(value: object) -> str:
    if not is_job_id(value):
        raise fields.FieldError(f"cannot be the id of a job: {fields.shown(value)}")
    return str(value)


JOB_ID = _job_id  # as fields of pages
JOB_ID_OR_NONE = fields.text(63, re.compile(f"(?:{_JOB.pattern})?"))  # the page that a batch's children share has none
GROUP_ID = fields.text(12, _GROUP)
GROUP_ID_OR_NONE = fields.text(12, re.compile(f"(?:{_GROUP.pattern})?"))
INDEX = fields.integer(0, MOST_INPUTS - 1)
ATTEMPT = fields.integer(0, MOST_ATTEMPTS - 1)
