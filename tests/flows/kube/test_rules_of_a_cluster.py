"""Clusters with rules of their own: labels that each pod must have, taints, a container runtime by name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import nodes
from cluster.access import RefusedError
from cluster.plane import wait_for

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
RUNTIMES = "/apis/node.k8s.io/v1/runtimeclasses"
TAINT = ("dedicated", "research", "NoSchedule")
USER = 1_000_680_000  # as OpenShift draws them for a namespace

Rule = Callable[..., None]


@pytest.fixture
def rule(site: Any) -> Iterator[Rule]:
    """Return a function that gives the API server a rule for new pods of the namespace."""
    made: list[str] = []
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": site.namespace}}}
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}

    def make(kind: str, **spec: Any) -> None:
        name = f"{kind.lower()}-{site.namespace}"
        constraints = {"matchConstraints": here | {"resourceRules": [pods]}}
        bound: dict[str, Any] = {"policyName": name, "matchResources": here}
        if kind == "Validating":
            bound["validationActions"] = ["Deny"]
        for part, content in (("Policy", constraints | spec), ("PolicyBinding", bound)):
            about = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": f"{kind}Admission{part}"}
            path = f"{ADMISSION}/{kind.lower()}admission{'policies' if part == 'Policy' else 'policybindings'}"
            site.api.create(path, {**about, "metadata": {"name": name}, "spec": content})
            made.append(f"{path}/{name}")

    yield make
    for path in reversed(made):
        site.api.delete(path)


@pytest.fixture
def probe(site: Any) -> Callable[..., Any]:
    """Return a function that says what would become of a pod: the pod, or why the server refuses it."""

    def ask(**spec: Any) -> Any:
        whole = {"containers": [{"name": "c", "image": "i"}], **spec}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": whole}
        try:
            return site.api.create(f"{site.core}/pods", pod, dryRun="All")
        except RefusedError as refused:
            return str(refused)

    return ask


@pytest.fixture
def label_wanted(rule: Rule, site: Any) -> Callable[..., str]:
    """Return a function that has every new object of some kinds name its team, and returns what the rule says."""

    def make(kind: str, *resources: str, **spec: Any) -> str:
        said = f"each {kind} needs the label team"
        created = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [*resources]}
        here = {"matchLabels": {"kubernetes.io/metadata.name": site.namespace}}
        has_team = {"expression": "'team' in object.metadata.?labels.orValue({})", "message": said}
        constraints = {"namespaceSelector": here, "resourceRules": [created]}
        rule("Validating", matchConstraints=constraints, validations=[has_team])

        def holds() -> bool:
            about = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "probe"}, **spec}
            try:
                site.api.create(f"{site.core}/{resources[0]}", about, dryRun="All")
            except RefusedError as refused:
                return said in str(refused)
            return False

        wait_for("the rule", holds)
        return said

    return make


@pytest.fixture
def labels_rule(rule: Rule, probe: Any) -> None:
    """Every pod names its team."""
    has_team = "'team' in object.metadata.?labels.orValue({})"
    rule("Validating", validations=[{"expression": has_team, "message": "each pod needs the label team"}])
    wait_for("the rule", lambda: "each pod needs the label team" in probe())


READ_ONLY = "all(each, each.?securityContext.?readOnlyRootFilesystem.orValue(false))"


@pytest.fixture(params=["Validating", "Mutating"])
def read_only_rule(rule: Rule, probe: Any, request: pytest.FixtureRequest) -> None:
    """No pod writes into its image: others are rejected, or made so."""
    if request.param == "Validating":
        rule("Validating", validations=[{"expression": f"object.spec.containers.{READ_ONLY}", "message": "read-only"}])
        wait_for("the rule", lambda: "read-only" in probe())
        return
    made = "Object.spec.containers{name: each.name, securityContext: Object.spec.containers.securityContext{"
    made = f"Object{{spec: Object.spec{{containers: object.spec.containers.map(each, {made}"
    rule(
        "Mutating",
        reinvocationPolicy="Never",
        mutations=[
            {
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {"expression": f"{made}readOnlyRootFilesystem: true}}}})}}}}"},
            }
        ],
    )
    wait_for("the rule", lambda: "readOnlyRootFilesystem" in str(probe()))


@pytest.fixture
def openshift(rule: Rule, probe: Any, site: Any) -> None:
    """A namespace as OpenShift makes it: its pods get a user and a group, and may not name others."""
    annotations = {"openshift.io/sa.scc.uid-range": f"{USER}/10000"}
    site.api.merge(f"/api/v1/namespaces/{site.namespace}", {"metadata": {"annotations": annotations}})
    users = f"runAsUser: {USER}, fsGroup: {USER}"
    given = f"Object{{spec: Object.spec{{securityContext: Object.spec.securityContext{{{users}}}}}}}"
    names_none = "!has(object.spec.securityContext.runAsUser) && !has(object.spec.securityContext.fsGroup)"
    rule(
        "Mutating",
        reinvocationPolicy="Never",
        matchConditions=[{"name": "names-none", "expression": names_none}],
        mutations=[{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": given}}],
    )
    about = "object.spec.securityContext"
    fits = f"{about}.?runAsUser.orValue(0) == {USER} && {about}.?fsGroup.orValue(0) == {USER}"
    rule("Validating", validations=[{"expression": fits, "message": "a user of another namespace"}])

    def gives_and_refuses() -> bool:
        found = probe()
        is_given = isinstance(found, dict) and found["spec"]["securityContext"].get("runAsUser") == USER
        return is_given and "a user of another namespace" in probe(securityContext={"fsGroup": 65_532})

    wait_for("the rules", gives_and_refuses)


@pytest.fixture
def runtime(site: Any) -> Iterator[str]:
    """A RuntimeClass; what it names is the node's affair."""
    name = f"runtime-{site.namespace}"
    about = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}}
    site.api.create(RUNTIMES, {**about, "handler": "runc"})
    yield name
    site.api.delete(f"{RUNTIMES}/{name}")


def test_a_job_goes_where_labels_taints_and_a_runtime_are_asked_for(
    clients: Any, site: Any, add_node: Any, namespace: str, labels_rule: None, runtime: str, monkeypatch: Any
) -> None:
    add_node(nodes.cpu(f"machine-{namespace}")._replace(taints=(TAINT,)))
    monkeypatch.setenv("KINETIC_TOLERATIONS", "dedicated=research:NoSchedule")
    monkeypatch.setenv("KINETIC_LABELS", "team=vision,cost-center=42")
    monkeypatch.setenv("KINETIC_ANNOTATIONS", "example.com/note=from a test")
    monkeypatch.setenv("KINETIC_RUNTIME_CLASS", runtime)

    submit = "job = add.run_async(2, 3)\ntell((job.job_id, job.result(cleanup=False)))"
    job_id, value = clients.run(f"from one import add\n{submit}")

    assert value == 5
    (job,), (pod,) = site.jobs(job_id), site.pods_of(job_id)
    for found in (job, pod):
        assert found["metadata"]["labels"].items() >= {"team": "vision", "cost-center": "42", "job-id": job_id}.items()
    assert pod["metadata"]["annotations"]["example.com/note"] == "from a test"
    assert pod["spec"]["runtimeClassName"] == runtime


def test_entries_of_a_config_map_are_variables_of_pods_unless_a_job_captures_another_value(
    clients: Any, site: Any, machine: str, monkeypatch: Any
) -> None:
    entries = {"UV_DEFAULT_INDEX": "https://packages.example/simple", "TOKEN_OF_A_TEST": "theirs"}
    about = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "proxy"}, "data": entries}
    monkeypatch.setenv("KINETIC_CONFIG_MAPS", "proxy")
    monkeypatch.setenv("TOKEN_OF_A_TEST", "mine")
    program = """
        import os
        import kinetic.errors

        @kinetic.run(accelerator="cpu", capture_env_vars=["TOKEN_OF_A_TEST"])
        def look():
            return os.environ["UV_DEFAULT_INDEX"], os.environ["TOKEN_OF_A_TEST"]

        try:
            tell(look())
        except kinetic.errors.LaunchError as error:
            tell(str(error))
    """

    assert "has no ConfigMap proxy" in clients.run(program)
    site.api.create(f"{site.core}/configmaps", about)
    assert clients.run(program) == [entries["UV_DEFAULT_INDEX"], "mine"]


def test_the_reason_of_a_job_that_a_rule_refuses_names_the_setting(
    clients: Any, kinetic: Any, machine: str, labels_rule: None
) -> None:
    job_id = clients.run("from one import add\ntell(add.run_async(2, 3).job_id)")

    def explained() -> str:
        told = str(kinetic("jobs", "explain", job_id).out)
        return told if "each pod needs the label team" in told else ""

    assert "KINETIC_LABELS and KINETIC_ANNOTATIONS set those of pods" in wait_for("the rule", explained)


def test_a_rule_about_all_config_maps_and_secrets_is_fulfilled_by_the_labels_of_the_settings(
    clients: Any, site: Any, machine: str, label_wanted: Callable[..., str], monkeypatch: Any
) -> None:
    said = label_wanted("ConfigMap", "configmaps", "secrets")
    program = """
        import kinetic.errors
        from one import add

        try:
            tell(add(2, 3))
        except kinetic.errors.LaunchError as error:
            tell(str(error))
    """

    refused = clients.run(program)
    monkeypatch.setenv("KINETIC_LABELS", "team=vision")

    assert said in refused
    assert "KINETIC_LABELS" in refused
    assert clients.run(program) == 5
    assert clients.run("from one import add\ntell(add.run_async_map([(1, 2), (3, 4)]).results())") == [3, 7]
    found = (each["metadata"] for each in site.api.get(f"{site.core}/configmaps")["items"])
    (labels,) = [each["labels"] for each in found if each["name"].startswith("kinetic-runner-")]
    assert labels["team"] == "vision"


def test_a_warm_pod_takes_no_job_that_is_to_have_other_labels(
    clients: Any, site: Any, machine: str, monkeypatch: Any
) -> None:
    submit = "from one import add\ntell(add.with_options(keep_warm='10m')(2, 3))"
    for team in ("vision", "vision", "speech"):
        monkeypatch.setenv("KINETIC_LABELS", f"team={team}")
        value, said = clients.both(submit)
        assert value == 5

    assert "starts in a pod of its own" in said
    assert "has other settings" in said


def test_a_job_in_a_namespace_of_openshift_has_the_user_and_the_group_that_it_gets_there(
    clients: Any, site: Any, machine: str, openshift: None
) -> None:
    clients.project.write(
        "who.py",
        """
        import getpass
        import os
        import kinetic

        @kinetic.run(accelerator="cpu")
        def who():
            with open(os.path.join(os.environ["KINETIC_OUTPUT_DIR"], "kept"), "w") as file:
                file.write("x")
            return os.getuid(), sorted({os.getgid(), *os.getgroups()}), os.path.expanduser("~"), getpass.getuser()
    """,
    )

    assert clients.run("from who import who\ntell(who())") == [USER, [0, USER], "/tmp", "kinetic"]


def test_a_job_runs_where_no_pod_may_write_into_its_image(clients: Any, machine: str, read_only_rule: None) -> None:
    clients.project.write("mine.py", "VALUE = 42")
    clients.project.write(
        "look.py",
        """
        import os
        import pathlib
        import tempfile
        import kinetic
        import mine

        @kinetic.run(accelerator="cpu")
        def look(words):
            (pathlib.Path(kinetic.output_dir()) / "kept").write_text("x")
            (pathlib.Path.home() / "cache").mkdir()
            with tempfile.TemporaryFile() as file:
                file.write(b"x")
            return mine.VALUE, pathlib.Path(words).read_text(), os.access("/", os.W_OK), str(pathlib.Path.home())
    """,
    )
    clients.project.write("words", "one two")

    submit = "tell([look(kinetic.Data('words')), look.with_options(keep_warm='5m')(kinetic.Data('words'))])"
    assert clients.run(f"import kinetic\nfrom look import look\n{submit}") == [[42, "one two", False, "/tmp"]] * 2


@pytest.fixture
def volume(site: Any, tmp_path: Path) -> Iterator[Path]:
    """The claim "scratch" of the namespace, and the folder that is its volume; pods do not see it otherwise."""
    name, folder = f"scratch-{site.namespace}", tmp_path / "volume"
    (folder / "set").mkdir(parents=True)
    folder.chmod(0o777)
    size = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    spec = {**size, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}}
    site.api.create("/api/v1/persistentvolumes", {"kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})
    spec = {**size, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": name}
    # As the controller for volumes leaves it, which this control plane does not have.
    about = {"name": "scratch", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    site.put("persistentvolumeclaims", {"kind": "PersistentVolumeClaim", "metadata": about, "spec": spec})
    yield folder
    site.api.delete(f"/api/v1/persistentvolumes/{name}")


def test_every_pod_has_the_volumes_of_the_settings_and_outputs_may_be_in_one(
    clients: Any, machine: str, volume: Path, kinetic: Any, monkeypatch: Any
) -> None:
    (volume / "set" / "words").write_text("one two three")
    monkeypatch.setenv("KINETIC_VOLUME_CLAIMS", "/datasets=scratch/set:ro,/scratch=scratch")
    clients.project.write(
        "count.py",
        """
        import os
        import kinetic

        @kinetic.run(accelerator="cpu", output_dir="/scratch/outputs")
        def count():
            with open("/datasets/words") as file:
                words = len(file.read().split())
            with open(os.path.join(kinetic.output_dir(), "kept"), "w") as file:
                file.write(str(words))
            return words, os.access("/datasets", os.W_OK)
    """,
    )

    submit = "job = count.run_async()\ntell((job.job_id, job.result(cleanup=False)))"
    job_id, value = clients.run(f"from count import count\n{submit}")

    assert value == [3, False]
    assert (volume / "outputs" / "kept").read_text() == "3"
    assert "the folder can be there" in kinetic("outputs", "ls", job_id).err
    assert not Path("/scratch").exists()


def test_a_volume_that_is_missing_or_read_only_is_said_before_anything_is_packed(
    clients: Any, machine: str, volume: Path, monkeypatch: Any
) -> None:
    submit = """
        from one import add
        try:
            add.with_options(output_dir="/scratch/outputs").run_async(2, 3)
        except Exception as error:
            tell(message(error))
    """

    monkeypatch.setenv("KINETIC_VOLUME_CLAIMS", "/scratch=scratch:ro")
    assert "cannot leave its outputs in /scratch/outputs" in clients.run(submit)
    monkeypatch.setenv("KINETIC_VOLUME_CLAIMS", "/scratch=other")
    assert "has no volume claim other" in clients.run(submit)


def test_a_volume_of_one_job_is_not_made_in_a_volume_that_other_jobs_share(
    clients: Any, machine: str, volume: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("KINETIC_VOLUME_CLAIMS", "/scratch/team=scratch")
    clients.project.write("set/words", "one two three")
    submit = """
        import kinetic
        from one import add
        said = []
        for path in ("/scratch/team/set", "/scratch/team", "/scratch/"):
            try:
                add.with_options(volumes={path: kinetic.Data("set")}).run_async(2, 3)
            except Exception as error:
                said.append(message(error))
        tell(said)
    """

    said = clients.run(submit)

    assert ["KINETIC_VOLUME_CLAIMS has scratch at /scratch/team" in each for each in said] == [True, True, True]


def test_a_cluster_without_a_bucket_has_its_store_in_a_volume(
    clients: Any, machine: str, volume: Path, kinetic: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("KINETIC_STORE", str(volume / "store"))
    monkeypatch.setenv("KINETIC_VOLUME_CLAIMS", f"{volume}=scratch")

    submit = "job = add.run_async(2, 3)\ntell((job.job_id, job.result(cleanup=False)))"
    job_id, value = clients.run(f"from one import add\n{submit}")

    assert value == 5
    assert kinetic("jobs", "logs", job_id).out == "adding\n"


def test_a_client_that_is_not_root_and_its_pods_share_a_store_whose_files_are_for_their_owner_only(
    clients: Any, machine: str, volume: Path, home: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("KINETIC_STORE", str(volume / "store"))
    monkeypatch.setenv("KINETIC_VOLUME_CLAIMS", f"{volume}=scratch")
    subprocess.run(["chown", "-R", "1234:1234", home], check=True)
    reads_all = "--inh-caps=+dac_read_search --ambient-caps=+dac_read_search"  # Python itself may be below /root

    code = "from one import add\nprint(add(2, 3))"
    words = ["setpriv", *f"--reuid=1234 --regid=1234 --clear-groups {reads_all}".split(), sys.executable, "-c", code]
    done = subprocess.run(words, cwd=clients.project.root, check=False, capture_output=True, text=True, timeout=60)

    assert done.stdout == "adding\n5\n", done.stderr


def test_a_slice_whose_job_a_rule_rejects_is_not_said_to_wait_for_a_pod(
    clients: Any, site: Any, rule: Rule, kinetic: Any
) -> None:
    jobs = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}
    here = {"matchLabels": {"kubernetes.io/metadata.name": site.namespace}}
    rule(
        "Validating",
        matchConstraints={"namespaceSelector": here, "resourceRules": [jobs]},
        validations=[{"expression": "false", "message": "no Jobs here"}],
    )

    def is_there() -> bool:
        template = {"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}}
        about = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "probe"}, "spec": {"template": template}}
        try:
            site.api.create(f"{site.batch}/jobs", about, dryRun="All")
        except RefusedError as refused:
            return "no Jobs here" in str(refused)
        return False

    wait_for("the rule", is_there)
    submit = "tell(add.with_options(accelerator='v4-16').run_async(2, 3).job_id)"
    job_id = clients.run(f"from one import add\n{submit}")

    # JobSet 0.10 writes no event, and 0.11 does.
    known = "JobSet has not created the Job of its hosts yet", "rejected the Job that JobSet creates for its hosts"
    assert any(each in kinetic("jobs", "explain", job_id).out for each in known)


def test_a_slice_whose_service_a_rule_rejects_says_so(
    clients: Any, label_wanted: Callable[..., str], kinetic: Any
) -> None:
    said = label_wanted("Service", "services", spec={"ports": [{"port": 80}]})
    submit = "tell(add.with_options(accelerator='v4-16').run_async(2, 3).job_id)"
    job_id = clients.run(f"from one import add\n{submit}")

    told = wait_for("the rule", lambda: said in (out := str(kinetic("jobs", "explain", job_id).out)) and out)

    assert "an admission rule of the cluster rejected the Service that JobSet creates for its hosts" in told
