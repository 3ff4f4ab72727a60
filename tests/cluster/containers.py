"""One run of one container: a real process, in mount, process and host name spaces of its own where that is allowed."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster.logs import LONGEST_PIECE, Log

if TYPE_CHECKING:
    from cluster.images import Image

INSIDE = Path(__file__).parent / "inside.py"


class Mount(NamedTuple):
    """Something to be seen at a path of the container.

    Attributes:
        target: The path.
        source: A folder or file of this machine; "" for memory of this container's own.
        writable: Whether the container may change it.
        options: Of the memory, as tmpfs takes them.
    """

    target: str
    source: str = ""
    writable: bool = True
    options: str = ""


class Recipe(NamedTuple):
    """All that a container is started with.

    Attributes:
        command: Program and arguments.
        environment: Complete; nothing of this process's own is added.
        image: What it sees as its root.
        mounts: In the order in which they are made: outer folders first.
        directory: Where the command starts.
        hostname: What the container calls its machine.
        user: Number to run as; None for root.
        group: The same for the group.
    """

    command: list[str]
    environment: dict[str, str]
    image: Image
    mounts: list[Mount]
    directory: str
    hostname: str
    user: int | None = None
    group: int | None = None
    groups: tuple[int, ...] = ()
    drops_capabilities: bool = False
    gains_no_privileges: bool = False
    has_read_only_root: bool = False


class Exit(NamedTuple):
    """How a container ended: the status that its engine would report, and its word for a failed start."""

    code: int
    start_error: str = ""


@functools.cache
def isolated() -> bool:
    """Find out once whether containers get namespaces of their own here.

    Root only: inside a user namespace the kernel does not lay a writable layer over this machine's root.
    """
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return False
    trial = ["unshare", "--mount", "--pid", "--uts", "--fork", "--mount-proc", "true"]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


class Container:
    """A container that runs, or has run.

    Attributes:
        log: What it wrote.
        pid: Of its first process, as this machine counts; 0 before it runs.
    """

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        """Take a folder of its own, which does not exist yet."""
        self.log = Log()
        self.pid = 0
        self._folder = folder
        self._recipe = recipe
        self._helper: asyncio.subprocess.Process | None = None
        self._reports: asyncio.StreamReader | None = None
        self._is_doomed = False

    async def start(self) -> str:
        """Start the command; return "" once it runs, or why it cannot."""
        for name in ("root", "upper", "work", "scratch"):
            (self._folder / name).mkdir(parents=True)
        plan = self._folder / "plan.json"
        plan.touch(mode=0o600)  # it holds secrets
        plan.write_text(json.dumps(self._plan()))
        reading, writing = os.pipe()
        try:
            self._helper = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(INSIDE), str(plan), str(writing)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(writing,),
                start_new_session=True,
                limit=LONGEST_PIECE,
            )
        finally:
            os.close(writing)
        if self._is_doomed:
            self.kill()
        self._reports = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._reports), os.fdopen(reading, "rb")
        )
        assert self._helper.stdout
        assert self._helper.stderr
        self._pumps = [
            asyncio.ensure_future(self.log.pump(each)) for each in (self._helper.stdout, self._helper.stderr)
        ]
        report = await self._report()
        self.pid = report.get("pid", 0)
        if self.pid:
            return ""
        await self._end()
        # It also has no words if the helper itself failed; then they are in what it wrote.
        return str(report.get("failed") or self.log.tail(20, 2000) or "the container could not be started")

    def _plan(self) -> dict[str, Any]:
        recipe = self._recipe
        return {
            "namespaces": isolated(),
            "command": recipe.command,
            "environment": recipe.environment,
            "mounts": [each._asdict() for each in recipe.mounts],
            "directory": recipe.directory,
            "hostname": recipe.hostname,
            "user": recipe.user,
            "group": recipe.group,
            "groups": recipe.groups,
            "drop": recipe.drops_capabilities,
            "no_new_privileges": recipe.gains_no_privileges,
            "read_only": recipe.has_read_only_root,
            "open": recipe.image.open,
            "hidden": recipe.image.hidden,
            "shown": recipe.image.shown,
            "copied": recipe.image.copied,
            **{name: str(self._folder / name) for name in ("root", "upper", "work", "scratch")},
        }

    async def _report(self) -> dict[str, Any]:
        assert self._reports is not None
        line = await self._reports.readline()
        return json.loads(line) if line else {}

    async def wait(self) -> Exit:
        """Wait until it has ended and all its output has been read."""
        report = await self._report()
        await self._end()
        # No report: the helper was killed, and the container with it.
        status = report.get("status", signal.SIGKILL)
        code = os.waitstatus_to_exitcode(status)
        return Exit(128 - code if code < 0 else code)  # as engines say: 128 plus the number of the signal

    async def _end(self) -> None:
        assert self._helper is not None
        # Without a process namespace something that it left behind may hold the pipes open.
        await asyncio.wait(self._pumps, timeout=None if isolated() else 1)
        for pump in self._pumps:
            pump.cancel()
        await self._helper.wait()
        self.pid = 0  # the number may soon be somebody else's
        self.log.complete()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its first process, as an engine does."""
        with contextlib.suppress(ProcessLookupError):
            if self.pid:
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End everything in it at once, or as soon as it is there."""
        self._is_doomed = True
        with contextlib.suppress(ProcessLookupError):
            if self.pid and isolated():
                os.kill(self.pid, signal.SIGKILL)  # the rest of its process namespace goes with the first
            elif self._helper is not None and self._helper.returncode is None:
                os.killpg(self._helper.pid, signal.SIGKILL)  # the container's first process goes with its parent

    def entering(self, command: list[str]) -> list[str]:
        """Return a command line that runs ``command`` inside the container."""
        if not isolated():
            return command
        spaces = ["--mount", "--pid", "--uts", f"--root=/proc/{self.pid}/root", f"--wd=/proc/{self.pid}/cwd"]
        return ["nsenter", f"--target={self.pid}", *spaces, "--", *command]

    @property
    def environment(self) -> dict[str, str]:
        return self._recipe.environment
