"""``kinetic profile create``: a place is saved under a name; what is missing is asked for, and tried, before that."""

from __future__ import annotations

import os

import click

from kinetic import _settings as settings
from kinetic._backends import registry
from kinetic._cli import asking
from kinetic._cli.commands import profile
from kinetic._settings import cluster, profile_store, profiles
from kinetic._settings.job_options import BY_NAME
from kinetic._settings.profiles import REQUIRED, Profile
from kinetic.errors import OptionError

_QUESTIONS = {"project": "Google Cloud project", "zone": "Zone of the cluster", "cluster": "Name of the cluster"}
_DEFAULTS = registry.CLUSTER.defaults
_SUGGESTED = {"project": "", "zone": _DEFAULTS["zone"], "cluster": _DEFAULTS["cluster"]}


@click.command(epilog=f"Job options: {', '.join(BY_NAME)}; as in --option resources=cpu=4,memory=16Gi.")
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--project", metavar="NAME", help="Google Cloud project.  [default: KINETIC_PROJECT]")
@click.option("--zone", metavar="NAME", help="Google Cloud zone.  [default: KINETIC_ZONE]")
@click.option("--cluster", metavar="NAME", help="GKE cluster.  [default: KINETIC_CLUSTER]")
@click.option("--namespace", metavar="NAME", help="Kubernetes namespace.  [default: KINETIC_NAMESPACE]")
@click.option(
    "--backend",
    type=click.Choice(registry.names()),
    help="Where jobs run.  [default: the cluster of the project or context]",
)
@click.option("--store", metavar="URL", help="The store for jobs and results.  [default: the cluster's bucket]")
@click.option("--context", metavar="NAME", help="A kubeconfig context, instead of GKE's endpoint.")
@click.option("--service-account", metavar="NAME", help="The service account of the pods.")
@click.option("--queue", metavar="NAME", help="The LocalQueue (Kueue) for the jobs.")
@click.option("--priority-class", metavar="NAME", help="The priority class of pods.")
@click.option("--pull-secret", multiple=True, metavar="NAME", help="A Secret for pulling images; can be repeated.")
@click.option("--store-secret", metavar="NAME", help="A Secret with credentials for the store.")
@click.option(
    "--node-selector", metavar="KEY=VALUE,…", help="Node labels to require instead of Google's; none for any node."
)
@click.option("--ttl-hours", metavar="HOURS", help="Hours until the cluster removes the objects of an ended job.")
@click.option("--most-attempts", metavar="N", help="How many attempts of a job may be interrupted.")
@click.option("--option", "written", multiple=True, metavar="KEY=VALUE", help="A job option; can be repeated.")
@click.option("--force", is_flag=True, help="Replace an existing profile of this name.")
def create(
    name: str | None, written: tuple[str, ...], pull_secret: tuple[str, ...], force: bool, **fields: str | None
) -> None:
    """Save a profile.

    In a terminal, it prompts for missing values. The first profile becomes the current one.

    Example: kinetic profile create team --project acme --zone us-west4-a --cluster main --option accelerator=gpu-l4
    """
    job_options = _job_options(written)
    given = {field: value or "" for field, value in fields.items()} | {"pull_secrets": ",".join(pull_secret)}
    _check_cluster_fields(given)
    if not registry.is_here(given["backend"]) and not given["context"]:
        given = {field: value or _from_environment(field) for field, value in given.items()}
        missing = [field for field in REQUIRED if not given[field]]
    else:
        missing = []
    name, given = _complete(name, given, missing)
    new = Profile(profiles.check_name(name), **given, options=job_options)
    _check(new)
    is_current = profile_store.save(os.environ, new, replace=force)
    click.echo(f"saved the profile {name} in {profiles.profiles_file(os.environ)}", err=True)
    if is_current:
        click.echo("it is now the current profile; to undo: kinetic profile unset", err=True)
        profile.tell_if_masked(name)
    else:
        click.echo(f"to make it the current profile: kinetic profile use {name}", err=True)


def _job_options(written: tuple[str, ...]) -> dict[str, object]:
    """Read what ``--option`` says."""
    found: dict[str, object] = {}
    for text in written:
        key, separator, value = text.partition("=")
        if not separator or not value:
            raise OptionError(
                f"--option {text!r} is not KEY=VALUE",
                why="it takes the name of a job option and its value",
                next="write --option accelerator=gpu-l4, for example",
            )
        from kinetic._jobs import typed  # only where there is an option

        found[key.strip()] = typed.of_text(key.strip(), value.strip())
    return found


def _check_cluster_fields(given: dict[str, str]) -> None:
    """Refuse what no cluster would take, by the names of the flags."""
    from kinetic._settings import cluster_values

    for field in cluster.FIELDS:
        if given[field]:
            flag = f"--{field.removesuffix('s') if field == 'pull_secrets' else field}".replace("_", "-")
            way = f"write {flag} {cluster_values.example(field)}, for example"
            cluster_values.checked(field, given[field], f"{flag} {given[field]!r}", way)


def _from_environment(field: str) -> str:
    """Return what the environment says of the four fields that name a cluster."""
    return os.environ.get(f"KINETIC_{field.upper()}", "") if field in {*REQUIRED, "namespace"} else ""


def _complete(name: str | None, given: dict[str, str], missing: list[str]) -> tuple[str, dict[str, str]]:
    """Ask for what is missing, or refuse where nobody can be asked."""
    if (missing or not name) and not asking.can_ask():
        raise _incomplete(name, given, missing)
    name = name or asking.ask("Name of the profile")
    asked = {field: asking.ask(_QUESTIONS[field], _SUGGESTED[field]) for field in missing}
    if missing and not given["namespace"]:
        asked["namespace"] = asking.ask("Kubernetes namespace", _DEFAULTS["namespace"])
    return name, given | asked


def _incomplete(name: str | None, given: dict[str, str], missing: list[str]) -> OptionError:
    flags = [*([] if name else ["NAME"]), *(f"--{field}" for field in missing)]
    shown = " ".join(f"--{field} {given[field] or _SUGGESTED[field] or 'YOUR-PROJECT'}" for field in REQUIRED)
    return OptionError(
        f"{' and '.join(flags)} {'is' if len(flags) == 1 else 'are'} missing",
        why="not a terminal: pass the options",
        next=f"kinetic profile create {name or 'NAME'} {shown}     or, for this machine, --backend local",
    )


def _check(new: Profile) -> None:
    """Refuse a profile that could not say where jobs run: its values are tried as arguments, with no other source."""
    if new.context and not (new.store or new.project):
        raise OptionError(
            "--store is missing",
            why="a kubeconfig context has no default bucket",
            next=f"add --store gs://your-bucket to: kinetic profile create {new.name} --context {new.context}",
        )
    alone = {
        "KINETIC_HOME": str(settings.kinetic_home(os.environ)),
        "KINETIC_PROFILE": "",
        "KINETIC_PROFILES_FILE": os.path.join(os.sep, "nonexistent", "kinetic-profiles.json"),
        "KINETIC_STORE": new.store,
        "KINETIC_KUBE_CONTEXT": new.context,
    }
    settings.resolve(
        backend=new.backend or registry.CLUSTER.name,
        project=new.project,
        zone=new.zone,
        cluster=new.cluster,
        namespace=new.namespace,
        environ=alone,
    )
