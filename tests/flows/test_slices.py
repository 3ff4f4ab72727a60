"""A slice of several hosts on this machine: one process each, joined by jax, standing and falling as one."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="real JAX is needed, and it is not installed here")

COUNTING = """
    import kinetic

    @kinetic.run(accelerator="tpu-v5litepod-16")
    def count(again=False):
        import os

        import jax
        import jax.numpy as jnp
        import numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        if again:
            jax.distributed.initialize()
        spread = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
        everywhere = NamedSharding(spread.mesh, PartitionSpec())
        numbers = jax.make_array_from_callback((16,), spread, lambda index: np.arange(16.0)[index])
        total = float(jax.jit(jnp.sum, out_shardings=everywhere)(numbers))
        print(f"host {os.environ['KINETIC_HOST_INDEX']} of {os.environ['KINETIC_HOST_COUNT']} sees {total}")
        return jax.process_index(), jax.process_count(), jax.local_device_count(), jax.device_count(), total

    if __name__ == "__main__":
        import sys

        job = count.run_async(again="again" in sys.argv)
        print(job.result(cleanup=False), job.job_id)
"""


def test_four_processes_are_one_slice_of_sixteen_devices_and_the_leader_answers(project) -> None:
    said = project.out(COUNTING)

    assert said.startswith("(0, 4, 4, 16, 120.0)")


def test_user_code_may_initialise_too_and_every_hosts_log_is_kept_and_shown_with_its_prefix(project) -> None:
    said = project.out(COUNTING, "again")
    job_id = said.split()[-1]

    everything = project.kinetic("jobs", "logs", job_id, "--host", "all").stdout
    third = project.kinetic("jobs", "logs", job_id, "--host", "2").stdout

    assert said.startswith("(0, 4, 4, 16, 120.0)")
    assert re.findall(r"^\[host (\d)\] host (\d) of 4 sees 120.0$", everything, re.MULTILINE) == [
        (str(host), str(host)) for host in range(4)
    ]
    assert "host 2 of 4 sees 120.0" in third.splitlines()
    assert "host 1 of 4" not in third


def test_all_hosts_can_be_followed_at_once_until_the_job_ends(home, project) -> None:
    project.write(
        "chatty.py",
        """
        import kinetic

        @kinetic.run(accelerator="tpu-v4-2x2x2")
        def chat():
            import os
            import time

            for number in range(3):
                print("line", number, flush=True)
                time.sleep(0.1)

        if __name__ == "__main__":
            print(chat.run_async().job_id)
        """,
    )
    job_id = project.run("chatty.py").stdout.strip()

    followed = project.kinetic("jobs", "logs", job_id, "-f", "--host", "all")

    assert followed.returncode == 0
    for host in range(2):
        assert re.findall(rf"^\[host {host}\] line (\d)$", followed.stdout, re.MULTILINE) == ["0", "1", "2"]


FAILING = """
    import kinetic

    @kinetic.run(accelerator="tpu-v4-2x2x4")
    def fall(how):
        import os
        import subprocess
        import time

        if os.environ["KINETIC_HOST_INDEX"] == "2":
            if how == "raise":
                raise ValueError("this host is unwell")
            os.kill(os.getpid(), 9)
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        time.sleep(600)

    if __name__ == "__main__":
        import sys
        import time

        begun = time.monotonic()
        try:
            fall(sys.argv[1])
        except Exception as error:
            next_ = getattr(error, "next", "")
            print(type(error).__name__, "|", str(error).splitlines()[0], "|", next_, *error.__notes__)
        print("after", round(time.monotonic() - begun))
"""


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [("raise", "ValueError", "this host is unwell"), ("die", "JobError", "ended by SIGKILL")],
    ids=["raises", "is killed"],
)
def test_a_host_that_fails_is_noticed_while_the_others_run_and_is_named(
    home, project, living_processes, wait_until, how, kind, words
) -> None:
    said = project.out(FAILING, how)

    first, *_ = said.splitlines()
    assert first.startswith(kind)
    assert words in first
    assert "It happened on host 2 of 4." in said
    assert re.search(r"kinetic jobs logs \S+ --host 2\b", said)
    explained = project.kinetic("jobs", "explain", "@last").stdout
    assert f"{'raised ValueError' if how == 'raise' else 'failed'} on host 2 of 4: " in explained
    assert ("this host is unwell" in explained.partition("log:")[2]) == (how == "raise")
    if how == "raise":
        assert 'raise ValueError("this host is unwell")' in said
    assert int(said.split()[-1]) < 20
    wait_until(lambda: len(living_processes(home)) <= 1, "no process but an idle supervisor survives")


def test_several_machines_with_gpus_are_processes_that_find_each_other_by_jax_and_by_what_pytorch_reads(
    project,
) -> None:
    project.write(
        "meeting.py",
        """
        import kinetic

        @kinetic.run(accelerator="gpu-l4x1x2")
        def meet():
            import os
            import socket

            import jax

            where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            rank = int(os.environ["NODE_RANK"])
            if rank == 0:
                with socket.create_server(where) as server:
                    server.settimeout(60)
                    with server.accept()[0] as other:
                        heard = other.makefile().read()
            else:
                heard = ""
                while True:
                    try:
                        with socket.create_connection(where) as other:
                            other.sendall(f"rank {rank}".encode())
                        break
                    except ConnectionRefusedError:
                        pass
            return heard, rank, jax.process_count(), kinetic.current().host_count

        if __name__ == "__main__":
            print(meet())
        """,
    )

    said = project.run("meeting.py")

    assert said.stdout.splitlines()[-1] == "('rank 1', 0, 2, 2)"
    assert "this machine has no gpu-l4x1x2: 2 processes, joined by jax.distributed, run on the CPU" in said.stderr


def test_several_slices_are_emulated_as_hosts_that_are_counted_on(home, project) -> None:
    project.write(
        "two.py",
        """
        import kinetic

        @kinetic.run(accelerator="tpu-2xv4-2x2x2")
        def where():
            me = kinetic.current()
            print("slice", me.slice_index, "of", me.slice_count)

        if __name__ == "__main__":
            job = where.run_async()
            job.result(cleanup=False)
            print(job.job_id)
        """,
    )

    done = project.run("two.py")
    log = project.kinetic("jobs", "logs", done.stdout.strip(), "--host", "all").stdout

    assert "is emulated: 2 slices, together 4 processes with 4 virtual CPU devices each" in done.stderr
    said = [(str(host), str(host // 2)) for host in range(4)]
    assert sorted(re.findall(r"^\[host (\d)\] slice (\d) of 2$", log, re.MULTILINE)) == said


def test_a_slice_is_one_slot(home, project) -> None:
    project.write(
        "wide.py",
        """
        import kinetic

        @kinetic.run(accelerator="tpu-v4-2x2x2")
        def wide(mine, other):
            import os
            import pathlib
            import time

            pathlib.Path(mine).touch()
            until = time.monotonic() + 60
            while not os.path.exists(other) and time.monotonic() < until:
                time.sleep(0.01)
            return os.path.exists(other)

        if __name__ == "__main__":
            import tempfile

            meet = tempfile.mkdtemp()
            names = [f"{meet}/first", f"{meet}/second"]
            jobs = [wide.run_async(names[turn], names[1 - turn]) for turn in range(2)]
            print([job.result() for job in jobs])
        """,
    )

    assert project.run("wide.py").stdout.splitlines()[-1] == "[True, True]"  # two slices of two hosts side by side


def test_a_slice_beyond_the_limit_is_refused_before_anything_is_packed(home, project, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_MAX_HOSTS", "3")
    project.write(
        "large.py",
        """
        import kinetic

        @kinetic.run(accelerator="tpu-v5litepod-16")
        def large():
            return 1

        large()
        """,
    )

    done = project.run("large.py")

    assert done.returncode == 1
    assert "spans 4 hosts, and this machine emulates at most 3" in done.stderr
    assert "KINETIC_LOCAL_MAX_HOSTS=4" in done.stderr
    assert not list(home.glob("store/v5e*"))


def test_one_host_has_its_chips_as_virtual_devices(project) -> None:
    said = project.out("""
        import kinetic

        @kinetic.run(accelerator="tpu-v5e-8")
        def devices():
            import jax

            return jax.device_count(), jax.process_count(), jax.devices()[0].platform

        if __name__ == "__main__":
            print(devices())
    """)

    assert said.strip() == "(8, 1, 'cpu')"


@pytest.mark.skipif(find_spec("keras") is None, reason="Keras is not installed here")
@pytest.mark.timeout(
    300
)  # two processes that import Keras and JAX, and wait for each other: a minute on a busy machine
def test_keras_trains_on_a_slice_and_every_host_ends_with_the_same_weights(project) -> None:
    said = project.out(
        """
        import kinetic

        @kinetic.run(accelerator="tpu-v4-2x2x2")
        def train():
            import jax
            import keras
            import numpy as np
            from jax.experimental import multihost_utils

            spread = keras.distribution.DataParallel(devices=keras.distribution.list_devices())
            spread.auto_shard_dataset = False
            keras.distribution.set_distribution(spread)
            keras.utils.set_random_seed(1)
            rows = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile(optimizer="sgd", loss="mse")
            losses = model.fit(rows, rows.sum(1), batch_size=16, epochs=3, verbose=0).history["loss"]
            weights = np.concatenate([np.asarray(weight).ravel() for weight in model.get_weights()])
            everybody = multihost_utils.process_allgather(weights)
            return jax.process_count(), losses[-1] < losses[0], bool(np.allclose(everybody[0], everybody[1]))

        if __name__ == "__main__":
            print(train())
    """,
        timeout=280,
    )

    assert said.splitlines()[-1] == "(2, True, True)"
