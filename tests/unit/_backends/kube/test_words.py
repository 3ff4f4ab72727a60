"""The words of the tables are those of Kubernetes, read out of the sources of the version that the tests build.

So a new version fails here where it says something in other words, and not in front of a user.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from cluster import binaries

from kinetic._backends.kube import event_patterns, object_status
from kinetic._backends.kube.event_patterns import Pattern

SCHEDULER = "kubernetes/pkg/scheduler/framework"
KUBELET = "kubernetes/pkg/kubelet"
NODES = "0/3 nodes are available: 3 {}."
CONTEXT = dict.fromkeys(("namespace", "pod", "image", "account", "queue", "accelerator", "list_nodes"), "x")


class Words(NamedTuple):
    """Words of Kubernetes, and what we make of them.

    Attributes:
        file: Of the sources, below the folder of all modules of Kubernetes.
        pattern: Finds the text there; its group is a string as Go writes it.
        around: What stands around it when it reaches us.
        table: Which of our tables reads it.
        code: The row that must fit.
    """

    file: str
    pattern: str
    around: str
    table: tuple[Pattern, ...]
    code: str


def reason(name: str) -> str:
    return rf'\b{name}\s*= (?:errors\.New\()?"([^"]+)"'


WORDS = {
    "a taint": Words(
        f"{SCHEDULER}/plugins/tainttoleration/taint_toleration.go",
        r'UnschedulableAndUnresolvable, "(node\(s\)[^"]+)"',
        NODES, event_patterns.SCHEDULING, "no-node-matches",
    ),
    "other labels": Words(
        f"{SCHEDULER}/plugins/nodeaffinity/node_affinity.go", reason("ErrReasonPod"), NODES,
        event_patterns.SCHEDULING, "no-node-matches",
    ),
    "memory that is taken": Words(
        f"{SCHEDULER}/plugins/noderesources/fit.go", r'Reason:\s+"(Insufficient memory)"',
        NODES + " preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod.",
        event_patterns.SCHEDULING, "busy",
    ),
    "nothing to preempt": Words(
        f"{SCHEDULER}/plugins/defaultpreemption/default_preemption.go", r'"(No preemption victims found[^"]+)"',
        "0/3 nodes are available: 3 Insufficient cpu. preemption: 0/3 nodes are available: 3 {}, Preemption is not "
        "helpful for scheduling.",
        event_patterns.SCHEDULING, "busy",
    ),
    "machines that are too small": Words(
        f"{SCHEDULER}/preemption/preemption.go", r'"(Preemption is not helpful[^"]+)"',
        "0/3 nodes are available: 3 Insufficient memory. preemption: 0/3 nodes are available: 3 {}.",
        event_patterns.SCHEDULING, "too-large",
    ),
    "no nodes": Words(
        "kubernetes/pkg/scheduler/scheduler.go", r'ErrNoNodesAvailable = fmt\.Errorf\("([^"]+)"', "{}",
        event_patterns.SCHEDULING, "no-node-matches",
    ),
    "a volume that is not bound": Words(
        f"{SCHEDULER}/plugins/volumebinding/volume_binding.go", r'AppendReason\("(pod has unbound[^"]+)"', NODES,
        event_patterns.SCHEDULING, "volume",
    ),
    "a quota that is used up": Words(
        "apiserver/pkg/admission/plugin/resourcequota/controller.go", r'fmt\.Errorf\("(exceeded quota[^"]+)"',
        'Error creating: pods "x" is forbidden: {}', event_patterns.CREATION, "quota",
    ),
    "a quota that wants to know": Words(
        "kubernetes/pkg/quota/v1/evaluator/core/pods.go", r'fmt\.Errorf\("(must specify[^"]+)"',
        "failed quota: x: {}", event_patterns.CREATION, "quota",
    ),
    "a service account": Words(
        "kubernetes/plugin/pkg/admission/serviceaccount/admission.go",
        r'fmt\.Errorf\("(error looking up service account [^"]+)"', "{}", event_patterns.CREATION, "service-account",
    ),
    "a priority class": Words(
        "kubernetes/plugin/pkg/admission/priority/admission.go", r'"(no PriorityClass with name [^"]+)"', "{}",
        event_patterns.CREATION, "priority-class",
    ),
    "a runtime class": Words(
        "kubernetes/plugin/pkg/admission/runtimeclass/admission.go", r'"(pod rejected: RuntimeClass %q not found)"',
        "{}", event_patterns.CREATION, "runtime-class",
    ),
    "the level of a namespace": Words(
        "pod-security-admission/admission/admission.go", r'"(violates PodSecurity [^"]+)"', "{}",
        event_patterns.CREATION, "admission",
    ),
    "a webhook that does not answer": Words(
        "apiserver/pkg/util/webhook/error.go", r'"(failed calling webhook %q: %v)"', "{}",
        event_patterns.CREATION, "webhook-down",
    ),
    "a webhook that refuses": Words(
        "apiserver/pkg/admission/plugin/webhook/errors/statuserror.go", r'"(admission webhook [^"]+)"', "{}",
        event_patterns.CREATION, "admission",
    ),
    "too large for the namespace": Words(
        "kubernetes/plugin/pkg/admission/limitranger/admission.go", r'"(maximum %s usage per [^"]+)"', "{}",
        event_patterns.CREATION, "limit-range",
    ),
    "an image's name": Words(
        f"{KUBELET}/images/types.go", reason("ErrInvalidImageName"), "{}: x", event_patterns.WAITING,
        "image-name",
    ),
    "an image that is not pulled": Words(
        f"{KUBELET}/images/types.go", reason("ErrImagePull"), "{}: x: not found", event_patterns.WAITING,
        "image-missing",
    ),
    "an image that is pulled again": Words(
        f"{KUBELET}/images/types.go", reason("ErrImagePullBackOff"), "{}: x", event_patterns.WAITING,
        "image",
    ),
    "an image that must be there": Words(
        f"{KUBELET}/images/types.go", reason("ErrImageNeverPull"), "{}: x", event_patterns.WAITING,
        "image",
    ),
    "a registry": Words(
        "cri-api/pkg/errors/errors.go", reason("ErrRegistryUnavailable"), "{}: x", event_patterns.WAITING, "image",
    ),
    "a configuration": Words(
        f"{KUBELET}/kuberuntime/kuberuntime_container.go", reason("ErrCreateContainerConfig"), "{}: x",
        event_patterns.WAITING, "configuration",
    ),
    "a container": Words(
        f"{KUBELET}/kuberuntime/kuberuntime_container.go", reason("ErrCreateContainer"), "{}: x",
        event_patterns.WAITING, "configuration",
    ),
    "a container that ends": Words(
        f"{KUBELET}/container/sync_result.go", reason("ErrCrashLoopBackOff"), "{}: x", event_patterns.WAITING,
        "restarts",
    ),
    "a mount": Words(
        f"{KUBELET}/events/event.go", reason("FailedMountVolume"), "{}: x", event_patterns.STARTING, "volume",
    ),
    "a network": Words(
        f"{KUBELET}/events/event.go", reason("FailedCreatePodSandBox"), "{}: x", event_patterns.STARTING, "network",
    ),
    "a pull": Words(
        f"{KUBELET}/events/event.go", reason("PullingImage"), "{}: x", event_patterns.STARTING, "pulling",
    ),
    "a driver": Words(
        "kubernetes/pkg/volume/csi/csi_client.go", r'fmt\.Errorf\("(driver name %s [^"]+)"',
        "FailedMount: MountVolume.SetUp failed: kubernetes.io/csi: {}",
        event_patterns.STARTING, "driver",
    ),
}  # fmt: skip


@functools.cache
def modules() -> Path:
    """Return the folder with the sources of Kubernetes."""
    asked = ["go", "env", "GOMODCACHE"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout if shutil.which("go") else ""
    return Path(os.environ.get("GOMODCACHE") or said.strip() or Path.home() / "go" / "pkg" / "mod") / "k8s.io"


def source(file: str) -> str:
    """Read a file of the version that the tests build."""
    module, _, path = file.partition("/")
    version = binaries.version("kubernetes")
    folder = modules() / f"{module}@{version if module == 'kubernetes' else version.replace('v1.', 'v0.')}"
    if not folder.is_dir():
        pytest.skip(f"the sources of {module} {version} are not on this machine: `make cluster` fetches them")
    return (folder / path).read_text()


def found(file: str, pattern: str) -> str:
    """Return the text of Kubernetes that a pattern finds, its gaps filled."""
    match = re.search(pattern, source(file))
    assert match, f"{file} says it in other words: nothing fits {pattern}"
    return re.sub(r"%[svd]", "x", match[1].replace("%q", '"x"'))


@pytest.mark.parametrize("words", WORDS.values(), ids=list(WORDS))
def test_the_words_of_kubernetes_are_known(words: Words) -> None:
    said = found(words.file, words.pattern)
    if words.code == "driver":
        said = said.replace("driver name x", "driver name gcsfuse.csi.storage.gke.io")

    read = event_patterns.explain_message(words.table, words.around.format(said), CONTEXT)

    assert read is not None
    assert read.code == words.code, said


def test_the_taints_that_keep_a_job_off_its_machines_are_named_by_no_scheduler_any_more() -> None:
    said = found(WORDS["a taint"].file, WORDS["a taint"].pattern)

    read = event_patterns.explain_message(event_patterns.SCHEDULING, NODES.format(said), CONTEXT)

    assert read is not None
    assert (
        read.what == "no node of this cluster accepts the job: all matching nodes are tainted for others, or not ready"
    )


def test_a_job_still_names_the_pod_that_ended_it() -> None:
    said = found("kubernetes/pkg/controller/job/pod_failure_policy.go", r'"(Container %s for pod [^"]+)"')

    named = object_status.pod_end_in_message(said.replace("exit code x", "exit code 137"), "job")

    assert named is not None
    assert (named[0], named[1].code) == ("x", "killed")


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("api/core/v1/types.go", r'PodReasonPreemptionByScheduler\s+= "([^"]+)"'),
        ("kubernetes/pkg/controller/tainteviction/taint_eviction.go", r'Reason:\s+"(Deletion[^"]+)"'),
        ("kubernetes/pkg/controller/podgc/gc_controller.go", r'"(DeletionByPodGC)"'),
        ("kubernetes/pkg/registry/core/pod/storage/eviction.go", r'Reason:\s+"(Eviction[^"]+)"'),
    ],
)
def test_every_way_to_lose_a_machine_is_still_called_so(file: str, pattern: str) -> None:
    assert found(file, pattern) in object_status._DISRUPTIONS


@pytest.mark.parametrize("name", ["nodeLowMessageFmt", "nodeConditionMessageFmt"])
def test_an_eviction_is_told_from_other_disruptions_by_its_words(name: str) -> None:
    said = found(f"{KUBELET}/eviction/helpers.go", rf'{name} = "([^"]+)"')
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": said}

    lost = object_status.pod_disruption({"status": {"conditions": [condition], "reason": "Evicted", "message": said}})

    assert lost is not None
    assert lost.code == "evicted"
