"""What the test cluster and its real nodes are made of: which programs of which versions, and where they are.

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
NODE_BUILDING = Path(__file__).parent / "node_building"
CONTROLLER_BUILDING = Path(__file__).parent / "controller_building"


class Program(NamedTuple):
    """One program that is built.

    Attributes:
        name: Of the file.
        wrapper: The folder under building/, node_building/ or controller_building/ whose go.mod pins the versions.
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


class Recipe(NamedTuple):
    """What is built together, into one folder of the cache.

    Attributes:
        name: Of the folder in the cache that holds all versions of it.
        make: The target of the Makefile that builds it.
        programs: In the order in which they are built: the small ones first, so that a mistake shows early.
        definitions: Copied out of modules.
        sources: Files; another content makes another folder.
    """

    name: str
    make: str
    programs: tuple[Program, ...]
    definitions: tuple[Definitions, ...]
    sources: tuple[Path, ...]

    def folder(self) -> Path:
        """Return where it belongs; another recipe or processor has another folder."""
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        parts = (self.programs, self.definitions, platform.system(), platform.machine())
        recipe = hashlib.sha256(repr(parts).encode())
        for source in self.sources:
            recipe.update(source.read_bytes())
        return Path(cache) / self.name / recipe.hexdigest()[:16]

    def program(self, name: str) -> Path:
        return self.folder() / "bin" / name

    def missing(self) -> list[str]:
        """Name what is still to be made."""
        folder = self.folder()
        names = [each.name for each in self.programs if not (folder / "bin" / each.name).exists()]
        copied = [f"definitions/{each.name}" for each in self.definitions]
        return names + [name for name in copied if not (folder / name).exists()]

    def go_needed(self) -> tuple[int, int]:
        """Return which Go the newest of the wrappers asks for."""
        texts = [path.read_text() for path in self.sources if path.name == "go.mod"]
        lines = [re.search(r"^go (\d+)\.(\d+)", text, re.MULTILINE) for text in texts]
        return max((int(line.group(1)), int(line.group(2))) for line in lines if line)


def wrapper(name: str) -> Path:
    """Return the folder of a wrapper."""
    return next(folder / name for folder in (BUILDING, NODE_BUILDING, CONTROLLER_BUILDING) if (folder / name).exists())


def version(name: str) -> str:
    """Read the version of what a wrapper is there for: the one module that it requires."""
    found = re.search(r"^require \S+ (\S+)$", (wrapper(name) / "go.mod").read_text(), re.MULTILINE)
    assert found, f"the go.mod of {name} requires no module"
    return found.group(1)


_KUBERNETES = ("k8s.io/component-base/version.gitVersion", "k8s.io/client-go/pkg/version.gitVersion")
PROGRAMS = (
    Program("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    Program("kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", _KUBERNETES),
    Program("kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", _KUBERNETES),
    Program("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", _KUBERNETES),
    Program("jobset", "jobset", "sigs.k8s.io/jobset", ("sigs.k8s.io/jobset/pkg/version.GitVersion",)),
)
# LeaderWorkerSet and Kueue come without their controllers, which CONTROLLERS has: the server checks what we send
# against their schemas.
DEFINITIONS = (
    Definitions("jobset", f"sigs.k8s.io/jobset@{version('jobset')}", "config/components/crd/bases"),
    Definitions("jobset-webhooks", f"sigs.k8s.io/jobset@{version('jobset')}", "config/components/webhook"),
    Definitions("lws", "sigs.k8s.io/lws@v0.7.0", "config/crd/bases"),
    Definitions("kueue", "sigs.k8s.io/kueue@v0.14.0", "config/components/crd/bases"),
)


CLUSTER = Recipe("kinetic-test-cluster", "cluster", PROGRAMS, DEFINITIONS, tuple(sorted(BUILDING.glob("*/go.mod"))))
folder, program, missing = CLUSTER.folder, CLUSTER.program, CLUSTER.missing

_CONTAINERD = "github.com/containerd/containerd/v2"
_SHIM = "containerd-shim-runc-v2"
NODE = Recipe(
    "kinetic-test-node",
    "node",
    (
        Program("ctr", "containerd", f"{_CONTAINERD}/cmd/ctr"),
        Program(_SHIM, "containerd", f"{_CONTAINERD}/cmd/{_SHIM}", (f"{_CONTAINERD}/version.Version",)),
        Program("containerd", "containerd", f"{_CONTAINERD}/cmd/containerd", (f"{_CONTAINERD}/version.Version",)),
        Program("coredns", "coredns", "."),
        Program("kubelet", "kubernetes", "k8s.io/kubernetes/cmd/kubelet", _KUBERNETES),
    ),
    (),
    (
        BUILDING / "kubernetes" / "go.mod",  # the kubelet is of the control plane's version
        *sorted(NODE_BUILDING.glob("*/go.mod")),
        *sorted(NODE_BUILDING.glob("*/main.go")),
    ),
)


# Twenty minutes of two cores, and few tests: not a part of the cluster that all tests of Kubernetes need.
CONTROLLERS = Recipe(
    "kinetic-test-controllers",
    "controllers",
    (
        Program("lws", "lws", "sigs.k8s.io/lws/cmd", ("sigs.k8s.io/lws/pkg/version.GitVersion",)),
        Program("vc-controller-manager", "volcano", "volcano.sh/volcano/cmd/controller-manager"),
        Program("vc-scheduler", "volcano", "volcano.sh/volcano/cmd/scheduler"),
        Program("kueue", "kueue", "sigs.k8s.io/kueue/cmd/kueue", ("sigs.k8s.io/kueue/pkg/version.GitVersion",)),
    ),
    (
        Definitions("lws-webhooks", f"sigs.k8s.io/lws@{version('lws')}", "config/webhook"),
        Definitions("volcano", f"volcano.sh/volcano@{version('volcano')}", "config/crd/volcano/bases"),
        Definitions("volcano-flows", f"volcano.sh/volcano@{version('volcano')}", "config/crd/jobflow/bases"),
        Definitions("kueue-webhooks", f"sigs.k8s.io/kueue@{version('kueue')}", "config/components/webhook"),
    ),
    tuple(sorted(CONTROLLER_BUILDING.glob("*/go.mod"))),
)


def definitions(name: str, recipe: Recipe = CLUSTER) -> list[Path]:
    return sorted((recipe.folder() / "definitions" / name).glob("*.yaml"))
