"""Where jobs run and where their results are kept: each setting with the place that its value came from.

    field        argument   environment            profile       else                       local        gke, pathways
    backend      backend=   KINETIC_BACKEND        "backend"     a project or profile: gke (pathways for many hosts)
    project      project=   KINETIC_PROJECT        "project"     GOOGLE_CLOUD_PROJECT       "local"      an error
    zone         zone=      KINETIC_ZONE           "zone"                                   "local"      us-central1-a
    cluster      cluster=   KINETIC_CLUSTER        "cluster"                                "local"      kinetic-cluster
    namespace    namespace= KINETIC_NAMESPACE      "namespace"                              "default"    the context's
    store                   KINETIC_STORE          "store"                                  file://…     gs://…-jobs
    context                 KINETIC_KUBE_CONTEXT   "context"                                ""           in a pod: its

The first that is not empty wins. Without any of it, jobs run on this machine.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kinetic._backends import registry
from kinetic._config import profiles
from kinetic._config.home import ensure_home, kinetic_home, machine_id, runtime_folder
from kinetic._config.variables import VARIABLES, read_variable
from kinetic._wire import NamedTuple
from kinetic.errors import OptionError, OptionTypeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kinetic._config.profiles import Profile

__all__ = [  # with what goes with it: a room imports this module as ``settings``
    "VARIABLES",
    "Setting",
    "Target",
    "ensure_home",
    "kinetic_home",
    "machine_id",
    "read_variable",
    "resolve",
    "runtime_folder",
]

IN_CLUSTER = "in-cluster"  # the context that means: the cluster of the pod that we run in
_OF_EVERY_POD = "KUBERNETES_SERVICE_HOST"  # a variable that Kubernetes sets
_ARGUMENT, _DEFAULT = "argument", "default"


class Setting(NamedTuple):
    """A value and where it came from."""

    value: str  # "" only where there is none, as for the context of most targets
    source: str  # "argument", a variable, "profile NAME", "default"; of a backend also "project from …"


class Target(NamedTuple):
    """Where jobs run and where their results are kept."""

    backend: Setting
    project: Setting  # of Google Cloud; "local" on this machine if none is set
    zone: Setting
    cluster: Setting
    namespace: Setting  # "" for the context's own, which is known once the cluster was reached
    store: Setting
    context: Setting  # of the kubeconfig; "" for GKE's own endpoint
    home: Setting  # the kinetic home on this machine, an absolute path
    profile: Profile | None = None  # the active profile; its job options are applied by ``_jobs/option_sources``
    notes: tuple[str, ...] = ()  # sentences that the user should see once

    @property
    def bucket_name(self) -> str:
        """The bucket of the store; for files the folder, for a store in memory its name."""
        scheme, separator, rest = self.store.value.partition("://")
        if not separator or scheme == "file":
            return rest or scheme
        return rest.partition("/")[0]


def resolve(
    *,
    backend: str | None = None,
    project: str | None = None,
    zone: str | None = None,
    cluster: str | None = None,
    namespace: str | None = None,
    multi_host: bool = False,
    environ: Mapping[str, str] = os.environ,
    profile: str | None = None,
) -> Target:
    """Return where jobs run, by the table at the top of this file. Nothing is created, and no request is sent.

    If the accelerator spans hosts (``multi_host``), a project or a profile means pathways and not gke. A profile that
    is named here is used instead of KINETIC_PROFILE and the current one.
    """
    choice = profiles.choose(environ, _text("profile", profile))
    lookup = _Lookup(environ, choice.profile)
    named = lookup.find("project", project) or lookup.variable("GOOGLE_CLOUD_PROJECT")
    place = _checked_backend(lookup.find("backend", backend) or _implied_backend(named, choice.profile))
    if multi_host and place.source != _ARGUMENT:  # an argument is taken literally
        place = place._replace(value=registry.find(place.value).many_hosts or place.value)
    entry = registry.find(place.value)
    context = lookup.find("context", None, "KINETIC_KUBE_CONTEXT")
    if context is None:
        in_a_pod = named is None and environ.get(_OF_EVERY_POD) and "project" not in entry.defaults
        context = Setting(IN_CLUSTER, _OF_EVERY_POD) if in_a_pod else Setting("", _DEFAULT)
    notes = choice.notes
    if registry.is_here(place.value) and place.source == _DEFAULT and lookup.variable("KINETIC_KUBE_CONTEXT"):
        there = f"KINETIC_BACKEND={registry.CLUSTER.name}"
        notes += (f"KINETIC_KUBE_CONTEXT is set, but jobs run on this machine; set {there} to use the cluster",)

    def default(field: str) -> Setting:
        return Setting(entry.defaults[field], _DEFAULT)

    chosen_project = named or _default_project(place, entry, context)
    chosen_cluster = lookup.find("cluster", cluster) or default("cluster")
    own_namespace = Setting("", _DEFAULT) if context.value else default("namespace")
    home = Setting(str(kinetic_home(environ)), "KINETIC_HOME" if read_variable("KINETIC_HOME", environ) else _DEFAULT)
    return Target(
        backend=place,
        project=_checked_name("project", chosen_project),
        zone=_checked_name("zone", lookup.find("zone", zone) or default("zone")),
        cluster=_checked_name("cluster", chosen_cluster),
        namespace=_checked_name("namespace", lookup.find("namespace", namespace) or own_namespace),
        store=lookup.store(place) or _default_store(entry, chosen_project, chosen_cluster, home),
        context=context,
        home=home,
        profile=choice.profile,
        notes=notes,
    )


class _Lookup(NamedTuple):
    """Find a setting in the order of the table at the top of this file."""

    environ: Mapping[str, str]
    active: Profile | None

    def find(self, field: str, argument: object, variable: str = "") -> Setting | None:
        written = _text(field, argument)
        if written:
            return Setting(written, _ARGUMENT)
        return self.variable(variable or f"KINETIC_{field.upper()}") or self.profile(field)

    def variable(self, name: str) -> Setting | None:
        value = read_variable(name, self.environ)
        return Setting(value, name) if value else None

    def profile(self, field: str) -> Setting | None:
        value: str = getattr(self.active, field, "")
        return Setting(value, f"profile {self.active.name}") if self.active and value else None

    def store(self, place: Setting) -> Setting | None:
        """Ignore the store of a profile for a cluster in local jobs: they must not write there."""
        foreign = registry.is_here(place.value) and self.active and not registry.is_here(self.active.backend)
        return self.variable("KINETIC_STORE") or (None if foreign else self.profile("store"))


def _implied_backend(project: Setting | None, profile: Profile | None) -> Setting:
    """Return where jobs run when no backend is named: a project or a profile means a cluster."""
    if profile is not None:
        return Setting(registry.CLUSTER.name, f"profile {profile.name}")
    if project is not None:
        return Setting(registry.CLUSTER.name, f"project from {project.source}")
    return Setting(registry.HERE.name, _DEFAULT)


def _default_project(place: Setting, entry: registry.Entry, context: Setting) -> Setting:
    known = entry.defaults.get("project")
    if known is not None:
        return Setting(known, _DEFAULT)
    if context.value:
        return Setting("", _DEFAULT)  # a cluster that need not be Google's has no project
    raise OptionError(
        f"the {place.value} backend needs a project",
        why=f"it is chosen by {'an argument' if place.source == _ARGUMENT else place.source}; neither an argument, "
        "KINETIC_PROJECT, a profile nor GOOGLE_CLOUD_PROJECT names a project",
        next=f'export KINETIC_PROJECT=your-project     or use backend="{registry.HERE.name}" to run on this machine',
    )


def _default_store(entry: registry.Entry, project: Setting, cluster: Setting, home: Setting) -> Setting:
    if project.value or "{project}" not in entry.store:
        return Setting(entry.store.format(home=home.value, project=project.value, cluster=cluster.value), _DEFAULT)
    raise OptionError(
        "a cluster that is reached by a kubeconfig context needs a store",
        why="without a project no bucket can be named, and neither KINETIC_STORE nor a profile names a store",
        next="export KINETIC_STORE=gs://your-bucket     or set KINETIC_PROJECT",
    )


def _checked_backend(place: Setting) -> Setting:
    if place.value in registry.names():
        return place
    from difflib import get_close_matches  # 2 ms; only when something is wrong

    nearest = get_close_matches(place.value.lower(), registry.names(), n=1, cutoff=0)[0]
    raise OptionError(
        f"Unknown backend {place.value!r}{_from(place)}",
        why=f"backends: {', '.join(registry.names())}",
        next=f'write backend="{nearest}"' if place.source == _ARGUMENT else _correct(place, "backend", nearest),
    )


def _checked_name(field: str, setting: Setting) -> Setting:
    """Refuse what would change the meaning of an address or a path; all else is for the cluster to judge."""
    if not any(character == "/" or character.isspace() for character in setting.value):
        return setting
    plain = "-".join(setting.value.replace("/", " ").split()) or f"your-{field}"
    raise OptionError(
        f"{setting.value!r} cannot be the name of a {field}{_from(setting)}",
        why='a name has no "/" and no white space',
        next=f"write {field}={plain!r}" if setting.source == _ARGUMENT else _correct(setting, field, plain),
    )


def _text(field: str, argument: object) -> str:
    if argument is None or isinstance(argument, str):
        return argument or ""
    raise OptionTypeError(
        f"{field} must be a string, not {type(argument).__name__}",
        why=f"it is {argument!r}",
        next=f"give {field} as a string, or leave it out",
    )


def _from(setting: Setting) -> str:
    return "" if setting.source == _ARGUMENT else f" (from {setting.source})"


def _correct(setting: Setting, field: str, better: str) -> str:
    if setting.source.startswith("profile "):
        return f'give {field} here as an argument, or correct it in {setting.source}, for example to "{better}"'
    return f"export {setting.source}={better}"
