"""What the test cluster is made of: which programs of which versions, and where they lie on this machine.

Standard library only: `make cluster` reads this before any environment exists.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from pathlib import Path
from typing import NamedTuple

BUILDING = Path(__file__).parent / "building"


class Program(NamedTuple):
    """One program that is built.

    Attributes:
        name: Of the file.
        wrapper: The folder under building/ whose go.mod pins the versions.
        package: What is compiled, as Go names it.
        variables: Names of string variables that receive the version, so that the program tells it truthfully.
    """

    name: str
    wrapper: str
    package: str
    variables: tuple[str, ...] = ()


class Definitions(NamedTuple):
    """Resource definitions that are taken from a module.

    Attributes:
        name: Of the folder they are copied to.
        module: At which version; jobset's is the one that its controller is built from.
        folder: Inside the module.
    """

    name: str
    module: str
    folder: str


def version(wrapper: str) -> str:
    """Read the version of what a wrapper is there for: the one module that it requires."""
    found = re.search(r"^require \S+ (\S+)$", (BUILDING / wrapper / "go.mod").read_text(), re.MULTILINE)
    assert found, f"building/{wrapper}/go.mod requires no module"
    return found.group(1)


_KUBERNETES = ("k8s.io/component-base/version.gitVersion", "k8s.io/client-go/pkg/version.gitVersion")
# In the order in which they are built: the small ones first, so that a mistake shows early.
PROGRAMS = (
    Program("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    Program("kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", _KUBERNETES),
    Program("kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", _KUBERNETES),
    Program("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", _KUBERNETES),
    Program("jobset", "jobset", "sigs.k8s.io/jobset", ("sigs.k8s.io/jobset/pkg/version.GitVersion",)),
)
# LeaderWorkerSet and Kueue come without their controllers: the server checks what we send against their schemas.
DEFINITIONS = (
    Definitions("jobset", f"sigs.k8s.io/jobset@{version('jobset')}", "config/components/crd/bases"),
    Definitions("jobset-webhooks", f"sigs.k8s.io/jobset@{version('jobset')}", "config/components/webhook"),
    Definitions("lws", "sigs.k8s.io/lws@v0.7.0", "config/crd/bases"),
    Definitions("kueue", "sigs.k8s.io/kueue@v0.14.0", "config/components/crd/bases"),
)


def folder() -> Path:
    """Say where this recipe's programs belong; another recipe or processor has another folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    recipe = hashlib.sha256(repr((PROGRAMS, DEFINITIONS, platform.system(), platform.machine())).encode())
    for wrapper in sorted(BUILDING.glob("*/go.mod")):
        recipe.update(wrapper.read_bytes())
    return Path(cache) / "kinetic-test-cluster" / recipe.hexdigest()[:16]


def program(name: str) -> Path:
    return folder() / "bin" / name


def definitions(name: str) -> list[Path]:
    return sorted((folder() / "definitions" / name).glob("*.yaml"))


def missing() -> list[str]:
    """Name what `make cluster` has still to make."""
    names = [each.name for each in PROGRAMS if not program(each.name).exists()]
    copied = [f"definitions/{each.name}" for each in DEFINITIONS]
    return names + [name for name in copied if not (folder() / name).exists()]


def go_needed() -> tuple[int, int]:
    """Say which Go the newest of the wrappers asks for."""
    lines = [re.search(r"^go (\d+)\.(\d+)", path.read_text(), re.MULTILINE) for path in BUILDING.glob("*/go.mod")]
    return max((int(line.group(1)), int(line.group(2))) for line in lines if line)
