"""The public names and their signatures are the documented ones; what goes beyond the documents stands in a snapshot.

``python tests/architecture/test_public_api.py`` writes the snapshot anew; look at the difference before a commit.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic

SNAPSHOT = Path(__file__).with_name("public_api.txt")
SOURCE = Path(__file__).parents[2] / "src"
DOORS = ("kinetic", "kinetic.jobs", "kinetic.job_status", "kinetic.errors", "kinetic.testing", "kinetic.debug")

# As the documents give them (spec/python-api.txt): names in order, with their defaults. REQUIRED has none.
REQUIRED = inspect.Parameter.empty
RUN = {
    "accelerator": "tpu-v5e-1",
    "container_image": None,
    "base_image_repo": None,
    "zone": None,
    "project": None,
    "capture_env_vars": None,
    "cluster": None,
    "backend": None,
    "namespace": None,
    "volumes": None,
    "spot": False,
    "output_dir": None,
    "debug": False,
}
FIELDS = {
    **dict.fromkeys(
        "job_id backend project cluster_name zone namespace bucket_name k8s_name image_uri accelerator func_name "
        "display_name created_at".split(),
        REQUIRED,
    ),
    "group_id": None,
    "group_kind": None,
    "group_index": None,
    "debug": False,
}
POLLING = {"cleanup_timeout": 180, "cleanup_poll_interval": 2}
METHODS = {
    "from_job_context": dict.fromkeys("ctx backend_name namespace k8s_name".split(), REQUIRED),
    "from_dict": {"d": REQUIRED},
    "to_dict": {},
    "status": {},
    "logs": {"follow": False},
    "tail": {"n": 100},
    "debug_attach": {"local_port": 5678, "working_dir": None},
    "result": {"timeout": None, "cleanup": None, **POLLING, "stream_logs": None, "on_status_change": None},
    "cancel": POLLING,
    "cleanup": {"k8s": True, "gcs": True, **POLLING},
}
FUNCTIONS = {
    "attach": {"job_id": REQUIRED, "project": None, "cluster": None},
    "list_jobs": {"project": None, "zone": None, "cluster": None, "namespace": None},
    "attach_batch": {
        "group_id": REQUIRED,
        "project": None,
        "cluster": None,
        "poll_interval": 10.0,
        "poll_timeout": None,
    },
    "Data": {"path": REQUIRED, "fuse": False, "hf_trust_remote_code": False},
    "BatchError": dict.fromkeys("group_id failures partial_results".split(), REQUIRED),
}


BATCH_METHODS = {
    "statuses": {},
    "status_counts": {},
    "wait": {"timeout": None},
    "as_completed": {"poll_interval": 5.0, "timeout": None},
    "results": {"timeout": None, "ordered": True, "cleanup": True, "return_exceptions": False},
    "failures": {},
    "cancel": {},
    "cleanup": {"k8s": True, "gcs": True},
}
BATCH_FIELDS = ["group_id", "name", "tags", "jobs", "_bucket_name", "_project", "_submission_complete"]
BATCH_FIELDS += ["_submission_error", "_lock", "_submission_errors", "_cached_failures"]
MAP = {
    "inputs": REQUIRED,
    "input_mode": "auto",
    "max_concurrent": 64,
    "retries": 0,
    "fail_fast": False,
    "cancel_running_on_fail": False,
    "name": None,
    "tags": None,
    "project": None,
    "cluster": None,
}


def parameters_of(thing: Any, *, named: bool = False) -> dict[str, object]:
    """Return the parameters of a callable with their defaults, in order and without self.

    Parameters that can only be named are ours where the documents have none, and must be optional; with ``named`` they
    are the documented ones.
    """
    found = inspect.signature(thing).parameters
    assert all(each.kind in {each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY} for each in found.values())
    only_named = {name for name, each in found.items() if each.kind is each.KEYWORD_ONLY}
    assert all(found[name].default is not REQUIRED for name in only_named)
    left_out = {"self"} | (set() if named else only_named)
    return {name: each.default for name, each in found.items() if name not in left_out}


def test_run_takes_the_documented_thirteen_parameters_in_order() -> None:
    assert list(parameters_of(kinetic.run).items()) == list(RUN.items())


def test_a_handle_begins_with_the_documented_fields_in_order() -> None:
    taken = list(parameters_of(kinetic.JobHandle).items())

    assert taken[: len(FIELDS)] == list(FIELDS.items())


def test_what_a_handle_holds_beyond_the_documents_is_optional_and_comes_last() -> None:
    taken = list(parameters_of(kinetic.JobHandle).items())

    assert all(default is None for _, default in taken[len(FIELDS) :])


def test_a_handle_is_a_dataclass_with_these_fields_and_no_others() -> None:
    fields = [field.name for field in dataclasses.fields(kinetic.JobHandle) if not field.name.startswith("_")]

    assert fields == list(parameters_of(kinetic.JobHandle))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_the_handle_takes_what_is_documented(name: str) -> None:
    assert list(parameters_of(getattr(kinetic.JobHandle, name)).items()) == list(METHODS[name].items())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_takes_what_is_documented(name: str) -> None:
    assert list(parameters_of(getattr(kinetic, name)).items()) == list(FUNCTIONS[name].items())


@pytest.mark.parametrize("name", BATCH_METHODS)
def test_a_method_of_a_batch_takes_what_is_documented(name: str) -> None:
    taken = parameters_of(getattr(kinetic.BatchHandle, name), named=True)

    assert list(taken.items()) == list(BATCH_METHODS[name].items())


def test_a_batch_begins_with_the_documented_fields_in_order() -> None:
    fields = dataclasses.fields(kinetic.BatchHandle)

    assert [field.name for field in fields][: len(BATCH_FIELDS)] == BATCH_FIELDS
    assert all(
        field.default is None or field.default_factory or not field.init for field in fields[len(BATCH_FIELDS) :]
    )


def test_a_fan_out_takes_what_is_documented() -> None:
    assert list(parameters_of(kinetic.RemoteCallable.run_async_map, named=True).items()) == list(MAP.items())


@pytest.mark.parametrize("name", ["done", "running", "wait", "exception"])
def test_a_handle_answers_like_a_future(name: str) -> None:
    assert set(parameters_of(getattr(kinetic.JobHandle, name)).items()) <= {("timeout", None)}


def test_a_job_can_be_seen_in_five_states() -> None:
    members = {member.name: member.value for member in kinetic.JobStatus}

    assert members == {name: name for name in ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "NOT_FOUND")}
    assert kinetic.job_status.JobStatus is kinetic.JobStatus


@pytest.mark.parametrize("door", [door for door in DOORS if "." in door])
def test_a_door_is_reached_after_a_bare_import(door: str) -> None:
    program = f"import kinetic; print({door}.__name__)"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env={"PYTHONPATH": str(SOURCE)}
    )

    assert done.stdout == f"{door}\n", done.stderr


@pytest.mark.parametrize("door", DOORS)
def test_every_promised_name_is_there(door: str) -> None:
    module = importlib.import_module(door)

    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert sorted(module.__all__) == list(module.__all__)


def test_looking_into_the_package_shows_promised_names_only() -> None:
    for name in kinetic.__all__:
        getattr(kinetic, name)

    shown = {name for name in dir(kinetic) if not (name.startswith("__") and name.endswith("__"))}

    assert shown == set(kinetic.__all__) - {"__version__"}


def test_a_star_import_brings_the_promised_names() -> None:
    namespace: dict[str, object] = {}

    exec("from kinetic import *", namespace)

    assert set(namespace) - {"__builtins__"} == set(kinetic.__all__)


def test_a_name_that_is_not_there_is_an_ordinary_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'kinetic' has no attribute 'trian'"):
        kinetic.trian  # noqa: B018 - the access is what is tested


def test_kinetic_jobs_exposes_what_the_original_did() -> None:
    assert kinetic.jobs.JobHandle is kinetic.JobHandle
    assert kinetic.jobs.JobStatus is kinetic.JobStatus
    assert kinetic.jobs.attach is kinetic.attach
    assert kinetic.jobs.list_jobs is kinetic.list_jobs
    assert parameters_of(kinetic.jobs.attach_remote_traceback) == {
        "exception": REQUIRED,
        "remote_traceback": REQUIRED,
    }


def test_the_public_api_is_what_the_snapshot_says() -> None:
    assert "".join(snapshot()) == SNAPSHOT.read_text(), f"if that is meant: python {Path(__file__).name}"


# ------------------------------------------------------------------------------------------------- the snapshot itself


def snapshot() -> Iterator[str]:
    """Yield the public API line by line: each door, each name in it, and what can be done with it."""
    told: dict[int, str] = {}
    for door in DOORS:
        module = importlib.import_module(door)
        yield f"{door}\n"
        for name in module.__all__:
            thing = getattr(module, name)
            first = told.setdefault(id(thing), door) if callable(thing) else door
            lines = lines_of(name, thing) if first == door else [f"{name}, as in {first}"]
            yield from (f"    {line}\n" for line in lines)


def lines_of(name: str, thing: Any) -> Iterator[str]:
    """Yield what there is to say about one public name."""
    if inspect.ismodule(thing):
        yield f"module {name}"
    elif isinstance(thing, type) and issubclass(thing, BaseException):
        bases = ", ".join(base.__name__ for base in thing.__bases__)
        code = getattr(thing, "default_code", "")
        yield f"error {name}{signature_of(thing)} is a {bases}" + (f", code {code}" if code else "")
    elif isinstance(thing, type) and issubclass(thing, enum.Enum):
        yield f"enum {name}: {', '.join(f'{member.name}={member.value!r}' for member in thing)}"
    elif isinstance(thing, type):
        yield f"class {name}{signature_of(thing)}"
        yield from (f"    {line}" for line in members_of(thing))
    elif callable(thing):
        yield f"{name}{signature_of(thing)}"
    elif name == "__version__":
        yield name
    else:
        yield f"{name}: {type(thing).__name__}"


def members_of(kind: type) -> Iterator[str]:
    """Yield the public methods and properties that a class defines itself."""
    for name, member in sorted(vars(kind).items()):
        if name.startswith("_") and name not in {"__call__", "__get__"}:
            continue
        if isinstance(member, property):
            yield f"{name} (property)"
        elif callable(getattr(kind, name)):
            yield f"{name}{signature_of(getattr(kind, name))}"


def signature_of(thing: Any) -> str:
    """Write a signature with its annotations as they stand in the source; "" for what Python itself builds."""
    if isinstance(thing, type) and dataclasses.is_dataclass(thing):
        dataclasses.fields(thing)  # one of kinetic._wire is made now, and has its own signature from here on
    if isinstance(thing, type) and not inspect.isfunction(thing.__init__):
        return ""
    signature = inspect.signature(thing)
    if isinstance(thing, type) and dataclasses.is_dataclass(thing):  # that of kinetic._wire is not its class's
        signature = inspect.signature(thing.__init__)
        signature = signature.replace(parameters=[*signature.parameters.values()][1:])
    bare = [each.replace(annotation=REQUIRED) for each in signature.parameters.values()]
    words = []
    for each, original in zip(bare, signature.parameters.values(), strict=True):
        annotation = "" if original.annotation is REQUIRED else f": {original.annotation}"
        name, equals, default = str(each).partition("=")
        words.append(f"{name}{annotation}" + (f"{' = ' if annotation else '='}{default}" if equals else ""))
        if original.kind is original.KEYWORD_ONLY and not any(word.startswith("*") for word in words[:-1]):
            words.insert(-1, "*")
    returned = "" if signature.return_annotation is REQUIRED else f" -> {signature.return_annotation}"
    return f"({', '.join(words)}){returned}"


if __name__ == "__main__":
    SNAPSHOT.write_text("".join(snapshot()))
    print(f"wrote {SNAPSHOT}")
