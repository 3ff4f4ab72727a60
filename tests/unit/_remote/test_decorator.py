"""``kinetic.run(...)``: what it refuses before anything is decorated, and what later releases bring."""

from __future__ import annotations

from pathlib import Path

import pytest

import kinetic
from kinetic.errors import OptionError, OptionTypeError


def train(rate=0.1):
    return rate


def test_parentheses_that_are_missing_are_missed_at_once() -> None:
    with pytest.raises(OptionTypeError, match="without parentheses") as raised:
        kinetic.run(train)

    assert "'train'" in raised.value.why
    assert "@kinetic.run()" in raised.value.next
    assert isinstance(raised.value, TypeError)


@pytest.mark.parametrize(
    ("written", "near"),
    [
        ("gpu-l5", "gpu-l4, gpu-t4 and gpu-v100"),
        ("gpu-a1000", "gpu-a100, gpu-a100-80 and gpu-v100"),
        ("cpus", "cpu, tpu7 and tpu7x"),
    ],
)
def test_an_unknown_accelerator_is_refused_with_the_three_nearest(written: str, near: str) -> None:
    with pytest.raises(OptionError, match=f'"{written}"') as raised:
        kinetic.run(accelerator=written)

    assert raised.value.why == f"the nearest names are {near}"
    assert raised.value.next == f'write accelerator="{near.partition(",")[0]}"'
    assert isinstance(raised.value, ValueError)


def test_a_size_that_no_slice_has_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(OptionError, match="asks for 3 chips") as raised:
        kinetic.run(accelerator="tpu-v5e-3")

    assert raised.value.why.startswith("v5e comes in 1, 4, 8, ")


def test_an_accelerator_is_a_string() -> None:
    with pytest.raises(OptionTypeError, match="accelerator=3 is not a string"):
        kinetic.run(accelerator=3)


def test_a_string_of_variables_would_be_taken_letter_by_letter() -> None:
    with pytest.raises(OptionTypeError, match="not a list of names") as raised:
        kinetic.run(capture_env_vars="HF_TOKEN")

    assert "letter by letter" in raised.value.why
    assert raised.value.next == "capture_env_vars=['HF_TOKEN']"


@pytest.mark.parametrize("names", [[3], {"A": 1}, 3])
def test_variables_are_a_list_of_strings(names) -> None:
    with pytest.raises(OptionTypeError, match="capture_env_vars"):
        kinetic.run(capture_env_vars=names)


@pytest.mark.parametrize("name", ["", "A=1", "A\0", "A*B", "*A"])
def test_a_name_that_no_variable_can_have_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="matches no variable"):
        kinetic.run(capture_env_vars=["HOME", name])


@pytest.mark.parametrize("names", [["A", "B_*", "*"], ("A",), []])
def test_names_and_beginnings_of_names_are_fine(names) -> None:
    assert kinetic.run(capture_env_vars=names)(train)._options.capture_env_vars == tuple(names)


def test_volumes_are_a_dict() -> None:
    with pytest.raises(OptionTypeError, match="is not a dict") as raised:
        kinetic.run(volumes=["/data"])

    assert isinstance(raised.value, TypeError)


@pytest.mark.parametrize("path", ["data", "", "./data", "/", "/a/../b", "/_kinetic/x"])
def test_a_volume_is_mounted_at_an_absolute_path_of_its_own(path, tmp_path) -> None:
    with pytest.raises(OptionError, match="a volume cannot be mounted at") as raised:
        kinetic.run(volumes={path: kinetic.Data(tmp_path)})

    assert isinstance(raised.value, ValueError)
    assert not isinstance(raised.value, TypeError)


def test_one_volume_does_not_lie_in_another(tmp_path) -> None:
    with pytest.raises(OptionError, match="'/data/more'"):
        kinetic.run(volumes={"/data": kinetic.Data(tmp_path), "/data/more": kinetic.Data(tmp_path)})


@pytest.mark.parametrize("volumes", [{"/data": "./data"}, {3: "./data"}])
def test_a_volume_is_data(volumes) -> None:
    with pytest.raises(OptionTypeError, match="is not a path and a Data") as raised:
        kinetic.run(volumes=volumes)

    assert isinstance(raised.value, TypeError)


def test_no_volumes_are_fine() -> None:
    assert kinetic.run(volumes={})(train)._options.volumes == {}


def test_an_unknown_backend_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="Unknown backend 'gkee'") as raised:
        kinetic.run(backend="gkee")

    assert raised.value.next == 'backend="gke"'
    assert "local, gke, pathways" in raised.value.why


@pytest.mark.parametrize("backend", ["local", "gke", "pathways", None])
def test_known_backends_are_accepted(backend) -> None:
    assert kinetic.run(accelerator="tpu-v5e-1", backend=backend)(train)._options.backend == backend


@pytest.mark.parametrize(
    "name", ["container_image", "base_image_repo", "zone", "project", "cluster", "backend", "namespace", "output_dir"]
)
def test_a_text_is_a_string(name: str) -> None:
    with pytest.raises(OptionTypeError, match=f"{name}=3 is not a string"):
        kinetic.run(**{name: 3})


def test_an_output_directory_may_be_a_path() -> None:
    assert kinetic.run(output_dir=Path("/data/out"))(train)._options.output_dir == "/data/out"


@pytest.mark.parametrize("name", ["spot", "debug"])
@pytest.mark.parametrize("value", [1, "yes", None])
def test_a_flag_is_true_or_false(name: str, value) -> None:
    with pytest.raises(OptionTypeError, match="neither True nor False"):
        kinetic.run(**{name: value})


def test_debugging_on_machines_that_may_be_taken_away_is_warned_of() -> None:
    on_spot = kinetic.run(accelerator="gpu-l4", spot=True)(train)
    with pytest.warns(UserWarning, match="debug=True with spot=True") as warned:
        decorated = kinetic.run(accelerator="gpu-l4", spot=True, debug=True)(train)
    with pytest.warns(UserWarning, match="debug=True with spot=True") as warned_later:
        on_spot.with_options(debug=True)

    assert decorated._options.debug
    assert (warned[0].filename, warned_later[0].filename) == (__file__, __file__)


def test_all_thirteen_may_be_given_by_position() -> None:
    given = ["cpu", None, "repo", "z", "p", ["A"], "c", "local", "n", {}, True, "/out", False]

    options = kinetic.run(*given)(train)._options

    assert (options.accelerator, options.base_image_repo, options.zone, options.project) == ("cpu", "repo", "z", "p")
    assert (options.capture_env_vars, options.cluster, options.backend) == (("A",), "c", "local")
    assert (options.namespace, options.spot, options.output_dir) == ("n", True, "/out")


@pytest.mark.parametrize(
    ("wrong", "right"), [("acelerator", "accelerator"), ("timeout", "deadline"), ("cpus", "resources")]
)
def test_a_parameter_that_does_not_exist_is_a_type_error_with_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(TypeError, match=f"'{wrong}' is not an option") as raised:
        kinetic.run(**{wrong: "cpu"})

    assert isinstance(raised.value, OptionTypeError)
    assert (raised.value.why, raised.value.next) == (f"nearest: {right}", f"@kinetic.run({right}=…)")
    with pytest.raises(TypeError, match=f"'{wrong}' is not an option") as raised:
        kinetic.run_command(["ls"], **{wrong: "cpu"})
    assert raised.value.next == f"kinetic.run_command(…, {right}=…)"


@pytest.mark.parametrize(
    ("wrong", "where"), [("queue", "set KINETIC_QUEUE"), ("requirements", "the project's requirements.txt")]
)
def test_what_is_set_elsewhere_is_refused_with_the_place(wrong: str, where: str) -> None:
    with pytest.raises(OptionTypeError, match=f"'{wrong}' is not an option") as raised:
        kinetic.run(**{wrong: "x"})

    assert raised.value.next is not None
    assert where in raised.value.next


@pytest.mark.parametrize(
    "call",
    [
        lambda: kinetic.list_jobs(clusterr="x"),  # type: ignore[call-arg]
        lambda: kinetic.Data("x", fusee=True),  # type: ignore[call-arg]
        lambda: kinetic.run()(train).run_async_map([1], max_concurent=2),  # type: ignore[call-arg]
    ],
    ids=["a function", "a class", "a method"],
)
def test_a_misspelt_parameter_is_answered_by_every_version_of_python_with_the_nearest(call) -> None:
    with pytest.raises(TypeError, match=r"Did you mean '(cluster|fuse|max_concurrent)'\?$"):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: kinetic.run(*["cpu"] * 14),
        lambda: kinetic.attach("job-a1b2c3d4", None, None, None),  # type: ignore[call-arg]
        lambda: kinetic.run()(train).run_async_map([1], "auto"),
        lambda: kinetic.BatchHandle("", None, {}, []).as_completed(5),  # raised by the call, not by the first job
    ],
    ids=["the decorator", "a function", "a method", "a generator"],
)
def test_too_many_arguments_are_the_type_error_of_python(call) -> None:
    with pytest.raises(TypeError, match=r"takes .* positional arguments? but \d+ were given$"):
        call()


def test_one_decorator_can_be_used_for_many_functions() -> None:
    on_cpu = kinetic.run(accelerator="cpu")

    first, second = on_cpu(train), on_cpu(lambda: 2)

    assert first._options is second._options
    assert first.__wrapped__ is not second.__wrapped__
