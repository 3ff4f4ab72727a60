"""A warm pod and jobs with other packages than its own: they get the difference, and the next job sees none of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cluster.plane import wait_for
from flows.kube.test_followers import account
from flows.kube.test_images import base, images, index, no_registry, registry, registry_address
from flows.kube.test_warm_pods import is_idle, pods_of_warm
from servers.wheels import made_wheel

from kinetic._wire import failpoints

__all__ = ["account", "base", "images", "index", "no_registry", "registry", "registry_address"]
pytestmark = pytest.mark.timeout(300)

USES = """
    import kinetic

    @kinetic.run(accelerator="cpu", keep_warm="10m"{more})
    def versions():
        import importlib.metadata, subprocess, sys
        server = sys.modules.get("kinetic._runner.worker.preloaded_modules")
        if server is not None and server.hidden.module("alpha") is not None:
            print("alpha was imported before the fork")
        found = []
        for name in ("alpha", "beta"):
            try:
                module = __import__(name)
                found.append([module.VERSION, importlib.metadata.version(name)])
            except ModuleNotFoundError as error:
                found.append(str(error))
        words = [sys.executable, "-c", "import alpha; print(alpha.VERSION)"]
        return [*found, subprocess.check_output(words, text=True).strip()]
"""
RUN = """
    from uses import versions
    job = versions.run_async()
    tell([job.result(cleanup=False), job.logs()])
"""
ONE, TWO = [["one", "1.0"], ["b", "1.0"], "one"], [["two", "2.0"], "No module named 'beta'", "two"]


@pytest.fixture
def wheels(images: Any, index: Any, tmp_path: Path) -> None:
    """Offer two versions of one package, and another one."""
    index(made_wheel(tmp_path / "index", "alpha", "2.0", {"alpha.py": "VERSION = 'two'\n"}))
    index(made_wheel(tmp_path / "index", "beta", "1.0", {"beta/__init__.py": "VERSION = 'b'\n"}))


def depends_on(clients: Any, *lines: str) -> None:
    names = ", ".join(f'"{line}"' for line in lines)
    clients.project.write("pyproject.toml", f'[project]\nname = "theirs"\nversion = "1"\ndependencies = [{names}]\n')


def run(clients: Any, site: Any, times: int, *lines: str) -> tuple[Any, str, str]:
    """Return what a job of such a project returned and logged, and what its client said."""
    depends_on(clients, *lines)
    (value, log), said = clients.both(RUN)
    wait_for("an idle pod", is_idle(site, times), 30)
    return value, log, said


def test_a_task_with_other_packages_gets_the_difference_and_the_next_one_has_the_first_again(
    wheels: None, clients: Any, site: Any
) -> None:
    clients.project.write("uses.py", USES.replace("{more}", ""))

    first, _, _ = run(clients, site, 1, "alpha==1.0", "beta")
    second, log, said = run(clients, site, 2, "alpha==2.0")
    third, third_log, _ = run(clients, site, 3, "alpha==1.0", "beta")

    assert (first, second, third) == (ONE, TWO, ONE)
    assert "gets what it lacks: alpha 2.0 (was 1.0), without beta" in said
    assert "kinetic: installed what this warm pod lacks in 0." in log
    assert "kinetic:" not in third_log
    assert len(pods_of_warm(site)) == len(site.pods_of()) == 1


@pytest.mark.nightly
def test_without_a_registry_layers_are_unpacked_once_and_imported_before_the_fork(
    wheels: None, no_registry: None, clients: Any, site: Any
) -> None:
    clients.project.write("uses.py", USES.replace("{more}", ', container_image="bundled"'))

    ended = [
        run(clients, site, times, *lines)
        for times, lines in enumerate(
            [("alpha==1.0", "beta"), ("alpha==2.0",), ("alpha==2.0",), ("alpha==1.0", "beta")], 1
        )
    ]

    assert [value for value, _, _ in ended] == [ONE, TWO, TWO, ONE]
    assert [("bytes of packages in" in log, "kept from a task before" in log) for _, log, _ in ended] == [
        (True, False),
        (True, True),  # what is new is unpacked above what is there
        (False, True),
        (False, True),
    ]
    assert ["before the fork" in log for _, log, _ in ended] == [False, False, True, False]
    assert len(pods_of_warm(site)) == len(site.pods_of()) == 1


@pytest.mark.nightly
def test_kept_packages_that_a_task_changes_are_removed_and_made_again(
    wheels: None, no_registry: None, clients: Any, site: Any
) -> None:
    clients.project.write("uses.py", USES.replace("{more}", ', container_image="bundled"'))
    clients.project.write(
        "changes.py",
        """
        import kinetic

        @kinetic.run(accelerator="cpu", keep_warm="10m", container_image="bundled")
        def change():
            import alpha
            with open(alpha.__file__, "a") as file:
                file.write("VERSION = 'changed'\\n")
        """,
    )
    depends_on(clients, "alpha==1.0", "beta")

    clients.run("from changes import change\ntell(change())")
    wait_for("an idle pod", is_idle(site, 1), 30)
    after, log, _ = run(clients, site, 2, "alpha==1.0", "beta")

    (pod,) = pods_of_warm(site)
    assert "changed the packages that this pod keeps; they are removed" in site.log(pod["metadata"]["name"])
    assert (after, "bytes of packages in" in log) == (ONE, True)


@pytest.mark.nightly
def test_packages_that_cannot_be_a_difference_start_a_pod_of_their_own_and_a_line_says_why(
    wheels: None, clients: Any, site: Any, index: Any, tmp_path: Path
) -> None:
    names = [f"many_{number}" for number in range(26)]
    for name in names:
        index(made_wheel(tmp_path / "index", name, "1.0", {f"{name}.py": ""}))
    clients.project.write("uses.py", USES.replace("{more}", ""))
    run(clients, site, 1, "alpha==1.0", "beta")

    depends_on(clients, "alpha==1.0", "beta", *names)
    (value, _), said = clients.both(RUN)

    assert value == ONE
    assert "has other packages: 26 packages are different, and a difference has up to 25" in said
    assert len(site.pods_of()) == 2


# -------------------------------------------------------------------------------------------- lines without a lock


FROM_INDEX = ', container_image="python", capture_env_vars=["UV_DEFAULT_INDEX", "UV_HTTP_RETRIES"]'


@pytest.fixture
def lines(clients: Any, index: Any, machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jobs start in the image "python", and install their packages from an index."""
    for version, word in (("1.0", "one"), ("2.0", "two")):
        index(made_wheel(tmp_path / "index", "alpha", version, {"alpha.py": f"VERSION = '{word}'\n"}))
    index(made_wheel(tmp_path / "index", "beta", "1.0", {"beta/__init__.py": "VERSION = 'b'\n"}))
    clients.project.write("uses.py", USES.replace("{more}", FROM_INDEX))
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.simple)
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")


@pytest.mark.nightly
def test_a_slice_whose_hosts_cannot_install_a_difference_gives_the_job_back_to_hosts_of_its_own(
    lines: None, clients: Any, site: Any, index: Any, machines: Any, kinetic: Any
) -> None:
    machines()
    clients.project.write("uses.py", USES.replace("{more}", FROM_INDEX).replace('"cpu"', '"tpu-v4-2x2x2"'))
    depends_on(clients, "alpha==1.0")
    first = clients.run("from uses import versions\ntell(versions())")
    depends_on(clients, "alpha==2.0")
    index.login = ("ann", "of a test")

    job_id, said = clients.both("from uses import versions\ntell(versions.run_async().job_id)")
    wait_for(
        "its way back", lambda: "gave it back: " in (told := kinetic("jobs", "explain", job_id)).err + told.out, 100
    )
    index.login = None
    kinetic("warm", "stop", "--all")
    value = clients.run("tell(kinetic.attach(words[0]).result(timeout=90, cleanup=False))", job_id)

    assert "gets what it lacks: alpha==2.0 (has 1.0)" in said
    assert (first[0], value[0]) == (["one", "1.0"], ["two", "2.0"])
    assert site.bucket.names(f"{job_id}/attempts/") == [f"{job_id}/attempts/{attempt}" for attempt in (0, 1)]


def test_without_a_lock_a_pod_takes_jobs_whose_lines_it_satisfies_and_gets_what_it_lacks(
    lines: None, clients: Any, site: Any
) -> None:
    first, _, _ = run(clients, site, 1, "alpha==1.0")
    second, second_log, second_said = run(clients, site, 2, "alpha<2")
    third, third_log, third_said = run(clients, site, 3, "alpha==2.0", "beta")

    assert first == second == [["one", "1.0"], "No module named 'beta'", "one"]
    assert "has all packages of this job" in second_said
    assert ("alpha was imported before the fork" in second_log, "kinetic:" in second_log) == (True, False)
    assert third == [["two", "2.0"], ["b", "1.0"], "two"]
    assert "gets what it lacks: alpha==2.0 (has 1.0), beta" in third_said
    assert "s: alpha 2.0 (was 1.0), beta 1.0" in third_log
    assert len(pods_of_warm(site)) == len(site.pods_of()) == 1


FIRST_LOG_AND_VALUE = """
from kinetic._jobs import logs
job = kinetic.attach(words[0])
tell([job.result(cleanup=False), logs.text_of(logs.log_of(job, attempt=0))])
"""


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("step", ["", pytest.param(failpoints.KEPT[1], marks=pytest.mark.nightly)])
def test_a_pod_that_may_start_jobs_starts_the_one_that_it_gives_back_when_every_client_is_gone(
    lines: None, clients: Any, site: Any, index: Any, agent: Any, shared: Path, step: str
) -> None:
    dies_at(step, agent, shared)
    run(clients, site, 1, "alpha==1.0")
    depends_on(clients, "alpha==1.0", "beta")
    asked, index.login = len(index.asked), ("ann", "of a test")

    job_id = clients.run("from uses import versions\ntell(versions.run_async().job_id)")
    wait_for("its first question", lambda: len(index.asked) > asked)
    index.login = None
    wait_for("its value", lambda: f"{job_id}/result.pkl" in site.bucket.names(job_id), 60)
    value, log = clients.run(FIRST_LOG_AND_VALUE, job_id)

    assert (value, (shared / "died").exists()) == (ONE, bool(step))
    assert step or "gave it back: the requirements of this job could not be installed" in log  # unless killed before
    assert site.bucket.names(f"{job_id}/attempts/") == [f"{job_id}/attempts/{attempt}" for attempt in (0, 1)]


def dies_at(step: str, agent: Any, shared: Path) -> None:
    """Have the first process of a pod that reaches a step die there."""
    if step:
        python = agent.registry.pull("python:3")
        agent.registry.add("python:*", python._replace(environment={failpoints.VARIABLE: f"{step}@{shared}/died"}))


@pytest.mark.nightly
@pytest.mark.parametrize("step", ["", failpoints.KEPT[1]])
def test_a_job_whose_difference_cannot_be_installed_starts_in_a_pod_of_its_own_and_a_line_says_why(
    lines: None, clients: Any, site: Any, index: Any, agent: Any, shared: Path, step: str
) -> None:
    dies_at(step, agent, shared)
    run(clients, site, 1, "alpha==1.0")
    depends_on(clients, "alpha==1.0", "beta")
    asked, index.login = len(index.asked), ("ann", "of a test")

    with ThreadPoolExecutor() as pool:
        submitted = pool.submit(clients.both, RUN)
        wait_for("its first question", lambda: len(index.asked) > asked)
        index.gate.clear()  # the next pod waits for files until the warm one has given the job back
        index.login = None
        wait_for("an idle pod", is_idle(site, 2), 60)
        index.gate.set()
        (value, log), said = submitted.result()

    assert value == ONE
    assert "gets what it lacks: beta" in said
    assert "gave it back: the requirements of this job could not be installed [dependency-install]; it starts" in said
    assert "Installed 2 packages" in log
    assert (shared / "died").exists() == bool(step)
    (own,) = [pod for pod in site.pods_of() if pod not in pods_of_warm(site)]
    assert "kinetic| attempt 1 of " in site.log(own["metadata"]["name"])


@pytest.mark.nightly
def test_a_batch_starts_what_its_warm_pod_gives_back_in_a_pod_of_its_own_and_has_all_values(
    lines: None, clients: Any, site: Any, index: Any
) -> None:
    run(clients, site, 1, "alpha==1.0")
    depends_on(clients, "alpha==1.0", "beta")
    asked, index.login = len(index.asked), ("ann", "of a test")

    with ThreadPoolExecutor() as pool:
        submitted = pool.submit(
            clients.both,
            """
            from uses import versions
            batch = versions.run_async_map([{}, {}], max_concurrent=1)
            tell(batch.results(timeout=90, cleanup=False))
            """,
        )
        wait_for("its first question", lambda: len(index.asked) > asked)
        index.login = None
        values, said = submitted.result()

    assert values == [ONE, ONE]
    assert "gave it back: the requirements of this job could not be installed [dependency-install]; it starts" in said
