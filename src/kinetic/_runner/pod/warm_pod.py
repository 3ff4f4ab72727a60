"""The first process of a warm pod: it takes tasks one after the other, and ends by itself.

It only forks: it opens no store and holds no key. It tells each client that connects how it is, and again when that
changes. What a client sends is read and verified by a child, which puts it into the inbox, a folder for each number. A
task is carried out by a supervisor that a fork server forks, the same as the first process of any other pod. See
docs/design/decisions/0028-warm-pods.md.

    idle   ── the inbox has a task, or the pod's Secret does ──▶  busy
    busy   ── its client does not confirm what it has brought ──▶  idle, with the same number
    busy   ── the supervisor has ended, all is removed       ──▶  idle, or the end
    idle   ── idle for its time, at its maximum, or asked to ──▶  the end: exit code 0

Of a slice each host has such a process; see ``warm_slice.py``. Only the leader, host 0, talks to clients, looks into
the store, and decides when the slice ends. Whatever else goes wrong on a host ends its process with the code by which
the cluster starts all hosts again: they find their task in the Secret, and make the next attempt.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from kinetic._runner import processes
from kinetic._runner.pod import cleanup, container
from kinetic._runner.pod.fork_server import CarryOut, ForkServers
from kinetic._runner.pod.log_pump import say
from kinetic._runner.pod.warm_clients import CONFIRMED, Clients, read_line
from kinetic._runner.worker import import_trace, preloaded_modules, worker
from kinetic._stores import is_loaded, preload
from kinetic._wire import documents, folders, make_dataclasses, warm_pods
from kinetic._wire import task as wire_task
from kinetic._wire.failpoints import step
from kinetic._wire.task import FAILED_EXIT, INFRASTRUCTURE_EXIT, AttemptFiles, Task
from kinetic._wire.warm_pods import Assignment, Greeting, WarmPod
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic._runner.pod.warm_slice import Leader

_LOOK_SECONDS = 60.0  # between two questions to the store while idle
_SECRET_SECONDS = 2.0  # between two looks at the mounted Secret: no request, the kubelet brings it
_CHECK_SECONDS = 20.0  # for the end of a task that was cancelled
_HARSH_SECONDS = 3.0  # of them, until a supervisor is asked to end that has not by itself
_TERM_SECONDS = 25.0  # for a supervisor's last words, of the 30 s that a pod has
_TRIES = 4  # supervisors for one task that end without a verdict, and more if it has retries
_PAUSE = 0.02
_GIVEN_UP = 3  # what a child says that looked: the next number is that of the job which was given up
_READY_SECONDS = 15.0  # for the other hosts of a slice after a task, until clients hear that they are not ready
_DISMISS_SECONDS = 10.0  # for the others to be told that the slice ends
_LEADER_SECONDS = 300.0  # by which the other hosts are idle longer than the leader, which tells them to end
_PAGE, _SECRET_FOLDER, _ABOUT, _VARIABLES = "task.json", "secret", "about.json", "variables.json"
_ASSIGNMENT = "assignment.json"  # in the folder of a task: what the leader of a slice hands over
_STOPPED = "stopped"  # there as well: its client has cancelled it
# What another attempt finds in that folder: what the first one found, and the data that are fetched already.
_FOR_ALL_ATTEMPTS = frozenset({_PAGE, _SECRET_FOLDER, _ABOUT, _VARIABLES, container.HOLD, _STOPPED, "cache"})


def main(words: list[str], base: str, runner: str, get_ready: Callable[[str], CarryOut]) -> NoReturn:
    """Be the first process of a warm pod.

    ``get_ready`` is what a supervisor does before it knows its task, with the address of the store; it returns what it
    does with the task.
    """
    code = INFRASTRUCTURE_EXIT
    try:
        code = WarmProcess(WarmPod.from_page(words[0]), Path(base), runner, get_ready).run()
    except BaseException:  # noqa: BLE001 - the last frame of the first process
        import traceback  # 2 ms

        say(traceback.format_exc().rstrip())
    finally:
        os._exit(code)


class WarmProcess:
    """The first process; single-threaded."""

    def __init__(self, page: WarmPod, base: Path, runner: str, get_ready: Callable[[str], CarryOut]) -> None:
        self.page, self.base, self.runner = page, base, runner
        self.task, self.inbox = base / "task", base / "inbox"
        self.inbox.mkdir(mode=0o700, exist_ok=True)
        self.libc = processes.load_libc()
        processes.adopt_orphans(self.libc)
        processes.hide_memory(self.libc)  # from tasks, as in all that is forked; a worker ends that for itself
        self.end_requested = False
        self.wake, self._waker = os.pipe()
        for end in (self.wake, self._waker):
            os.set_blocking(end, False)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        _preload(page.store_url)  # once, instead of by each process that is forked
        self._cleaner = cleanup.Cleaner(base, runner, self.libc)
        self._children: dict[int, Callable[[int], None]] = {}  # that hear or look, and what follows their end
        self._decided = ""  # the last job that has its verdict
        self._servers = ForkServers(partial(get_ready, page.store_url), runner, self.libc)
        self._sequence = 0  # of the task that it has or takes next
        self._about: dict[str, Any] = {}  # of the task that it has; empty while it is idle
        self._tries = self._tasks = 0
        self._began = self._idle_since = time.monotonic()
        self._next_look = self._next_stat = 0.0
        self._is_asking = False  # whether a child of ours asks the store
        self._secret_stamp: object = None
        self._strange_since: float | None = None  # since when the next number is another client's
        self._kept: dict[str, object] = {}  # the packages that are kept, and what tells whether a task changed them
        self._host = container.host_of(page.hosts, os.environ)
        self._restarts = container.restarts_of(os.environ) or 0  # of the slice
        self._leader: Leader | None = None  # of a slice, on its first host
        self._waiting = 0  # the child that waits for the leader, on the others
        self._is_over = False  # the leader ends the slice
        self._trouble = ""  # why the cluster must start the slice again
        if page.hosts > 1 and not self._host:
            from kinetic._runner.pod.warm_slice import Leader  # most warm pods have one host

            self._leader = Leader(page, base)
        self._hold = -1  # where the supervisor of a task that is held learns whether it may begin
        self._is_given_up = False  # the task at hand, by its client, before it began
        self._given_up = ""  # the last such job, which may have its number for ever
        self._confirmed_by = 0  # the last child that heard a client confirm: it may have ended before its task begins
        hear = self._greeting, self._answer, self._after_message
        self._clients = None if self._host else Clients(page.port, self._fork, *hear)

    def run(self) -> int:
        """Take tasks until it is time to end; return the exit code."""
        host = f", host {self._host} of {self.page.hosts}" if self.page.hosts > 1 else ""
        say(f"the warm pod {self.page.pod}{host} is ready")
        if self.page.until and time.time() > self.page.until:
            return self._leave("it is past its end, and was started again")
        self._look_into_secret()
        while True:
            self._reap()
            self._servers.read(is_idle=not self._about)
            if self.end_requested:
                return self._end()
            if self._trouble:
                say(f"this host ends, and the cluster starts the slice again: {self._trouble}")
                return INFRASTRUCTURE_EXIT
            if self._about:
                if self._leader is not None:
                    self._leader.hand_over(self.task / _ASSIGNMENT, self._sequence, self._fork)
                if (why := self._see_task()) is not None:
                    return self._leave(why) if why else INFRASTRUCTURE_EXIT
            elif not self._begin():
                if (why := self._why_end()) and not self._expects_hosts():
                    return self._leave(why)
                self._look(time.monotonic())
                if self._host and not self._waiting:
                    self._wait_for_leader()
            self._greet_all()
            if not self._about and self._tasks:  # before that, the first one is on its way
                self._servers.current.fork_ahead()
            self._wait()

    def _why_end(self) -> str:
        """Return why it is time to end, or ""; the other hosts of a slice leave that to the leader while it lives."""
        now, longer = time.monotonic(), _LEADER_SECONDS if self._host else 0.0
        if self._is_over:
            return "the slice does"
        if now - self._idle_since >= self.page.idle_seconds + longer:
            return f"idle for {self.page.idle_seconds:g} s"
        if now - self._began >= self.page.most_seconds + longer:
            return f"at its maximum of {self.page.most_seconds:g} s"
        return ""

    def _expects_hosts(self) -> bool:
        """Return whether hosts of a slice are about to be ready, which they are some seconds after a task."""
        is_complete = self._leader is None or self._leader.is_complete
        return not is_complete and time.monotonic() - self._idle_since < _READY_SECONDS

    # --------------------------------------------------------------------------------------------------------- events

    def _on_term(self, *_: object) -> None:
        self.end_requested = True

    def _descriptors(self) -> Iterator[int]:
        yield self.wake
        yield from (server.reports for server in self._servers)
        if self._leader is not None:
            yield from self._leader.descriptors()
        if self._clients is not None:
            yield from self._clients.descriptors()

    def _wait(self) -> None:
        poll = select.poll()
        for descriptor in self._descriptors():
            poll.register(descriptor, select.POLLIN)
        seconds = _LOOK_SECONDS
        if not self._about:
            now = time.monotonic()
            left = self.page.idle_seconds - (now - self._idle_since)
            seconds = max(0.0, min(_SECRET_SECONDS, left, self.page.most_seconds - (now - self._began)))
            if self.page.hosts > 1:
                seconds = seconds or 1.0
        elif self._servers.variables:
            seconds = 1.0
        ready = {descriptor for descriptor, _ in poll.poll(seconds * 1000)}
        if self.wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 4096)
        if self._clients is not None:
            self._clients.react(ready)
        if self._leader is not None:
            self._leader.react(self._fork)

    def _fork(self, do: Callable[[], int], then: Callable[[int], None]) -> int:
        """Have a child of our own do something, and return its number; ``then`` gets its exit code."""
        me, pid = os.getpid(), os.fork()
        if pid == 0:
            code = 70
            try:
                signal.set_wakeup_fd(-1)
                for number in (signal.SIGTERM, signal.SIGCHLD):
                    signal.signal(number, signal.SIG_DFL)
                processes.end_with_parent(self.libc)
                if os.getppid() == me:
                    code = do()
            except (KineticError, OSError, ValueError) as error:
                say(f"a client of this warm pod, or its store, is in trouble: {error}")
            finally:
                os._exit(code)
        self._children[pid] = then
        return pid

    def _reap(self) -> None:
        """Collect every child that has ended: those that talk or look, fork servers, and orphans of tasks."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
                if not pid:
                    return
                if os.WIFSTOPPED(status):  # by a task: of our own, none is ever stopped
                    if pid in self._children or pid in [server.pid for server in self._servers]:
                        os.kill(pid, signal.SIGCONT)
                    continue
                if pid in self._children:
                    self._children.pop(pid)(os.waitstatus_to_exitcode(status))
                for server in self._servers:
                    server.is_over = server.is_over or server.pid == pid

    def _key(self) -> contextlib.AbstractContextManager[bytes]:
        return documents.temporary_key(Path(self.page.secret, wire_task.KEY_FILE))

    # -------------------------------------------------------------------------------------------------------- clients

    def _state(self) -> str:
        if self._about:
            return warm_pods.BUSY
        return warm_pods.IDLE if self._leader is None or self._leader.is_complete else warm_pods.STARTING

    def _greet_all(self) -> None:
        if self._about and self._servers.current.is_decided:
            self._decided = self._about["job_id"]
        if self._clients is not None:
            self._clients.greet_all((self._state(), self._sequence, self._tasks, self._decided))

    def _greeting(self, nonce: str) -> Greeting:
        """Return how this pod is."""
        left = min(
            self.page.idle_seconds - (time.monotonic() - self._idle_since),
            self.page.most_seconds - (time.monotonic() - self._began),
        )
        now = time.time()
        return Greeting(
            self.page.pod,
            self._state(),
            self._sequence,
            nonce,
            self._about.get("job_id", ""),
            self._decided,
            until=now + max(0.0, left),
            tasks=self._tasks,
            restarts=self._restarts,
            said=now,
        )

    def _answer(self, connection: socket.socket, nonce: str) -> int:
        """Read one message and answer it, in a child."""
        line = read_line(connection)
        if not line:
            return 1
        held = ""
        try:
            do, job_id = warm_pods.read_request(line)
            if do == warm_pods.CHECK:
                why = self._check(job_id)
            elif do == warm_pods.INSTALLED:
                from kinetic._runner.pod import kept_packages  # as below

                connection.sendall(warm_pods.answer(installed=kept_packages.installed()) + b"\n")
                return 0
            elif do == warm_pods.CONFIRM:
                why = "this pod does not hold that task any more"
            else:
                with self._key() as key:
                    found = Assignment.from_bytes(line, key, nonce)
                    why = self._stage(found, key)
                held = found.job_id if found.is_held and not why else ""
        except KineticError as error:
            why = str(error)
        if not held:
            connection.sendall(warm_pods.answer(why) + b"\n")
            return 0
        os.write(self._waker, b".")  # the pod gets ready meanwhile
        connection.sendall(warm_pods.answer() + b"\n")
        line = read_line(connection)
        if not line or warm_pods.read_request(line) != (warm_pods.CONFIRM, held):
            return 1
        connection.sendall(warm_pods.answer() + b"\n")
        return CONFIRMED

    def _after_message(self, child: int, code: int) -> None:
        """Let a task begin that is held, or give it up, as the client of its child wants it."""
        if code == CONFIRMED:
            self._confirmed_by = child
        if self._hold < 0 or self._about.get("held_by") != child:
            return
        self._is_given_up = code != CONFIRMED
        os.write(self._hold, b"." if code == CONFIRMED else b"x")
        if code == CONFIRMED:
            (self.task / container.HOLD).unlink(missing_ok=True)  # a supervisor that follows begins at once

    def _check(self, job_id: str) -> str:
        """Have the supervisor of a cancelled task look into the store, and wait for its end."""
        begun = time.monotonic()
        pid = self._servers.current.supervisor
        if self._about.get("job_id") != job_id:
            return ""
        if pid <= 0:
            return f"{job_id} is about to begin"
        (self.task / _STOPPED).touch()
        is_harsh = False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
            while time.monotonic() < begun + _CHECK_SECONDS:
                if processes.state(pid) in {"Z", "X"}:
                    return ""
                if not is_harsh and time.monotonic() > begun + _HARSH_SECONDS:
                    is_harsh = True
                    os.kill(pid, signal.SIGTERM)
                time.sleep(_PAUSE)
            return f"{job_id} has not ended yet"
        return ""

    def _stage(self, found: Assignment, key: bytes) -> str:
        """Put an assignment into the inbox; return why not, or ""."""
        if self._about or found.sequence < self._sequence:
            return f"this pod is past its task {found.sequence}"
        task = Task.from_page(found.task, "the task of a warm pod")
        packages, installs = "", False
        if task.requirements is not None:
            from kinetic._runner.pod import kept_packages  # of many, all is in the image

            packages = kept_packages.name_of(task.requirements)
            installs = kept_packages.changes_image(task.requirements)
        secret = self.task / _SECRET_FOLDER
        settings = replace(
            container.settings_of(task),
            secret=str(secret),
            key_offset=0,
            warm=self.page.pod,
            was_assigned=False,
            first_restart=found.restarts,
        )
        if ":" in task.coordinator:  # else JAX finds it by itself
            task = replace(task, coordinator=f"{self.page.leader}:{task.coordinator.rpartition(':')[2]}")
        variables = container.environment(replace(task, pod=settings), self._place(), 0, os.environ, found.environment)
        own = {name: value for name, value in variables.items() if not _is_of_one_task(name)}
        about = {
            "job_id": found.job_id,
            "sequence": found.sequence,
            "retries": task.retries,
            "installs": installs,
            "packages": packages,
            "keeps": bool(packages or (settings.store_requirement and not is_loaded(self.page.store_url))),
            "environment": hashlib.sha256(json.dumps([sorted(own.items()), packages]).encode()).hexdigest(),
            "held_by": os.getpid() if found.is_held else 0,
        }
        files = {
            f"{_SECRET_FOLDER}/{wire_task.KEY_FILE}": found.key,
            f"{_SECRET_FOLDER}/{wire_task.ENVIRONMENT_FILE}": json.dumps(found.environment).encode(),
            f"{_SECRET_FOLDER}/{wire_task.CACHE_KEY_FILE}": found.cache_key,
            _VARIABLES: json.dumps(own).encode(),
            _PAGE: replace(task, pod=settings).to_bytes(),
            _ABOUT: json.dumps(about).encode(),
            _ASSIGNMENT: found.to_bytes(key) if self._leader is not None else b"",
        }
        if self._put(found.sequence, {name: data for name, data in files.items() if data}) or not found.is_held:
            return ""  # one that is not held may have come by another way before
        return f"this pod is about to begin with another task {found.sequence}"

    def _put(self, sequence: int, files: Mapping[str, bytes]) -> bool:
        """Put the files of a task into the inbox, all at once; False if one with its number is there."""
        beside = self.inbox / f".{sequence}-{os.getpid()}"
        try:
            (beside / _SECRET_FOLDER).mkdir(parents=True, mode=0o700)
            for name, data in files.items():
                (beside / name).write_bytes(data)
            try:
                beside.rename(self.inbox / f"{sequence}")
            except OSError:
                return False
        finally:
            shutil.rmtree(beside, ignore_errors=True)  # of a full disk: the next task must not find its key
        return True

    def _place(self) -> container.HostInPod:
        return container.HostInPod(self._host, None, self.task, self.runner)

    def _wait_for_leader(self) -> None:
        """Have a child tell the leader of the slice that this host is ready, and wait for what it says."""
        from kinetic._runner.pod import warm_slice  # most warm pods have one host

        def stage(assignment: bytes) -> str:
            with self._key() as key:
                return self._stage(Assignment.from_bytes(assignment, key), key)

        def after(code: int) -> None:
            self._waiting = 0
            self._is_over = self._is_over or code == warm_slice.ENDS
            if code == warm_slice.PAST:
                self._trouble = f"the leader has another task than its {self._sequence}"

        do = partial(warm_slice.wait_for_leader, self.page, self._host, self._sequence, stage)
        self._waiting = self._fork(do, after)

    # ----------------------------------------------------------------------------------------------- Secret and store

    def _look(self, now: float) -> None:
        """Look by itself, while idle: into the Secret, which needs no request, and into the store, once a minute."""
        if now >= self._next_stat:
            self._next_stat = now + _SECRET_SECONDS
            self._look_into_secret()
        if now >= self._next_look and not self._is_asking:  # a store that does not answer is asked by one child
            self._is_asking = True
            self._next_look = now + _LOOK_SECONDS
            if not self._host:
                self._fork(self._ask_store, partial(self._after_store, self._sequence))

    def _look_into_secret(self) -> None:
        path = Path(self.page.secret, warm_pods.ASSIGNMENT_FILE)
        try:
            about = path.stat()
        except OSError:
            return
        stamp = about.st_ino, about.st_mtime_ns
        if stamp == self._secret_stamp:
            return
        self._secret_stamp = stamp

        def read() -> int:
            with self._key() as key:
                return 1 if self._stage(Assignment.from_bytes(path.read_bytes(), key), key) else 0

        self._fork(read, lambda _: None)

    def _ask_store(self) -> int:
        """Return, in a child, whether another client has taken the next number; its own number then follows in a file.

        A pod that was started again finds by the same question where it was.
        """
        from kinetic._runner.supervisor import bindings  # what opens a store stays out of the first process
        from kinetic._stores import open_store

        if not is_loaded(self.page.store_url):
            from kinetic._runner.pod import kept_packages  # as above

            if not kept_packages.use_client(self.task):
                return 2  # no task has brought it yet
        store = open_store(self.page.store_url)
        following = bindings.next_sequence(store, self.page.pod, self._sequence)
        folders.write_whole(self.base / "following", str(following).encode())
        if following == self._sequence + 1 and self._given_up:  # its client is gone, and tells of it no more
            with self._key() as key:
                if bindings.assigned(store, self.page.pod, self._sequence, key) == self._given_up:
                    return _GIVEN_UP
        return 1 if following > self._sequence else 0

    def _after_store(self, asked: int, code: int) -> None:
        self._is_asking = False
        if asked != self._sequence:  # the store took so long that a task was here meanwhile
            return
        if code not in {1, _GIVEN_UP} or self._about:
            self._strange_since = None if code == 0 else self._strange_since
            return
        now = time.monotonic()
        self._strange_since = self._strange_since or now
        try:
            following = int(folders.read_file(self.base, "following", 20))
        except (OSError, ValueError):
            return
        is_new = self._tasks == 0 and self._secret_stamp is None and following > self._sequence + 1
        if is_new or code == _GIVEN_UP or now - self._strange_since >= warm_pods.UNTOLD_SECONDS:
            say(f"task {following - 1} was assigned to this warm pod and never told; it takes task {following} next")
            self._sequence, self._strange_since = following, None

    # ---------------------------------------------------------------------------------------------------------- tasks

    def _begin(self) -> bool:
        """Begin with a task from the inbox, the lowest number first; return whether there is one."""
        staged = sorted(int(name) for name in os.listdir(self.inbox) if name.isdecimal())
        for number in staged:
            if number >= self._sequence:
                shutil.rmtree(self.task, ignore_errors=True)
                (self.inbox / f"{number}").rename(self.task)
                self._sequence, self._tries = number, 0
                self._about = json.loads((self.task / _ABOUT).read_bytes())
                self._begin_to_hold()
                if self._waiting:  # the task came with the Secret
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self._waiting, signal.SIGKILL)
                self._start()
                return True
            shutil.rmtree(self.inbox / f"{number}", ignore_errors=True)
        return False

    def _begin_to_hold(self) -> None:
        """Have the supervisor of the task at hand wait for its client's word, if a child of ours waits for that."""
        self._is_given_up = False
        if child := self._about["held_by"]:
            os.mkfifo(self.task / container.HOLD, 0o600)
            self._hold = os.open(self.task / container.HOLD, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            if child not in self._children:
                self._after_message(child, CONFIRMED if child == self._confirmed_by else 1)

    def _start(self) -> None:
        """Have a fork server that fits fork the supervisor of the task at hand."""
        self._tries += 1
        self._servers.start(self.task, self._about["environment"])

    def _see_task(self) -> str | None:
        """Look how the task at hand is; return "" if this pod must be started again, else why it ends, or None."""
        server, about = self._servers.current, self._about
        if server.code is None and not server.is_over:
            return None
        code = os.waitstatus_to_exitcode(server.code) if server.code is not None else -signal.SIGKILL
        is_stopped = (self.task / _STOPPED).exists()
        if code not in {0, FAILED_EXIT} and not is_stopped and not self._is_given_up:
            if self.page.hosts == 1 and self._tries < _TRIES + about["retries"]:
                say(f"the supervisor of {about['job_id']} ended with {code}; another one follows")
                if why := self._clean(self.task.name) or cleanup.empty(self.task, _FOR_ALL_ATTEMPTS):
                    say(f"this pod cannot be cleaned: {why}")
                    return ""
                self._start()
                return None
            times = f" {self._tries} times" if self.page.hosts == 1 else ""
            say(f"{about['job_id']} has ended without a verdict{times}")
            return ""
        imports = preloaded_modules.noted_imports(self.task).names
        variables = self.base / f"{self._sequence}-{_VARIABLES}"
        with contextlib.suppress(OSError):
            (self.task / _VARIABLES).rename(variables)
        if why := self._clean(variables.name):  # its folder as well, once nothing is mounted there any more
            return self._unclean(f"it cannot be cleaned after {about['job_id']}: {why}")
        packages = self._check_packages(about["packages"])
        if about["packages"] and not packages:
            imports = ()  # they would be imported from somewhere else
        self._forget_task()
        self._idle_since = time.monotonic()
        self._next_look = self._idle_since + (0.0 if self._is_given_up else _LOOK_SECONDS)
        if self.page.hosts == 1 and (why := self._why_end()):
            return why
        say(f"the warm pod {self.page.pod} is idle; it ends in {self.page.idle_seconds:g} s")
        self._servers.prepare(imports, about["environment"], variables, packages)
        return None

    def _forget_task(self) -> None:
        if self._hold >= 0:
            os.close(self._hold)
            self._hold = -1
        if self._is_given_up:  # another client may have its number, and the kubelet may have brought that task
            self._secret_stamp = None
            self._given_up = self._about["job_id"]
        else:
            self._decided = self._about["job_id"]
            self._sequence += 1
            self._strange_since = None
            self._tasks += 1
        self._about, self._confirmed_by = {}, 0  # a later child may have the number of this one

    def _unclean(self, why: str) -> str:
        """Return why this pod ends; a slice is started again instead, with all its hosts."""
        if self.page.hosts > 1:
            say(why)
            return ""
        return why

    def _check_packages(self, name: str) -> str:
        """Remove kept packages that are half made, or that the task at hand changed; return the folder of its own."""
        if not self._about.get("keeps") and not self._kept:
            return ""
        from kinetic._runner.pod import kept_packages  # as above

        root = self.base / kept_packages.FOLDER
        kept_packages.drop_unfinished(root)
        there = os.listdir(root) if root.is_dir() else ()
        self._kept = {each: was for each, was in self._kept.items() if each in there}
        for each in there:
            made, now = kept_packages.stamps(root / each)
            if self._kept.setdefault(each, made) != now:
                say(f"{self._about.get('job_id')} changed the packages that this pod keeps; they are removed")
                shutil.rmtree(root, ignore_errors=True)
                self._kept.clear()
                self._servers.renew()
                return ""
        return str(root / name) if name in self._kept else ""

    def _clean(self, *kept: str) -> str:
        if (data := AttemptFiles(str(self.task), "").data).is_dir():
            from kinetic._runner.data import mounted_data  # only jobs with data

            mounted_data.remove_links(data, self.task / "cache")
        spared = {*self._children, *(each.pid for each in self._servers)}
        if self._servers.variables:
            kept = (*kept, self._servers.variables)
        if self._about.get("keeps") or self._kept:
            from kinetic._runner.pod import kept_packages  # as above

            kept = (*kept, kept_packages.FOLDER)
        kept = (*kept, *(f"met-{pid}" for pid in self._children))  # of hosts of a slice
        why = self._cleaner.clean(spared, kept=kept, installs=self._about.get("installs", False))
        self.inbox.mkdir(mode=0o700, exist_ok=True)
        return why

    # ---------------------------------------------------------------------------------------------------------- ending

    def _leave(self, why: str) -> int:
        say(f"the warm pod {self.page.pod} ends: {why}")
        step("pod:ends")
        if self._leader is not None:
            self._fork(self._leader.send_end, lambda _: None)
            limit = time.monotonic() + _DISMISS_SECONDS
            while self._children and time.monotonic() < limit:
                self._reap()
                time.sleep(_PAUSE)
            self._leader.close()
        return 0

    def _end(self) -> int:
        """Pass the cluster's request on to the supervisor of the task at hand, and wait for its last words."""
        if not self._about and self.page.hosts == 1:
            return self._leave("it was asked to")
        server, limit = self._servers.current, time.monotonic() + _TERM_SECONDS
        is_told = False
        while self._about and time.monotonic() < limit and server.code is None and not server.is_over:
            if server.supervisor > 0 and not is_told:
                is_told = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(server.supervisor, signal.SIGTERM)
            select.select([server.reports, self.wake], [], [], 0.5)
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 4096)
            server.read()
        if self.page.hosts > 1:
            return INFRASTRUCTURE_EXIT  # a host that ended well would be missing, and the others would wait for it
        code = os.waitstatus_to_exitcode(server.code) if server.code is not None else INFRASTRUCTURE_EXIT
        return INFRASTRUCTURE_EXIT if code not in {0, FAILED_EXIT} else 0


def _preload(store_url: str) -> None:
    """Import and make what all tasks need; nothing that starts threads."""
    import sysconfig
    import tempfile

    from kinetic._runner.pod import warm_task
    from kinetic._runner.supervisor import output_files
    from kinetic._runner.worker import compile_cache

    _ = (tempfile, output_files, warm_task, compile_cache)
    sysconfig.get_path("purelib")
    worker.preload()
    preload(store_url)
    make_dataclasses()


def _is_of_one_task(name: str) -> bool:
    return name == "JOB_ID" or name in import_trace.OF_ONE_JOB
