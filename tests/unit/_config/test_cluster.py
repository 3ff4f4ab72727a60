"""What holds for all jobs of a cluster: who wins, what cannot be used, and who submits."""

from __future__ import annotations

import json
import os
import pwd

import pytest

from kinetic._config import cluster, profiles
from kinetic._config.cluster import ClusterSettings, VolumeClaim
from kinetic._config.profiles import Profile
from kinetic.errors import OptionError, SettingsError

TEAM = Profile(
    "team",
    service_account="runner",
    queue="gold",
    priority_class="high",
    pull_secrets="mine, theirs",
    image_repo="h.example/team/jobs",
    store_secret="store",
    node_selector="pool=gpus,example.com/zone=a",
    tolerations="dedicated=research:NoSchedule, gpu",
    labels="team=vision,app.kubernetes.io/part-of=x",
    annotations="linkerd.io/inject=disabled",
    config_maps="proxy, packages",
    volume_claims="/datasets=sets/imagenet/:ro, /scratch/=scratch",
    gpu_resource="nvidia.com/mig-1g.10gb",
    scheduler="volcano",
    runtime_class="nvidia",
    cpu_disk="10Gi",
    ttl_hours="2",
    most_attempts="5",
)
OF_TEAM = ClusterSettings(
    *("runner", "gold", "high", ("mine", "theirs"), "h.example/team/jobs", "store"),
    {"pool": "gpus", "example.com/zone": "a"},
    (
        {"key": "dedicated", "operator": "Equal", "value": "research", "effect": "NoSchedule"},
        {"key": "gpu", "operator": "Exists"},
    ),
    *({"team": "vision", "app.kubernetes.io/part-of": "x"}, {"linkerd.io/inject": "disabled"}),
    ("proxy", "packages"),
    (VolumeClaim("/datasets", "sets", "imagenet", read_only=True), VolumeClaim("/scratch", "scratch")),
    *("nvidia.com/mig-1g.10gb", "volcano", "nvidia"),
    *(10 << 30, 7200, 5),
)
ENVIRON = {
    "KINETIC_SERVICE_ACCOUNT": "other",
    "KINETIC_QUEUE": "lead",
    "KINETIC_PRIORITY_CLASS": "low",
    "KINETIC_PULL_SECRETS": "ours",
    "KINETIC_IMAGE_REPO": "127.0.0.1:5000/jobs",
    "KINETIC_STORE_SECRET": "bucket",
    "KINETIC_NODE_SELECTOR": "pool=cpus",
    "KINETIC_TOLERATIONS": "none",
    "KINETIC_LABELS": "team=speech",
    "KINETIC_ANNOTATIONS": "none",
    "KINETIC_CONFIG_MAPS": "certificates",
    "KINETIC_VOLUME_CLAIMS": "/a=b",
    "KINETIC_GPU_RESOURCE": "amd.com/gpu",
    "KINETIC_SCHEDULER": "mine",
    "KINETIC_RUNTIME_CLASS": "gvisor",
    "KINETIC_CPU_DISK": "2G",
    "KINETIC_TTL_HOURS": "0.25",
    "KINETIC_MOST_ATTEMPTS": "1",
}
OF_ENVIRON = ClusterSettings(
    *("other", "lead", "low", ("ours",), "127.0.0.1:5000/jobs", "bucket", {"pool": "cpus"}),
    *(
        (),
        {"team": "speech"},
        {},
        ("certificates",),
        (VolumeClaim("/a", "b"),),
        "amd.com/gpu",
        "mine",
        "gvisor",
        2 * 10**9,
        900,
        1,
    ),
)


# Who wins.


def test_without_a_word_the_defaults_hold():
    assert cluster.read_settings(None, {}) == ClusterSettings()
    assert cluster.read_settings(Profile("team"), {}) == ClusterSettings()


def test_a_profile_wins_over_the_defaults_and_the_environment_over_a_profile():
    assert cluster.read_settings(TEAM, {}) == OF_TEAM
    assert cluster.read_settings(TEAM, ENVIRON) == OF_ENVIRON


def test_what_is_set_to_nothing_says_nothing():
    assert cluster.read_settings(TEAM, dict.fromkeys(ENVIRON, "")) == OF_TEAM


@pytest.mark.parametrize("field", cluster.FIELDS)
def test_each_field_says_where_its_value_came_from(field):
    variable = f"KINETIC_{field.upper()}"

    assert cluster.look_up(field, TEAM, ENVIRON).source == variable
    assert cluster.look_up(field, TEAM, {}).source == "profile team"
    assert cluster.look_up(field, Profile("team"), {}) == (None, "default")


# How it is written.


def test_none_takes_any_node_and_differs_from_no_word_about_nodes():
    assert cluster.read_settings(None, {"KINETIC_NODE_SELECTOR": "none"}).node_selector == {}
    assert cluster.read_settings(None, {}).node_selector is None


@pytest.mark.parametrize("field", ["pull_secrets", "config_maps", "volume_claims", "tolerations"])
def test_none_takes_a_list_of_the_profile_away(field):
    variable = f"KINETIC_{field.upper()}"

    assert getattr(cluster.read_settings(TEAM, {}), field)
    assert getattr(cluster.read_settings(TEAM, {variable: "none"}), field) == ()


def test_a_label_may_have_an_empty_value():
    read = cluster.read_settings(None, {"KINETIC_NODE_SELECTOR": "node-role.kubernetes.io/worker="})

    assert read.node_selector == {"node-role.kubernetes.io/worker": ""}


@pytest.mark.parametrize(
    ("text", "toleration"),
    [
        ("a=b:NoExecute", {"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute"}),
        ("x.io/a=b", {"key": "x.io/a", "operator": "Equal", "value": "b"}),
        ("a=:NoSchedule", {"key": "a", "operator": "Equal", "value": "", "effect": "NoSchedule"}),
        ("a:PreferNoSchedule", {"key": "a", "operator": "Exists", "effect": "PreferNoSchedule"}),
        ("a", {"key": "a", "operator": "Exists"}),
    ],
)
def test_a_taint_is_written_as_kubectl_writes_it_and_what_is_left_out_may_be_anything(text, toleration):
    assert cluster.read_settings(None, {"KINETIC_TOLERATIONS": text}).tolerations == (toleration,)


@pytest.mark.parametrize(
    ("folder", "volume"),
    [
        *[("/scratch", "/scratch"), ("/scratch/a", "/scratch")],
        *[("/scratches", ""), ("/datasets/a", ""), ("/tmp/a", ""), ("", "")],
    ],
)
def test_a_folder_outlives_its_pod_where_it_is_in_a_volume_that_can_be_written(folder, volume):
    assert OF_TEAM.volume_at(folder) == volume


def test_a_folder_in_a_volume_that_can_only_be_read_does_not_though_that_is_in_another_one():
    read = cluster.read_settings(None, {"KINETIC_VOLUME_CLAIMS": "/a=one,//a/sets/=two:ro"})

    assert [each.path for each in read.volume_claims] == ["/a", "/a/sets"]
    assert (read.volume_at("/a/sets/x"), read.volume_at("/a/x")) == ("", "/a")


def test_an_annotation_may_have_any_value_without_a_comma():
    read = cluster.read_settings(None, {"KINETIC_ANNOTATIONS": "a/b=c d=e:{}"})

    assert read.annotations == {"a/b": "c d=e:{}"}


def test_commas_and_spaces_too_many_are_passed_over():
    lists = {"KINETIC_PULL_SECRETS": " a, ,b,a,", "KINETIC_NODE_SELECTOR": " x = y ,"}

    read = cluster.read_settings(None, {**lists, "KINETIC_QUEUE": " gold\n"})

    assert (read.pull_secrets, read.node_selector, read.queue) == (("a", "b"), {"x": "y"}, "gold")


def test_a_moment_is_a_second_at_least():
    assert cluster.read_settings(None, {"KINETIC_TTL_HOURS": "0.000001"}).ttl_seconds == 1


def test_a_file_may_hold_what_json_has_for_it(tmp_path):
    environ = {"KINETIC_HOME": str(tmp_path)}
    typed = {"pull_secrets": ["mine", "theirs"], "node_selector": {"pool": "gpus"}, "ttl_hours": 1.5}
    typed |= {"tolerations": ["a=b", "c:NoExecute"], "labels": {"team": "vision"}, "annotations": {"a/b": "c"}}
    typed["volume_claims"] = {"/data": "sets:ro"}
    entry = {"project": "p", "zone": "z", "cluster": "c", **typed, "most_attempts": 3}
    (tmp_path / "profiles.json").write_text(json.dumps({"profiles": {"team": entry}}))

    read = cluster.read_settings(profiles.load(environ).saved["team"], {})

    assert read.pull_secrets == ("mine", "theirs")
    assert read.node_selector == {"pool": "gpus"}
    assert (read.ttl_seconds, read.most_attempts) == (5400, 3)
    assert [each["key"] for each in read.tolerations] == ["a", "c"]
    assert (read.labels, read.annotations) == ({"team": "vision"}, {"a/b": "c"})
    assert read.volume_claims == (VolumeClaim("/data", "sets", read_only=True),)


def test_an_object_without_labels_in_a_file_takes_any_node(tmp_path):
    team = {"context": "c", "node_selector": {}}
    (tmp_path / "profiles.json").write_text(json.dumps({"profiles": {"team": team}}))

    saved = profiles.load({"KINETIC_HOME": str(tmp_path)}).saved

    assert cluster.read_settings(saved["team"], {}).node_selector == {}


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("tolerations", [{"key": "a"}], 'is a list, not a list of strings, as in ["dedicated=research:NoSchedule"]'),
        ("pull_secrets", ["a", 1], "\"pull_secrets\" of profile 'team' is a list, not a list of names"),
        ("node_selector", {"a": 1}, "is an object, not an object with a string for each label"),
        ("ttl_hours", True, "is true, not a number of hours"),
        ("queue", ["a"], "\"queue\" of profile 'team' is a list, not a string"),
        ("queue", [], "is a list, not a string"),
        ("queue", False, "is false, not a string"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(tmp_path, field, value, told):
    entry = {"project": "p", "zone": "z", "cluster": "c", field: value}
    (tmp_path / "profiles.json").write_text(json.dumps({"profiles": {"team": entry}}))

    with pytest.raises(SettingsError) as caught:
        profiles.load({"KINETIC_HOME": str(tmp_path)})

    assert told in caught.value.why


def test_settings_survive_the_way_through_json():
    for settings in (ClusterSettings(), OF_TEAM):
        assert ClusterSettings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


# What cannot be used.


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("KINETIC_SERVICE_ACCOUNT", "Runner", "lower-case letters"),
        ("KINETIC_QUEUE", "a b", "lower-case letters"),
        ("KINETIC_QUEUE", "q" * 64, "at most 63"),
        ("KINETIC_PRIORITY_CLASS", "-high", "begins and ends with a letter or digit"),
        ("KINETIC_STORE_SECRET", "a..b", "lower-case letters"),
        ("KINETIC_STORE_SECRET", "s" * 254, "at most 253"),
        ("KINETIC_PULL_SECRETS", "a,B", "lower-case letters"),
        ("KINETIC_NODE_SELECTOR", "pool", "'pool' is not a valid label"),
        ("KINETIC_NODE_SELECTOR", "=gpus", "'=gpus' is not a valid label"),
        ("KINETIC_NODE_SELECTOR", "a/b/c=d", "'a/b/c=d' is not a valid label"),
        ("KINETIC_NODE_SELECTOR", "/b=d", "'/b=d' is not a valid label"),
        ("KINETIC_NODE_SELECTOR", "a=b c", "'a=b c' is not a valid label"),
        ("KINETIC_NODE_SELECTOR", "a=b,a=c", "a has two values, 'b' and 'c'"),
        ("KINETIC_NODE_SELECTOR", ",", "key=value,key2=value2"),
        ("KINETIC_TOLERATIONS", "a=b:Schedule", "'a=b:Schedule' is not a taint: expected key=value:EFFECT"),
        ("KINETIC_TOLERATIONS", "=b", "'=b' is not a taint"),
        ("KINETIC_TOLERATIONS", "a=b c", "'a=b c' is not a taint"),
        ("KINETIC_LABELS", "app=mine", "app cannot be set: kinetic finds its jobs by it"),
        ("KINETIC_LABELS", "kinetic/owner=me", "kinetic/owner cannot be set: kinetic writes those itself"),
        ("KINETIC_LABELS", "kueue.x-k8s.io/queue-name=q", "cannot be set: KINETIC_QUEUE sets it"),
        ("KINETIC_LABELS", "team", "'team' is not a valid label"),
        ("KINETIC_ANNOTATIONS", "a b=c", "'a b=c' is not a valid annotation"),
        ("KINETIC_ANNOTATIONS", "kinetic/order=c", "kinetic/order cannot be set"),
        ("KINETIC_RUNTIME_CLASS", "NVIDIA", "lower-case letters"),
        ("KINETIC_GPU_RESOURCE", "gpu", "as in nvidia.com/mig-1g.10gb"),
        ("KINETIC_GPU_RESOURCE", "a b/c", "as in nvidia.com/mig-1g.10gb"),
        ("KINETIC_SCHEDULER", "Mine", "lower-case letters"),
        ("KINETIC_VOLUME_CLAIMS", "data=sets", "'data=sets' is not a volume: expected /path=claim"),
        ("KINETIC_VOLUME_CLAIMS", "/data=sets:rw", "'/data=sets:rw' is not a volume"),
        ("KINETIC_VOLUME_CLAIMS", "/data=sets/../x", "'/data=sets/../x' is not a volume"),
        ("KINETIC_VOLUME_CLAIMS", "/a:b=sets", "'/a:b=sets' is not a volume"),
        ("KINETIC_VOLUME_CLAIMS", "//proc/x=sets", "it would hide what every pod needs"),
        ("KINETIC_VOLUME_CLAIMS", "/data=Sets", "lower-case letters"),
        ("KINETIC_VOLUME_CLAIMS", "/data=a,/data/=b", "/data is there twice"),
        ("KINETIC_VOLUME_CLAIMS", "//=a", "it would hide what every pod needs"),
        ("KINETIC_VOLUME_CLAIMS", "/tmp/=a", "it would hide what every pod needs"),
        ("KINETIC_VOLUME_CLAIMS", "/kinetic/x=a", "it would hide what every pod needs"),
        ("KINETIC_TTL_HOURS", "soon", "more than 0"),
        ("KINETIC_TTL_HOURS", "0", "more than 0"),
        ("KINETIC_TTL_HOURS", "-1", "more than 0"),
        ("KINETIC_TTL_HOURS", "nan", "more than 0"),
        ("KINETIC_TTL_HOURS", "inf", "more than 0"),
        ("KINETIC_TTL_HOURS", "1e6", "at most 596523 hours"),
        ("KINETIC_MOST_ATTEMPTS", "0", "at least 1"),
        ("KINETIC_MOST_ATTEMPTS", "1.5", "at least 1"),
        ("KINETIC_MOST_ATTEMPTS", "-3", "at least 1"),
        ("KINETIC_MOST_ATTEMPTS", "\u0663", "at least 1"),  # a digit of another script
    ],
)
def test_a_value_that_no_cluster_would_take_is_refused(variable, value, why):
    with pytest.raises(OptionError) as caught:
        cluster.read_settings(None, {variable: value})

    assert f"{variable}={value!r}" in caught.value.what
    assert why in caught.value.why
    assert f"export {variable}=" in caught.value.next


def test_a_value_in_a_profile_is_refused_by_the_name_of_the_profile():
    with pytest.raises(OptionError) as caught:
        cluster.read_settings(TEAM._replace(ttl_hours="soon"), {})

    assert caught.value.what == "ttl_hours='soon' in profile team is not a valid number of hours"
    assert "correct it in profile team" in caught.value.next


@pytest.mark.parametrize("field", cluster.FIELDS)
def test_what_an_error_proposes_can_be_used(field):
    variable = f"KINETIC_{field.upper()}"
    with pytest.raises(OptionError) as caught:
        cluster.read_settings(None, {variable: "?"})
    proposed = caught.value.next.removeprefix(f"export {variable}=").partition("  ")[0]

    assert cluster.look_up(field, None, {variable: proposed}).value


# Who submits.


def test_the_variable_says_who_submits_and_else_the_login_name():
    assert cluster.owner({"KINETIC_OWNER": "mia", "USER": "root"}) == "mia"
    assert cluster.owner({"KINETIC_OWNER": "", "LOGNAME": "max", "USER": "root"}) == "max"
    assert cluster.owner({"USER": "root"}) == "root"


def test_an_empty_environment_leaves_the_name_that_the_system_has():
    assert cluster.owner({}) == pwd.getpwuid(os.getuid()).pw_name


def test_a_user_whom_the_system_does_not_know_is_named_by_number(monkeypatch):
    def unknown(number):
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)

    assert cluster.owner({"USER": " "}) == f"user-{os.getuid()}"
