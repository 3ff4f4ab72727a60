"""The variables of a job: an allow-list, what a cluster would set, and what the user captured, which wins."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace

import cloudpickle

from kinetic._backends.local import backend, scheduler
from kinetic._hardware import place
from kinetic._wire.order import Artifact, Order

ORDER = Order("cpu-f-1", "f", Artifact.within(b""), Artifact.within(b""), output_dir="/outputs", hosts=1)


def of(accelerator="cpu", captured=None, environ=None, interpreter=""):
    return scheduler.job_environment(ORDER, place(accelerator), captured or {}, environ or {}, interpreter)


def test_the_frameworks_are_set_as_on_a_cluster() -> None:
    found = of("tpu-v5e-8")

    assert (found["KERAS_BACKEND"], found["JAX_PLATFORMS"], found["JAX_NUM_CPU_DEVICES"]) == ("jax", "cpu", "8")


def test_keras_computes_without_jax_where_that_is_not_installed(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    assert "KERAS_BACKEND" not in of()
    assert of(environ={"KERAS_BACKEND": "torch"})["KERAS_BACKEND"] == "torch"
    assert of(interpreter="/env/bin/python")["KERAS_BACKEND"] == "jax"  # which gets it

    (tmp_path / "jax.py").touch()
    importlib.invalidate_caches()

    assert of(environ={"KERAS_BACKEND": "torch"})["KERAS_BACKEND"] == "jax"


def test_a_value_that_the_user_captured_wins_over_the_one_of_a_cluster() -> None:
    found = of(captured={"KERAS_BACKEND": "torch", "JAX_PLATFORMS": ""})

    assert (found["KERAS_BACKEND"], found["JAX_PLATFORMS"]) == ("torch", "")


def test_a_gpu_is_not_hidden_from_jax_unless_there_is_none() -> None:
    assert "JAX_PLATFORMS" not in of("gpu-l4", environ={"KINETIC_LOCAL_GPUS": "0"})
    assert of("gpu-l4", environ={"KINETIC_LOCAL_GPUS": "none"})["JAX_PLATFORMS"] == "cpu"


def test_what_the_shell_happened_to_hold_does_not_come_along() -> None:
    found = of(environ={"PATH": "/bin", "LC_TIME": "C", "MY_TOKEN": "secret", "AWS_SECRET_ACCESS_KEY": "x"})

    assert (found["PATH"], found["LC_TIME"]) == ("/bin", "C")
    assert not {"MY_TOKEN", "AWS_SECRET_ACCESS_KEY"} & set(found)


def test_libraries_find_what_they_have_fetched_and_the_compiler_as_in_the_shell_and_no_token() -> None:
    environ = {
        "HF_HOME": "/big/hf",
        "TORCH_HOME": "/big/torch",
        "CC": "gcc-13",
        "HF_TOKEN": "hf_x",
        "WANDB_API_KEY": "x",
    }

    assert {name: of(environ=environ).get(name) for name in environ} == {
        **environ,
        "HF_TOKEN": None,
        "WANDB_API_KEY": None,
    }


def test_relative_folders_of_kinetic_are_those_of_the_client_for_what_a_job_submits(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    found = of(environ={"KINETIC_HOME": "home", "KINETIC_RUNTIME_DIR": "~/run", "HOME": "/me"})

    assert (found["KINETIC_HOME"], found["KINETIC_RUNTIME_DIR"]) == (str(tmp_path / "home"), "/me/run")


def test_what_kinetic_says_of_the_job_cannot_be_captured_away() -> None:
    found = of(captured={"KINETIC_JOB_ID": "another", "KINETIC_OUTPUT_DIR": "/elsewhere"})

    assert (found["KINETIC_JOB_ID"], found["KINETIC_OUTPUT_DIR"]) == ("cpu-f-1", "/outputs")


def test_an_isolated_environment_is_as_if_it_had_been_activated() -> None:
    environ = {"PATH": "/bin", "PYTHONPATH": "/mine", "VIRTUAL_ENV": "/old", "CONDA_PREFIX": "/conda"}

    found = of(environ=environ, interpreter="/built/bin/python")

    assert (found["PATH"], found["VIRTUAL_ENV"]) == ("/built/bin:/bin", "/built")
    assert not {"PYTHONPATH", "CONDA_PREFIX"} & set(found)


def test_a_job_describes_the_supervisors_of_what_it_submits_as_its_client_did(tmp_path, monkeypatch) -> None:
    runner = tmp_path / "runners" / "here"
    (runner / "cloudpickle").mkdir(parents=True)
    (runner / "cloudpickle" / "__init__.py").touch()
    by_client = scheduler.make_template(runner, {})
    monkeypatch.syspath_prepend(runner)  # as in a job

    by_job = scheduler.make_template(runner, {})

    assert by_client["needs"] == [cloudpickle.__file__]
    assert by_job == by_client
    assert scheduler.make_template(runner, {}, "/isolated/bin/python")["needs"] == []


def test_a_supervisor_that_was_started_before_something_was_installed_as_editable_has_another_template(
    tmp_path, monkeypatch
) -> None:
    runner, packages = tmp_path / "runners" / "here", tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(packages)
    before = scheduler.make_template(runner, {})

    (packages / "plain.py").touch()
    installed = scheduler.make_template(runner, {})
    (packages / "editable.pth").write_text("/mine\n")
    as_editable = scheduler.make_template(runner, {})

    assert installed == before
    assert as_editable["startup"] != before["startup"]


def test_a_function_is_at_the_same_place_whatever_copy_of_the_project_submits_it_and_in_another_file_at_another() -> (
    None
):
    def place_of(script: str = "", **plan: str) -> str:
        return backend.place_of(replace(ORDER, script=script, plan=plan))

    by_script = place_of(root="/project", module="steps")
    by_jobs = [place_of(root=f"/run/jobs/{number}/work", origin="/project", module="steps") for number in "12"]
    elsewhere = {place_of(root="/project", module="other"), place_of("train.py", root="/project", module="__main__")}

    assert by_jobs == [by_script] * 2
    assert len(elsewhere - {by_script}) == 2
