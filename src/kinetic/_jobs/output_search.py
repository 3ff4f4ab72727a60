"""Where the outputs are of any job that ever existed: they outlive everything else of it.

A job is looked for among the stored ones, then in the history of removed ones, and at last by the folder that it left:
``{store}/outputs/{job_id}``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic._jobs import find as job_find
from kinetic._jobs import index, job_list, locate, outputs
from kinetic._wire import keys
from kinetic.errors import BackendUnavailableError, JobNotFoundError

if TYPE_CHECKING:
    from kinetic._config.target import Target
    from kinetic._stores.protocol import Store


def newest_location(target: Target) -> outputs.OutputLocation | None:
    """Return where the outputs of the job are that was submitted last, collected, removed or not; None without jobs."""
    newest = job_list.newest(target, removed=True)
    if newest is None:
        return None
    try:
        return outputs.location_of(job_find.find_record(newest.job_id, target))
    except JobNotFoundError:
        return _find_removed(locate.store_at(newest.store), newest.job_id)


def find_location(job_id: str, target: Target) -> outputs.OutputLocation:
    """Return where the outputs of a job are, by its id or the start of it: stored, in the history, or only outputs."""
    try:
        return outputs.location_of(job_find.find_record(job_id, target))
    except (JobNotFoundError, BackendUnavailableError):
        removed = _find_removed(locate.local_store(), job_id)
        if removed is None:
            raise
        return removed


def _find_removed(store: Store, job_id: str) -> outputs.OutputLocation | None:
    """Find the outputs of a removed job: by its page of the history, or by the folder that it left."""
    known = index.page_ids(store) | set(store.folders(keys.OUTPUTS))
    alike = [job_id] if job_id in known else sorted(name for name in known if name.startswith(job_id))
    found = keys.only_match(job_id, alike, "ids of removed jobs")
    if found is None:
        return None
    page = locate.read_page(store, found)
    if page is None:
        return outputs.OutputLocation(found, outputs.default_address(store, found))
    host = page.get("host")
    elsewhere = f"host {host}" if host not in {None, locate.machine()} else ""
    address = str(page.get("output_dir") or outputs.default_address(store, found))
    return outputs.OutputLocation(str(page["job_id"]), address, elsewhere)
