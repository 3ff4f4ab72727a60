"""Between two tasks of a warm pod: what the last one left is gone, and what it planted for the next does nothing."""

from __future__ import annotations

import json
import os
import stat
from typing import Any

import pytest
from cluster.plane import wait_for
from flows.kube.test_warm_pods import is_idle, pods_of_warm

pytestmark = [pytest.mark.usefixtures("machine"), pytest.mark.timeout(300)]

LEAKING = '''
    """A task that leaves one of everything, and one that looks for it."""
    import array, ctypes, fcntl, os, resource, signal, socket, stat, subprocess, sys, time, kinetic

    NAME = "left-by-a-task"
    KEY, PORT = 0x6B696E65, 23_456
    libc = ctypes.CDLL(None, use_errno=True)
    FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", os.path.expanduser("~"))

    def live_on(name, **more):
        """Start a process that escapes: forked twice, in a session of its own, deaf to SIGTERM, without variables."""
        code = (
            "import ctypes, os, signal, socket, sys, time\\n"
            "if os.fork(): os._exit(0)\\n"
            "os.setsid()\\n"
            "if os.fork(): os._exit(0)\\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
            "ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)\\n"
            "held = os.dup(int(sys.argv[3]))\\n"
            "heard = socket.create_server(('127.0.0.1', int(sys.argv[2]))) if sys.argv[2] != '0' else None\\n"
            "time.sleep(1000)\\n"
        )
        words = [sys.executable, "-c", code, name, str(more.get("port", 0)), str(more["device"])]
        subprocess.run(words, check=True, env={}, pass_fds=[more["device"]])

    def open_for_one(device):
        """Open a device as one does that lets nobody else in: so it is while anything holds what was opened."""
        opened = os.open(device, os.O_RDWR)
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return opened

    def hide(opened):
        """Send a descriptor to a pair of sockets that only hold each other: it is open, and no process has it."""
        one, other = socket.socketpair()
        for end, sent in ((one, [opened, one.fileno()]), (other, [opened, other.fileno()])):
            end.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", sent))])

    @kinetic.run(accelerator="cpu", keep_warm="10m")
    def leak(device):
        opened = open_for_one(device)
        live_on("kworker/0:1", device=opened)
        live_on("listens", port=PORT, device=opened)
        hide(opened)
        os.symlink("/dev/null", "/dev/accel7")
        for folder in FOLDERS:
            os.makedirs(f"{folder}/{NAME}/deep")
            open(f"{folder}/{NAME}/deep/file", "w").write("secret")
            os.chmod(f"{folder}/{NAME}", 0)
            os.symlink("/etc/passwd", f"{folder}/{NAME}-link")
        shm = libc.shmget(KEY, 4096, 0o1600)
        semaphores = libc.semget(KEY, 1, 0o1600)
        messages = libc.msgget(KEY, 0o1600)
        from multiprocessing import shared_memory
        from multiprocessing import resource_tracker
        posix = shared_memory.SharedMemory(NAME + "-posix", create=True, size=4096)
        resource_tracker.unregister(posix._name, "shared_memory")
        libc.sem_open.restype = ctypes.c_void_p
        named = libc.sem_open(f"/{NAME}".encode(), os.O_CREAT, 0o600, 1)
        os.chdir("/")
        os.umask(0)
        os.environ[NAME.upper()] = "1"
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        before = os.nice(0)
        os.nice(5)
        os.kill(fork_server(), signal.SIGSTOP)
        return before, [found >= 0 for found in (shm, semaphores, messages)] + [bool(named)]

    def fork_server():
        parent = lambda pid: int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
        return parent(os.getppid())

    @kinetic.run(accelerator="cpu", keep_warm="10m")
    def look(device):
        pids = [int(pid) for pid in os.listdir("/proc") if pid.isdigit()]
        found = [open(f"/proc/{pid}/comm").read().strip() for pid in pids]
        left = [name for name in found if name in ("kworker/0:1", "listens")]
        left += [f"{folder}/{name}" for folder in FOLDERS for name in os.listdir(folder) if NAME in name]
        left += [f"{kind} {KEY}" for kind in ("shm", "sem", "msg") if str(KEY) in open(f"/proc/sysvipc/{kind}").read()]
        left += [name for name in os.environ if name == NAME.upper()]
        left += [name for name in os.listdir("/dev") if name == "accel7"]
        try:
            os.close(open_for_one(device))
        except BlockingIOError:
            left.append("a device")
        try:
            socket.create_connection(("127.0.0.1", PORT), 1).close()
            left.append("a port")
        except OSError:
            pass
        umask = os.umask(0o022)
        return left, os.getcwd() == "/", umask == 0, resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64, os.nice(0)
'''


def test_nothing_that_a_task_leaks_is_there_for_the_next_one(clients: Any, site: Any, shared: Any) -> None:
    clients.project.write("leaking.py", LEAKING)
    device = str(shared / "accel0")
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 5))

    niceness, made = clients.run("from leaking import leak\ntell(leak(words[0]))", device)
    try:
        wait_for("an idle pod", is_idle(site, 1), 20)
    except TimeoutError:
        raise AssertionError(logs(site)) from None
    left, *changed = clients.run("from leaking import look\ntell(look(words[0]))", device)

    assert made == [True] * 4
    assert left == []
    assert changed == [False, False, True, niceness]
    assert len(site.pods_of()) == 1


# ------------------------------------------------------------------------------------------------------- hostile tasks

HOSTILE = '''
    """Tasks that try to read the next one, each in a way of its own; what one of them catches is written to a file."""
    import ctypes, glob, json, os, resource, shutil, subprocess, sys, sysconfig, kinetic

    BASE = "/tmp/kinetic-pod"

    def parent(pid):
        return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])

    def spy(shared):
        """Return code that notes that it ran, with what it sees."""
        return f"import os; open({shared + '/caught'!r}, 'a').write(repr(dict(os.environ)))\\n"

    def site_packages(shared):
        open(os.path.join(sysconfig.get_path("purelib"), "spy.pth"), "w").write(spy(shared))

    def program(shared):
        folder = os.environ["PATH"].split(":")[0]
        open(f"{folder}/sh", "w").write(f"#!/bin/sh\\nenv >> {shared}/caught\\n")

    def preload(shared):
        open("/etc/ld.so.preload", "w").write(f"{shared}/spy.so\\n")

    def runner(shared):
        (path,) = glob.glob(BASE + "/runners/pod/kinetic/_runner/supervisor/bindings.py*")
        about = os.stat(path)
        open(path, "r+b").write(open(path, "rb").read())
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))

    def limits(shared):
        """Change what only a few privileged processes may undo."""
        resource.prlimit(parent(os.getppid()), resource.RLIMIT_NOFILE, (5_000, 5_000))

    def inherited(shared):
        for pid in (1, os.getppid(), parent(os.getppid())):
            resource.prlimit(pid, resource.RLIMIT_CORE, (0, resource.prlimit(pid, resource.RLIMIT_CORE)[1]))
            os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
            os.sched_setaffinity(pid, {max(os.sched_getaffinity(pid))})

    def home(shared):
        import site
        os.makedirs(site.getusersitepackages())
        open(site.getusersitepackages() + "/usercustomize.py", "w").write(spy(shared))
        open(os.path.expanduser("~/.bashrc"), "a").write(f"env >> {shared}/caught\\n")

    def inbox(shared):
        own = os.path.dirname(os.environ["KINETIC_PROGRESS_FILE"])
        while not os.path.exists(own + "/task.json"):
            own = os.path.dirname(own)
        for number in range(9):
            shutil.copytree(own, f"{BASE}/inbox/{number}", dirs_exist_ok=True)
        os.makedirs(f"{BASE}/inbox/.9-1")

    def watcher(shared):
        code = (
            "import ctypes, os, sys\\n"
            "os.setsid()\\n"
            "if os.fork(): os._exit(0)\\n"
            "libc = ctypes.CDLL(None)\\n"
            "number = libc.inotify_init()\\n"
            "for path in (b'', b'/inbox', b'/task'):\\n"
            "    libc.inotify_add_watch(number, b'/tmp/kinetic-pod' + path, 0xFFF)\\n"
            "open('/dev/shm/ready', 'w').close()\\n"
            "while True:\\n"
            "    found = os.read(number, 4096)\\n"
            "    open(sys.argv[1] + '/caught', 'ab').write(found)\\n"
        )
        subprocess.run([sys.executable, "-c", code, shared], check=True)
        while not os.path.exists("/dev/shm/ready"):
            pass

    def drop_tracing():
        """Be what a container usually is: without the capability to trace all processes."""
        libc = ctypes.CDLL(None, use_errno=True)
        head, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        assert libc.capget(head, data) == 0
        for number in (0, 1, 2):
            data[number] &= ~(1 << 19)
        assert libc.capset(head, data) == 0, ctypes.get_errno()

    @kinetic.run(accelerator="cpu", keep_warm="10m", capture_env_vars=["TOKEN_OF_A_TEST"])
    def plant(ways, shared):
        for way in ways:
            globals()[way](shared)

    @kinetic.run(accelerator="cpu", keep_warm="10m", capture_env_vars=["TOKEN_OF_A_TEST"])
    def pry():
        """Open what the processes of the pod have open, which the next task will be told through."""
        drop_tracing()
        found = []
        for pid in (1, os.getppid(), parent(os.getppid())):
            for path in (f"/proc/{pid}/mem", f"/proc/{pid}/environ", f"/proc/{pid}/maps"):
                try:
                    open(path, "rb").read(1)
                    found.append(path)
                except OSError as error:
                    if path.endswith("mem") and error.errno == 5:
                        found.append(path)
            for number in range(40):
                try:
                    found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
                except OSError:
                    pass
            if ctypes.CDLL(None).ptrace(16, pid, 0, 0) == 0:
                found.append(f"traced {pid}")
        return found

    @kinetic.run(accelerator="cpu", keep_warm="10m", capture_env_vars=["TOKEN_OF_A_TEST"])
    def trust(argument):
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        subprocess.run("true", shell=True, check=True)
        return os.environ["TOKEN_OF_A_TEST"] + argument

    @kinetic.run(accelerator="cpu", keep_warm="10m")
    def inherits():
        processors = sorted(os.sched_getaffinity(0))
        return resource.getrlimit(resource.RLIMIT_CORE), os.sched_getscheduler(0), processors, os.getpid()
'''


def submit(clients: Any, call: str, token: str, *words: str) -> Any:
    return clients.run(f"from hostile import *\ntell({call})", *words, TOKEN_OF_A_TEST=token)


def logs(site: Any) -> str:
    return "".join(site.log(pod["metadata"]["name"]) for pod in pods_of_warm(site))


def test_what_a_hostile_task_plants_is_removed_and_the_next_one_runs_in_the_same_pod(
    clients: Any, site: Any, shared: Any
) -> None:
    clients.project.write("hostile.py", HOSTILE)

    *before, first = submit(clients, "inherits()", "mine")
    wait_for("an idle pod", is_idle(site, 1), 20)
    submit(clients, f"plant(['home', 'inbox', 'watcher', 'inherited'], {str(shared)!r})", "mine")
    try:
        wait_for("an idle pod", is_idle(site, 2), 20)
    except TimeoutError:
        raise AssertionError(logs(site)) from None
    value = submit(clients, "trust('+argument')", "yours")
    wait_for("an idle pod", is_idle(site, 3), 20)
    *after, last = submit(clients, "inherits()", "yours")

    assert value == "yours+argument"
    assert (before, first != last) == (after, True)
    assert not (shared / "caught").exists() or "yours" not in (shared / "caught").read_text(errors="replace")
    assert len(site.pods_of()) == 1


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("runner", "it changed the code of kinetic"),
        pytest.param("site_packages", "spy.pth, which the next job could load", marks=pytest.mark.nightly),
        pytest.param("program", "/sh, which the next job could load", marks=pytest.mark.nightly),
        pytest.param("preload", "/etc/ld.so.preload, which the next job could load", marks=pytest.mark.nightly),
        pytest.param("limits", "it changed the limits", marks=pytest.mark.nightly),
    ],
)
def test_a_pod_in_which_a_task_changed_what_the_next_one_would_load_ends_and_says_why(
    clients: Any, site: Any, shared: Any, way: str, says: str
) -> None:
    clients.project.write("hostile.py", HOSTILE)

    submit(clients, f"plant([{way!r}], {str(shared)!r})", "mine")
    wait_for("its last words", lambda: "cannot be cleaned after" in logs(site), 60)
    said = logs(site)
    value = submit(clients, "trust('+argument')", "yours")

    assert says in said
    assert value == "yours+argument"
    assert not (shared / "caught").exists()


def test_a_task_can_neither_trace_the_processes_of_its_pod_nor_open_their_files(clients: Any, site: Any) -> None:
    clients.project.write("hostile.py", HOSTILE)

    found = submit(clients, "pry()", "mine")

    assert found == []
    assert json.dumps(site.jobs()).count("mine") == 0
