"""Where everything lies in a store.

| key | written by | what |
|---|---|---|
| {job_id}/handle.json | client | the Record |
| {job_id}/order.json | client | the Order |
| {job_id}/function.pkl, arguments.pkl | client | what is too large to travel inside the Order |
| {job_id}/attempts/{n} | runner | the Note of one attempt; creating it claims the attempt |
| {job_id}/result.pkl | runner, keeper, canceller | the Outcome |
| {job_id}/logs/{attempt}/{host}/{start} | runner, keeper | part of the log, by the offset of its first byte |
| packs/{id} | client | files of projects, by content |
| history/{job_id}.json | client | the tombstone of a job that was removed |
| outputs/{job_id}/… | the user's code | never deleted by kinetic |
| data/blobs/{sha256} | client | bytes of shipped data: a pack of small files, or a chunk of a large one |
| data/manifests/{hash}/{sha256} | client, last | the manifest of shipped data, the marker of its blobs |
| data/trees/{hash}/{path} | client | shipped data as plain files, for FUSE mounts |
| data/trees-complete/{hash} | client, last | the marker of such a tree |
"""

from __future__ import annotations

HISTORY = "history/"
PACKS = "packs/"
OUTPUTS = "outputs/"
RESERVED = frozenset({"history", "packs", "outputs", "_groups", "data"})


def job(job_id: str) -> str:
    """Return the prefix of everything that belongs to one job."""
    return f"{job_id}/"


def record(job_id: str) -> str:
    """Return the key of a Record."""
    return f"{job_id}/handle.json"


def order(job_id: str) -> str:
    """Return the key of an Order."""
    return f"{job_id}/order.json"


def function(job_id: str) -> str:
    """Return the key of a pickled function that is too large for its Order."""
    return f"{job_id}/function.pkl"


def arguments(job_id: str) -> str:
    """Return the key of pickled arguments that are too large for their Order."""
    return f"{job_id}/arguments.pkl"


def result(job_id: str) -> str:
    """Return the key of an Outcome."""
    return f"{job_id}/result.pkl"


def attempts(job_id: str) -> str:
    """Return the prefix of the Notes."""
    return f"{job_id}/attempts/"


def attempt(job_id: str, number: int) -> str:
    """Return the key of one attempt's Note."""
    return f"{job_id}/attempts/{number}"


def logs(job_id: str, attempt_number: int, host: int) -> str:
    """Return the prefix of one host's log of one attempt."""
    return f"{job_id}/logs/{attempt_number}/{host}/"


def log_segment(job_id: str, attempt_number: int, host: int, start: int) -> str:
    """Return the key of a segment; twelve digits keep key order the order of bytes up to a terabyte."""
    return f"{job_id}/logs/{attempt_number}/{host}/{start:012d}"


def tombstone(job_id: str) -> str:
    """Return the key of a job's history."""
    return f"history/{job_id}.json"


def outputs(job_id: str) -> str:
    """Return the prefix of a job's own output files."""
    return f"outputs/{job_id}/"


def data_blob(sha256: str) -> str:
    """Return the key of a blob of shipped data."""
    return f"data/blobs/{sha256}"


def data_manifests(content_hash: str) -> str:
    """Return the prefix of the manifests of data with this content."""
    return f"data/manifests/{content_hash}/"


def data_manifest(content_hash: str, sha256: str) -> str:
    """Return the key of a manifest."""
    return f"data/manifests/{content_hash}/{sha256}"


def data_tree(content_hash: str) -> str:
    """Return the prefix of data that lies there as plain files."""
    return f"data/trees/{content_hash}/"


def data_tree_marker(content_hash: str) -> str:
    """Return the key whose presence promises that such a tree is complete."""
    return f"data/trees-complete/{content_hash}"
