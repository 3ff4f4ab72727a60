"""What ends this machine's jobs although they have sessions of their own: an allocation, a container, a log-out.

| where | sign | what ends the jobs |
|---|---|---|
| Slurm | SLURM_JOB_ID, and SLURMD_NODENAME: ``salloc`` leaves its shell on the login node | the end of job or step |
| Kubernetes | KUBERNETES_SERVICE_HOST | the end of the pod |
| a container | /.dockerenv, /run/.containerenv | its stop |
| systemd | XDG_SESSION_ID, and KillUserProcesses=yes in logind's files | the log-out, but not root's |

Sources: slurm.schedmd.com/sbatch.html and srun.html (output environment variables), man 5 logind.conf.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

_CONTAINER_FILES = (".dockerenv", "run/.containerenv")
_LOGIND_FOLDERS = ("etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd")  # the first one wins
_YES = frozenset({"1", "yes", "y", "true", "t", "on"})


def bound_to(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """Return what jobs here end with, e.g. "when this container stops"; "" in an ordinary shell, which they outlive.

    Args:
        environ: The environment of the client.
        root: The root of the file system.
    """
    if environ.get("SLURM_JOB_ID") and environ.get("SLURMD_NODENAME"):
        step = environ.get("SLURM_STEP_ID", "")
        what = f"step {step} of Slurm job {environ['SLURM_JOB_ID']}" if step else f"Slurm job {environ['SLURM_JOB_ID']}"
        return f"with {what}"
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "with this pod"
    if any((root / name).exists() for name in _CONTAINER_FILES):
        return "when this container stops"
    if environ.get("XDG_SESSION_ID") and environ.get("USER") != "root" and _kills_user_processes(root):
        return "when you log out (KillUserProcesses=yes)"
    return ""


def _kills_user_processes(root: Path) -> bool:
    """Say whether logind's files order it for everybody; for some users only, or by default, is not known here."""
    found: dict[str, str] = {}
    for path in _logind_files(root):
        for line in _lines(path):
            name, _, value = line.partition("=")
            found[name.strip()] = value.strip().lower()
    if found.get("KillOnlyUsers") or found.get("KillExcludeUsers", "root") != "root":
        return False
    return found.get("KillUserProcesses", "") in _YES


def _logind_files(root: Path) -> Iterator[Path]:
    """Yield the main file, then its drop-ins by name; of two with one name, that of the first folder counts."""
    folders = [root / folder for folder in _LOGIND_FOLDERS]
    yield from [path for folder in folders if (path := folder / "logind.conf").exists()][:1]
    drop_ins: dict[str, Path] = {}
    for folder in reversed(folders):
        drop_ins.update((path.name, path) for path in folder.glob("logind.conf.d/*.conf"))
    for name in sorted(drop_ins):
        yield drop_ins[name]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
