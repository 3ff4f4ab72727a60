"""``kinetic up`` and ``kinetic down``: a cluster for jobs in Google Cloud, made and removed."""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from kinetic._backends import registry
from kinetic._cli import error_output, shared_options
from kinetic._cli.error_output import ERROR, print_parts
from kinetic._config.variables import read_variable
from kinetic._output import format as output_format
from kinetic._output import terminal as output
from kinetic._output.format import count_text, duration_text
from kinetic.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kinetic._cli.shared_options import Command
    from kinetic._cluster.plan import Plan
    from kinetic._cluster.resource import Setup, Spec
    from kinetic._cluster.teardown import RemovalPlan
    from kinetic._hardware import Placement

_BILLING_ACCOUNT = re.compile(r"[0-9A-F]{6}(-[0-9A-F]{6}){2}")
_PROJECT = re.compile(r"[a-z][-a-z0-9]{4,28}[a-z0-9]")
_PARENT = re.compile(r"(folders|organizations)/[0-9]+")
_UNCHANGED = "nothing was changed"
_LIMIT_SECONDS = 2400.0  # other tools wait for 30 to 40 minutes


def _place_options(function: Command) -> Command:
    """Add the options that say which cluster."""
    help_ = "The name of the cluster, of at most 20 characters.  [default: KINETIC_CLUSTER, or the profile]"
    function = click.option("--cluster", metavar="NAME", help=help_)(function)
    help_ = "Google Cloud project.  [default: KINETIC_PROJECT, the profile, or your login's]"
    return click.option("--project", metavar="NAME", help=help_)(function)


def _location_option(help_: str) -> Callable[[Command], Command]:
    return click.option("--region", "--zone", "location", metavar="NAME", help=help_)


def _run_options(function: Command) -> Command:
    """Add the options that say how it runs."""
    limit = shared_options.Duration(bare=True)
    help_ = "Stop waiting after this time, such as 40m.  [default: 40m]"
    function = click.option("--timeout", type=limit, default=_LIMIT_SECONDS, metavar="TIME", help=help_)(function)
    function = shared_options.yes_option(function)
    return click.option("--dry-run", "--preview", is_flag=True, help="Only print the plan; nothing is written.")(
        function
    )


@click.command
@_place_options
@_location_option("Where it is made.  [default: chosen]")
@click.option(
    "-a",
    "--accelerator",
    "accelerators",
    multiple=True,
    metavar="NAME",
    shell_complete=shared_options.complete_accelerators,
    help="Hardware that jobs will use: chooses the region, checks quota, names its price; may be repeated.",
)
@click.option("--standard", is_flag=True, help="A zonal Standard cluster with node pools, instead of Autopilot.")
@click.option("--network", metavar="NAME", help="Use this network, instead of making one.")
@click.option("--subnet", metavar="NAME", help="The subnet of --network.  [default: the only one in the region]")
@click.option("--pod-range", metavar="NAME", help="Of a subnet of another project: its range for pods.")
@click.option("--service-range", metavar="NAME", help="The same for services.")
@click.option("--node-service-account", metavar="EMAIL", help="Nodes run as this account, instead of a new one.")
@click.option("--namespace", metavar="NAME", help="The namespace of jobs.  [default: default]")
@click.option(
    "--limit", "limits", multiple=True, metavar="tpu=N", help="What all jobs may hold together: tpu, gpu, pods, cpu."
)
@click.option("--registry", is_flag=True, help="Make a repository for images, too.")
@click.option("--jobset", is_flag=True, help="Install JobSet, too; slices of several hosts do so by themselves.")
@click.option(
    "--billing-account", metavar="ID", help="Link this account to a project that has none; Google charges it."
)
@click.option(
    "--create-project", is_flag=True, help="Make the project, too, if there is none; needs --billing-account."
)
@click.option("--parent", metavar="folders/N", help="The folder or organization of a project that is made.")
@click.option("--public-nodes", is_flag=True, help="Give nodes addresses of their own, instead of a NAT.")
@_run_options
@click.option("--try", "try_it", is_flag=True, help="Run a hello job at the end, on the first accelerator.")
@click.option(
    "--as",
    "as_commands",
    type=click.Choice(["gcloud"]),
    metavar="gcloud",
    help="With --dry-run: print commands of gcloud and kubectl that do the same.",
)
@shared_options.json_option
def up(
    dry_run: bool,
    yes: bool,
    timeout: float,
    try_it: bool,
    as_commands: str | None,
    as_json: bool,
    accelerators: tuple[str, ...],
    **given: Any,
) -> None:
    """Make a cluster for jobs in Google Cloud, or complete one.

    Everything is read first, and a plan is printed: + is made, ~ is changed, = is there, ! is not ours. After one yes
    it is made, and a profile leads jobs there. Run again, it continues where it stopped, and writes nothing if all is
    there. Without a terminal, pass --yes; without that, the plan is printed and the exit code is 2.

    `--dry-run --as gcloud` prints a shell script for an administrator who must approve or run it, also where this
    account has no rights.

    Example: kinetic up --accelerator v5litepod-4
    """
    from kinetic import _hardware as hardware
    from kinetic._cluster import resource
    from kinetic._cluster.plan import make_plan, save_profile

    if as_commands and (not dry_run or as_json):
        why = "it prints what would be done, and changes nothing" if not dry_run else "--json prints one document"
        raise OptionError(f"--as {as_commands} needs --dry-run, without --json", why=why,
                          next="kinetic up --dry-run --as gcloud")  # fmt: skip

    begun = time.monotonic()
    wanted = tuple(hardware.place(each) for each in accelerators)
    if several := next((each for each in wanted if each.slices > 1), None):
        spot = ":spot" if several.spot else ""
        raise OptionError(
            f"{several.name} has {several.slices} slices, and kinetic up prepares a cluster for one",
            why="in an Autopilot cluster the nodes of others come with the jobs; in a Standard one each is a node pool",
            next=f"kinetic up --accelerator {several.one_slice.name}{spot}     and with --standard: "
            f"kinetic pool add {several.name}{spot}",
        )
    spec = _spec(given, wanted)
    resource.check_name(spec.cluster)
    setup = _setup(spec, timeout)
    if as_commands:
        _print_commands(setup)
        return
    with output.phase("reading what exists", summary=False):
        plan = make_plan(setup)
    _print_plan(plan, as_json=as_json)
    blocking = plan.blocking
    if blocking is not None:
        raise blocking
    if dry_run:
        return
    if plan.to_do and not yes and not shared_options.confirm("Make this?", refused=_UNCHANGED):
        sys.exit(ERROR)
    if plan.to_do:
        _make(plan)
    setup.client()  # it answers: reading its namespace succeeded
    name = save_profile(setup, dict(os.environ))
    click.echo(f"the cluster {spec.cluster} is ready after {duration_text(time.monotonic() - begun)}", err=True)
    click.echo(f"profile {name} leads to it: kinetic profile use {name}", err=True)
    if try_it:
        sys.exit(_try(name, accelerators[0] if accelerators else "cpu", begun))


def _print_commands(setup: Setup) -> None:
    """Print a shell script that does what the plan does; all of it where this account may not see what exists."""
    from kinetic._cluster import gcloud
    from kinetic._cluster.plan import make_plan, plan_from_nothing
    from kinetic.errors import AccessDeniedError, CredentialsError

    try:
        with output.phase("reading what exists", summary=False):
            plan = make_plan(setup)
    except (AccessDeniedError, CredentialsError) as error:
        click.echo(
            output_format.plain(f"what exists is not known, so these commands make all of it: {error.what}"), err=True
        )
        plan = plan_from_nothing(setup)
    blocking = plan.blocking
    if blocking is not None and blocking.code not in {"access-denied", "billing"}:
        raise blocking  # else who runs the commands may, and may pay
    for line in gcloud.commands_of(plan):
        click.echo("\n".join(map(output_format.plain, line.split("\n"))))


def _make(plan: Plan) -> None:
    from kinetic._cluster.plan import carry_out

    down = f"kinetic down --project {plan.setup.project} --cluster {plan.setup.spec.cluster}"
    with _shown(plan.setup, "making the cluster", "makes", f"continues, and {down} removes it"):
        carry_out(plan, lambda step: output.report(f"made {step.resource.title}"))


@contextmanager
def _shown(setup: Setup, phase: str, verb: str, what_next: str) -> Iterator[None]:
    """Show what is done; Ctrl-C says what Google continues with: an operation on a cluster cannot be cancelled."""
    doing = [""]
    setup.report = lambda text: doing.__setitem__(0, text)
    try:
        with output.phase(phase, detail=lambda: doing[0]):
            yield
    except KeyboardInterrupt:
        why = f"it {verb} {setup.spec.cluster} in {setup.project} if it has begun with that; a cluster without jobs "
        why += "costs at most $0.10 per hour, and its NAT less than $0.01"
        error_output.stop_waiting_for_google(why, f"{shared_options.typed_again()} {what_next}")


def _try(profile: str, accelerator: str, begun: float) -> int:
    """Run a hello job as a user would, and print the seconds until its first line."""
    import subprocess
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory(prefix="kinetic-hello-") as folder:
        file = Path(folder, "hello.py")
        file.write_text('def hello():\n    print("hello from the cluster", flush=True)\n')
        command = [sys.executable, "-m", "kinetic", "--profile", profile, "run", "-a", accelerator, "--keep-warm", "0"]
        with subprocess.Popen([*command, f"{file}::hello"], stdout=subprocess.PIPE, text=True, cwd=folder) as job:
            lines = iter(job.stdout or ())
            first = next(lines, "")
            if first:
                click.echo(f"first line after {time.monotonic() - begun:.0f} s: {first.rstrip()}", err=True)
            for line in lines:
                click.echo(line, nl=False)
        return job.returncode


@click.command
@_place_options
@_location_option("Where it is.  [default: found by its name]")
@click.option("--namespace", metavar="NAME", help="The namespace of jobs.  [default: default]")
@click.option("--delete-data", is_flag=True, help="Remove the bucket with all results, too, and disks of volumes.")
@click.option("--keep-cluster", is_flag=True, help="Remove only what jobs need besides the cluster.")
@_run_options
@shared_options.json_option
def down(
    delete_data: bool, keep_cluster: bool, dry_run: bool, yes: bool, timeout: float, as_json: bool, **given: Any
) -> None:
    """Remove a cluster that `kinetic up` made.

    The bucket stays with its results unless --delete-data is given. What was not made by `kinetic up` is named, and
    never removed; so is a cluster that was only joined. Run again, it continues where it stopped. Exits with 1 if
    anything of ours is left.

    Example: kinetic down --cluster team
    """
    from kinetic._cluster import teardown

    spec = _spec(given, (), everything=True)
    setup = _setup(spec, timeout)
    with output.phase("reading what exists", summary=False):
        plan = teardown.plan_removal(setup, delete_data=delete_data, keep_cluster=keep_cluster)
    _print_plan(plan, as_json=as_json)
    if dry_run:
        return
    if plan.to_remove or plan.swept:
        if delete_data and not yes and shared_options.is_interactive():
            typed = shared_options.ask(f"This removes all results. Type the name of the cluster ({spec.cluster})")
            if typed != spec.cluster:
                why = f"{typed!r} is not {spec.cluster!r}"
                raise OptionError("nothing was removed", why=why, next=shared_options.typed_again())
        elif not yes and not shared_options.confirm("Remove this?", refused=_UNCHANGED):
            sys.exit(ERROR)
        _remove(plan)
    elif any(each.resource.key == "cluster" for each in plan.removals):
        return  # it stays as it was, and jobs still run there
    for name in teardown.forget_profiles(setup, os.environ):
        click.echo(f"removed the profile {name}", err=True)
    if any(each.resource.key == "bucket" for each in plan.to_remove):
        from kinetic._jobs import environment

        environment.forget_store(f"gs://{spec.bucket}")
    if plan.kept_store:
        click.echo(f"results are kept; to list them: KINETIC_STORE={plan.kept_store} kinetic jobs list", err=True)


def _remove(plan: RemovalPlan) -> None:
    from kinetic._cluster import teardown

    with _shown(plan.setup, "removing the cluster", "removes", "continues"):
        remains = teardown.remove(plan, lambda title: output.report(f"removed {title}"))
    for error in remains.errors:
        print_parts(error.what, code=error.code, why=error.why, next=error.next)
    if remains.names:
        print_parts(
            f"{count_text(len(remains.names), 'thing')} of the cluster {plan.setup.spec.cluster} left",
            code="not-removed",
            why="; ".join(remains.names),
            next=f"{shared_options.typed_again()}     when what the messages name is corrected",
        )
        sys.exit(ERROR)
    if remains.errors:
        sys.exit(ERROR)


def _print_plan(plan: Plan | RemovalPlan, *, as_json: bool) -> None:
    if as_json:
        output_format.print_document(**plan.to_json())
    else:
        click.echo("\n".join(output_format.plain(line) for line in plan.lines()))


def _spec(given: dict[str, Any], wanted: tuple[Placement, ...], *, everything: bool = False) -> Spec:
    from kinetic._cluster.resource import Spec
    from kinetic._config import profiles

    environ = os.environ
    profile = profiles.choose(environ).profile
    project = shared_options.google_project(given["project"], asks=True)
    if project.isdecimal():
        why = "the bucket and the account of the nodes have the id of the project in their names"
        step = "kinetic up --project its-id     the ids: https://console.cloud.google.com/cloud-resource-manager"
        raise OptionError(f"{project} is the number of a project, not its id", why=why, next=step)
    named = given["cluster"] or read_variable("KINETIC_CLUSTER", environ)
    is_its = profile is not None and profile.project == project and (not named or profile.cluster == named)
    its_own = profile.cluster if profile is not None and is_its else ""
    cluster = named or its_own or registry.CLUSTER.defaults["cluster"]
    location = given["location"] or read_variable("KINETIC_ZONE", environ)
    namespace = given["namespace"] or read_variable("KINETIC_NAMESPACE", environ)
    namespace = namespace or (profile.namespace if profile is not None and is_its else "") or "default"
    return Spec(
        project,
        cluster,
        location=location or "",
        standard=bool(given.get("standard")),
        network=given.get("network") or "",
        subnet=_with_network(given, "subnet"),
        pod_range=_with_network(given, "pod_range"),
        service_range=_with_network(given, "service_range"),
        node_account=given.get("node_service_account") or "",
        namespace=namespace,
        limits=tuple(_limit(each) for each in given.get("limits") or ()),
        registry=everything or bool(given.get("registry")),
        jobset=bool(given.get("jobset")) or any(each.hosts > 1 for each in wanted),
        public_nodes=bool(given.get("public_nodes")),
        billing_account=_billing_account(given.get("billing_account") or ""),
        **_new_project(given, project),
        hardware=wanted,
    )


def _limit(text: str) -> tuple[str, int]:
    from kinetic._cluster.namespace import LIMITS

    name, _, count = text.partition("=")
    if name not in LIMITS or not (count.isascii() and count.isdecimal()):
        raise OptionError(
            f"--limit {text} is not valid", why=f"known limits: {', '.join(LIMITS)}", next="kinetic up --limit tpu=16"
        )
    return name, int(count)


def _with_network(given: dict[str, Any], name: str) -> str:
    """Return the value of an option that is about --network."""
    value, option = given.get(name) or "", f"--{name.replace('_', '-')}"
    if value and not given.get("network"):
        raise OptionError(
            f"{option} {value} is not used",
            why="it is about --network, which is missing; without both, kinetic makes a network of its own",
            next=f"kinetic up --network NAME {option} {value}",
        )
    return str(value)


def _billing_account(text: str) -> str:
    account = text.removeprefix("billingAccounts/").upper()
    if account and not _BILLING_ACCOUNT.fullmatch(account):
        raise OptionError(
            f"--billing-account {text} is not valid",
            why="the id of a billing account has three groups of six digits or letters A to F",
            next="kinetic up --billing-account 012345-567890-ABCDEF     "
            "the ids: https://console.cloud.google.com/billing",
        )
    return account


def _new_project(given: dict[str, Any], project: str) -> dict[str, Any]:
    """Check what a project that is made needs."""
    parent = given.get("parent") or ""
    if not given.get("create_project"):
        if parent:
            why = "it is where a project is made, and none is made without --create-project"
            raise OptionError("--parent is not used", why=why, next=f"kinetic up --create-project --parent {parent}")
        return {}
    again = "kinetic up --create-project --project your-id --billing-account 012345-567890-ABCDEF"
    if not _PROJECT.fullmatch(project):
        why = "an id has 6 to 30 lower-case letters, digits and '-', begins with a letter, and does not end with '-'"
        raise OptionError(f"{project!r} cannot be the id of a project", why=why, next=again)
    if not given.get("billing_account"):
        why = "a new project has no billing account, and Google turns on no API without one"
        raise OptionError("--create-project needs --billing-account", why=why, next=again)
    if parent and not _PARENT.fullmatch(parent):
        why = "it is the number of a folder or an organization"
        raise OptionError(f"--parent {parent} is not valid", why=why, next=f"{again} --parent folders/123456789")
    return {"create_project": True, "parent": parent}


def _setup(spec: Spec, timeout: float) -> Setup:
    from kinetic._cluster.resource import Setup

    return Setup(spec, shared_options.google_apis(spec.project, limit_seconds=timeout))
