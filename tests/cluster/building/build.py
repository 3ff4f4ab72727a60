"""Build programs from their public Go modules, once per recipe: `make cluster` runs this, `make node` its functions.

The first time takes about a quarter of an hour on two cores, and 5 GB of Go's own caches. It can be stopped: each
program is put into place when it is whole, and the next run goes on with the next one. Go's own variables work as ever;
so `GOFLAGS=-p=1 nice make cluster` leaves room for others. A number as the only word is for how many seconds at most;
"controllers" builds those of Kueue, LeaderWorkerSet and Volcano instead.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cluster import binaries

if TYPE_CHECKING:
    from cluster.binaries import Definitions, Program, Recipe


def main(recipe: Recipe = binaries.CLUSTER) -> int:
    """Make what is missing; return the exit status."""
    if not recipe.missing():
        say(f"all there: {recipe.folder()}")
        return 0
    refusal = why_go_will_not_do(recipe)
    if refusal:
        say(f"{refusal}, or set KINETIC_TEST_KUBECONFIG to a cluster" if recipe is binaries.CLUSTER else refusal)
        return 1
    with only_one_at_a_time(recipe):
        make_programs(recipe)
    say(f"ready: {recipe.folder()}")
    return 0


def make_programs(recipe: Recipe) -> None:
    """Make the programs and definitions that are missing."""
    todo = recipe.missing()  # somebody else may have built it while we waited
    for each in recipe.definitions:
        if f"definitions/{each.name}" in todo:
            copy(recipe, each)
    programs = [each for each in recipe.programs if each.name in todo]
    for number, each in enumerate(programs, start=1):
        build(recipe, each, f"{number} of {len(programs)}")


def say(text: str) -> None:
    print(f"kinetic: {text}", file=sys.stderr, flush=True)


def why_go_will_not_do(recipe: Recipe) -> str:
    """Return what is wrong with the Go that is here and what to do about it, or ""."""
    needed = recipe.go_needed()
    words = f"what `make {recipe.make}` builds needs Go {needed[0]}.{needed[1]} or newer"
    if shutil.which("go") is None:
        return f"{words}, and there is no go on the PATH; install one"
    # GOTOOLCHAIN=local: what is installed, not what some go.mod would like to download.
    answer = subprocess.run(["go", "version"], env=environment(), capture_output=True, text=True, check=True).stdout
    found = re.search(r"go(\d+)\.(\d+)", answer)
    if found and (int(found.group(1)), int(found.group(2))) >= needed:
        return ""
    return f"{words}, and here is {answer.strip()!r}; install a newer one"


@contextmanager
def only_one_at_a_time(recipe: Recipe) -> Iterator[None]:
    """Hold a recipe's lock; the system lets go of it if we die."""
    recipe.folder().mkdir(parents=True, exist_ok=True)
    with (recipe.folder() / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("somebody else is building the same; waiting for them")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(recipe: Recipe, program: Program, place: str) -> None:
    """Compile one program, and put it into place whole or not at all."""
    version = binaries.version(program.wrapper)
    say(f"building {program.name} {version} ({place})")
    begun = time.monotonic()
    final = recipe.program(program.name)
    final.parent.mkdir(exist_ok=True)
    # Go completes go.mod and writes go.sum beside it: in a copy, so that the checkout stays as it is.
    with tempfile.TemporaryDirectory(dir=recipe.folder()) as scratch:
        for source in binaries.wrapper(program.wrapper).iterdir():
            shutil.copy(source, scratch)
        made = Path(scratch) / program.name
        subprocess.run(command(program, version, made), cwd=scratch, env=environment(), check=True)
        made.replace(final)
    say(f"built {program.name} in {time.monotonic() - begun:.0f} s, {final.stat().st_size >> 20} MB")


def command(program: Program, version: str, made: Path) -> list[str]:
    # Without the stamp Kubernetes calls itself v0.0.0, and clients that look at the version are misled.
    stamp = " ".join(f"-X {name}={version}" for name in program.variables)
    if program.wrapper == "kubernetes":
        major, minor, _ = version.removeprefix("v").split(".")
        stamp += f" -X k8s.io/component-base/version.gitMajor={major} -X k8s.io/component-base/version.gitMinor={minor}"
    # -s -w: without tables for debuggers, half the size.
    return [
        *("go", "build", "-mod=mod", "-trimpath", "-buildvcs=false"),
        *("-ldflags", f"-s -w {stamp}", "-o", str(made), program.package),
    ]


def environment() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}


def copy(recipe: Recipe, definitions: Definitions) -> None:
    """Copy resource definitions out of their module."""
    say(f"fetching the definitions of {definitions.module}")
    fetch = ["go", "mod", "download", "-json", definitions.module]
    with tempfile.TemporaryDirectory(dir=recipe.folder()) as scratch:
        answer = subprocess.run(fetch, cwd=scratch, env=environment(), stdout=subprocess.PIPE, check=True).stdout
        made = Path(scratch) / definitions.name
        made.mkdir()
        for path in (Path(json.loads(answer)["Dir"]) / definitions.folder).glob("*.yaml"):
            shutil.copyfile(path, made / path.name)  # not copy: files of Go's module cache are read-only
        final = recipe.folder() / "definitions" / definitions.name
        final.parent.mkdir(exist_ok=True)
        made.replace(final)


def stop_after(seconds: int) -> None:
    """End with a sentence when the time is over; what was built stays, and so do Go's own caches."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} s; `make cluster` goes on where this ended")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)


if __name__ == "__main__":
    try:
        if sys.argv[1:] == ["controllers"]:
            sys.exit(main(binaries.CONTROLLERS))
        if sys.argv[1:]:
            stop_after(int(sys.argv[1]))
        sys.exit(main())
    except TimeoutError as error:
        say(str(error))
        sys.exit(1)
    except subprocess.CalledProcessError as error:
        say(f"`{' '.join(error.cmd[:3])}` failed, see above; what was built before it stays")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
