"""``kinetic warm``: pods of a cluster that stay for the next job: started, listed and stopped."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from kinetic._backends import registry
from kinetic._cli import shared_options
from kinetic._cli.command_tree import LazyGroup
from kinetic._output import format as output_format
from kinetic._output import terminal as output
from kinetic._output.format import Column, age_text, duration_text
from kinetic.errors import OptionError

if TYPE_CHECKING:
    from kinetic._backends.kube.backend import KubeBackend
    from kinetic._jobs.warm_assignment import Listed

_COLUMNS = (
    Column("WARM POD", spare=1),
    Column("ACCELERATOR"),
    Column("STATE"),
    Column("JOBS", right=True),
    Column("AGE", right=True),
    Column("ENDS IN", right=True),
    Column("PER HOUR", right=True),
    Column("JOB", flexible=True),
)


@click.group(cls=LazyGroup, path=("warm",))
def warm() -> None:
    """Start, list and stop pods that stay for the next job.

    Example: kinetic warm start tpu-v5e-1
    """


@click.command
@click.argument("accelerator", shell_complete=shared_options.complete_accelerators)
@shared_options.place_options
@click.option(
    "--idle",
    type=shared_options.Duration(),
    default=1200.0,
    metavar="TIME",
    help="How long it stays without a job.  [default: 20m]",
)
@click.option(
    "--max",
    "most",
    type=shared_options.Duration(),
    metavar="TIME",
    help="How long it takes jobs at most.  [default: 8h]",
)
@click.option(
    "--container-image",
    "--image",
    "image",
    metavar="ADDRESS",
    help="The image of its jobs.  [default: as for jobs of this project]",
)
@click.option("--spot", is_flag=True, default=None, help="Spot capacity, which can be reclaimed at short notice.")
@click.option("--another", is_flag=True, help="Start one although another one of yours is idle or starting.")
def start(
    accelerator: str, idle: float, most: float | None, image: str | None, spot: bool | None, another: bool, **place: Any
) -> None:
    """Start a warm pod for the jobs of this project, and wait for it.

    It takes each job of yours that fits: same accelerator, image and packages. Its node is paid for until it ends: when
    no job came for some time, or at its maximum.

    Example: kinetic warm start tpu-v5e-1 --idle 20m --max 8h
    """
    from kinetic import _hardware as hardware
    from kinetic._jobs import cold_start, command_jobs, warm_assignment
    from kinetic._jobs import wait as job_wait

    backend, owner, wanted = _backend(place), warm_assignment.owner_here(), hardware.place(accelerator).name
    if not another:
        for each in warm_assignment.listed(backend, owner):
            is_idle = each.greeting is not None and not each.greeting.job_id
            is_starting = each.state.is_started and not each.state.pod
            if is_idle or (is_starting and each.state.fits.get("accelerator") == wanted):
                raise OptionError(
                    f"the warm pod {each.state.name} is {'idle' if is_idle else 'starting'} already",
                    why="a second one would be paid for as well",
                    next=f"kinetic warm stop {each.state.name}     or start one more with --another",
                    code="warm-pod-idle",
                )
    options = {name: value for name, value in place.items() if value is not None}
    options |= {"container_image": image} if image else {}
    options |= {"spot": True} if spot else {}
    options |= {"accelerator": accelerator, "keep_warm": idle, "name": cold_start.START_NAME}
    request = command_jobs.request_of(cold_start.START, **options)
    with warm_assignment.starting_new(most):
        handle = command_jobs.submit_request(request)
    try:
        job_wait.wait(handle, progress=output.Progress())
    except KeyboardInterrupt:
        output.report("the warm pod keeps starting; see it: kinetic warm list     end it: kinetic warm stop NAME")
        raise
    handle.result()
    found = [each.state for each in warm_assignment.listed(backend, owner)]
    if not found:
        raise OptionError(
            "no warm pod was started",
            why="the line above says why",
            next=f"kinetic doctor --accelerator {accelerator}",
            code="no-warm-pod",
        )
    click.echo(found[0].name)


@click.command("list")
@shared_options.place_options
@shared_options.json_option
def list_(as_json: bool, **place: Any) -> None:
    """List your warm pods, what they do and what they cost.

    Example: kinetic warm list
    """
    from kinetic._jobs import warm_assignment

    found = list(warm_assignment.listed(_backend(place), warm_assignment.owner_here()))
    if as_json:
        output_format.print_document(warm_pods=[_page(each) for each in found])
        return
    if not found:
        click.echo("There are no warm pods; kinetic warm start ACCELERATOR starts one", err=True)
        return
    output_format.print_table(_COLUMNS, [_row(each) for each in found])
    dollars = [each.dollars_per_hour for each in found if each.dollars_per_hour is not None]
    if dollars:
        click.echo(
            f"about ${sum(dollars):.2f} per hour together, at list price; stop one: kinetic warm stop NAME", err=True
        )


@click.command
@click.argument("names", nargs=-1, metavar="[NAME]...")
@shared_options.place_options
@click.option("--all", "every", is_flag=True, help="Stop all of yours.")
def stop(names: tuple[str, ...], every: bool, **place: Any) -> None:
    """Stop warm pods, by their names or the beginnings of them.

    A job that one of them carries out starts again in a pod of its own, when a process waits for it or looks at it.

    Example: kinetic warm stop v5e1-warm
    """
    from kinetic._jobs import warm_assignment

    if every == bool(names):
        raise OptionError(
            "the names of the warm pods to stop are missing" if not every else "--all takes no names",
            why="names of warm pods say which ones to stop, and --all stops all of yours",
            next="kinetic warm list",
        )
    backend, owner = _backend(place), warm_assignment.owner_here()
    chosen = (
        backend.warm.find_all(owner) if every else [warm_assignment.find_one(backend, owner, name) for name in names]
    )
    for state in chosen:
        backend.warm.end_pod(state)
        output.report(f"{state.name} ends")


def _backend(place: dict[str, Any]) -> KubeBackend:
    from kinetic._jobs import locate

    target = shared_options.target_of(place)
    if not registry.find(target.backend.value).containers:
        raise OptionError(
            "warm pods belong to a cluster, and jobs run on this machine",
            why="here a process always waits for the next job",
            next="export KINETIC_PROJECT=your-project     or export KINETIC_BACKEND=gke KINETIC_KUBE_CONTEXT=a-context",
        )
    found: KubeBackend = locate.backend_at(target)  # type: ignore[assignment] # the only kind with containers
    return found


def _state(each: Listed) -> str:
    if each.greeting is None:
        return "starting" if not each.state.pod else "no answer"
    return each.greeting.state


def _page(each: Listed) -> dict[str, Any]:
    greeting = each.greeting
    said = (greeting.said if greeting else 0.0) or time.time()  # by the pod's own clock
    return {
        "name": each.state.name,
        "accelerator": each.state.accelerator,
        "state": _state(each),
        "job_id": greeting.job_id or None if greeting else None,
        "jobs": greeting.tasks if greeting else None,
        "age_seconds": round(time.time() - each.state.created),
        "ends_in_seconds": round(greeting.until - said) if greeting and not greeting.job_id else None,
        "idle_seconds": each.state.page.idle_seconds,
        "max_seconds": each.state.page.most_seconds,
        "dollars_per_hour": each.dollars_per_hour,
    }


def _row(each: Listed) -> list[str]:
    page = _page(each)
    ends = page["ends_in_seconds"]
    return [
        page["name"],
        page["accelerator"],
        page["state"],
        "" if page["jobs"] is None else str(page["jobs"]),
        age_text(page["age_seconds"]),
        "" if ends is None else duration_text(max(0, ends)),
        "" if page["dollars_per_hour"] is None else f"${page['dollars_per_hour']:.2f}",
        page["job_id"] or "",
    ]
