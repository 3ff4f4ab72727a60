"""Whoever can write to a store, a folder or a bucket, cannot steer whoever reads it: attacks as carried out."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from kinetic._config import home as config_home
from kinetic._jobs import find
from kinetic._wire import documents, keys
from kinetic.errors import CredentialsError, IntegrityError

EVIL = "cpu-evil-20261120-143000-0000001"
GROUP = "grp-00000bad"


@pytest.fixture
def store(folder_or_bucket, home, monkeypatch):
    """Return the store that this caller's jobs lie in, and in which others write."""
    monkeypatch.setenv("KINETIC_STORE", folder_or_bucket.url)
    return folder_or_bucket


@pytest.fixture
def victim(tmp_path, monkeypatch):
    """Return what others would like to reach: files of this user's, and a kubeconfig that runs a program."""
    (tmp_path / "victim" / "photos").mkdir(parents=True)
    (tmp_path / "victim" / "photos" / "baby.jpg").write_text("dear")
    sign = tmp_path / "executed"
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": [str(sign)]}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "evil", "cluster": {"server": "https://127.0.0.1:9"}}],
        "users": [{"name": "evil", "user": {"exec": {**plugin, "interactiveMode": "Never"}}}],
        "contexts": [{"name": "evil", "context": {"cluster": "evil", "user": "evil"}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    return tmp_path


def record(victim: Path, job_id: str = EVIL, **more: object) -> dict[str, object]:
    names = "project cluster_name zone namespace bucket_name k8s_name image_uri accelerator display_name".split()
    fields = dict.fromkeys(names, "evil") | {
        "job_id": job_id,
        "func_name": "steal\x1b]0;\x07",
        "schema": documents.SCHEMA,
    }
    fields |= {"created_at": "2099-01-01T00:00:00Z", "backend": "gke", "context": "evil", "key_id": ""}
    return fields | {"store": f"file://{victim}/victim", "output_dir": f"{victim}/victim/photos"} | more


def intact(victim: Path) -> bool:
    return (victim / "victim" / "photos" / "baby.jpg").exists() and not (victim / "executed").exists()


FORGED = {
    "no key": {},
    "unknown key": {"key_id": "f" * 16},
    "known key, no seal": {"key_id": None},
    "known key, wrong seal": {"key_id": None, "mac": "0" * 64},
    "a seal of strange letters": {"key_id": None, "mac": "\u00e9" * 64},
    "here": {"backend": "local", "context": None, "store": None},
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_a_record_that_cannot_be_verified_steers_nothing(
    change, store, victim, home, kinetic, tmp_path, caplog
) -> None:
    key_id, _ = config_home.own_key(home)
    for job_id in (EVIL, "photos"):  # the second is the name of a folder in the store that it names
        page = record(victim, job_id, **change)
        page["key_id"] = key_id if page["key_id"] is None else page["key_id"]
        page["store"] = page["store"] or store.url
        store.put(keys.record(job_id), json.dumps(page).encode())

    listed = kinetic("jobs", "list")
    cleaned = kinetic("jobs", "cleanup", "--all", "--yes")
    tried = [
        kinetic(*words)
        for words in (
            ("jobs", "show", EVIL),
            ("jobs", "cleanup", EVIL, "--yes"),
            ("jobs", "cancel", EVIL),
            ("jobs", "logs", EVIL),
            ("jobs", "result", EVIL),
            ("outputs", "get", EVIL, "--to", str(tmp_path / "here")),
            ("shell", EVIL),
        )
    ]

    assert intact(victim)
    assert (listed.exit_code, cleaned.exit_code) == (0, 0)
    assert "2 unverified jobs are not listed" in caplog.text
    assert f"{EVIL} (steal\\x1b]0;\\x07, 2099-01-01T00:00:00Z)" in caplog.text
    assert "\x1b" not in caplog.text
    assert not (tmp_path / "here").exists()
    for told in tried:
        assert told.exit_code != 0, told.output
    for told in (listed, cleaned, *tried):
        assert "\x1b" not in told.output
        assert "Traceback" not in told.output
    with pytest.raises((CredentialsError, IntegrityError)) as refused:
        find.attach(EVIL)
    assert "kinetic key import" in str(refused.value) or "who can write to the store" in str(refused.value)


def test_a_record_of_ours_from_another_store_or_under_another_name_is_not_believed(store, victim, home) -> None:
    key_id, key = config_home.own_key(home)
    fields = record(victim, key_id=key_id, backend="local", store="file:///old/store")
    fields.pop("schema")
    from kinetic._jobs import locate

    whole = locate.seal_record(fields, {}, documents.job_key(key, EVIL, "file:///old/store"))
    store.put(keys.record(EVIL), whole)
    store.put(keys.record("cpu-other-20261120-143000-0000002"), whole)

    for job_id, code in ((EVIL, "other-store"), ("cpu-other-20261120-143000-0000002", "seal")):
        with pytest.raises(IntegrityError) as refused:
            find.attach(job_id)
        assert refused.value.code == code


def test_a_forged_page_of_the_history_steers_nothing_and_hides_no_job(store, victim, kinetic, made_job, home) -> None:
    job = made_job("failed")
    for job_id in (EVIL, job):
        page = record(victim, job_id, status="SUCCEEDED", collected=1.0, attempts=10**9, artifacts_removed=True)
        store.put(keys.history(job_id), json.dumps(page | {"resource_removed": True, "logs": 7}).encode())

    told = [
        kinetic("jobs", "list", "--all"),
        kinetic("jobs", "cleanup", "--all"),
        kinetic("outputs", "get", EVIL, "--to", str(victim / "here")),
        kinetic("jobs", "logs", EVIL),
        kinetic("disk"),
    ]

    assert intact(victim)
    assert not (victim / "here").exists()
    assert told[0].exit_code == 0
    assert not any("Traceback" in each.output for each in told)
    assert kinetic("jobs", "status", job).stdout.strip() == f"{job}: FAILED"


def test_a_forged_manifest_of_a_batch_steers_nothing(store, victim, kinetic) -> None:
    handle = record(victim)
    page = {
        "schema": documents.SCHEMA,
        "group_id": GROUP,
        "group_name": "evil",
        "tags": {},
        "created": 4e9,
        "total_expected": 10**9,
        "submit_fn_name": "steal",
        "slug": "cpu",
        "handle": handle,
        "more": {},
        "settings": {"retries": 10**9, "wishes": "all"},
        "order_sha256": "0" * 64,
        "table_sha256": "0" * 64,
        "outputs": str(victim / "victim"),
        "key_id": "f" * 16,
        "store": store.url,
    }
    store.put(keys.group_manifest(GROUP), json.dumps(page).encode())

    listed = kinetic("batch", "list")
    tried = [kinetic("batch", word, GROUP) for word in ("status", "resume", "cancel", "results")]
    tried.append(kinetic("batch", "cleanup", GROUP, "--yes"))

    assert intact(victim)
    assert listed.exit_code == 0
    assert GROUP in listed.output
    assert all(told.exit_code != 0 and "Traceback" not in told.output for told in tried)


DEEP = b"[" * 200_000
ODD = {
    "200,000 brackets": DEEP,
    "deep inside": b'{"schema":%d,"x":' % documents.SCHEMA + DEEP + b"}",
    "half of a character": b'{"schema":%d,"job_id":"\\ud800"}' % documents.SCHEMA,
    "no UTF-8": b"\xff\xfe",
    "nothing": b"",
    "null": b"null",
    "an endless number": b'{"schema":' + b"9" * 100_000 + b"}",
    "not a number": b'{"schema":%d,"created":NaN}' % documents.SCHEMA,
    "a number of another kind": b'{"schema":%d.0}' % documents.SCHEMA,
    "a page of before": b'{"schema":1}',
    "only a schema": b'{"schema":%d}' % documents.SCHEMA,
    "wrong types": b'{"schema":%d,"job_id":[],"backend":{},"store":7,"key_id":{"a":1},"created_at":[]}'
    % documents.SCHEMA,
    "24 MB": b'{"schema":3,"x":"' + b"x" * (24 << 20) + b'"}',  # more than any page may have
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_one_odd_object_costs_one_line_and_breaks_no_list(odd, store, kinetic, made_job, made_batch, caplog) -> None:
    job, batch = made_job("succeeded"), made_batch("succeeded", "failed")
    for key in (
        keys.record(EVIL),
        keys.group_manifest(GROUP),
        keys.history("cpu-odd-20261120-143000-0000003"),
        keys.lease(batch, 7),
        keys.control_entry(batch, 3),
        keys.attempt(job, 4),
        f"{keys.marks(batch)}0000/0000001.0.succeeded",
        f"{keys.children(batch)}0000/9999999.0.here.00",
        keys.log_segment(job, 0, 0, 5).replace("5", "x"),
    ):
        store.put(key, odd)
    begun = time.monotonic()

    jobs, batches = kinetic("jobs", "list", "--all", "--json"), kinetic("batch", "list", "--json")
    status, disk = kinetic("batch", "status", batch, "--json"), kinetic("disk")

    assert [told.exit_code for told in (jobs, batches, disk)] == [0, 0, 0], jobs.output + batches.output + disk.output
    assert job in {each["job_id"] for each in json.loads(jobs.stdout)["jobs"]}
    assert [each["group_id"] for each in json.loads(batches.stdout)["batches"]] == [batch]
    assert EVIL in caplog.text
    assert GROUP in batches.stderr
    assert json.loads(status.stdout)["batch"]["counts"]["succeeded"] == 1
    assert time.monotonic() - begun < 15


@pytest.mark.parametrize("folder_or_bucket", ["folder"], indirect=True)  # a bucket has no such files
def test_an_odd_file_is_passed_over_and_never_waited_for(home, kinetic, made_job) -> None:
    job, root = made_job("succeeded"), home / "store"
    for number, make in enumerate((os.mkfifo, _sparse, os.mkdir, lambda path: os.symlink("/dev/zero", path))):
        folder = root / f"cpu-odd-20261120-143000-{number:07d}"
        folder.mkdir()
        make(folder / "handle.json")
    (root / "history").mkdir(exist_ok=True)
    os.mkfifo(root / "history" / f"{job}.json")
    os.mkfifo(root / job / "attempts") if not (root / job / "attempts").exists() else None
    (root / GROUP).mkdir()
    os.mkfifo(root / GROUP / "manifest.json")

    told = kinetic("jobs", "list", "--all", "--json")

    assert told.exit_code == 0, told.output
    assert [each["job_id"] for each in json.loads(told.stdout)["jobs"]] == [job]


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)
