"""Public names that a later release fills: touching one says so."""

from __future__ import annotations

from typing import NoReturn

from kinetic._jobs.later import refuse


class Data:
    """A reference to data that a job reads. Not part of this release.

    Raises:
        OptionError: Always, naming what to do instead.
    """

    def __init__(self, path: object, fuse: bool = False, hf_trust_remote_code: bool = False) -> None:  # noqa: ARG002 - documented
        refuse(f"Data({path!r})", "pass the path as a string: on this machine the job can read it")


def attach_batch(
    group_id: str,
    project: str | None = None,  # noqa: ARG001 - the documented signature
    cluster: str | None = None,  # noqa: ARG001
    poll_interval: float = 10.0,  # noqa: ARG001
    poll_timeout: float | None = None,  # noqa: ARG001
) -> NoReturn:
    """Reattach to a batch. Not part of this release.

    Raises:
        OptionError: Always, naming what to do instead.
    """
    refuse(f"attach_batch({group_id!r})", "kinetic.attach(job_id) for each job")
