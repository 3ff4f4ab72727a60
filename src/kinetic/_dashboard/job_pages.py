"""What the page of one job shows, as JSON: its state with the reason, attempts, phases, files, and its value.

Nothing is unpickled here but a value whose verdict and bytes a key of this user's own ring verifies, whatever
KINETIC_TRUST_STORE says: a page that is open all day must not open what a command opens once on purpose.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from kinetic._batches import report
from kinetic._dashboard import pickled_names
from kinetic._inspect import explanation
from kinetic._jobs import job_cost, locate, outputs, results
from kinetic._jobs import status as job_status
from kinetic._output import format as output_format
from kinetic._stores.protocol import Store
from kinetic._wire import digests, keys, outcomes
from kinetic.errors import DataMissingError, KineticError, OptionError, ResultMissingError

if TYPE_CHECKING:
    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.outputs import OutputFile, OutputLocation
    from kinetic._wire.order import Order
    from kinetic._wire.outcomes import Outcome

Page = dict[str, Any]
MOST_VALUE_BYTES = 256 << 10  # of a pickled value that is shown
MOST_FILE_BYTES = 16 << 20  # of a file that is shown; kinetic outputs get copies larger ones
_LONGEST_TEXT = 4000  # characters of a value or of its repr
_MOST_FILES = 2000
_MOST_ATTEMPTS = 50  # the newest
# What a browser can show as a picture without running anything.
IMAGES = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "svg": "image/svg+xml",
}


def job_page(handle: JobHandle) -> Page:
    """Return what is known of a job: ``job`` as ``kinetic jobs show --json``, ``explanation`` as ``jobs explain``."""
    seen, found = explanation.observe_and_explain(handle)
    page = job_status.history_of(handle, seen)
    page |= {name: value for name, value in job_status.details_of(handle, seen).items() if name not in page}
    page["command"] = report.command_of(handle)
    page["place"] = job_status.place_of(handle)
    page["dollars"] = job_cost.so_far(handle, page, os.environ)
    order: Order | None = None
    with contextlib.suppress(KineticError):  # it is not stored any more, or cannot be verified here
        order = locate.order_of(handle)
    return {
        "job": page,
        "explanation": found._asdict(),
        "attempts": _attempts(handle),
        "environment": list(order.environment) if order is not None else None,
        "arguments_bytes": order.arguments.size if order is not None and not order.group else None,
        "arguments": _argument_names(handle, order) if order is not None and not order.group else None,
        "data": [ref.path for ref in order.data] if order is not None else [],
        "fingerprint": dict(order.fingerprint) if order is not None else {},
        "deadline_seconds": order.deadline if order is not None else None,
        "hosts": locate.hosts_or_one(handle),
    }


def _argument_names(handle: JobHandle, order: Order) -> Page | None:
    """Return how a job was called, without unpickling anything; None where that cannot be read."""
    found, artifact = None, order.arguments
    if artifact.size <= pickled_names.MOST_BYTES:
        with contextlib.suppress(KineticError):
            if artifact.inline:
                data = artifact.unwrap("the arguments")
            else:
                data = locate.store_of(handle).get(artifact.key, start=artifact.start, length=artifact.size)
                artifact.verify(digests.of_bytes(data), "the arguments")
            found = pickled_names.read(data)
    return {"positional": found.positional, "keywords": list(found.keywords)} if found is not None else None


def _attempts(handle: JobHandle) -> list[Page]:
    """Return how the attempts of a job began, and the times that their notes have besides."""
    store, found = locate.store_of(handle), []
    with contextlib.suppress(KineticError):  # its key is not here, or the store is away: the rest is shown
        noted = keys.numbered(store.entries(keys.attempts(handle.job_id)))[-_MOST_ATTEMPTS:]
        key = locate.key_to_read(handle) if noted else None
        for number, _ in noted:
            with contextlib.suppress(KineticError):
                note = outcomes.read_note(store, handle.job_id, number, key)
                ended = note.details.get("ended")
                found.append(
                    {
                        "attempt": number,
                        "machine": note.machine,
                        "python": note.python,
                        "started_at": keys.format_utc(note.started),
                        "ended_at": keys.format_utc(ended) if isinstance(ended, int | float) else None,
                    }
                )
    return found


# --------------------------------------------------------------------------------------------------------------- values


def result_page(handle: JobHandle) -> Page:
    """Return the value of a job for JSON: small ones as they are, others as the beginning of their repr.

    Raises:
        CredentialsError: No key of this user's own ring sealed the verdict.
        ResultMissingError: It has no value, or was collected.
    """
    outcome = verified_outcome(handle)
    if outcome is None or not outcome.succeeded:
        raise ResultMissingError(
            f"{handle.job_id} has no result",
            why="it has not succeeded, or its result was collected",
            next=f"kinetic jobs status {handle.job_id}",
        )
    return value_of(locate.store_of(handle), outcome)


def verified_outcome(handle: JobHandle) -> Outcome | None:
    """Return the verdict of a job, verified with a key of this user's own ring; None while there is none."""
    return outcomes.find(locate.store_of(handle), handle.job_id, lambda: _own_key(handle))


def _own_key(handle: JobHandle) -> bytes:
    key = locate.key_for(handle.job_id, handle.key_id or "", locate.store_of(handle).url)
    if key is None:
        what = f"the result of {handle.job_id} cannot be verified here, so it is not opened"
        raise locate.key_missing(what, "it is sealed with", handle.key_id or "")
    return key


def value_of(store: Store, outcome: Outcome) -> Page:
    """Return a verified value for JSON; of a large one only its type and size."""
    about = {"value_type": outcome.value_type, "size_bytes": outcome.body_length}
    if outcome.body_length > MOST_VALUE_BYTES:
        return {**about, "left_out": f"it has more than {output_format.size_text(MOST_VALUE_BYTES)}"}
    page = output_format.value_page(results.body_of(store, outcome))
    if isinstance(page.get("value"), str) and len(page["value"]) > _LONGEST_TEXT:
        page["value"] = f"{page['value'][:_LONGEST_TEXT]}…"
    if len(page.get("repr", "")) > _LONGEST_TEXT:
        page["repr"] = f"{page['repr'][:_LONGEST_TEXT]}…"
    return {**about, **page}


# ---------------------------------------------------------------------------------------------------------------- files


def files_page(handle: JobHandle) -> Page:
    """Return the output files of a job, as ``kinetic outputs ls --recursive --json`` has them."""
    location = outputs.location_of(handle)
    found = outputs.find_files(location)
    entries = [
        {"path": file.path, "size_bytes": file.size, "modified_at": keys.format_utc(file.modified)}
        for file in found.files[:_MOST_FILES]
    ]
    return {
        "job_id": handle.job_id,
        "output_dir": location.address,
        "files": len(found.files),
        "size_bytes": sum(file.size for file in found.files),
        "entries": entries,
    }


def file_content(handle: JobHandle, path: str) -> tuple[bytes, OutputFile]:
    """Return the bytes of an output file, up to a limit, and what is known of it.

    Raises:
        DataMissingError: There is no such file.
    """
    location = outputs.location_of(handle)
    found = outputs.find_files(location, path)
    file = next((each for each in found.files if each.path == outputs.relative_path(path)), None)
    if file is None:
        raise _no_file(location, path)
    return found.store.get(file.key, length=min(file.size, MOST_FILE_BYTES)), file


def _no_file(location: OutputLocation, path: str) -> KineticError:
    if not path:
        return OptionError("no file is named", why="path is empty", next=f"kinetic outputs ls {location.job_id}")
    return DataMissingError(
        f"{location.job_id} wrote no file {path!r}",
        why=f"looked in {location.address}",
        next=f"kinetic outputs ls {location.job_id}",
    )
