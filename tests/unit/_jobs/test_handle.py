"""A handle holds plain data: it goes anywhere as a dictionary, and is used only where its backend exists."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import shutil
import socket
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from servers import user_module

import kinetic
from kinetic import testing
from kinetic._batches import batch_handle
from kinetic._batches.batch_handle import BatchHandle
from kinetic._config import home as config_home
from kinetic._config import target as settings
from kinetic._inspect.port_forward import free_port
from kinetic._jobs import environment, find, job_list
from kinetic._jobs import wait as job_wait
from kinetic._jobs.handle import take_value
from kinetic._stores import open_store
from kinetic._stores.memory import MemoryStore
from kinetic._wire import digests, documents, keys
from kinetic._wire.outcomes import FAILED, SUCCEEDED, Outcome
from kinetic.errors import (
    BackendUnavailableError,
    CredentialsError,
    DebugError,
    OptionError,
    OptionTypeError,
    ResultMissingError,
    RunnerError,
    StoreError,
    StoreUnreachableError,
)

JOB = "cpu-train-20261120-143000-1a2b3c4"
FIELDS = {
    "job_id": JOB,
    "backend": "local",
    "project": "local",
    "cluster_name": "local",
    "zone": "local",
    "namespace": "default",
    "bucket_name": "/home/me/.kinetic/store",
    "k8s_name": "kinetic-cpu-train-20261120-143000-1a2b3c4",
    "image_uri": "",
    "accelerator": "cpu",
    "func_name": "train",
    "display_name": "kinetic-train-cpu-train-20261120-143000-1a2b3c4",
    "created_at": "2026-11-20T14:30:00Z",
}

ADDS = """
    import kinetic

    @kinetic.run(accelerator="cpu")
    def add(a, b):
        return a + b
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("handle", "name", "instead"),
    [
        (kinetic.JobHandle.from_dict(FIELDS), "get", "result()"),
        (kinetic.JobHandle.from_dict(FIELDS), "ready", "done()"),
        (BatchHandle("grp-a1b2c3d4", None, {}, []), "result", "results()"),
    ],
)
def test_what_other_libraries_call_it_is_answered_with_its_name_here(handle: Any, name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"Handle' object has no attribute '{name}'; here it is ") as raised:
        getattr(handle, name)

    assert f" {instead} (docs/moving.md)" in str(raised.value)
    assert not hasattr(handle, "nothing_of_this_name")


def handle(**changed: object) -> kinetic.JobHandle:
    return kinetic.JobHandle(**{**FIELDS, **changed})


def test_a_handle_becomes_plain_data_and_comes_back() -> None:
    job = handle(group_id="grp-12345678", group_index=0, store="file:///home/me/.kinetic/store")

    again = kinetic.JobHandle.from_dict(json.loads(json.dumps(job.to_dict())))

    assert again == job
    assert {job: "its input"}[again] == "its input"


def test_fields_that_are_none_are_left_out() -> None:
    assert handle().to_dict() == {**FIELDS, "debug": False}


def test_a_field_that_is_zero_or_empty_is_no_none() -> None:
    found = handle(group_index=0, image_uri="").to_dict()

    assert found["group_index"] == 0
    assert found["image_uri"] == ""


def test_keys_of_a_later_version_are_passed_over() -> None:
    assert kinetic.JobHandle.from_dict({**FIELDS, "colour": "red", "_value": 3, "schema": 9}) == handle()


@pytest.mark.parametrize("name", FIELDS)
def test_a_mandatory_field_that_is_missing_is_a_type_error(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        kinetic.JobHandle.from_dict({key: value for key, value in FIELDS.items() if key != name})


def test_what_was_collected_is_no_part_of_a_handle() -> None:
    first, second = handle(), handle()
    first._value = [1]

    assert first == second
    assert "_value" not in repr(first)
    assert "_value" not in first.to_dict()


class TrapError(Exception):
    """Leaves a sign when it is unpickled."""

    def __init__(self, sign: str) -> None:
        super().__init__(sign)
        self.sign = sign

    def __reduce__(self) -> tuple[object, ...]:
        return _spring, (self.sign,)


def _spring(sign: str) -> Exception:
    Path(sign).touch()
    return ValueError("sprung")


def forged_failure(folder: Path, sign: Path) -> kinetic.JobHandle:
    """Return a job whose failure was written by somebody without its key, which is not on this machine."""
    store = open_store(f"file://{folder / 'store'}")
    body = pickle.dumps(TrapError(str(sign)))
    verdict = Outcome(JOB, FAILED, cause="exception", body_length=len(body), body_sha256=digests.of_bytes(body))
    store.put(keys.result(JOB), body + verdict.footer(bytes(32)))
    return handle(store=store.url, key_id="0123456789abcdef", group_id="grp-12345678", group_index=0)


def test_an_exception_that_cannot_be_verified_is_not_unpickled(tmp_path: Path) -> None:
    job = forged_failure(tmp_path, tmp_path / "sign")

    with pytest.raises(CredentialsError, match="key"):
        job.exception()

    assert not (tmp_path / "sign").exists()


def test_failures_of_a_batch_that_cannot_be_verified_are_not_unpickled(tmp_path: Path) -> None:
    batch = BatchHandle("grp-12345678", None, {}, [forged_failure(tmp_path, tmp_path / "sign")])

    (found,) = batch.results(return_exceptions=True, cleanup=False)

    assert isinstance(found, CredentialsError)
    assert not (tmp_path / "sign").exists()


def test_the_value_of_an_ended_job_is_taken_without_asking_its_backend(tmp_path: Path) -> None:
    key_id, key = config_home.own_key(tmp_path / "home")
    store = open_store(f"file://{tmp_path / 'store'}")
    body = pickle.dumps([1, 2])
    verdict = Outcome(JOB, SUCCEEDED, body_length=len(body), body_sha256=digests.of_bytes(body), key_id=key_id)
    store.put(keys.result(JOB), body + verdict.footer(documents.job_key(key, JOB, store.url)))
    job = handle(backend="mainframe", store=store.url, key_id=key_id)

    assert take_value(job) == [1, 2]
    assert take_value(job) is take_value(job)  # and once it is here, it stays


def test_the_value_of_a_job_without_an_outcome_is_waited_for() -> None:
    with pytest.raises(ValueError, match="Unknown backend"):  # which is asked, since the store has nothing
        take_value(handle(backend="mainframe"))


def test_a_backend_that_nobody_knows_is_told_when_it_is_first_used() -> None:
    job = handle(backend="mainframe")

    for use in (job.status, job.result, job.logs, job.tail, job.cancel, job.cleanup, job.done, job.wait, job.exception):
        with pytest.raises(ValueError, match="Unknown backend") as raised:
            use()
        assert isinstance(raised.value, OptionError)


@pytest.mark.parametrize("backend", ["gke", "pathways"])
def test_a_job_on_a_cluster_that_nothing_leads_to_says_what_is_missing(
    backend: str, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    job = handle(backend=backend, project="", store=f"file://{tmp_path}/store")

    with pytest.raises(BackendUnavailableError, match="no cluster is configured") as raised:
        job.status()
    assert "KINETIC_KUBE_CONTEXT" in str(raised.value)


def test_a_job_that_never_was_is_not_found_and_has_no_result() -> None:
    job = handle()

    assert job.status() is kinetic.JobStatus.NOT_FOUND
    assert job.done()
    assert not job.running()
    with pytest.raises(RuntimeError, match=f"{job.job_id}/result.pkl"):
        job.result()
    assert isinstance(job.exception(), RuntimeError)
    assert job.logs() == ""
    assert job.tail() == ""


@pytest.mark.parametrize(
    ("name", "value"), [("path", None), ("path", 3), ("path", b"model.pt"), ("to", 3), ("force", "no")]
)
def test_what_is_no_path_of_outputs_is_refused_before_anything_is_copied(name: str, value: Any) -> None:
    with pytest.raises(OptionTypeError, match=f"^{name}="):
        handle().get_outputs(**{name: value})


def test_a_process_that_outlives_its_home_finds_no_job_there_any_more(tmp_path: Path) -> None:
    job = handle()
    assert job.status() is kinetic.JobStatus.NOT_FOUND
    shutil.rmtree(tmp_path / "home")

    assert job.status() is kinetic.JobStatus.NOT_FOUND
    assert job.tail() == ""
    assert kinetic.list_jobs() == []


def test_a_job_that_was_not_submitted_to_be_debugged_has_nothing_to_attach_to() -> None:
    with pytest.raises(DebugError, match=f"{JOB} has no debug server") as raised:
        handle().debug_attach(local_port=free_port(), working_dir="/x")

    assert isinstance(raised.value, RuntimeError)
    assert raised.value.code == "not-a-debug-job"
    assert str(raised.value.next).endswith(f"or see its log: kinetic jobs logs {JOB}")  # it has ended


def test_a_port_that_is_taken_is_of_no_interest_where_there_is_nothing_to_attach_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        with pytest.raises(DebugError, match="has no debug server"):
            handle().debug_attach(local_port=port)


def test_a_debug_job_that_never_was_has_nothing_to_attach_to_either() -> None:
    with pytest.raises(DebugError, match=f"{JOB} has ended"):
        handle(debug=True).debug_attach(local_port=free_port())


# ------------------------------------------------------------------------------------------------- from a context


def context(**changed: object) -> SimpleNamespace:
    def train():
        return 1

    fields = {
        "job_id": "job-a1b2c3d4",
        "project": "my-project",
        "cluster_name": "my-cluster",
        "zone": "us-central1-a",
        "bucket_name": "my-project-kn-my-cluster-jobs",
        "image_uri": "docker.io/x",
        "accelerator": "tpu-v5e-1",
        "func": train,
        "display_name": "kinetic-train-job-a1b2c3d4",
        "debug": False,
    }
    return SimpleNamespace(**{**fields, **changed})


@pytest.mark.parametrize("attempt", [-1, "0", True, 0.0])
def test_the_usage_of_what_is_no_attempt_is_refused(attempt: object) -> None:
    with pytest.raises(OptionError, match="attempt must be 0 or more, got"):
        handle().usage(attempt)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("result", {"cleanup": "no"}),
        ("result", {"stream_logs": "x"}),
        ("result", {"cleanup_timeout": "x"}),
        ("cancel", {"cleanup_timeout": [1]}),
        ("cleanup", {"gcs": "false"}),
        ("cleanup", {"k8s": 2}),
        ("tail", {"n": "10"}),
    ],
    ids=str,
)
def test_an_argument_of_another_type_is_refused_before_anything_is_done(method: str, given: dict[str, object]) -> None:
    (name,) = given

    with pytest.raises(OptionTypeError, match=f"^{name}"):
        getattr(handle(), method)(**given)


def test_a_handle_is_built_from_any_object_with_these_attributes() -> None:
    job = kinetic.JobHandle.from_job_context(context(), "gke", "default", "keras-job")

    assert job.job_id == "job-a1b2c3d4"
    assert (job.backend, job.namespace, job.k8s_name) == ("gke", "default", "keras-job")
    assert (job.project, job.cluster_name, job.zone) == ("my-project", "my-cluster", "us-central1-a")
    assert (job.func_name, job.accelerator, job.image_uri) == ("train", "tpu-v5e-1", "docker.io/x")
    assert (job.bucket_name, job.display_name) == ("my-project-kn-my-cluster-jobs", "kinetic-train-job-a1b2c3d4")
    assert job.debug is False
    assert job.group_id is None


def test_an_image_that_is_not_known_is_an_empty_string() -> None:
    assert kinetic.JobHandle.from_job_context(context(image_uri=None), "gke", "default", "x").image_uri == ""


def test_the_time_of_creation_is_utc_in_whole_seconds() -> None:
    job = kinetic.JobHandle.from_job_context(context(debug=True), "gke", "default", "x")

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", job.created_at)
    assert job.debug is True


# ------------------------------------------------------------------------------------------------- a card


def test_a_notebook_shows_a_card() -> None:
    card = handle()._repr_html_()

    for text in (FIELDS["job_id"], "NOT_FOUND", "train", "cpu · local", "2026-11-20T14:30:00Z", "kinetic jobs logs"):
        assert text in card


def test_a_card_shows_names_as_text_and_never_as_markup() -> None:
    card = handle(func_name="<script>alert(1)</script>")._repr_html_()

    assert "<script>" not in card
    assert "&lt;script&gt;" in card


def test_a_card_never_breaks_a_notebook() -> None:
    assert "unknown (OptionError)" in handle(backend="mainframe")._repr_html_()


def test_the_repr_names_the_job() -> None:
    assert "job_id='cpu-train-20261120-143000-1a2b3c4'" in repr(handle())


def test_the_repr_is_one_line_whatever_a_field_holds() -> None:
    shown = repr(handle(func_name="train\n\x1b[2J", accelerator="cpu\u202e"))

    assert shown == (
        "JobHandle(job_id='cpu-train-20261120-143000-1a2b3c4', func_name='train\\n\\x1b[2J', "
        "accelerator='cpu\\u202e', backend='local')"
    )


def test_the_repr_of_a_batch_is_three_lines_and_asks_nobody() -> None:
    batch = kinetic.BatchHandle("grp-0a1b2c3d", "a\nsweep", {}, [handle(store="gs://far-away"), None])

    assert repr(batch).splitlines() == [
        "BatchHandle(group_id='grp-0a1b2c3d', name='a\\nsweep', 2 inputs)",
        "  when last seen: 1 submitted",
        "  now: kinetic batch status grp-0a1b2c3d",
    ]


def test_a_small_value_is_read_together_with_its_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with testing.fake_backend(tmp_path):
        job = user_module.imported(tmp_path, ADDS, monkeypatch).add.run_async(1, 2)
        job_wait.wait(job)
        asked: list[tuple[str, str]] = []
        for name in ("get", "size", "entry"):
            monkeypatch.setattr(MemoryStore, name, _noting(asked, name, getattr(MemoryStore, name)))

        value = job.result(cleanup=False)

    of_result = [(name, key) for name, key in asked if key == keys.result(job.job_id)]
    assert (value, of_result) == (3, [("get", keys.result(job.job_id))])


def test_a_fake_job_that_reads_data_says_where_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with testing.fake_backend(tmp_path):
        job = user_module.imported(tmp_path, ADDS, monkeypatch).add.run_async(kinetic.Data(__file__), 2)
        with pytest.raises(RunnerError, match="reads data, which a fake backend does not deliver") as refused:
            job.result()

    assert str(refused.value).count("[runner]") == 1
    assert "temporary_home" in str(refused.value.next)


@pytest.mark.parametrize("named_by", ["argument", "variable"])
def test_a_job_of_a_fake_backend_writes_into_the_output_folder_that_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_by: str
) -> None:
    chosen = tmp_path / "runs"
    resumes = """
        from pathlib import Path
        import kinetic

        @kinetic.run("cpu", retries=1)
        def resumed(step):
            kept = Path(kinetic.checkpoint_dir(), "step")
            if not kept.exists():
                kept.write_text(str(step))
                raise OSError("the first attempt at all steps is interrupted")
            return int(kept.read_text())
    """
    resumed = user_module.imported(tmp_path, resumes, monkeypatch).resumed
    if named_by == "variable":
        monkeypatch.setenv("KINETIC_OUTPUT_DIR", str(chosen))
    else:
        resumed = resumed.with_options(output_dir=str(chosen))
    with testing.fake_backend(tmp_path):
        job = resumed.run_async(3)
        found = job.result(cleanup=False), job.get_outputs("checkpoints/step", to=tmp_path / "copied").read_text()
        batch = resumed.run_async_map([1, 2])
        values = batch.results()

    assert found == (3, "3")
    assert values == [1, 2]
    assert (chosen / "checkpoints" / "step").read_text() == "3"
    assert (chosen / batch.group_id / "1" / "checkpoints" / "step").read_text() == "2"
    assert os.environ.get("KINETIC_OUTPUT_DIR") == (str(chosen) if named_by == "variable" else None)
    assert "KINETIC_CHECKPOINT_DIR" not in os.environ


def test_the_log_of_a_fake_job_has_its_output_and_its_errors_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    says = """
        import sys
        import kinetic

        @kinetic.run(accelerator="cpu")
        def say():
            print("one")
            print("two", file=sys.stderr)
            print("three")
    """
    with testing.fake_backend(tmp_path):
        job = user_module.imported(tmp_path, says, monkeypatch).say.run_async()
        job.wait()

        assert job.logs() == "one\ntwo\nthree\n"

        failed = user_module.imported(tmp_path, ADDS, monkeypatch).add.run_async(1, "2")
        failed.wait()

        assert failed.tail(1).startswith("TypeError: unsupported operand")
    assert "two" not in capfd.readouterr().err


def test_a_function_in_the_value_of_a_fake_job_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with testing.fake_backend(tmp_path):
        module = user_module.imported(tmp_path, ADDS, monkeypatch)

        assert module.add([lambda: 3], [])[0]() == 3


def test_a_job_of_which_nothing_is_to_be_removed_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with testing.fake_backend(tmp_path):
        job = user_module.imported(tmp_path, ADDS, monkeypatch).add.run_async(1, 2)
        job.wait()

        job.cleanup(k8s=False, gcs=False)

        assert job.status() is kinetic.JobStatus.SUCCEEDED
        assert job.history()["removed_at"] is None


@pytest.mark.parametrize(
    ("first", "second", "is_removed"),
    [(False, None, True), (False, True, True), (False, False, False), (None, False, True)],
)
def test_what_one_result_keeps_a_later_one_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool | None, second: bool | None, is_removed: bool
) -> None:
    with testing.fake_backend(tmp_path):
        job = user_module.imported(tmp_path, ADDS, monkeypatch).add.run_async(1, 2)

        assert [job.result(cleanup=first), job.result(cleanup=second)] == [3, 3]

        assert job.status() is kinetic.JobStatus["NOT_FOUND" if is_removed else "SUCCEEDED"]
        assert job.history()["status"] == "SUCCEEDED"


@pytest.mark.parametrize("first", [lambda job: job.result(), lambda job: job.exception()])
def test_a_failed_job_is_removed_also_by_the_second_result_that_is_to_do_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: Callable[[Any], object]
) -> None:
    with testing.fake_backend(tmp_path):
        job = user_module.imported(tmp_path, ADDS, monkeypatch).add.run_async(1, "2")
        with contextlib.suppress(TypeError):
            first(job)
        with pytest.raises(TypeError):
            job.result()
        assert job.status() is kinetic.JobStatus.FAILED

        with pytest.raises(TypeError):
            job.result(cleanup=True)

        assert job.status() is kinetic.JobStatus.NOT_FOUND


def test_a_value_is_returned_again_though_its_job_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with testing.fake_backend(tmp_path):
        job = user_module.imported(tmp_path, ADDS, monkeypatch).add.run_async(1, 2)
        job.result(cleanup=False)
        monkeypatch.setattr(MemoryStore, "get", _raises(StoreError("the store is away")))

        assert job.result() == 3
        assert "could not be removed: the store is away" in caplog.text


@pytest.mark.parametrize("error", [StoreError("the store is away"), RuntimeError("too slow, says a signal handler")])
def test_values_arrive_whatever_is_raised_while_their_jobs_are_removed(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with testing.fake_backend(tmp_path):
        add = user_module.imported(tmp_path, ADDS, monkeypatch).add
        job, batch = add.run_async(1, 2), add.run_async_map([(3, 4), (5, 6)], max_concurrent=None)
        monkeypatch.setattr(MemoryStore, "delete", _raises(error))

        assert job.result() == 3
        assert batch.results() == [7, 11]


def _raises(error: Exception) -> Callable[..., Any]:
    def method(*_: object, **__: object) -> Any:
        raise error

    return method


@pytest.mark.parametrize("number", [2, "2"])
def test_a_job_that_was_removed_in_two_steps_is_remembered_as_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: object
) -> None:
    with testing.fake_backend(tmp_path):
        job = user_module.imported(tmp_path, ADDS, monkeypatch).add.run_async(1, number)
        how = job.wait().value
        job.cleanup(gcs=False)
        with contextlib.suppress(TypeError):
            kinetic.attach(job.job_id).result(cleanup=True)

        assert (job.history()["status"], bool(job.history()["collected_at"])) == (how, True)

        job.cleanup()

        assert job.history()["status"] == how


def test_a_result_that_was_removed_is_not_called_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with testing.fake_backend(tmp_path):
        job = user_module.imported(tmp_path, ADDS, monkeypatch).add.run_async(1, 2)
        job.wait()
        job.cleanup()
        with pytest.raises(ResultMissingError, match="has no result") as raised:
            job.result()

    assert str(raised.value.why).startswith("its status was SUCCEEDED when it was removed at 20")


def test_a_handle_of_a_collected_job_notices_that_its_log_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with testing.fake_backend(tmp_path):
        job = user_module.imported(tmp_path, ADDS, monkeypatch).add.run_async(1, 2)
        job.result()
        attached = kinetic.attach(job.job_id)
        job.cleanup()
        with pytest.raises(ResultMissingError, match="has no result") as raised:
            attached.result()

    assert str(raised.value.why).startswith("its status was SUCCEEDED when it was removed at 20")


def test_a_large_value_is_not_held_by_its_handle_besides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with testing.fake_backend(tmp_path):
        module = user_module.imported(tmp_path, ADDS, monkeypatch)
        small, large = module.add.run_async("a", "b"), module.add.run_async("a" * 100_000, "b")

        values = [small.result(cleanup=False), large.result(cleanup=False)]

    assert values == ["ab", "a" * 100_000 + "b"]
    assert [job._ended.body for job in (small, large)] == [None, None]


@pytest.mark.parametrize("at", ["before it was removed", "after it was removed"])
def test_a_value_whose_removal_ctrl_c_broke_off_is_returned_by_the_next_result_which_removes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    with testing.fake_backend(tmp_path) as backend:
        job = user_module.imported(tmp_path, ADDS, monkeypatch).add.run_async(1, 2)
        delete = MemoryStore.delete

        def interrupted(store: MemoryStore, prefix: str) -> int:
            if at.startswith("after"):
                delete(store, prefix)
            raise KeyboardInterrupt

        with monkeypatch.context() as during:
            during.setattr(MemoryStore, "delete", interrupted)
            with pytest.raises(KeyboardInterrupt):
                job.result()

        assert job.result() == 3
        assert [*open_store(job.store or "").entries(keys.job(job.job_id))] == []
        assert job.history()["collected_at"] is not None
        assert backend.jobs == []


def _noting(asked: list[tuple[str, str]], name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def noted(store: MemoryStore, key: str, **options: Any) -> Any:
        asked.append((name, key))
        return method(store, key, **options)

    return noted


@pytest.mark.parametrize("call", [lambda job: job.logs("no"), lambda job: next(job.log_lines(follow="no"))])
def test_a_text_is_not_taken_for_a_wish_to_follow(call: Callable[[Any], object]) -> None:
    with pytest.raises(OptionTypeError, match="follow='no' is neither True nor False"):
        call(kinetic.JobHandle(**FIELDS))


@pytest.mark.parametrize("wrong", [3, "print", []])
def test_what_cannot_be_called_is_not_taken_for_a_callback_before_anything_is_waited_for(wrong: Any) -> None:
    with pytest.raises(OptionTypeError, match="on_status_change must be a function, got"):
        kinetic.JobHandle(**FIELDS).result(on_status_change=wrong)


def test_every_field_is_a_json_value_also_once_the_handle_has_the_result(tmp_path, monkeypatch) -> None:
    with testing.fake_backend(tmp_path):
        job = user_module.imported(tmp_path, ADDS, monkeypatch).add.run_async(1, 2)
        assert job.result() == 3

    assert kinetic.JobHandle(**json.loads(json.dumps(asdict(job)))) == job


def test_a_store_in_the_memory_of_this_process_is_refused_for_jobs_of_this_machine(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_STORE", "memory://ours")

    with pytest.raises(OptionError, match="memory://ours is in the memory of this process"):
        user_module.imported(tmp_path, ADDS, monkeypatch).add.run_async(1, 2)


@pytest.fixture
def two_stores(tmp_path, monkeypatch):
    """Return what submits in this machine's store and then in another one, and the target that has both."""
    elsewhere = f"file://{tmp_path}/elsewhere"
    with testing.fake_backend(tmp_path):
        add = user_module.imported(tmp_path, ADDS, monkeypatch).add

        def both(submit):
            made = []
            for url in (environment.local_store().url, elsewhere):
                monkeypatch.setenv("KINETIC_STORE", url)
                made.append(submit(add))
            monkeypatch.delenv("KINETIC_STORE")
            return made

        yield both, settings.resolve()._replace(store=settings.Setting(elsewhere, "profile team"))


@pytest.mark.parametrize("collected", [False, True])
def test_the_beginning_of_the_id_of_a_job_of_this_machine_and_of_one_of_a_cluster_is_refused(
    two_stores, collected
) -> None:
    both, target = two_stores
    jobs = both(lambda add: add.run_async(1, 2))
    for job in jobs if collected else ():
        job.result()

    with pytest.raises(OptionError, match="'cpu-add-' is the beginning of 2 ") as raised:
        find.find_record("cpu-add-", target)

    assert all(job.job_id in str(raised.value) for job in jobs)
    assert [find.find_record(job.job_id[:-1], target).job_id for job in jobs] == [job.job_id for job in jobs]


@pytest.mark.parametrize("word", ["sweep", "grp-"])
def test_what_a_batch_of_this_machine_and_one_of_a_cluster_may_mean_is_refused(two_stores, word) -> None:
    both, target = two_stores
    ids = [batch.group_id for batch in both(lambda add: add.run_async_map([(1, 2)], name="sweep"))]
    stores = job_list.stores(target)

    with pytest.raises(OptionError) as raised:
        batch_handle.find_batch(word, stores)

    assert all(each in str(raised.value) for each in ids)
    assert [batch_handle.find_batch(each, stores)[0].group_id for each in ids] == ids


def test_a_job_of_this_machine_is_found_by_the_beginning_of_its_id_while_another_store_is_away(
    two_stores, monkeypatch
) -> None:
    both, target = two_stores
    here, _ = both(lambda add: add.run_async(1, 2))
    listed = job_list.ids

    def no_answer(store):
        if store.url.endswith("elsewhere"):
            raise StoreUnreachableError("the store does not answer")
        return listed(store)

    monkeypatch.setattr(job_list, "ids", no_answer)

    assert find.find_record("cpu-add-", target).job_id == here.job_id
