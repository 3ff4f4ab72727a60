"""Which GPUs of this machine jobs may use: what the user says, what is left to the client, or all that there are."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from kinetic._backends.local import gpu_locks, limits, runtime_files, scheduler
from kinetic._hardware import place
from kinetic._wire.order import Artifact, Order
from kinetic._wire.task import Task
from kinetic.errors import CapacityError, OptionError

ORDER = Order("gpu-f-1", "f", Artifact.within(b""), Artifact.within(b""), output_dir="/outputs", hosts=1)


@pytest.fixture
def devices(tmp_path):
    """Return the path of a folder like /dev, of a container that has the third and the fourth GPU of its machine."""
    for name in ("nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-caps", "null"):
        (tmp_path / name).touch()
    return str(tmp_path)


def test_gpus_are_counted_as_cuda_does_whatever_numbers_their_files_have(devices) -> None:
    assert limits.read_gpus({}, devices) == ("0", "1")


def test_a_machine_without_gpus_has_none(tmp_path) -> None:
    assert limits.read_gpus({"CUDA_VISIBLE_DEVICES": "0"}, str(tmp_path)) == ()


def test_gpus_are_seen_whose_files_the_driver_makes_after_the_first_look(tmp_path) -> None:
    assert limits.read_gpus({}, str(tmp_path)) == ()

    (tmp_path / "nvidia0").touch()

    assert limits.read_gpus({}, str(tmp_path)) == ("0",)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("1", ("1",)),
        ("1, 0", ("1", "0")),
        ("", ()),
        ("-1", ()),
        ("0,-1,1", ("0",)),
        ("0,7,1", ("0",)),
        ("NoDevFiles", ()),
        ("GPU-5d1c,MIG-77", ("GPU-5d1c", "MIG-77")),
    ],
)
def test_what_cuda_hides_from_the_client_is_hidden_from_its_jobs(devices, visible, expected) -> None:
    assert limits.read_gpus({"CUDA_VISIBLE_DEVICES": visible}, devices) == expected


def test_what_the_user_says_of_jobs_counts_more_than_what_cuda_shows_the_client(devices) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "0", "KINETIC_LOCAL_GPUS": "1"}

    assert limits.read_gpus(environ, devices) == ("1",)
    assert limits.read_gpus(environ | {"KINETIC_LOCAL_GPUS": "none"}, devices) == ()


def test_several_machines_share_the_gpus_of_this_one_where_there_are_enough() -> None:
    wanted = place("gpu-l4x2x2")

    with pytest.raises(CapacityError, match="needs 4"):
        limits.check(wanted, {}, ("0", "1"), strict=False)
    assert limits.check(wanted, {}, tuple("0123"), strict=False) == (
        "gpu-l4x2x2 is emulated: 2 processes with 2 GPU(s) each, joined by jax.distributed",
    )
    assert limits.check(wanted, {}, (), strict=False) == (
        "this machine has no gpu-l4x2x2: 2 processes, joined by jax.distributed, run on the CPU",
    )


def test_each_host_sees_its_own_share_of_the_gpus_of_a_job(tmp_path) -> None:
    paths = runtime_files.Paths(tmp_path)
    task = Task("gpu-f-1", "0" * 64, "memory:", "key-id", 0o22, None, {}, hosts=2)

    tasks = runtime_files.tasks_of(paths, task, 0, gpus=("0", "GPU-5d1c", "5", "7"))

    assert [each.environment["CUDA_VISIBLE_DEVICES"] for each in tasks] == ["0,GPU-5d1c", "5,7"]
    assert "CUDA_VISIBLE_DEVICES" not in runtime_files.tasks_of(paths, task, 0)[0].environment


def test_an_error_about_too_few_gpus_names_what_took_the_others() -> None:
    with pytest.raises(CapacityError, match="needs 2") as refused:
        limits.check(place("gpu-l4x2"), {"CUDA_VISIBLE_DEVICES": "1"}, ("1",), strict=False)

    assert refused.value.why == "looked at CUDA_VISIBLE_DEVICES=1"
    assert "change CUDA_VISIBLE_DEVICES" in refused.value.next


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "this machine has no gpu-l4: the job runs on the CPU"),
        (
            {"KINETIC_LOCAL_GPUS": "none"},
            "this machine has no gpu-l4: the job runs on the CPU (KINETIC_LOCAL_GPUS=none)",
        ),
        ({"CUDA_VISIBLE_DEVICES": ""}, "this machine has no gpu-l4: the job runs on the CPU (CUDA_VISIBLE_DEVICES=)"),
    ],
)
def test_what_runs_on_the_cpu_instead_says_which_variable_hides_the_gpus(environ, expected) -> None:
    assert limits.check(place("gpu-l4"), environ, (), strict=False) == (expected,)


@pytest.mark.parametrize("accelerator", ["cpu", "tpu-v5e-8", "gpu-l4"])
def test_a_job_sees_no_gpu_that_it_was_not_given(accelerator) -> None:
    found = scheduler.job_environment(ORDER, place(accelerator), {}, {"CUDA_VISIBLE_DEVICES": "0,1"})

    assert found["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("environ", "order"),
    [
        ({}, "PCI_BUS_ID"),
        ({"KINETIC_LOCAL_GPUS": "1", "CUDA_VISIBLE_DEVICES": "0"}, "PCI_BUS_ID"),
        ({"KINETIC_LOCAL_GPUS": "1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "FASTEST_FIRST"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "FASTEST_FIRST"),  # as the client's own CUDA counts them
        ({"KINETIC_LOCAL_GPUS": "none"}, None),
    ],
)
def test_gpus_of_several_models_have_the_numbers_of_nvidia_smi_unless_the_client_counts_them_as_cuda_does(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], order: str | None
) -> None:
    monkeypatch.setattr(limits, "count_gpus", lambda _="/dev": 2)

    found = scheduler.job_environment(ORDER, place("gpu-l4"), {}, environ)

    assert found.get("CUDA_DEVICE_ORDER") == order


def test_who_captures_the_variable_decides_it_for_jobs_without_a_gpu() -> None:
    found = scheduler.job_environment(ORDER, place("cpu"), {"CUDA_VISIBLE_DEVICES": "0"}, {})

    assert found["CUDA_VISIBLE_DEVICES"] == "0"


def test_a_job_that_submits_jobs_has_the_gpus_of_its_client_for_them(monkeypatch) -> None:
    monkeypatch.setattr(limits, "read_gpus", lambda environ: ("0", "1"))

    found = scheduler.job_environment(ORDER, place("cpu"), {}, {})

    assert found["KINETIC_LOCAL_GPUS"] == "0,1"


def test_gpus_that_are_there_are_locked_for_all_users_of_the_machine(devices, tmp_path) -> None:
    assert gpu_locks.folder_of({}, devices) == "/dev/shm/kinetic-gpus"
    assert gpu_locks.folder_of({"KINETIC_GPU_LOCKS": "/shared"}, devices) == "/shared"
    assert gpu_locks.folder_of({"KINETIC_GPU_LOCKS": "~/locks", "HOME": "/home/ada"}, devices) == "/home/ada/locks"


def test_simulated_gpus_and_those_that_slurm_gave_are_not_locked(devices, tmp_path) -> None:
    (tmp_path / "empty").mkdir()

    assert gpu_locks.folder_of({}, str(tmp_path / "empty")) == ""
    assert gpu_locks.folder_of({"KINETIC_GPU_LOCKS": "off"}, devices) == ""
    assert gpu_locks.folder_of({"SLURM_JOB_ID": "7"}, devices) == ""


def test_supervisors_and_jobs_lock_what_their_client_says(tmp_path) -> None:
    environ = {"KINETIC_GPU_LOCKS": str(tmp_path), "KINETIC_LOCAL_GPUS": "0", "SLURM_JOB_ID": "7"}
    off = {**environ, "KINETIC_GPU_LOCKS": "off"}

    for each, expected in ((environ, str(tmp_path)), (off, "off")):
        template = scheduler.make_template(tmp_path / "runner", each)
        job = scheduler.job_environment(ORDER, place("gpu-l4"), {}, each)
        assert template["environment"]["KINETIC_GPU_LOCKS"] == job["KINETIC_GPU_LOCKS"] == expected


def test_a_gpu_has_one_lock_in_a_container_and_outside_of_it(devices) -> None:
    assert [gpu_locks.file_name(device, devices) for device in ("0", "1", "2", "GPU-5d1c", "../x")] == [
        "nvidia2",
        "nvidia3",
        "2",
        "GPU-5d1c",
        ".._x",
    ]


@pytest.fixture
def driver(tmp_path):
    """Return the path of what the driver says of four GPUs, two of which the container has."""
    places = zip(("17", "31", "4b", "ca"), ("5d1c", "77a0", "5d1f", "e04b"), (3, 0, 2, 1), strict=True)
    for bus, gpu_id, number in places:
        (tmp_path / "gpus" / f"0000:{bus}:00.0").mkdir(parents=True)
        text = f"Model: \t\t NVIDIA L4\nGPU UUID: \t GPU-{gpu_id}-11f0\nVideo BIOS:\nDevice Minor: \t {number}\n"
        (tmp_path / "gpus" / f"0000:{bus}:00.0" / "information").write_text(text)
    return str(tmp_path / "gpus")


def test_a_gpu_that_one_user_names_by_its_id_and_another_by_its_number_has_one_lock(devices, driver) -> None:
    named = ["1", "GPU-5d1f-11f0", "0", "GPU-5d1c", "GPU-5d1", "GPU-77a0"]

    found = [gpu_locks.file_name(each, devices, driver) for each in named]

    assert found == ["nvidia2", "nvidia2", "nvidia3", "nvidia3", "GPU-5d1", "GPU-77a0"]


def test_a_gpu_has_one_lock_in_a_container_also_where_files_are_not_numbered_as_the_bus_is(
    devices, driver, tmp_path
) -> None:
    (tmp_path / "all").mkdir()
    for number in range(4):
        (tmp_path / "all" / f"nvidia{number}").touch()

    outside = [gpu_locks.file_name(each, str(tmp_path / "all"), driver) for each in ("0", "1", "2", "3")]

    assert outside == ["nvidia3", "nvidia0", "nvidia2", "nvidia1"]
    assert gpu_locks.file_name("0", devices, driver) == outside[0]


def test_a_folder_of_locks_in_which_no_files_can_be_made_is_refused(tmp_path) -> None:
    (tmp_path / "file").touch()
    for folder, why in (("no/where", "No such file or directory"), ("file", "Not a directory")):
        with pytest.raises(OptionError, match=f"no files can be made in {tmp_path / folder}: {why}"):
            gpu_locks.check({"KINETIC_GPU_LOCKS": str(tmp_path / folder)}, ["0"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_of_locks_of_another_user_is_refused_unless_its_files_are_there() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        Path(folder, "1").touch()

        assert _is_refused_for_nobody({"KINETIC_GPU_LOCKS": folder}, "0")
        assert not _is_refused_for_nobody({"KINETIC_GPU_LOCKS": folder}, "1")
        assert not _is_refused_for_nobody({"KINETIC_GPU_LOCKS": "off"}, "0")
        assert not _is_refused_for_nobody({"KINETIC_GPU_LOCKS": f"{folder}/none"}, *())


def _is_refused_for_nobody(environ: dict[str, str], *gpus: str) -> bool:
    pid = os.fork()
    if not pid:
        os.setgid(65534)
        os.setuid(65534)
        try:
            gpu_locks.check(environ, gpus)
        except OptionError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_the_word_on_means_the_usual_folder_also_in_a_job_of_slurm(devices) -> None:
    assert gpu_locks.folder_of({"KINETIC_GPU_LOCKS": "on", "SLURM_JOB_ID": "7"}, devices) == "/dev/shm/kinetic-gpus"
