"""Where we point: each setting with the place that its value came from.

    field        argument   environment            profile       else                       local        gke, pathways
    backend      backend=   KINETIC_BACKEND        "backend"     a project or profile: gke (pathways for many hosts)
    project      project=   KINETIC_PROJECT        "project"     GOOGLE_CLOUD_PROJECT       "local"      refused
    zone         zone=      KINETIC_ZONE           "zone"                                   "local"      us-central1-a
    cluster      cluster=   KINETIC_CLUSTER        "cluster"                                "local"      kinetic-cluster
    namespace    namespace= KINETIC_NAMESPACE      "namespace"                              "default"    the context's
    store                   KINETIC_STORE          "store"                                  file://…     gs://…-jobs
    context                 KINETIC_KUBE_CONTEXT   "context"                                ""           in a pod: its

The first one that says something wins; an empty string says nothing. Without any of it, jobs run on this machine.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from kinetic._backends import registry
from kinetic._config import profiles
from kinetic._config.home import kinetic_home
from kinetic._config.options import read_variable
from kinetic.errors import OptionError, OptionTypeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kinetic._backends.registry import Entry
    from kinetic._config.profiles import Profile

IN_CLUSTER = "in-cluster"  # the context that means: the cluster of the pod that we run in
_OF_EVERY_POD = "KUBERNETES_SERVICE_HOST"  # a variable that Kubernetes sets
_ARGUMENT = "argument"
_DEFAULT = "default"


class Setting(NamedTuple):
    """Hold a value and where it came from.

    Attributes:
        value: The value; "" only where there is none, as for the context of most targets.
        source: "argument", the name of a variable, "profile NAME" or "default". A backend that nobody named but a
            project implied has "project from …" with the source of the project.
    """

    value: str
    source: str


class Target(NamedTuple):
    """Hold where jobs run and where their results are kept.

    Attributes:
        backend: "local", "gke" or "pathways".
        project: The Google Cloud project; "local" on this machine if none is set.
        zone: The zone of the cluster.
        cluster: The name of the cluster.
        namespace: The Kubernetes namespace; "" for the context's own, which is known once the cluster was reached.
        store: The address of the store.
        context: A kubeconfig context; "" for GKE's own endpoint.
        home: The kinetic home on this machine, an absolute path.
        profile: The profile that took part, or None. Its job options are for whoever reads options.
        notes: Plain sentences that the user should see once.
    """

    backend: Setting
    project: Setting
    zone: Setting
    cluster: Setting
    namespace: Setting
    store: Setting
    context: Setting
    home: Setting
    profile: Profile | None = None
    notes: tuple[str, ...] = ()

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
    """Say where we point. Nothing is made and nothing is asked over a network.

    Args:
        backend: "local", "gke" or "pathways".
        project: The Google Cloud project.
        zone: The zone of the cluster.
        cluster: The name of the cluster.
        namespace: The Kubernetes namespace.
        multi_host: The accelerator spans hosts; then a project or a profile means pathways and not gke.
        environ: The environment.
        profile: The name of a profile, for this call instead of KINETIC_PROFILE and the current one.

    Raises:
        OptionError: An unknown backend, a name with "/" or white space in it, or a cluster without a project.
        OptionTypeError: An argument is not a string.
        SettingsError: The profiles cannot be read, or none has the name that is asked for.
    """
    choice = profiles.choose(environ, _text("profile", profile))
    look = _Look(environ, choice.profile)
    place, chosen_project, context = _where(look, backend, project, multi_host=multi_host)
    entry = registry.find(place.value)
    chosen_cluster = look.up("cluster", cluster) or Setting(entry.defaults["cluster"], _DEFAULT)
    home = Setting(str(kinetic_home(environ)), "KINETIC_HOME" if read_variable("KINETIC_HOME", environ) else _DEFAULT)
    return Target(
        backend=place,
        project=_checked_name("project", chosen_project),
        zone=_checked_name("zone", look.up("zone", zone) or Setting(entry.defaults["zone"], _DEFAULT)),
        cluster=_checked_name("cluster", chosen_cluster),
        namespace=_checked_name("namespace", look.up("namespace", namespace) or _default_namespace(entry, context)),
        store=look.up_store(place) or _default_store(entry, chosen_project, chosen_cluster, home),
        context=context,
        home=home,
        profile=choice.profile,
        notes=(*choice.notes, *_unused_context(look, place)),
    )


def _where(
    look: _Look, backend: str | None, project: str | None, *, multi_host: bool
) -> tuple[Setting, Setting, Setting]:
    """Return the backend, the project and the context, which depend on each other."""
    named = look.up("project", project) or look.up_variable("GOOGLE_CLOUD_PROJECT")
    place = _checked_backend(look.up("backend", backend) or _implied_backend(named, look.profile))
    if multi_host and place.source != _ARGUMENT:  # the same cluster, for several hosts; only an argument means it so
        place = place._replace(value=registry.find(place.value).many_hosts or place.value)
    context = look.up("context", None, "KINETIC_KUBE_CONTEXT") or _default_context(look, place, named)
    return place, named or _default_project(place, context), context


class _Look(NamedTuple):
    """Look a setting up in the order that the top of this file draws."""

    environ: Mapping[str, str]
    profile: Profile | None

    def up(self, field: str, argument: object, variable: str = "") -> Setting | None:
        written = _text(field, argument)
        if written:
            return Setting(written, _ARGUMENT)
        return self.up_variable(variable or f"KINETIC_{field.upper()}") or self.up_profile(field)

    def up_variable(self, name: str) -> Setting | None:
        value = read_variable(name, self.environ)
        return Setting(value, name) if value else None

    def up_profile(self, field: str) -> Setting | None:
        value: str = getattr(self.profile, field, "")
        return Setting(value, _source(self.profile)) if value else None

    def up_store(self, place: Setting) -> Setting | None:
        """Leave the store of a profile for a cluster to jobs on a cluster: a local job must not write there."""
        foreign = registry.is_here(place.value) and self.profile and not registry.is_here(self.profile.backend)
        return self.up_variable("KINETIC_STORE") or (None if foreign else self.up_profile("store"))


def _implied_backend(project: Setting | None, profile: Profile | None) -> Setting:
    """Say where jobs run when nobody named a backend: a project or a profile means a cluster."""
    if profile is not None:
        return Setting(registry.CLUSTER.name, _source(profile))
    if project is not None:
        return Setting(registry.CLUSTER.name, f"project from {project.source}")
    return Setting(registry.HERE.name, _DEFAULT)


def _unused_context(look: _Look, place: Setting) -> tuple[str, ...]:
    """Say that a context alone moves no job to a cluster."""
    found = look.up_variable("KINETIC_KUBE_CONTEXT")
    if found is None or not registry.is_here(place.value) or place.source != _DEFAULT:
        return ()
    there = f"KINETIC_BACKEND={registry.CLUSTER.name}"
    return (f"KINETIC_KUBE_CONTEXT is set, and jobs run on this machine: {there} sends them there",)


def _default_context(look: _Look, place: Setting, project: Setting | None) -> Setting:
    """Mean the cluster that we are in, where a pod asks for a cluster and names none."""
    inside = look.environ.get(_OF_EVERY_POD)
    if project is None and inside and "project" not in registry.find(place.value).defaults:
        return Setting(IN_CLUSTER, _OF_EVERY_POD)
    return Setting("", _DEFAULT)


def _default_namespace(entry: Entry, context: Setting) -> Setting:
    """Leave the namespace to a context, which may have one of its own."""
    return Setting("" if context.value else entry.defaults["namespace"], _DEFAULT)


def _default_project(place: Setting, context: Setting) -> Setting:
    known = registry.find(place.value).defaults.get("project")
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


def _default_store(entry: Entry, project: Setting, cluster: Setting, home: Setting) -> Setting:
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


def _source(profile: Profile | None) -> str:
    return f"profile {profile.name}" if profile else _DEFAULT
