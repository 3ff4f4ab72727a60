"""Every environment variable that kinetic reads or sets; what it does is described in docs/settings.md only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kinetic._config.options import JOB_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

# What applies to all jobs of a cluster, as profiles name it, with the default for humans; see ``cluster``.
CLUSTER_SETTINGS = {
    "service_account": "kinetic if it exists, or default",
    "queue": "none",
    "priority_class": "none",
    "pull_secrets": "none",
    "image_repo": "none",
    "store_secret": "workload identity",
    "node_selector": "Google's labels",
    "tolerations": "those for the accelerator",
    "labels": "none",
    "annotations": "none",
    "config_maps": "none",
    "volume_claims": "none",
    "gpu_resource": "nvidia.com/gpu",
    "scheduler": "that of Kubernetes",
    "runtime_class": "the nodes' own",
    "cpu_disk": "1Gi",
    "ttl_hours": "24",
    "most_attempts": "no limit",
}
INSIDE_A_JOB = (  # and in a command that is run when a job has ended; kinetic sets them
    *("KINETIC_JOB_ID", "KINETIC_CHECKPOINT_DIR", "KINETIC_ATTEMPT", "KINETIC_HOST_INDEX", "KINETIC_HOST_COUNT"),
    *("KINETIC_SLICE_COUNT", "KINETIC_PROGRESS_FILE", "KINETIC_PACKAGE_ORIGIN"),
    *("KINETIC_NOTICE_JOB_ID", "KINETIC_NOTICE_STATUS", "KINETIC_NOTICE_TEXT"),
)
# Every variable that kinetic reads or sets, and the default as `kinetic config` shows it.
VARIABLES: Mapping[str, str] = {
    "KINETIC_BACKEND": "local without a project",
    "KINETIC_PROJECT": "GOOGLE_CLOUD_PROJECT, else none",
    "GOOGLE_CLOUD_PROJECT": "none",
    "KINETIC_ZONE": "us-central1-a",
    "KINETIC_CLUSTER": "kinetic-cluster",
    "KINETIC_NAMESPACE": "the context's own, else default",
    "KINETIC_KUBE_CONTEXT": "none",
    "KINETIC_STORE": "follows the backend",
    "KINETIC_SHARED_STORE": "unset",
    "KINETIC_PROFILE": "the current profile",
    "KINETIC_PROFILES_FILE": "profiles.json in the home",
    "KINETIC_PACKAGE_ROOT": "found from the function's file",
    "KINETIC_NO_DEFAULT_EXCLUDES": "unset",
    "KINETIC_CONTEXT_SIZE_WARN_MB": "100",
    "KINETIC_PAYLOAD_SIZE_WARN_MB": "50",
    "KINETIC_BASE_IMAGE_REPO": "kinetic",
    "KINETIC_BASE_IMAGE": "python:X.Y-slim-bookworm",
    "KINETIC_BUILD_ACCOUNT": "the project's default",
    "KINETIC_RESERVATION": "none",
    "KINETIC_UPGRADE": "unset",
    **{option.variable: option.without for option in JOB_OPTIONS if option.variable},
    "KINETIC_WARM_MAX": "8h",
    "KINETIC_DEBUG_WAIT_TIMEOUT": "600",
    "KINETIC_NO_TTY_DEBUG": "unset",
    "KINETIC_OUTPUT_DIR": "a folder for each job",
    "KINETIC_DATA_WRITABLE": "read-only data",
    "KINETIC_TRUST_STORE": "unset",
    "KINETIC_STALL_AFTER": "10m",
    "KINETIC_LOG_LEVEL": "INFO",
    "KINETIC_DEBUG": "unset",
    "KINETIC_OWNER": "the user's name",
    **{f"KINETIC_{name.upper()}": default for name, default in CLUSTER_SETTINGS.items()},
    "KINETIC_HOME": "~/.kinetic",
    "KINETIC_RUNTIME_DIR": "run/ in the home",
    "KINETIC_MACHINE_ID": "the system's own id",
    "KINETIC_LOCAL_SLOTS": "the cores allowed here",
    "KINETIC_LOCAL_GPUS": "all that are found",
    "KINETIC_GPU_LOCKS": "on, for GPUs that are found",
    "KINETIC_LOCAL_ENV": "same",
    "KINETIC_LOCAL_PRELOAD": "on",
    "KINETIC_LOCAL_MAX_HOSTS": "8",
    "KINETIC_PORTABLE": "unset",
    "KINETIC_VOLUME_ROOT": "unset",
    **dict.fromkeys(INSIDE_A_JOB, "unset elsewhere"),
}
_PREFIX = "KINETIC_"
_OWN = tuple(_PREFIX + word for word in ("SUPERVISOR", "DEBUG_TOKEN", "SCRIPT_WORDS"))  # between processes of ours
_OF_TESTS = f"{_PREFIX}TEST_"
_SWITCHES = tuple(
    f"{_PREFIX}{word}"
    for word in "DATA_WRITABLE DEBUG NO_DEFAULT_EXCLUDES NO_TTY_DEBUG PORTABLE SHARED_STORE TRUST_STORE UPGRADE".split()
)


def read_variable(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the value of a variable; set but empty counts as unset."""
    if name not in VARIABLES:
        raise LookupError(f"{name} is read but not described in kinetic/_config/variables.py")
    return environ.get(name) or None


def describe_misread_switches(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable that only 1 turns on, and that has another value, such as "true"."""
    return [
        f"{name}={environ[name]!r} has no effect: only {name}=1 turns it on"
        for name in _SWITCHES
        if environ.get(name, "").lower() not in {"", "0", "1", "false", "no", "off"}
    ]


def unknown_variables(environ: Mapping[str, str], besides: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that look like kinetic's but are not, each with the nearest known name or "".

    ``besides``: names that the user means for something else, e.g. those that a job captures.
    """
    expected = {*VARIABLES, *_OWN, *besides}
    found = sorted(
        name for name in environ if name.startswith(_PREFIX) and not name.startswith(_OF_TESTS) and name not in expected
    )
    if not found:
        return {}
    from difflib import get_close_matches  # 2 ms; only where there is one

    known = {name.removeprefix(_PREFIX): name for name in sorted(VARIABLES)}
    near = {name: get_close_matches(name.removeprefix(_PREFIX), known, 1) for name in found}
    return {name: known[words[0]] if words else "" for name, words in near.items()}


def describe_unknown_variables(found: Mapping[str, str]) -> str:
    """Return one sentence that names unknown variables and what was probably meant."""
    arguments = {f"{_PREFIX}{option.name.upper()}": option.name for option in JOB_OPTIONS}
    hints = {name: f"did you mean {near}?" for name, near in found.items() if near}
    hints |= {name: f"pass {arguments[name]}=… to kinetic.run" for name in found if name in arguments}
    listed = ", ".join(f"{name} ({hints[name]})" if name in hints else name for name in found)
    return f"kinetic does not read {listed}; kinetic config lists the variables that it reads"
