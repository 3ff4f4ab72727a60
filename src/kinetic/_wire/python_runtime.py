"""The Python around us: our own distribution in it, its installer, its version, and its threads.

The import name and the command are ``kinetic``. On PyPI that name belongs to somebody else, so the distribution is
called ``kinetic-jobs``. Every job brings its own copy of us: neither name is ever installed for a job.
"""

from __future__ import annotations

import functools
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

Lock = TypeVar("Lock")

NAME = "kinetic-jobs"
FOREIGN_NAME = "kinetic"
NAMES = frozenset({NAME, FOREIGN_NAME})
# What to do where the certificate of a server is refused; Python, uv and obstore all read it.
TRUST = "set SSL_CERT_FILE to a file of all certificates to trust, that of your proxy or server included"
# What our extras bring that a job can need; the rest of them serves clients only.
EXTRAS_OF_JOBS = {"debug": "debugpy>=1.8", "hf": "datasets>=3"}

CONSTRAINT = "-c "  # begins a line with a version that counts only if something else asks for the package
SETTING = "--pyproject "  # begins a line of the pyproject.toml that uv reads beside the requirements

# The documented way to take a package out of a resolution: it is replaced by a requirement that never holds.
OVERRIDES = "".join(f'{name} ; python_version < "0"\n' for name in sorted(NAMES))

_OURS = b"kinetic._cli.main"  # stands in the entry points of every release of ours, whatever it was called
_METADATA = re.compile(r"kinetic-(?P<version>[^-]+)(?:-py[0-9.]+)?\.(?:dist|egg)-info", re.IGNORECASE)


def with_overrides(environ: dict[str, str], file: str) -> dict[str, str]:
    """Return variables with which uv leaves our names out, even of indirect dependencies; the file has OVERRIDES."""
    return {**environ, "UV_OVERRIDE": " ".join(filter(None, (environ.get("UV_OVERRIDE"), file)))}


def write_requirements(lines: Iterable[str], folder: Path) -> list[str]:
    """Write lines into ``requirements.txt`` for uv; return its options for the constraints and settings among them.

    Constraints of the user's own variable, which such options replace, are among them.
    """
    kinds = {CONSTRAINT: "constraints.txt", SETTING: "pyproject.toml", "": "requirements.txt"}
    files: dict[str, list[str]] = {name: [] for name in kinds.values()}
    for line in lines:
        kind = next(filter(line.startswith, kinds))
        files[kinds[kind]].append(f"{line.removeprefix(kind)}\n")
    for name, found in files.items():
        if found or name == "requirements.txt":
            (folder / name).touch(0o600)  # the address of an index may hold a password
            (folder / name).write_text("".join(found), encoding="utf-8")  # whatever the locale of the container is
    theirs = os.environ.get("UV_CONSTRAINT", "").split()
    limits = [*(each if "://" in each else os.path.abspath(each) for each in theirs), str(folder / "constraints.txt")]
    words = [word for each in limits for word in ("-c", each)] if files["constraints.txt"] else []
    if files["pyproject.toml"]:
        words += ["--project", str(folder), "-r", str(folder / "pyproject.toml")]
    return words


def foreign_distribution(folders: Iterable[str]) -> str:
    """Return the name, version and place of an installed distribution ``kinetic`` that is not ours, or ""."""
    for folder in dict.fromkeys(folders):
        try:
            names = [name for name in os.listdir(folder) if name[:8].lower() == "kinetic-"]
        except OSError:
            continue
        for name in sorted(names):
            found = _METADATA.fullmatch(name)
            if found and not _is_ours(os.path.join(folder, name)):
                return f"{FOREIGN_NAME} {found['version']} in {folder}"
    return ""


def _is_ours(metadata: str) -> bool:
    try:
        with open(os.path.join(metadata, "entry_points.txt"), "rb") as file:
            return _OURS in file.read(1 << 16)
    except OSError:
        return False


INSTALLER_VERSIONS = {"debugpy": "1.8.22", "uv": "0.13.8"}
_SHA256 = {
    "debugpy": """
    0c1104233340196e5cbf5514e7dfdbb98968e730cfd7fdd6f3d72a082be838a9
    12bc7f368182b517cf26c76a2393fff65354e365fa1552b6241e66edff17997b
    192b73e8d53bbd60225220c0943627bf249ac93d0ea3090e23c45f3e0ceb6a35
    1bd0c6df3c68c0a3f71db8baa3780a953abb65537ec4b3bc6b935ad5b3b3d45c
    1e76339d5510bc17e9181dba9577508afcb21aad5728f1a55ef74d7d97d255f3
    225d063f81708c2546999e7edfac0198b2d5c2f144797dc64858f867948633e0
    371a4ba4a5975eb958393903f3254cf983da7b1c7c178b3f987ee427f42515e3
    3b7c328cb47b4e2f2b40801936daf8150f88dcb4ffef5080ff119270f0d23626
    4ad076f4f66cb8acb79e4384d48b1ea60a0b1957aa0b1112d4887ea3a4df60e0
    56b877b37ed73f0bf53ba7afc394816ff1eb5d701bae24a24ed9e1ea6f7ce34f
    66e4ac3d6e7026e83e7d93d7ee2f51dd4a4e8dff673578d424e60796893e5b2c
    745e1800ec2961e5660c1a317c0a20e28c0fef4de36c04f17a21c33f2b37a92a
    7bf29e0d8ce80b100d37fb333e1b193b790d962739f3067796c2b03ffdc9afee
    8a697acec45dbc70d17fb5d9f4f61989fc294d273c69de487fd10cb35fdd75eb
    92fc425308a08f601f3c69afb4719767f9b898276f44b97e6942a713c4c32740
    a9e9d3550e15ca479c59333e90845029190531f0cacfedab3b815a57bd913947
    a9eca6ab09a61534e923064400081e016f7e1d8430cc6e8b7a9cecd2f59e2b07
    b17a4896520f1c6da09ce76ec8215df0b85b0b6f3617526a4c65c2315340875a
    b7dbde1fb822d100802d505b2aed6d0813b1a0a2015d495cb8798b2215d5d1e5
    ba810a66b437e3c43ca0ce0892404f010338286263ca8e5108442d76a9485337
    c1ffb9953708b648ecf6acd2e5ad2c002bf68785ed618197dd4463a2a7226f39
    c21dd7e1ec22556bb41dc3bf6b86c603e440ec889c4acb27d7206354b2106c54
    cba7b99573ee41f9510c6deeff1cdd0c333748b9dd63d5016413dd57ba9a4593
    d593a330297332ec435f3965c448b6d500e03f33675cf2063178bc76377a788e
    e489c7268e1c7b41e13b438d9c533d2a7af73fb59bf8cd30fead8286c1c39c4e
    e6744ac1850c73c2ba7b29a126cf9ab74efd1831190720e8fee17ef5389c8f5d
    f49b1d6cecf326b63c06d7f517e4a6642777f758c58cb799e7bc5a6dd74721c2
    fa47099176d1d612bef69e9f74658a5687a9f05bd80fb5710f99959bace85735
    feea785c7bbeb8cfd5b01a63f9061c899dc468c8be81671141a29305774fa294
    ffeeaf4dfe1534375902040df32a4c48f721fd35a4d4d337ac72a44d4176075b
    """,
    "uv": """
    0b3e8b1a4f5e405e31e2ff33de8af4744831e9f7338539671efbd8c3c94e791d
    0ec33661a14e38dea8dfb18167d2a4a5c7fe3d476c62dd8eb6acf5f378727201
    13050c64530a1ccfc223af0306a8152d41c0d36ea63bc19161221ca65dfe480a
    29451c60f5e8b07403e0a175d5229efc36b0289b34143ff4aaa499a5dd52553a
    5337c30bb893b4f9ce0ceb921ba2da0d13f649da644f40ad3bef84083bef0203
    55c0b405e75dea1d1c53efc9a8e0725f4031be0e219ec2a08b15d78ece9a616a
    5ace7ec339798aca31be51a75fa7c1544fe84e02fadd17a9fa3324813bbaf237
    62b6943c7fd64fac6854f780bea6e0359e5a5bc3241f83ee357bb38276afac49
    63d807451e63c8d21b1b33c945af16438ac9d8ffddc59b31ce69c692135891f5
    6999618363d03a0a085a9491db319e00b461dbda205db06ef1fd55dfcbf6472b
    86f1319f851e645bc295bb921e6be19beae7e69216c75ae809010ca7817393aa
    87614f62b09e3571593ffe01bf2e1dccb8df928a8423324dba80c6d0e33060eb
    9cf0b7b12f13da6ab1c85694ab618d97a2bbd0c904cdea7f0172fb1dd768b9d5
    b26fe533dc6153787e40443b7d9428ed41349127bff36a954ec82c48be01ded9
    b4184029b1b7c54409b9cd4372c73a36ef9c2d1d7cf3b0aca59c8b1932f041dc
    b7124ca1956ec2e476a1003ea5715a15f0266afaec37f4dc9c6972ba8183e6d1
    bfcaada3989c7716ad4b58673cd1413fad4fdc6b2e446f9553db0ef18da20850
    cfbc13020a64cdf2f116d2936824c38edbf41e5c07f1ea291baf02e31ebf3ed0
    e18a57b8b352eb7c8feb317b9f6f533c8f0ad9673fd6cf34bbe3cf1a9f6a8984
    """,
}


def pinned(name: str) -> str:
    """Return the lines of a requirements file that stand for one version of a package and nothing else."""
    digests = "".join(f" --hash=sha256:{digest}" for digest in _SHA256[name].split())
    return f"{name}=={INSTALLER_VERSIONS[name]}{digests}\n"


def find_installer() -> str | None:
    """Return the path of uv, or None: on the PATH, else where installers put the program of a package of this Python.

    Never ``python -m uv``: in the folder of a project that would run the project's own uv.py.
    """
    import shutil  # 3 ms, with its compressors; here and below: only to look for uv

    return shutil.which("uv") or next((path for path in _candidates() if os.access(path, os.X_OK)), None)


def _candidates() -> Iterator[str]:
    import sysconfig

    user = "osx_framework_user" if sys.platform == "darwin" and sys._framework else f"{os.name}_user"  # type: ignore[attr-defined,unused-ignore] # noqa: SLF001
    yield os.path.join(sysconfig.get_path("scripts"), "uv")
    yield os.path.join(sysconfig.get_path("scripts", vars={"base": sys.base_prefix}), "uv")
    if user in sysconfig.get_scheme_names():
        yield os.path.join(sysconfig.get_path("scripts", user), "uv")
    yield os.path.join(sysconfig.get_path("purelib"), "bin", "uv")  # pip install --target


@functools.cache
def is_overlay() -> bool:
    """Return whether this Python's environment has no packages, but names those of others: ``uv run --with`` makes it.

    It is removed at the end of that command.
    """
    try:
        with open(f"{sys.prefix}/pyvenv.cfg", encoding="utf-8", errors="replace") as file:
            return "\nextends-environment" in file.read()
    except OSError:
        return False


def own_python() -> str:
    """Return the interpreter of this process.

    A program that has Python inside, as uWSGI, is none: it has the one of its environment beside it. Neither is a
    script in its place, as Scalene's, with which each Python that is started is measured.
    """
    beside = f"{sys.exec_prefix}/bin/python{python_minor()}"
    is_python = re.match("python|pypy|graalpy", os.path.basename(sys.executable or ""), re.IGNORECASE)
    return sys.executable if (is_python and not _is_script(sys.executable)) or not os.path.exists(beside) else beside


def _is_script(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def python_version() -> str:
    """Return this interpreter's version, X.Y.Z."""
    return ".".join(map(str, sys.version_info[:3]))


def python_minor() -> str:
    """Return the X.Y of this interpreter's version."""
    return ".".join(map(str, sys.version_info[:2]))


def is_portable() -> bool:
    """Return whether to avoid what only some systems support, as KINETIC_PORTABLE=1 asks."""
    return os.environ.get("KINETIC_PORTABLE") == "1"


def allowed_cores() -> int:
    """Return how many cores this process may run on, where the system says it (count)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def version_mismatch(client: str) -> str | None:
    """Return why pickles of that Python cannot be read here, or None when they can.

    Code objects inside pickles are only good for the same X.Y.
    """
    ours = python_version()
    if client.split(".")[:2] == ours.split(".")[:2]:
        return None
    return f"it was submitted from Python {client}, and this is Python {ours}"


VARIABLES = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    "VECLIB_MAXIMUM_THREADS",
)


def start_thread(work: Callable[[], object], name: str, *, daemon: bool = True) -> threading.Thread | None:
    """Start a thread, and return it; None where the system refuses.

    A process may have too many; and in Python 3.12.0 and 3.12.1 no thread can be started once the main thread has
    ended, though others that keep the interpreter are still at work.
    """
    thread = threading.Thread(target=work, name=name, daemon=daemon)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def free_import_lock() -> None:
    """Give Python's import lock back if this thread has it: then no other thread could import anything any more.

    A signal handler that raises, as that of Ctrl-C, leaves it taken where it comes between two steps of an import: most
    likely while the thread waits for another one's import. No code outside of Python's importer has it otherwise.
    """
    import _imp  # only where a wait ends so

    try:
        while True:  # it is counted
            _imp.release_lock()
    except RuntimeError:  # this thread has it not
        return


def free_in_child(lock: Lock) -> Lock:
    """Return a lock that is free in a forked child: the thread that held it in the parent does not exist there."""
    renew: Callable[[], object] = getattr(lock, "_at_fork_reinit")  # noqa: B009 - as concurrent.futures does
    os.register_at_fork(after_in_child=renew)
    return lock


def thread_count_variables(cores: float) -> dict[str, str]:
    """Return what tells libraries how many threads to start in a job that asked for some cores.

    Without it they start one for each core of the machine, and jobs side by side slow each other down.
    """
    return dict.fromkeys(VARIABLES, str(max(1, math.ceil(cores))))
