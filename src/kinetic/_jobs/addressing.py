"""Where a job's debug servers are, and how they stand: its place knows the one, and of pods the store the other."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from kinetic._jobs import logs, places
from kinetic._wire import debug, keys, pages
from kinetic.errors import IntegrityError, KeyMissingError

if TYPE_CHECKING:
    from kinetic._backends.protocol import DebugAddress
    from kinetic._wire.handles import JobRecord

_AT_ONCE = 8  # pages that are read side by side


def addresses_of(job: JobRecord, hosts: Sequence[int]) -> dict[int, DebugAddress]:
    """Say where a job's debug servers are and how they stand; a host that has none now is left out.

    Args:
        job: The job.
        hosts: Of which hosts, from 0.
    """
    found = places.backend_of(job).debug_addresses(job.job_id, hosts=hosts)
    if all(each.state for each in found.values()):
        return found
    store = places.store_of(job)  # a cluster knows the pods, and the pods told the store
    attempt = logs.noted(store, job.job_id)
    job_key = places.key_to_read(job)
    key = None if job_key is None else debug.page_key(debug.token(job_key))

    def told(host: int) -> DebugAddress | None:
        try:
            page = pages.open_page(debug.DEBUG, store, keys.debug(job.job_id, attempt, host), key)
        except (KeyMissingError, IntegrityError):
            return None
        if page.is_of_an_older_pod(found[host].machine):
            return None
        return found[host]._replace(port=page.port, roots=page.roots, state=page.state, until=page.until)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        addresses = zip(found, pool.map(told, found), strict=True)
        return {host: address for host, address in addresses if address is not None}


def address_of(job: JobRecord, *, host: int) -> DebugAddress | None:
    """Say where the debug server of one host of a job is and how it stands, or None while there is none.

    Args:
        job: The job.
        host: Of which host, from 0.
    """
    return addresses_of(job, [host]).get(host)
