"""Every environment variable that kinetic reads or sets, what it does, and what holds without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from kinetic._backends import registry
from kinetic._config.options import JOB_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Topic = Literal["where", "packaging", "jobs", "clusters", "this machine", "inside a job"]


class Variable(NamedTuple):
    """Describe one variable to a reader of the manual and of ``kinetic config``.

    Attributes:
        name: As it stands in the environment.
        topic: Under which heading it is told.
        effect: What it does: one sentence without a full stop.
        default: What holds while it is unset, in words a user would use.
    """

    name: str
    topic: Topic
    effect: str
    default: str


VARIABLES: tuple[Variable, ...] = (
    Variable("KINETIC_BACKEND", "where", f"the place where jobs run: {registry.listed()}", "local without a project"),
    Variable("KINETIC_PROJECT", "where", "the Google Cloud project", "GOOGLE_CLOUD_PROJECT, else none"),
    Variable("GOOGLE_CLOUD_PROJECT", "where", "the project when nothing of kinetic's names one", "none"),
    Variable("KINETIC_ZONE", "where", "the zone of the cluster", "us-central1-a"),
    Variable("KINETIC_CLUSTER", "where", "the name of the cluster", "kinetic-cluster"),
    Variable("KINETIC_NAMESPACE", "where", "the Kubernetes namespace", "the context's own, else default"),
    Variable("KINETIC_KUBE_CONTEXT", "where", "a kubeconfig context to use instead of GKE's endpoint", "none"),
    Variable("KINETIC_STORE", "where", "the address of the store that keeps jobs and results", "follows the backend"),
    Variable("KINETIC_SHARED_STORE", "where", "1: every pod has the folder of a file:// store at its path", "unset"),
    Variable("KINETIC_PROFILE", "where", "the profile that fills in what is not said", "the current profile"),
    Variable("KINETIC_PROFILES_FILE", "where", "the file with the profiles", "profiles.json in the home"),
    Variable("KINETIC_PACKAGE_ROOT", "packaging", "the folder that ships with a job", "found from the function's file"),
    Variable("KINETIC_NO_DEFAULT_EXCLUDES", "packaging", "1 ships what is left out by default", "unset"),
    Variable("KINETIC_CONTEXT_SIZE_WARN_MB", "packaging", "the archive size in MB that draws a warning", "100"),
    Variable("KINETIC_PAYLOAD_SIZE_WARN_MB", "packaging", "the size of arguments in MB that draws a warning", "50"),
    Variable("KINETIC_BASE_IMAGE_REPO", "jobs", "the repository of prebuilt images", "kinetic"),
    *(Variable(option.variable, "jobs", option.effect, option.without) for option in JOB_OPTIONS if option.variable),
    Variable("KINETIC_DEBUG_WAIT_TIMEOUT", "jobs", "the seconds that a debug job waits for a debugger", "600"),
    Variable("KINETIC_NO_TTY_DEBUG", "jobs", "1 permits a blocking debug call without a terminal", "unset"),
    Variable("KINETIC_OUTPUT_DIR", "jobs", "where a job leaves its files; set in every job", "a folder for each job"),
    Variable("KINETIC_DATA_WRITABLE", "jobs", "1 gives a job copies of its data that it may change", "read-only data"),
    Variable("KINETIC_TRUST_STORE", "jobs", "1 believes all that lies in the store, with or without a seal", "unset"),
    Variable("KINETIC_LOG_LEVEL", "jobs", "how much kinetic logs: DEBUG, INFO, WARNING, ERROR or FATAL", "INFO"),
    Variable("KINETIC_DEBUG", "jobs", "1 shows the whole Python traceback of an error, our frames too", "unset"),
    Variable("KINETIC_OWNER", "clusters", "who submits, as jobs on a cluster are labelled", "the user's name"),
    Variable("KINETIC_SERVICE_ACCOUNT", "clusters", "the account that pods run as", "kinetic if it exists, or default"),
    Variable("KINETIC_QUEUE", "clusters", "the queue (of Kueue) that jobs wait in", "none"),
    Variable("KINETIC_PRIORITY_CLASS", "clusters", "the priority class of pods", "none"),
    Variable("KINETIC_PULL_SECRETS", "clusters", "Secrets with which images are pulled, as in a,b", "none"),
    Variable("KINETIC_STORE_SECRET", "clusters", "a Secret with credentials for the store", "workload identity"),
    Variable("KINETIC_NODE_SELECTOR", "clusters", "labels of nodes, as in key=value,key2=value2", "Google's labels"),
    Variable("KINETIC_TTL_HOURS", "clusters", "the hours after which what is left of an ended job goes", "24"),
    Variable("KINETIC_MOST_ATTEMPTS", "clusters", "how many attempts of a job may be cut short", "no limit"),
    Variable("KINETIC_HOME", "this machine", "the folder with profiles, keys and the local store", "~/.kinetic"),
    Variable("KINETIC_RUNTIME_DIR", "this machine", "the folder of running jobs, on a local disk", "run/ in the home"),
    Variable("KINETIC_MACHINE_ID", "this machine", "what tells hosts that share a home apart", "the system's own id"),
    Variable("KINETIC_LOCAL_SLOTS", "this machine", "how many jobs run here at once", "the cores allowed here"),
    Variable("KINETIC_LOCAL_GPUS", "this machine", "the GPUs that jobs here may use", "all that are found"),
    Variable("KINETIC_LOCAL_ENV", "this machine", "same, or isolated: an environment built for the project", "same"),
    Variable("KINETIC_LOCAL_MAX_HOSTS", "this machine", "the largest slice, in hosts, that is emulated here", "8"),
    Variable("KINETIC_PORTABLE", "this machine", "1 switches off what only some systems can do", "unset"),
    Variable("KINETIC_VOLUME_ROOT", "this machine", "a folder in which volumes appear, in place of /", "unset"),
    Variable("KINETIC_JOB_ID", "inside a job", "the id of the job; kinetic sets it", "unset elsewhere"),
    Variable("KINETIC_CHECKPOINT_DIR", "inside a job", "where checkpoints belong; kinetic sets it", "unset elsewhere"),
    Variable("KINETIC_ATTEMPT", "inside a job", "which attempt this is, from 0; kinetic sets it", "unset elsewhere"),
    Variable("KINETIC_HOST_INDEX", "inside a job", "which host this is, from 0; kinetic sets it", "unset elsewhere"),
    Variable("KINETIC_HOST_COUNT", "inside a job", "how many hosts there are; kinetic sets it", "unset elsewhere"),
)

_NAMES = frozenset(variable.name for variable in VARIABLES)
_PREFIX = "KINETIC_"
_HANDED_ON = ("KEEPER", "DEBUG_TOKEN")  # without the prefix: what our own processes hand to each other
_OF_TESTS = f"{_PREFIX}TEST_"


def read(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the value of a variable; set but empty counts as unset.

    Raises:
        LookupError: The name is not in ``VARIABLES``, so no manual would mention it: a mistake of ours.
    """
    if name not in _NAMES:
        raise LookupError(f"{name} is read but not described in kinetic/_config/variables.py")
    return environ.get(name) or None


def unknown(environ: Mapping[str, str], besides: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that look like kinetic's and that it does not read, each with the nearest known name or "".

    Args:
        environ: The environment.
        besides: Names that the user means for something else, e.g. those that a job takes along.
    """
    expected = {*_NAMES, *(f"{_PREFIX}{word}" for word in _HANDED_ON), *besides}
    names = [name for name in environ if name.startswith(_PREFIX) and name not in expected]
    found = sorted(name for name in names if not name.startswith(_OF_TESTS))
    if not found:
        return {}
    from difflib import get_close_matches  # 2 ms; only where there is one

    return {name: next(iter(get_close_matches(name, sorted(_NAMES), 1)), "") for name in found}


def unknown_in_words(found: Mapping[str, str]) -> str:
    """Say in one sentence which variables are not kinetic's, and what was probably meant."""
    listed = ", ".join(f"{name} (did you mean {near}?)" if near else name for name, near in found.items())
    return f"kinetic does not read {listed}; kinetic config lists the variables that it reads"
