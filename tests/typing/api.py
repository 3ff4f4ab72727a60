"""The public API as a program for type checkers: it is checked and never run.

``assert_type`` holds what must be known. Each line with a "type: ignore" must be an error: an ignore that is not needed
is one itself, for mypy by warn_unused_ignores and for pyright by the first line below.
"""
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, assert_type

import kinetic
from kinetic import JobHandle, JobStatus, RemoteCallable


@kinetic.run(accelerator="cpu")
def train(rate: float, *, epochs: int = 1, name: str | None = None) -> dict[str, float]:
    return {"loss": rate * epochs, "name": float(len(name or ""))}


@kinetic.run()
def nothing() -> None: ...


@kinetic.run("gpu-l4", capture_env_vars=["HF_*"], spot=True)
def variadic(*numbers: int, **named: str) -> int:
    return sum(numbers) + len(named)


class Model:
    def __init__(self, size: int) -> None:
        self.size = size

    @kinetic.run(accelerator="cpu")
    def fit(self, rate: float, steps: int = 10) -> list[float]:
        return [rate] * (self.size + steps)

    @classmethod
    @kinetic.run(accelerator="cpu")
    def build(cls, size: int) -> Model:
        return cls(size)

    @staticmethod
    @kinetic.run(accelerator="cpu")
    def version(major: int) -> str:
        return str(major)

    def plain(self, rate: float) -> str:
        return str(rate + self.size)


class Scale:
    def __call__(self, number: int) -> float:
        return number * 2.0


# The signature is kept.
assert_type(train(0.1), dict[str, float])
assert_type(train(0.1, epochs=3, name="x"), dict[str, float])
assert_type(nothing(), None)
assert_type(variadic(1, 2, x="y"), int)
train("fast")  # type: ignore[arg-type]
train(0.1, 3)  # type: ignore[call-arg]
train(0.1, epoch=3)  # type: ignore[call-arg]
train()  # type: ignore[call-arg]
variadic(1, x=2)  # type: ignore[arg-type]

# A detached call takes the same and gives a handle; submit is the same.
assert_type(train.run_async(0.1, epochs=2), JobHandle[dict[str, float]])
assert_type(train.run_async(0.1).result(), dict[str, float])
assert_type(train.submit(0.1), JobHandle[dict[str, float]])
assert_type(nothing.run_async(), JobHandle[None])
train.run_async("fast")  # type: ignore[arg-type]
train.run_async(0.1, epoch=2)  # type: ignore[call-arg]
train.submit()  # type: ignore[call-arg]

# Here, and elsewhere.
assert_type(train.local(0.1), dict[str, float])
assert_type(train.with_options(accelerator="gpu-l4", deadline=60)(0.1), dict[str, float])
assert_type(train.with_options(spot=True).run_async(0.1), JobHandle[dict[str, float]])
train.local("fast")  # type: ignore[arg-type]
train.with_options(spot=True)("fast")  # type: ignore[arg-type]

# Methods bind: the instance is no argument of the caller's.
model = Model(3)
assert_type(model.fit(0.1), list[float])
assert_type(model.fit(0.1, steps=3), list[float])
assert_type(model.fit.run_async(0.1), JobHandle[list[float]])
assert_type(model.fit.submit(0.1, 3), JobHandle[list[float]])
assert_type(model.fit.local(0.1), list[float])
assert_type(model.fit.with_options(accelerator="cpu")(0.1), list[float])
assert_type(Model.fit(model, 0.1), list[float])
assert_type(Model.fit.run_async(model, 0.1), JobHandle[list[float]])
model.fit("fast")  # type: ignore[arg-type]
model.fit.run_async(0.1, step=3)  # type: ignore[call-arg]
Model.fit(0.1)  # type: ignore[arg-type, call-arg]

# Static methods, with Python's decorator above ours.
assert_type(Model.version(3), str)
assert_type(Model.version.run_async(3), JobHandle[str])
Model.version("three")  # type: ignore[arg-type]

# A known weakness: @classmethod above anything but a plain function means nothing to either checker.
Model.build(3)  # type: ignore[arg-type, call-arg]

# Whatever can be called can be decorated.
assert_type(kinetic.run()(model.plain)(0.1), str)
assert_type(kinetic.run()(Scale())(2), float)
assert_type(kinetic.run()(partial(train.local, 0.1))(), dict[str, float])
kinetic.run()(Scale())("two")  # type: ignore[arg-type]
kinetic.run()(3)  # type: ignore[arg-type]


def takes_any(function: RemoteCallable[..., Any]) -> JobHandle:
    return function.run_async()


def told_later() -> None: ...


takes_any(train)
takes_any(model.fit)

# The decorator's own parameters.
kinetic.run(told_later)  # type: ignore[arg-type]
kinetic.run(accelerator=3)  # type: ignore[arg-type]
kinetic.run(capture_env_vars=3)  # type: ignore[arg-type]
kinetic.run(spott=True)  # type: ignore[call-arg]
kinetic.run(volumes={"/data": "./data"})  # type: ignore[dict-item]

# A batch.
batch = train.run_async_map([0.1, 0.2], max_concurrent=8, retries=1, tags={"sweep": "rate"})
assert_type(batch, kinetic.BatchHandle[dict[str, float]])
assert_type(batch.jobs, list[JobHandle[dict[str, float]] | None])
assert_type(batch.results(timeout=1.0), list[dict[str, float]])
assert_type(batch.results(return_exceptions=True), list[dict[str, float] | BaseException])
assert_type(batch.statuses(), list[tuple[int, JobStatus]])
assert_type(batch.failures(), list[JobHandle[dict[str, float]]])
assert_type(batch.submission_failures, dict[int, Exception])
assert_type(list(batch.as_completed()), list[JobHandle[dict[str, float]]])
assert_type(batch.retry_failed(), kinetic.BatchHandle[dict[str, float]])
assert_type(kinetic.attach_batch("grp-0123abcd", resume=True), kinetic.BatchHandle)
assert_type(kinetic.BatchError("grp-0123abcd", [], []).args, tuple[Any, ...])
assert_type(model.fit.run_async_map([{"rate": 0.1}]), kinetic.BatchHandle[list[float]])


def submits(rate: float) -> JobHandle[dict[str, float]]:
    return train.run_async(rate, epochs=3)


assert_type(kinetic.collections.map(train, [0.1]), kinetic.BatchHandle[dict[str, float]])
assert_type(kinetic.collections.map(submits, [0.1]), kinetic.BatchHandle[dict[str, float]])
kinetic.collections.map(told_later, [0.1])  # type: ignore[arg-type]
train.run_async_map()  # type: ignore[call-arg]
train.run_async_map([0.1], retry=1)  # type: ignore[call-arg]
train.run_async_map([0.1], tags=3)  # type: ignore[arg-type]


# Data is os.PathLike[str]: a function that says so, as path libraries do, takes it.
@kinetic.run(accelerator="cpu")
def count(path: str | os.PathLike[str]) -> int:
    return len(os.listdir(path))


assert_type(count(kinetic.Data("set")), int)
assert_type(count.run_async(kinetic.Data("set")), JobHandle[int])
train(kinetic.Data("set"))  # type: ignore[arg-type]

data = kinetic.Data(Path("set"), fuse=True)
assert_type(data.content_hash(), str)
assert_type(data.is_dir, bool)
kinetic.Data(3)  # type: ignore[arg-type]
kinetic.run(volumes={"/data": data})

# The handle.
job = train.run_async(0.1)


def takes_a_number(handle: JobHandle[int]) -> int:
    return handle.result()


takes_a_number(job)  # type: ignore[arg-type]
takes_a_number(kinetic.attach("cpu-train-1"))
assert_type(job.status(), JobStatus)
assert_type(job.job_id, str)
assert_type(job.group_index, int | None)
assert_type(job.logs(), str | None)
assert_type(next(job.log_lines(follow=True)), str)
assert_type(next(job.events(timeout=5)), kinetic.jobs.JobEvent)
assert_type(job.tail(5), str)
assert_type(job.done(), bool)
assert_type(job.wait(timeout=1.0), JobStatus)
assert_type(job.exception(), BaseException | None)
assert_type(job.to_dict(), dict[str, Any])
assert_type(JobHandle.from_dict({}), JobHandle)
assert_type(kinetic.attach("cpu-train-1"), JobHandle)
command = kinetic.run_command(["python", "train.py"], data={"set": "./set"}, env={"SEED": "1"}, deadline="10m")
assert_type(command, JobHandle[int])
assert_type(command.result(), int)
assert_type(kinetic.list_jobs(zone="us-central1-a"), list[JobHandle])
assert_type(kinetic.output_dir(), str)
assert_type(kinetic.is_remote(), bool)
kinetic.progress(1, 10, loss=0.5)
assert_type(kinetic.checkpoint_dir(), str)


def told(status: JobStatus) -> None:
    print(status.value)


job.result(timeout=1.0, cleanup=False, stream_logs=True, on_status_change=told)
job.result(timeout="soon")  # type: ignore[arg-type]
job.result(on_status_change=print)
job.tail("5")  # type: ignore[arg-type]

# The doors are modules.
assert_type(kinetic.job_status.JobStatus.FAILED.is_final, bool)
port: int = kinetic.debug.DEBUGPY_PORT
with kinetic.testing.temporary_home(Path()) as home:
    assert_type(home, Path)
try:
    job.result()
except kinetic.errors.JobTimeoutError as error:
    assert_type(error.why, str | None)
