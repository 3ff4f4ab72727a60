"""A warm pod and jobs with other packages than its own: they get the difference, and the next job sees none of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster.plane import wait_for
from flows.kube.test_images import base, images, index, no_registry, registry, registry_address
from flows.kube.test_warm_pods import is_idle, pods_of_warm
from servers.wheels import made_wheel

__all__ = ["base", "images", "index", "no_registry", "registry", "registry_address"]
pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("warm")]

USES = """
    import kinetic

    @kinetic.run(accelerator="cpu", keep_warm="10m"{more})
    def versions():
        import importlib.metadata, subprocess, sys
        if "alpha" in sys.modules:
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
