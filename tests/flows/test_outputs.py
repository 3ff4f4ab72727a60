"""What jobs write stays, is found again from the terminal, and is what the next call goes on from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from flows.conftest import Told, last_json
from servers.gcs import GcsServer
from servers.moto_s3 import MotoServer

from kinetic._stores import open_store

ROOT = Path(__file__).parents[2]

WRITER = """
    import os, sys
    import kinetic

    @kinetic.run(accelerator="cpu")
    def write(*names):
        for name in names:
            path = os.path.join(kinetic.output_dir(), name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(f"this is {name}")
        return kinetic.output_dir()

    if __name__ == "__main__":
        job = write.run_async(*sys.argv[1:])
        job.wait()
        print(job.job_id)
"""
LOOK = """
    import os, kinetic
    def look():
        return {
            "output": [kinetic.output_dir(), os.environ["KINETIC_OUTPUT_DIR"]],
            "checkpoints": [kinetic.checkpoint_dir(), os.environ["KINETIC_CHECKPOINT_DIR"]],
            "there": os.path.isdir(os.environ["KINETIC_CHECKPOINT_DIR"]),
            "files": sorted(os.listdir(".")),
            "code": kinetic.__file__,
        }
"""


@pytest.fixture
def kinetic(project, home) -> Callable[..., Told]:
    """Return a function that runs a command in the project's folder to its end."""

    def run(*words: str) -> Told:
        return Told.of(project.kinetic(*words))

    return run


@pytest.fixture
def write(project) -> Callable[..., str]:
    """Return a function that runs a job that writes files; it returns the id. The job is not collected."""
    project.write("writer.py", WRITER)

    def submit(*names: str) -> str:
        done = project.run("writer.py", *names)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return submit


# ------------------------------------------------------------------------------------------------------- it stays


def test_what_a_job_wrote_outlives_result_cleanup_disk_and_time(project, write, kinetic, home, tmp_path):
    job = write("model.bin", "checkpoints/1/state")
    written = home / "store" / "outputs" / job

    project.out(f"import kinetic; kinetic.attach({job!r}).result()")
    collected = kinetic("outputs", "get", job, "--to", str(tmp_path / "collected"))
    other = write("other.bin")
    project.out(f"import kinetic; kinetic.attach({other!r}).cleanup()")
    cleaned = kinetic("disk", "--clean")
    project.out(  # two years later
        """
        import os, time
        from kinetic._config import target as settings
        from kinetic._jobs import locate
        from kinetic._maintenance import garbage_collection
        from kinetic._stores import open_store

        store = open_store(settings.resolve(backend="local").store.value)
        for entry in store.entries("history/"):
            os.utime(store.root / entry.key, (1, 1))
        later = time.time() + 2 * 365 * 24 * 3600
        store.put("history/young.json", b"{}")
        garbage_collection.collect(store, locate.home(), locate.runtime(), now=later)
        assert list(store.folders("outputs/")) != []
        assert [entry.key for entry in store.entries("history/")] == ["history/young.json"]
        """
    )
    forgotten = kinetic("outputs", "get", job[:-2], "--to", str(tmp_path / "forgotten"))

    assert [told.code for told in (collected, cleaned, forgotten)] == [0, 0, 0], forgotten.err
    assert (written / "model.bin").read_text() == "this is model.bin"
    assert (home / "store" / "outputs" / other / "other.bin").exists()
    for to in ("collected", "forgotten"):
        assert (tmp_path / to / "checkpoints" / "1" / "state").read_text() == "this is checkpoints/1/state"


def test_a_folder_that_a_job_left_empty_goes_with_it(project, write, home):
    job = write()  # the folders are there while it runs: see "there" below

    project.out(f"import kinetic; kinetic.attach({job!r}).result()")

    assert not (home / "store" / "outputs" / job).exists()


def test_an_empty_folder_of_the_users_own_stays(project, tmp_path):
    project.out(f"{LOOK}\n    kinetic.run(accelerator='cpu', output_dir='{tmp_path}/mine')(look)()")

    assert (tmp_path / "mine" / "checkpoints").is_dir()


# ---------------------------------------------------------------------------------------------- where it is written


def test_a_job_knows_its_folders_with_the_runners_own_copy_of_kinetic(project, home):
    found = json.loads(
        project.out(f"{LOOK}\n    import json; print(json.dumps(kinetic.run(accelerator='cpu')(look)()))")
    )

    output, checkpoints = found["output"][0], found["checkpoints"][0]
    assert found["output"] == [output, output]
    assert Path(output).parent == home / "store" / "outputs"
    assert found["checkpoints"] == [checkpoints, checkpoints] == [f"{output}/checkpoints"] * 2
    assert found["there"]
    assert "/runners/" in found["code"]
    assert not (Path(found["code"]).parent / "_dashboard").exists()


def test_the_argument_wins_over_the_variable_and_the_variable_over_the_default(project, tmp_path, monkeypatch):
    monkeypatch.setenv("KINETIC_OUTPUT_DIR", "from/variable")
    text = f"""{LOOK}
    import json
    plain = kinetic.run(accelerator="cpu")(look)
    named = plain.with_options(output_dir="file://{tmp_path}/from/argument/")
    job = plain.run_async()
    print(json.dumps([named()["output"], job.result()["output"], job.output_dir]))
    """

    argument, variable, told = json.loads(project.out(text))

    assert argument == [f"{tmp_path}/from/argument"] * 2
    assert variable == [told] * 2 == [f"{project.root}/from/variable"] * 2


def test_two_calls_with_one_output_directory_see_the_same_checkpoints(project):
    text = f"""{LOOK}
    import json
    mine = kinetic.run(accelerator="cpu", output_dir="runs/one")(look)
    print(json.dumps([mine()["checkpoints"][1], mine()["checkpoints"][1]]))
    """

    assert json.loads(project.out(text)) == [f"{project.root}/runs/one/checkpoints"] * 2


def test_a_child_of_a_batch_that_failed_goes_on_from_its_own_checkpoint(project, kinetic):
    script = """
        import json
        import os
        import kinetic

        @kinetic.run(accelerator="cpu", output_dir="runs")
        def count(start):
            kept = os.path.join(kinetic.checkpoint_dir(), "state.json")
            state = json.load(open(kept)) if os.path.exists(kept) else {"steps": [start], "attempts": 0}
            state["attempts"] += 1
            while len(state["steps"]) < 6:
                state["steps"].append(state["steps"][-1] + 1)
                json.dump(state, open(kept, "w"))
                if len(state["steps"]) == 3 and start != 20:
                    raise OSError("the machine was taken away")
            return state | {"output": kinetic.output_dir()}

        if __name__ == "__main__":
            batch = count.run_async_map([10, 20, 30], retries=1)
            found = batch.results(cleanup=False)
            print(json.dumps([batch.group_id, [job.job_id for job in batch.jobs], found]))
    """

    group, jobs, found = last_json(project.out(script))

    assert [child["steps"] for child in found] == [list(range(start, start + 6)) for start in (10, 20, 30)]
    assert [child["attempts"] for child in found] == [2, 1, 2]
    assert [child["output"] for child in found] == [f"{project.root}/runs/{group}/{index}" for index in range(3)]
    assert all("checkpoints/" in kinetic("outputs", "ls", job).out for job in jobs)


def test_what_was_written_into_the_project_does_not_travel_with_the_next_job(project, kinetic, monkeypatch):
    monkeypatch.setenv("KINETIC_STORE", str(project.root / "results"))
    text = f"""{LOOK}
    import json
    kinetic.output_dir()
    open("outputs/of-a-local-call.bin", "w").close()
    mine = kinetic.run(accelerator="cpu", output_dir="runs")(look)
    mine()
    open("runs/weights.bin", "w").close()
    print(json.dumps(mine()["files"]))
    """

    assert json.loads(project.out(text)) == ["pyproject.toml", "script.py"]
    shown = kinetic("package", "--dry-run", "script.py").out
    assert "outputs/ " in shown
    assert "results/ " in shown


# ------------------------------------------------------------------------------------------------ from the terminal


def test_outputs_are_listed_and_copied(project, write, kinetic):
    job = write("model.bin", "plots/a.txt", "plots/deep/b.txt")
    outputs = project.root / "outputs" / job

    level, every = kinetic("outputs", "ls", job), kinetic("outputs", "ls", "@last", "plots", "-r")
    page = json.loads(kinetic("outputs", "ls", job[:-1], "--json").out)
    one, rest = kinetic("outputs", "get", job, "plots/deep"), kinetic("outputs", "get", job)

    assert [line.split()[-1] for line in level.out.splitlines()] == ["PATH", "model.bin", "plots/"]
    assert [line.split()[-1] for line in every.out.splitlines()] == ["PATH", "plots/a.txt", "plots/deep/b.txt"]
    assert [(entry["path"], entry["kind"], entry["files"]) for entry in page["entries"]] == [
        ("model.bin", "file", 1),
        ("plots/", "folder", 2),
    ]
    assert (page["job_id"], page["files"], page["size_bytes"]) == (job, 3, 17 + 19 + 24)
    assert (one.code, one.out) == (0, f"{project.root}\n")
    assert (rest.code, rest.out) == (0, f"{outputs}\n")
    assert "copied 1 file" in one.err
    assert "copied 3 files" in rest.err
    assert (project.root / "plots" / "deep" / "b.txt").read_text() == "this is plots/deep/b.txt"
    assert (outputs / "plots" / "deep" / "b.txt").read_text() == "this is plots/deep/b.txt"


def test_outputs_of_a_batch_are_found_by_its_id_and_its_name_below_the_number_of_each_input(project, kinetic):
    project.write("writer.py", WRITER)
    project.out(
        "from writer import write; "
        "write.with_options(output_dir='runs').run_async_map(['a.txt', 'b.txt'], name='my sweep').wait()"
    )

    level, copied = kinetic("outputs", "ls", "my sweep"), kinetic("outputs", "get", "my sweep", "1/b.txt")
    everything = kinetic("outputs", "get", next((project.root / "runs").iterdir()).name)
    nothing = kinetic("outputs", "ls", "grp-00000000")

    assert [line.split()[-1] for line in level.out.splitlines()] == ["PATH", "0/", "1/"]
    assert (copied.out, (project.root / "1" / "b.txt").read_text()) == (f"{project.root}\n", "this is b.txt")
    assert (Path(everything.out.strip()) / "0" / "a.txt").read_text() == "this is a.txt"
    assert nothing.err.endswith("next:  kinetic batch list\n")


def test_the_newest_job_counts_though_it_was_collected(project, write, kinetic):
    project.out("from writer import write; write('old.txt'), write.run_async('older.txt'), write('new.txt')")

    assert "new.txt" in kinetic("outputs", "ls", "@last").out  # though an id knows the second only


def test_a_link_to_a_folder_alone_is_named_and_no_files_are_called_missing(project, write, kinetic):
    job = write("plots/a.txt")
    (Path(json.loads(kinetic("outputs", "ls", job, "--json").out)["output_dir"]) / "latest").symlink_to("plots")

    listed, copied = kinetic("outputs", "ls", job, "latest"), kinetic("outputs", "get", job, "latest")

    assert (listed.code, copied.code) == (0, 1)
    assert "latest" in listed.err
    assert "has not written any files" not in listed.err + copied.err
    assert f"next:  kinetic outputs ls {job} --recursive" in copied.err


def test_each_mistake_has_its_answer(project, write, kinetic, tmp_path):
    job, empty = write("model.bin"), write()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "model.bin").write_text("mine")

    listed, nothing = kinetic("outputs", "ls", empty), kinetic("outputs", "get", empty)
    path = kinetic("outputs", "get", job, "models.bin")
    out = kinetic("outputs", "get", job, "../handle.json")
    there = kinetic("outputs", "get", job, "--to", str(tmp_path / "here"))
    nobody = kinetic("outputs", "ls", "cpu-nobody")
    (project.root / "outputs").write_text("a file where the folder would be")
    not_made = kinetic("outputs", "get", job)

    assert (listed.code, listed.out) == (0, "")
    assert "has not written any files to" in listed.err
    assert (nothing.code, path.code, out.code, there.code, nobody.code) == (1, 1, 2, 2, 1)  # 2: as it was typed
    assert "[data-missing]" in nothing.err
    assert f"next:  kinetic jobs logs {empty}" in nothing.err
    assert "nearest: model.bin" in path.err
    assert "not a path below the output directory" in out.err
    assert f"next:  kinetic outputs ls {job}     lists" in out.err
    assert "[file-exists]" in there.err
    assert "[job-not-found]" in nobody.err
    assert f"not everything could be copied into {project.root / 'outputs'} [not-saved]" in not_made.err
    assert (tmp_path / "here" / "model.bin").read_text() == "mine"
    forced = kinetic("outputs", "get", job, "--to", str(tmp_path / "here"), "--force", "--json")
    assert json.loads(forced.out)["files"] == 1
    assert (tmp_path / "here" / "model.bin").read_text() == "this is model.bin"


def test_outputs_of_a_running_job_can_be_read(project, kinetic):
    project.write(
        "slow.py",
        """
        import time, kinetic

        @kinetic.run(accelerator="cpu", output_dir="shared")
        def slow():
            with open(kinetic.output_dir() + "/part.txt", "w") as file:
                file.write("so far")
            time.sleep(600)

        if __name__ == "__main__":
            print(slow.run_async().job_id)
        """,
    )
    job = project.run("slow.py").stdout.strip()
    project.write("waiting.py", "import os, time\nwhile not os.path.exists('shared/part.txt'): time.sleep(0.01)")
    project.run("waiting.py")

    found = kinetic("outputs", "get", job, "part.txt", "--to", "mine")

    assert found.code == 0, found.err
    assert (project.root / "mine" / "part.txt").exists()
    kinetic("jobs", "cancel", job)


@pytest.fixture(params=["gs", "s3"])
def bucket(request, monkeypatch, home) -> Iterator[str]:
    """Return the address of an empty bucket on a server of this test's own."""
    server = GcsServer().start() if request.param == "gs" else MotoServer(page_size=7)
    server.bucket("runs")
    words = {"STORAGE_EMULATOR_HOST": server.url} if request.param == "gs" else server.environment()
    for name, word in words.items():
        monkeypatch.setenv(name, word)
    yield f"{request.param}://runs"
    server.close()


def test_outputs_in_a_bucket_are_listed_and_copied(project, kinetic, bucket):
    project.write("look.py", LOOK)
    told = project.out(
        f"""
        import json, kinetic, look
        job = kinetic.run(accelerator="cpu", output_dir="{bucket}/one/")(look.look).run_async()
        print(json.dumps([job.job_id, job.result()]))
        """
    )
    job, found = json.loads(told)
    store = open_store(f"{bucket}/one")  # what the function would have written with a client of its own
    for number in range(20):
        store.put(f"steps/{number}/state", bytes(number))
    store.put("model.bin", b"model")
    open_store(f"{bucket}/one-more").put("of another job", b"")

    listed = json.loads(kinetic("outputs", "ls", job, "--json").out)
    got, again = (kinetic("outputs", "get", job, "--to", "mine") for _ in range(2))
    missing = kinetic("outputs", "get", job, "steps/21")

    assert found["output"] == [f"{bucket}/one"] * 2
    assert found["checkpoints"] == [f"{bucket}/one/checkpoints"] * 2
    assert [(entry["path"], entry["files"]) for entry in listed["entries"]] == [("model.bin", 1), ("steps/", 20)]
    assert (got.code, "copied 21 files" in got.err) == (0, True), got.err
    assert "21 files already there" in again.err
    assert (project.root / "mine" / "steps" / "19" / "state").read_bytes() == bytes(19)
    assert "[data-missing]" in missing.err


PLAIN = """
import os, pathlib
import kinetic

@kinetic.run(accelerator="cpu")
def train(steps):
    state = pathlib.Path(kinetic.checkpoint_dir(), "state")
    begun = int(state.read_text()) if state.exists() else 0
    part = state.with_suffix(".part")
    part.write_text(str(begun + steps))
    part.replace(state)
    os.makedirs(os.path.join(kinetic.output_dir(), "plots"), exist_ok=True)
    with open(os.path.join(kinetic.output_dir(), "plots", "loss.txt"), "w") as file:
        file.write("0.5")
    return begun + steps

@kinetic.run(accelerator="cpu")
def found(data):
    return sorted(str(path.relative_to(data)) for path in pathlib.Path(data).rglob("*"))
"""


def test_a_function_that_writes_plain_files_goes_on_in_a_bucket_as_in_a_folder(project, kinetic, bucket, tmp_path):
    project.write("plain.py", PLAIN)

    def told(place: str) -> list[object]:
        return json.loads(
            project.out(
                f"""
                import json, kinetic
                from plain import found, train
                train = train.with_options(output_dir={place!r})
                values = [train(2), train(3)]
                job = train.run_async(4)
                print(json.dumps([*values, job.result(), job.job_id, found(kinetic.Data(job.output_dir + "/"))]))
                """
            ).splitlines()[-1]
        )

    here, there = told(str(tmp_path / "folder")), told(f"{bucket}/plain")

    files = ["checkpoints", "checkpoints/state", "plots", "plots/loss.txt"]
    copied = project.out(
        f"""
        import os, pathlib
        import kinetic
        from plain import train
        job = train.with_options(output_dir={bucket + "/plain"!r}).run_async(1)
        value, state = job.result(), job.get_outputs("checkpoints/state")
        print(value, state.read_text(), job.get_outputs(pathlib.Path("plots"), to="mine"))
        print(*sorted(path.relative_to(job.get_outputs()) for path in job.get_outputs().rglob("*.*")))
        try:
            job.get_outputs("plot")
        except FileNotFoundError as error:
            print(error)
        os.environ["HOME"] = os.getcwd()
        print(job.get_outputs(pathlib.Path("plots/loss.txt"), to="~/own"))
        """
    )
    assert f"10 10 {project.root / 'mine' / 'plots'}" in copied.splitlines()
    assert copied.splitlines()[-1] == str(project.root / "own" / "plots" / "loss.txt")
    assert "plots/loss.txt" in copied.splitlines()
    assert "nearest: plots" in copied
    for *values, job, seen in (here, there):
        assert values == [2, 5, 9]
        assert seen == files
        listed = json.loads(kinetic("outputs", "ls", job, "--recursive", "--json").out)["entries"]
        assert [entry["path"] for entry in listed] == files[1::2]


# -------------------------------------------------------------------------------------------------------- going on


@pytest.fixture
def run_example(project, home) -> Callable[..., str]:
    """Return a function that runs one of our examples as a project of its own, and returns what it printed."""

    def run(name: str, *words: str) -> str:
        project.write(name, (ROOT / "examples" / name).read_text())
        done = project.run(name, *words, timeout=280)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.skipif(
    find_spec("keras") is None or find_spec("jax") is None, reason="Keras and JAX are not installed here"
)
@pytest.mark.timeout(300)  # two jobs, each of which imports Keras and JAX: a minute on a busy machine
def test_a_second_call_with_keras_goes_on_after_the_epochs_that_were_saved(run_example, tmp_path):
    out = run_example("resume_keras.py", str(tmp_path / "kept"))

    assert "the first call: train failed: the job's process ended by itself with exit code 9" in out
    assert (
        "the second call: {'epochs': [3, 4, 5], 'updates': 48}\n" in out
    )  # 6 epochs of 8 updates: the optimizer's count
    assert (tmp_path / "kept" / "checkpoints" / "latest.weights.h5").exists()


@pytest.mark.skipif(
    find_spec("orbax") is None or find_spec("jax") is None, reason="Orbax and JAX are not installed here"
)
def test_a_second_call_with_orbax_goes_on_at_the_step_that_was_saved(run_example, project, tmp_path):
    out = run_example("resume_orbax.py", str(tmp_path / "kept"))

    assert "the first call: train failed" in out
    assert "the second call: {'begun': 50, 'ended': 100, 'weights': [1.0, -2.0, 3.0, 0.5]}\n" in out
    assert sorted(os.listdir(tmp_path / "kept" / "checkpoints")) == ["100", "90"]
    third = project.out(f"from resume_orbax import train; print(train.with_options(output_dir='{tmp_path}/kept')(100))")
    assert "'begun': 100, 'ended': 100" in third


@pytest.mark.skipif(
    find_spec("orbax") is None or find_spec("jax") is None, reason="Orbax and JAX are not installed here"
)
def test_the_hosts_of_a_slice_save_together_and_go_on_together(project):
    out = project.out(
        """
        import kinetic

        @kinetic.run(accelerator="tpu-v4-2x2x2", output_dir="kept")
        def train(steps):
            import jax
            import jax.numpy as jnp
            import orbax.checkpoint as ocp

            mesh = jax.sharding.Mesh(jax.devices(), "all")
            everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
            state = jax.device_put({"step": jnp.array(0)}, everywhere)
            options = ocp.CheckpointManagerOptions(save_interval_steps=2)
            with ocp.CheckpointManager(kinetic.checkpoint_dir(), options=options) as checkpoints:
                latest = checkpoints.latest_step()
                if latest is not None:
                    state = checkpoints.restore(latest, args=ocp.args.StandardRestore(state))
                begun = int(state["step"])
                for step in range(begun + 1, steps + 1):
                    state = jax.tree.map(lambda each: each + 1, state)
                    checkpoints.save(step, args=ocp.args.StandardSave(state))
            return jax.process_count(), begun, int(state["step"])

        if __name__ == "__main__":
            print(train(3))
            print(train(5))
        """
    )

    told = [line for line in out.splitlines() if line.startswith("(2, ")]  # among lines of JAX's own
    assert told == ["(2, 0, 3)", "(2, 2, 5)"]


def test_an_output_folder_that_cannot_be_made_is_an_error_before_anything_is_submitted(project, kinetic, home):
    (project.root / "taken").write_text("a file")

    told = kinetic("run", "--output-dir", "taken/results", "--", "true")

    assert told.code == 2
    assert "taken is not a folder" in told.err
    assert "output_dir" in told.err
    assert json.loads(kinetic("jobs", "list", "--all", "--json").out)["jobs"] == []
