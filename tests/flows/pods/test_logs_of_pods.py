"""The log of a pod: in the store and in the output of its container."""

from __future__ import annotations

from pathlib import Path

from servers.faults import Fault
from waiting import until

from kinetic._jobs import logs
from kinetic._wire import keys, pod_log_format

from .conftest import JOB, WAITS, Bucket, Pods


def test_a_log_of_many_megabytes_arrives_whole(pods: Pods) -> None:
    pods.order("""
        def talk(lines):
            for number in range(lines):
                print(f"{number:09d} " + "x" * 89)
            return lines
    """, 50_000)  # fmt: skip

    code, out = pods.run()

    expected = "".join(f"{number:09d} {'x' * 89}\n" for number in range(50_000))
    assert code == 0
    assert pods.log() == expected
    assert expected in out
    starts = [int(key) for key in pods.keys_below(keys.logs(JOB, 0, 0))]
    assert starts == [number << 20 for number in range(len(expected) // (1 << 20) + 1)]
    assert logs.tail(logs.StoredLog(pods.store, keys.logs(JOB, 0, 0)), 1).startswith("000049999 x")


def test_a_log_can_be_followed_in_the_store_while_the_job_runs(pods: Pods, tmp_path: Path) -> None:
    pods.order(WAITS, str(tmp_path / "flag"))
    pod = pods.start()

    until(lambda: pods.log() == "waiting\n")

    assert pod.poll() is None


def test_the_output_of_a_container_gives_back_the_log_byte_for_byte(pods: Pods) -> None:
    pods.order(r"""
        def talk():
            import os
            os.write(1, b"\xff\n\n10 %\r100 %\r\nkinetic| mine\n" + b"x" * 100_000 + b"\nno end")
    """)

    pod = pods.start(text=False)
    out, _ = pod.communicate(timeout=60)

    reader = pod_log_format.Reader()
    stored = logs.StoredLog(pods.store, keys.logs(JOB, 0, 0))
    assert reader.read(out) == stored.read(0, stored.size())
    assert reader.claim == pod_log_format.Claim(JOB, 0, 0)
    assert reader.has_verdict
    assert out.startswith(
        f"{pod_log_format.RUNNER_PREFIX}job {JOB}\n".encode()
        + f"{pod_log_format.RUNNER_PREFIX}attempt 0 of {JOB}, host 0 of 1\r\n".encode()
    )
    assert out.endswith(
        f"no endkinetic|-\n{pod_log_format.RUNNER_PREFIX}{pod_log_format.VERDICT}: the job succeeded\n".encode()
    )


def test_every_line_of_the_runner_is_marked(pods: Pods) -> None:
    pods.order("def fail():\n    print('mine')\n    raise ValueError('of\\ntwo lines')")

    _, out = pods.run()

    ours = [line for line in out.splitlines() if line.startswith(pod_log_format.RUNNER_PREFIX)]
    assert next(line for line in out.splitlines() if line not in ours) == "mine"
    assert ours[-2:] == [
        f"{pod_log_format.RUNNER_PREFIX}{pod_log_format.VERDICT}: the job failed: of",
        f"{pod_log_format.RUNNER_PREFIX}two lines",
    ]


def test_what_the_parent_itself_warns_of_moves_nothing_out_of_its_place(pods: Pods, tmp_path: Path) -> None:
    noisy = tmp_path / "noisy"
    noisy.mkdir()
    complaint = "import os; os.register_at_fork(before=lambda: os.write(2, b'a library complains\\n'))"
    (noisy / "sitecustomize.py").write_text(complaint)
    pods.order("def one():\n    print('mine')\n    return 1")

    pod = pods.start(text=False, PYTHONPATH=str(noisy))
    out, _ = pod.communicate(timeout=60)

    stored = logs.StoredLog(pods.store, keys.logs(JOB, 0, 0))
    assert stored.read(0, 100).startswith(b"a library complains\n")
    assert pod_log_format.Reader().read(out) == stored.read(0, stored.size())


def test_a_store_that_takes_no_log_does_not_hold_up_the_job(cloud_pods: Pods, bucket: Bucket) -> None:
    cloud_pods.order("def talk():\n    for n in range(20_000):\n        print('x' * 200)\n    return 'done'")
    bucket.proxy.faults.append(Fault("status", method="PUT", status=400, times=1e9, after=1))
    pod = cloud_pods.start()

    until(lambda: bucket.proxy.faults[0].met)
    bucket.proxy.faults.clear()
    out, _ = pod.communicate(timeout=60)

    assert pod.returncode == 0, out[-2000:]
    assert cloud_pods.value() == "done"
    assert len(cloud_pods.log()) == 20_000 * 201


def test_a_job_is_not_held_up_by_an_output_that_nobody_reads(pods: Pods) -> None:
    pods.order("def talk():\n    for n in range(20_000):\n        print('x' * 99)\n    return 'done'")
    pod = pods.start()  # into a pipe of 64 KiB

    pod.wait(timeout=30)

    assert pod.returncode == 0
    assert len(pods.log()) == 20_000 * 100
