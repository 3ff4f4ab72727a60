"""Where we point: who wins, what is implied, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kinetic._config.target import Setting, resolve
from kinetic.errors import OptionError, OptionTypeError, SettingsError

FIELDS = ("backend", "project", "zone", "cluster", "namespace")
PROFILE = {
    "backend": "gke",
    "project": "from-profile",
    "zone": "from-profile",
    "cluster": "from-profile",
    "namespace": "from-profile",
    "store": "gs://from-profile",
    "context": "from-profile",
}


@pytest.fixture
def save(tmp_path):
    """Write profiles, the first one current, and return the environment that points to them."""

    def write(**profiles):
        page = {"current": next(iter(profiles)), "profiles": profiles}
        (tmp_path / "profiles.json").write_text(json.dumps(page))
        return {"KINETIC_HOME": str(tmp_path)}

    return write


@pytest.fixture
def bare(tmp_path):
    """An environment in which nothing is configured."""
    return {"HOME": str(tmp_path)}


# Precedence: a row for each level, a run for each field.


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    ("argument", "variable", "source"),
    [
        ("pathways", "local", "argument"),
        ("pathways", None, "argument"),
        ("", "pathways", "variable"),
        (None, "pathways", "variable"),
        (None, "", "profile team"),
        (None, None, "profile team"),
    ],
)
def test_an_argument_beats_the_environment_beats_the_profile(save, field, argument, variable, source):
    name = f"KINETIC_{field.upper()}"
    environ = save(team=PROFILE) | {"GOOGLE_CLOUD_PROJECT": "fallback"}
    environ |= {} if variable is None else {name: variable}

    setting = getattr(resolve(**{field: argument}, environ=environ), field)

    value = PROFILE[field] if source == "profile team" else "pathways"
    assert setting == Setting(value, name if source == "variable" else source)


@pytest.mark.parametrize(("field", "name"), [("store", "KINETIC_STORE"), ("context", "KINETIC_KUBE_CONTEXT")])
def test_the_environment_beats_the_profile_where_there_is_no_argument(save, field, name):
    environ = save(team=PROFILE)

    assert getattr(resolve(environ=environ), field) == Setting(PROFILE[field], "profile team")
    assert getattr(resolve(environ=environ | {name: ""}), field) == Setting(PROFILE[field], "profile team")
    assert getattr(resolve(environ=environ | {name: "gs://other"}), field) == Setting("gs://other", name)


@pytest.mark.parametrize(
    ("field", "cluster", "here"),
    [
        ("zone", "us-central1-a", "local"),
        ("cluster", "kinetic-cluster", "local"),
        ("namespace", "default", "default"),
        ("context", "", ""),
    ],
)
def test_what_nobody_set_has_a_default(bare, field, cluster, here):
    assert getattr(resolve(environ=bare, project="acme"), field) == Setting(cluster, "default")
    assert getattr(resolve(environ=bare), field) == Setting(here, "default")


def test_googles_own_variable_comes_last_and_names_a_project_only(save, bare):
    environ = {"GOOGLE_CLOUD_PROJECT": "fallback"}

    assert resolve(environ=bare | environ).project == Setting("fallback", "GOOGLE_CLOUD_PROJECT")
    assert resolve(environ=save(team=PROFILE) | environ).project == Setting("from-profile", "profile team")
    assert resolve(environ=bare | {"GOOGLE_CLOUD_PROJECT": ""}).project == Setting("local", "default")


def test_a_profile_without_a_namespace_leaves_the_default(save):
    target = resolve(environ=save(team={"project": "p", "zone": "z", "cluster": "c"}))

    assert target.namespace == Setting("default", "default")


def test_a_profile_can_be_named_for_one_call(save):
    environ = save(team=PROFILE, solo=PROFILE | {"zone": "mine"})

    target = resolve(environ=environ, profile="solo")

    assert target.zone == Setting("mine", "profile solo")
    assert target.profile.name == "solo"


# The backend.


def test_without_configuration_jobs_run_on_this_machine(bare, tmp_path):
    target = resolve(environ=bare)

    assert target.backend == Setting("local", "default")
    assert target.project == Setting("local", "default")
    assert target.home == Setting(str(tmp_path / ".kinetic"), "default")
    assert target.store == Setting(f"file://{tmp_path}/.kinetic/store", "default")
    assert target.bucket_name == f"{tmp_path}/.kinetic/store"
    assert target.profile is None
    assert target.notes == ()


@pytest.mark.parametrize(
    ("argument", "environ", "source"),
    [
        ("acme", {}, "project from argument"),
        (None, {"KINETIC_PROJECT": "acme"}, "project from KINETIC_PROJECT"),
        (None, {"GOOGLE_CLOUD_PROJECT": "acme"}, "project from GOOGLE_CLOUD_PROJECT"),
    ],
)
def test_a_project_means_a_cluster(bare, argument, environ, source):
    one = resolve(project=argument, environ=bare | environ)
    many = resolve(project=argument, environ=bare | environ, multi_host=True)

    assert one.backend == Setting("gke", source)
    assert many.backend == Setting("pathways", source)


@pytest.mark.parametrize(("multi_host", "backend"), [(False, "gke"), (True, "pathways")])
def test_a_profile_means_a_cluster(save, multi_host, backend):
    environ = save(team={"project": "p", "zone": "z", "cluster": "c"})

    assert resolve(environ=environ, multi_host=multi_host).backend == Setting(backend, "profile team")


@pytest.mark.parametrize("environ", [{"KINETIC_ZONE": "z", "KINETIC_CLUSTER": "c"}, {"KINETIC_KUBE_CONTEXT": "kind"}])
def test_a_zone_a_cluster_or_a_context_alone_does_not_leave_this_machine(bare, environ):
    assert resolve(environ=bare | environ).backend == Setting("local", "default")


def test_many_hosts_alone_do_not_leave_this_machine(bare):
    assert resolve(environ=bare, multi_host=True).backend == Setting("local", "default")


def test_a_backend_that_is_named_is_not_changed_for_many_hosts(bare):
    environ = bare | {"KINETIC_PROJECT": "acme"}

    assert resolve(backend="gke", environ=environ, multi_host=True).backend == Setting("gke", "argument")
    assert resolve(backend="pathways", environ=environ).backend == Setting("pathways", "argument")


@pytest.mark.parametrize("argument", ["local", None])
def test_naming_this_machine_always_wins_over_a_project(save, argument):
    environ = save(team=PROFILE) | {"KINETIC_PROJECT": "acme", "KINETIC_BACKEND": "" if argument else "local"}

    target = resolve(backend=argument, environ=environ, multi_host=True)

    assert target.backend.value == "local"
    assert target.project == Setting("acme", "KINETIC_PROJECT")
    assert target.zone == Setting("from-profile", "profile team")


def test_the_profile_local_is_built_in_and_means_this_machine(save):
    environ = save(team=PROFILE) | {"KINETIC_PROFILE": "local", "GOOGLE_CLOUD_PROJECT": "acme"}

    target = resolve(environ=environ, zone="z")

    assert target.backend == Setting("local", "profile local")
    assert target.cluster == Setting("local", "default")
    assert target.zone == Setting("z", "argument")


def test_a_profile_may_mean_this_machine(save):
    target = resolve(environ=save(mine={"backend": "local", "store": "file:///data/jobs"}))

    assert target.backend == Setting("local", "profile mine")
    assert target.store == Setting("file:///data/jobs", "profile mine")
    assert target.bucket_name == "/data/jobs"


def test_a_current_profile_that_is_gone_is_told_and_leaves_this_machine(save, tmp_path):
    environ = save(team=PROFILE)
    (tmp_path / "profiles.json").write_text('{"current": "gone"}')

    target = resolve(environ=environ)

    assert target.backend == Setting("local", "default")
    assert len(target.notes) == 1
    assert "'gone'" in target.notes[0]


# The store.


def test_a_cluster_keeps_its_jobs_in_a_bucket_of_the_project(bare):
    target = resolve(environ=bare, project="acme", cluster="main")

    assert target.store == Setting("gs://acme-kn-main-jobs", "default")
    assert target.bucket_name == "acme-kn-main-jobs"


def test_a_local_job_does_not_write_into_the_store_of_a_cluster(save, tmp_path):
    target = resolve(backend="local", environ=save(team=PROFILE))

    assert target.store == Setting(f"file://{tmp_path}/store", "default")
    assert target.home == Setting(str(tmp_path), "KINETIC_HOME")


def test_a_store_that_is_named_holds_for_every_backend(bare):
    environ = bare | {"KINETIC_STORE": "memory://x"}

    assert resolve(environ=environ).store == Setting("memory://x", "KINETIC_STORE")
    assert resolve(environ=environ, project="acme").store == Setting("memory://x", "KINETIC_STORE")


@pytest.mark.parametrize(
    ("store", "name"),
    [
        ("gs://bucket", "bucket"),
        ("gs://bucket/a/b", "bucket"),
        ("s3://bucket/a", "bucket"),
        ("file:///data/jobs", "/data/jobs"),
        ("/data/jobs", "/data/jobs"),
        ("memory://test", "test"),
    ],
)
def test_the_name_of_the_bucket_is_read_from_the_store(bare, store, name):
    assert resolve(environ=bare | {"KINETIC_STORE": store}).bucket_name == name


def test_a_kubeconfig_context_with_a_store_needs_no_project(bare):
    environ = bare | {"KINETIC_KUBE_CONTEXT": "kind-kind", "KINETIC_STORE": "s3://bucket"}

    target = resolve(backend="gke", environ=environ)

    assert target.context == Setting("kind-kind", "KINETIC_KUBE_CONTEXT")
    assert target.project == Setting("", "default")
    assert target.bucket_name == "bucket"


# What is refused.


@pytest.mark.parametrize(
    ("written", "nearest"), [("gkee", "gke"), ("GKE", "gke"), ("pathway", "pathways"), ("locale", "local")]
)
def test_an_unknown_backend_is_refused_with_the_nearest(bare, written, nearest):
    with pytest.raises(OptionError) as caught:
        resolve(backend=written, environ=bare)

    assert str(caught.value).splitlines() == [
        f"Unknown backend {written!r} [option]",
        "why:   backends: local, gke, pathways",
        f'next:  write backend="{nearest}"',
    ]


def test_an_unknown_backend_of_the_environment_is_refused_with_its_source(bare):
    with pytest.raises(OptionError) as caught:
        resolve(environ=bare | {"KINETIC_BACKEND": "gk"})

    assert str(caught.value).splitlines() == [
        "Unknown backend 'gk' (from KINETIC_BACKEND) [option]",
        "why:   backends: local, gke, pathways",
        "next:  export KINETIC_BACKEND=gke",
    ]


def test_an_unknown_backend_of_a_profile_is_refused_with_its_source(save):
    with pytest.raises(OptionError) as caught:
        resolve(environ=save(team=PROFILE | {"backend": "slurm"}))

    first, _, advice = str(caught.value).splitlines()
    assert first == "Unknown backend 'slurm' (from profile team) [option]"
    assert advice.startswith("next:  give backend here as an argument, or correct it in profile team, for example to ")


@pytest.mark.parametrize("field", ["project", "zone", "cluster", "namespace"])
@pytest.mark.parametrize(
    ("written", "better"), [("a/b", "a-b"), ("a b", "a-b"), (" a", "a"), ("a\n", "a"), ("../a", "..-a")]
)
def test_a_name_with_a_slash_or_white_space_is_refused(bare, field, written, better):
    with pytest.raises(OptionError) as caught:
        resolve(**{field: written}, environ=bare)

    assert str(caught.value).splitlines() == [
        f"{written!r} cannot be the name of a {field} [option]",
        'why:   a name has no "/" and no white space',
        f"next:  write {field}={better!r}",
    ]


def test_a_name_of_the_environment_is_refused_with_its_source(bare):
    with pytest.raises(OptionError) as caught:
        resolve(environ=bare | {"GOOGLE_CLOUD_PROJECT": "/"})

    first, _, advice = str(caught.value).splitlines()
    assert first == "'/' cannot be the name of a project (from GOOGLE_CLOUD_PROJECT) [option]"
    assert advice == "next:  export GOOGLE_CLOUD_PROJECT=your-project"


@pytest.mark.parametrize("name", ["example.com:acme-123", "Ünïcode", "a_b", "UPPER", "1"])
def test_a_name_with_odd_characters_is_for_the_cluster_to_judge(bare, name):
    target = resolve(project=name, cluster=name, environ=bare)

    assert target.project.value == name
    assert target.cluster.value == name


@pytest.mark.parametrize("field", [*FIELDS, "profile"])
def test_an_argument_that_is_no_string_is_refused(bare, field):
    with pytest.raises(OptionTypeError) as caught:
        resolve(**{field: 5}, environ=bare)

    assert str(caught.value).splitlines() == [
        f"{field} must be a string, not int [option-type]",
        "why:   it is 5",
        f"next:  give {field} as a string, or leave it out",
    ]


def test_a_cluster_without_a_project_is_refused(bare):
    with pytest.raises(ValueError) as caught:
        resolve(backend="gke", environ=bare)

    assert str(caught.value).splitlines() == [
        "the gke backend needs a project [option]",
        (
            "why:   it is chosen by an argument; neither an argument, KINETIC_PROJECT, a profile "
            "nor GOOGLE_CLOUD_PROJECT names a project"
        ),
        'next:  export KINETIC_PROJECT=your-project     or use backend="local" to run on this machine',
    ]


def test_a_context_without_project_and_store_is_refused(save):
    with pytest.raises(OptionError) as caught:
        resolve(environ=save(kind={"context": "kind-kind"}))

    assert str(caught.value).splitlines() == [
        "a cluster that is reached by a kubeconfig context needs a store [option]",
        "why:   without a project no bucket can be named, and neither KINETIC_STORE nor a profile names a store",
        "next:  export KINETIC_STORE=gs://your-bucket     or set KINETIC_PROJECT",
    ]


def test_an_unknown_profile_is_refused(bare):
    with pytest.raises(SettingsError, match="no profile is named 'team'"):
        resolve(environ=bare | {"KINETIC_PROFILE": "team"})


# The price.


def test_resolving_without_configuration_loads_no_parser(bare):
    code = (
        "import sys; before = set(sys.modules); from kinetic._config.target import resolve; "
        f"resolve(environ={bare!r}); print(*(set(sys.modules) - before))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert not {"json", "tomllib", "hashlib", "difflib", "dataclasses", "inspect"} & set(done.stdout.split())


def test_inside_a_pod_a_cluster_that_nobody_names_is_the_one_around_it(bare):
    found = resolve(
        backend="gke",
        environ={**bare, "KUBERNETES_SERVICE_HOST": "10.0.0.1", "KINETIC_STORE": "gs://jobs"},
    )

    assert found.context == Setting("in-cluster", "KUBERNETES_SERVICE_HOST")
    assert (found.project.value, found.namespace.value) == ("", "")


def test_inside_a_pod_a_project_still_means_its_cluster(bare):
    found = resolve(project="acme", environ={**bare, "KUBERNETES_SERVICE_HOST": "10.0.0.1"})

    assert found.context.value == ""
    assert found.namespace.value == "default"


def test_inside_a_pod_jobs_run_on_this_machine_unless_a_cluster_is_asked_for(bare):
    found = resolve(environ={**bare, "KUBERNETES_SERVICE_HOST": "10.0.0.1"})

    assert (found.backend.value, found.context.value) == ("local", "")


def test_the_namespace_of_a_context_is_its_own_unless_somebody_says_another(bare):
    context = {**bare, "KINETIC_BACKEND": "gke", "KINETIC_KUBE_CONTEXT": "dev", "KINETIC_STORE": "gs://jobs"}

    assert resolve(environ=context).namespace.value == ""
    assert resolve(environ=context, namespace="mine").namespace.value == "mine"


def test_a_context_that_moves_no_job_is_told(bare) -> None:
    found = resolve(environ={**bare, "KINETIC_KUBE_CONTEXT": "dev"})

    assert found.backend.value == "local"
    assert "KINETIC_BACKEND=gke" in found.notes[0]
    assert resolve(environ={**bare, "KINETIC_KUBE_CONTEXT": "dev", "KINETIC_BACKEND": "local"}).notes == ()


def test_a_variable_that_means_a_cluster_means_it_for_slices_as_well(bare) -> None:
    environ = {**bare, "KINETIC_BACKEND": "gke", "KINETIC_PROJECT": "acme"}

    assert resolve(environ=environ, multi_host=True).backend == Setting("pathways", "KINETIC_BACKEND")
    assert resolve(environ=environ).backend.value == "gke"


def test_an_argument_is_taken_at_its_word(bare) -> None:
    found = resolve(backend="gke", environ={**bare, "KINETIC_PROJECT": "acme"}, multi_host=True)

    assert found.backend.value == "gke"
