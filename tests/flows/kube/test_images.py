"""Jobs whose packages are in an image: built by this client, or by a pod of the cluster, in a real registry."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.plane import wait_for
from cluster.pulled import PulledImages
from servers.image_fixtures import base, index, registry, registry_address
from servers.registry_proxy import RegistryProxy, Rules
from servers.wheels import made_wheel

from kinetic._wire import failpoints

__all__ = ["base", "index", "registry", "registry_address"]
pytestmark = pytest.mark.timeout(300)
PYTHON = ".".join(platform.python_version_tuple()[:2])

USES_ALPHA = """
    import kinetic

    @kinetic.run(accelerator="cpu")
    def version():
        import alpha
        return alpha.VERSION
"""
BACKEND = """
import zipfile
def build_wheel(folder, settings=None, metadata=None):
    name, about = "compiled-1.0-py3-none-any.whl", "compiled-1.0.dist-info"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as archive:
        archive.writestr("compiled.py", "VERSION = 'compiled in a pod'")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.2\\nName: compiled\\nVersion: 1.0\\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(f"{about}/RECORD", "")
    return name
"""


@pytest.fixture
def images(
    clients: Any,
    agent: Any,
    machine: str,
    registry: Any,
    base: Any,
    index: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[PulledImages]:
    """Let jobs get images in the registry, with the packages of an index of this test."""  # fmt: skip
    large = os.urandom(300_000)
    for name in ("obstore", "uv"):  # what every image has; the pods of this test have the real ones
        index(made_wheel(tmp_path / "index", name, "1.0", {f"{name}_of_a_test.py": ""}))
    index(made_wheel(tmp_path / "index", "alpha", "1.0", {"alpha.py": "VERSION = 'one'\n", "alpha_data.bin": large}))
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.simple)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("KINETIC_IMAGE_REPO", f"{registry.host}/{registry.name}")
    monkeypatch.setenv("KINETIC_BASE_IMAGE", f"{registry.host}/{registry.name}@{base.digest}")
    clients.project.write("pyproject.toml", '[project]\nname = "theirs"\nversion = "1"\ndependencies = ["alpha"]\n')
    clients.project.write("uses.py", USES_ALPHA)
    found = PulledImages(agent.registry, registry.host, tmp_path / "pulled")
    agent.registry, before = found, agent.registry
    yield found
    agent.registry = before


@pytest.fixture
def slow_uplink(home: Path, registry: Any) -> None:
    """Let this client remember that it sends a thousand bytes per second."""
    file = home / "cache/images/uplink.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({registry.host: [1000.0, time.time()]}))


@pytest.fixture
def line(images: PulledImages, registry: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[RegistryProxy]:
    """Put a slow line before the registry: an image takes some seconds to send."""
    with RegistryProxy(registry.host, Rules(megabits=1.0)) as proxy:
        monkeypatch.setenv("KINETIC_IMAGE_REPO", f"{proxy.address}/{registry.name}")
        images.host = proxy.address
        yield proxy


RUN = "from uses import version\ntell(version())"


def builds(site: Any) -> list[str]:
    """Name the jobs that build images."""
    return sorted({job["metadata"]["labels"]["job-id"] for job in site.jobs() if "build-image" in str(job["metadata"])})


def test_a_job_finds_its_packages_in_the_image_that_this_client_built(images, clients: Any, site: Any) -> None:
    value, said = clients.both(RUN)
    again, said_again = clients.both(RUN)

    assert (value, again) == ("one", "one")
    assert "built the image in" in said
    assert "built" not in said_again
    assert len(set(images.pulled)) == 1


def test_a_namespace_that_enforces_restricted_takes_the_image_that_this_client_built(
    images, clients: Any, site: Any
) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    site.api.merge(f"/api/v1/namespaces/{site.namespace}", {"metadata": {"labels": labels}})

    assert clients.run(RUN) == "one"


def test_what_this_client_sends_too_slowly_a_pod_of_the_cluster_builds(
    images, slow_uplink, clients: Any, site: Any
) -> None:
    begun = time.monotonic()
    value, said = clients.both(RUN)
    print(f"with waiting: {time.monotonic() - begun:.1f} s")

    assert value == "one"
    assert "building the image in a pod of the cluster: to send" in said
    assert "would take" in said
    assert "building an image of 3 packages" in said  # the pod's own log, while it grows
    assert "built the image in" in said
    assert site.bucket.names("data/builds/") == []
    assert len(images.pulled) == 1


def test_a_package_without_a_wheel_is_compiled_once_in_a_pod_and_the_lock_has_the_hash_of_its_wheel(
    images, clients: Any, index: Any, tmp_path: Path, kinetic: Any
) -> None:
    source = tmp_path / "compiled-1.0"
    source.mkdir()
    (source / "PKG-INFO").write_text("Metadata-Version: 2.2\nName: compiled\nVersion: 1.0\n")
    (source / "backend.py").write_text(BACKEND)
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "compiled"\nversion = "1.0"\n'
    )
    archive = tmp_path / "index" / "compiled-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(source, "compiled-1.0")
    index(archive)
    clients.project.write(
        "pyproject.toml", '[project]\nname = "theirs"\nversion = "1"\ndependencies = ["alpha", "compiled"]\n'
    )
    clients.project.write("uses.py", USES_ALPHA.replace("import alpha", "import compiled as alpha"))

    value, said = clients.both(RUN)
    again, said_again = clients.both(RUN)
    shown = kinetic("image", "show", images.pulled[0], "--json")

    assert (value, again) == ("compiled in a pod", "compiled in a pod")
    assert "there is only source code of compiled, which is compiled there" in said
    assert "building" not in said_again
    page = {each["name"]: each for each in json.loads(shown.out)["packages"]}
    assert re.fullmatch("[0-9a-f]{64}", page["compiled"]["sha256"])


def test_a_client_that_is_killed_while_a_pod_builds_leaves_the_build_and_the_next_one_finds_it(
    images, slow_uplink, clients: Any, site: Any, index: Any
) -> None:
    for name in ("kinetic", "kinetic-builder"):  # as `kinetic up --registry` makes them
        site.put("serviceaccounts", {"metadata": {"name": name}})
    first = clients.start(RUN)
    wait_for("the note of the build", lambda: site.bucket.names("data/builds/"), 60)
    index.gate.clear()
    wait_for("the start of its job", lambda: any(not job["spec"]["suspend"] for job in site.jobs()), 60)
    (build,) = [job for job in site.jobs() if job["metadata"]["labels"]["job-id"] in builds(site)]
    assert build["spec"]["template"]["spec"]["serviceAccountName"] == "kinetic-builder"
    first.send_signal(signal.SIGKILL)
    first.wait()
    next_ = clients.start(RUN)
    wait_for("its words", lambda: "is building it already" in clients.peek(next_), 60)
    index.gate.set()
    out, err = next_.communicate(timeout=100)

    assert (next_.returncode, clients.told(out)) == (0, ["one"]), err
    assert site.bucket.names("data/builds/") == []


def test_a_client_that_is_killed_before_its_build_starts_keeps_nobody_from_building(
    images, slow_uplink, clients: Any, site: Any
) -> None:
    dead = clients.start(RUN, **{failpoints.VARIABLE: f"client:job-created@{clients.home.parent / 'killed'}"})
    assert dead.wait(timeout=100) == -signal.SIGKILL
    (held,) = builds(site)

    told, _ = clients.both(f"from kinetic._jobs import image_job\nimage_job._UNSUBMITTED_SECONDS = 2.0\n{RUN}")

    assert told == "one"
    assert held not in builds(site)


def test_two_clients_that_need_the_same_image_have_one_build(images, slow_uplink, clients: Any, site: Any) -> None:
    first, second = clients.start(RUN), clients.start(RUN)

    seen: set[str] = set()
    wait_for("a build", lambda: seen.update(builds(site)) or seen, 60)
    done: list[Any] = []
    for client in (first, second):
        out, err = client.communicate(timeout=120)
        seen.update(builds(site))
        done.append((client.returncode, clients.told(out), err))

    assert [code for code, _, _ in done] == [0, 0], done
    assert [told for _, told, _ in done] == [["one"], ["one"]]
    assert len(seen) == 1


def test_a_job_that_does_not_wait_installs_its_packages_while_its_image_is_built(
    images, slow_uplink, clients: Any, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients.project.write("uses.py", USES_ALPHA.replace('"cpu"', '"cpu", capture_env_vars=["UV_DEFAULT_INDEX"]'))
    monkeypatch.setenv("KINETIC_WAIT_IMAGE", "0")
    begun = time.monotonic()
    value, said = clients.both(RUN)
    print(f"without waiting: {time.monotonic() - begun:.1f} s")
    pulled = [*images.pulled]
    wait_for("the image", lambda: all(job["status"].get("succeeded") for job in site.jobs(builds(site)[0])), 60)
    later = clients.run(RUN)

    assert (value, later) == ("one", "one")
    assert "meanwhile this job starts in the image python:" in said
    assert pulled == []
    assert len(images.pulled) == 1


def test_upgrade_of_kinetic_run_resolves_again_and_other_runs_keep_their_versions(
    images, clients: Any, kinetic: Any, index: Any, tmp_path: Path
) -> None:
    first = kinetic("run", "--json", "uses.py::version")
    index(made_wheel(tmp_path / "index", "alpha", "2.0", {"alpha.py": "VERSION = 'two'\n"}))
    kept = kinetic("run", "--json", "uses.py::version")
    renewed = kinetic("run", "--json", "--upgrade", "uses.py::version")

    assert [told.code for told in (first, kept, renewed)] == [0, 0, 0], first.err + kept.err + renewed.err
    assert [json.loads(told.out)["value"] for told in (first, kept, renewed)] == ["one", "one", "two"]
    assert "resolved" not in kept.err
    assert "resolved" in renewed.err
    assert len(set(images.pulled)) == 2


def test_no_wait_image_of_kinetic_run_installs_at_start_while_a_pod_builds(
    images, slow_uplink, clients: Any, kinetic: Any, site: Any
) -> None:
    told = kinetic("run", "--json", "--no-wait-image", "--env", "UV_DEFAULT_INDEX", "uses.py::version")

    assert told.code == 0, told.err
    assert json.loads(told.out)["value"] == "one"
    assert "meanwhile this job starts in the image python:" in told.err
    assert images.pulled == []
    assert len(builds(site)) == 1


def test_an_image_that_a_cleanup_rule_removed_is_explained_and_who_waits_has_it_built_again(
    images, clients: Any, kinetic: Any, registry: Any
) -> None:
    removed: list[bool] = []

    def clean_up(name: str) -> None:  # between the submission and the node
        if not removed:
            removed.append(registry.delete_manifest(name.partition("@")[2]))

    images.on_pull = clean_up
    job_id = clients.run("from uses import version\ntell(version.run_async().job_id)")
    wait_for("the node", lambda: removed, 60)

    def explained() -> str:
        told = kinetic("jobs", "explain", job_id).out
        return told if "does not exist" in told else ""

    told = str(wait_for("the reason", explained, 60))
    status = kinetic("jobs", "status", job_id)
    waited = kinetic("jobs", "wait", job_id)

    assert removed == [True]
    assert re.search(r"what:  the image \S+@sha256:\S+ does not exist", told), told
    assert "why:   it was removed from the registry; who waits builds it again" in told
    assert f"next:  kinetic jobs wait {job_id}" in told
    assert f"next:  kinetic jobs wait {job_id}" in status.err
    assert waited.code == 0, waited.err
    assert f"the image of {job_id} was built again" in waited.err


def test_an_image_that_cannot_be_built_leaves_nothing_of_its_job(images, clients: Any, site: Any) -> None:
    clients.project.write("pyproject.toml", '[project]\nname = "x"\nversion = "1"\ndependencies = ["alpha==9"]\n')
    site.forget()

    code, *parts = clients.run("""
        from uses import version
        try:
            version.run_async()
        except kinetic.errors.KineticError as error:
            tell([error.code, error.what, error.why, error.next])
    """)

    assert code == "no-solution"
    assert all(parts)
    assert site.jobs() == []
    assert [each.target for each in site.writes() if "/jobs" in each.target] == []
    assert [name for name in site.bucket.names() if name.startswith("cpu-version-")] == []


# --------------------------------------------------------------------------------------------- what the user sees of it

FINISHED = (
    r"kinetic: resolved 3 packages, \d+\.\d kB, in \d+\.\d s",
    r"kinetic: packed \d files?, [\d.]+ (?:bytes|kB), in \d+\.\d s: [\d.]+ (?:bytes|kB) sent",
    r"kinetic: built the image in \d+\.\d s: \d+ layers written, \d+\.\d kB sent",
)
SUBMIT = "from uses import version\nversion.run_async()\n"


def test_each_finished_phase_of_a_submission_is_a_line_with_its_time_and_bytes(
    images, clients: Any, tmp_path: Path
) -> None:
    _, said = clients.both(RUN)
    shim = tmp_path / "shim/uv"
    shim.parent.mkdir()
    shim.write_text(f"#!/bin/sh\necho $* >> {tmp_path}/started\nexit 1\n")
    shim.chmod(0o755)
    _, said_again = clients.both(RUN, PATH=f"{shim.parent}:{os.environ['PATH']}")

    assert not (tmp_path / "started").exists(), "uv was started"
    assert [sum(bool(re.fullmatch(each, line)) for line in said.splitlines()) for each in FINISHED] == [1, 1, 1], said
    assert not re.search(r"[\r\x1b]", said)
    assert not any(re.search(word, said_again) for word in ("resolved", "packed", "built")), said_again


def test_on_a_terminal_what_runs_is_one_line_below_and_what_has_ended_stays_above(line, clients: Any) -> None:
    clients.project.write("submit.py", SUBMIT)

    seen = clients.project.watch("submit.py", columns=110)
    line.forget()
    clients.run(f"{SUBMIT}tell(1)")  # nothing has changed: one question, of which the nodes send none
    questions = [(method, target) for method, target in line.requests if method != "GET"]

    assert [method for method, _ in questions] == ["HEAD"]
    assert line.up == 0
    lines = seen.screen.splitlines()
    assert seen.code == 0, seen.screen
    found = [[number for number, text in enumerate(lines) if re.fullmatch(each, text)] for each in FINISHED]
    assert [len(each) for each in found] == [1, 1, 1], seen.screen
    assert found[1] < found[2], "the image is built while files are packed and sent"
    assert "building the image, " not in seen.screen
    building = [number for number, frame in enumerate(seen.frames) if "building the image, " in frame]
    assert len(building) / (building[-1] + 1 - building[0]) > 0.9, "it flickers"
    for number in building:
        *above, last = seen.frames[number].splitlines()
        assert last.startswith("kinetic: building the image, ")
        assert not any("building the image, " in text for text in above)


def sizes_of(registry: Any, *tags: str) -> dict[str, int]:
    """Return the blobs of images, and their sizes."""
    pages = [registry.read_manifest(tag)[0] for tag in tags]
    return {entry["digest"]: entry["size"] for page in pages for entry in [page["config"], *page["layers"]]}


def test_ctrl_c_while_the_image_is_sent_leaves_what_was_sent_and_nothing_of_the_job(
    line, clients: Any, site: Any, registry: Any
) -> None:
    clients.project.write("submit.py", SUBMIT)

    seen = clients.project.watch("submit.py", press=("building the image, ", b"\x03"), columns=200)

    assert seen.code == -signal.SIGINT, seen.screen  # what a shell calls 130
    assert [text for text in seen.screen.splitlines() if text.strip()][-2:] == [
        "kinetic: the image is not finished: what was sent stays, and the next submission continues from there",
        "kinetic: interrupted; no job was submitted",
    ]
    assert "Traceback" not in seen.screen
    tags = [*registry.tags()]
    assert [tag for tag in tags if tag.startswith("env-")] == []
    there = sizes_of(registry, "base", *(tag for tag in tags if tag.startswith("layer-")))
    assert all(registry.has_blob(digest) for digest in there)
    assert site.jobs() == []
    assert [name for name in site.bucket.names() if name.startswith("cpu-version-")] == []
    line.wait_until_idle()  # what the client had given to its system is still on the slow line
    line.forget()

    assert clients.run(RUN) == "one"
    (env,) = [tag for tag in registry.tags() if tag.startswith("env-")]
    missing = {digest: size for digest, size in sizes_of(registry, env).items() if digest not in there}
    assert line.up <= sum(missing.values()) + 30_000, "more than what was missing, and the manifests"


def test_ctrl_c_while_a_pod_builds_names_the_job_that_goes_on_and_the_next_submission_uses_it(
    images, slow_uplink, clients: Any, site: Any
) -> None:
    clients.project.write("submit.py", SUBMIT)

    seen = clients.project.watch("submit.py", press=("builds it", b"\x03"), columns=200)
    assert seen.code == -signal.SIGINT, seen.screen
    (job_id,) = builds(site)
    value = clients.run(RUN)

    said = [text for text in seen.screen.splitlines() if text.strip()]
    assert said[-5:] == [
        f"kinetic: {job_id} keeps building the image",
        f"kinetic: follow:   kinetic jobs logs {job_id} --follow",
        f"kinetic: cancel:   kinetic jobs cancel {job_id}",
        "kinetic: the next submission finds that build",
        "kinetic: interrupted; no job was submitted",
    ]
    assert "Traceback" not in seen.screen
    assert value == "one"
    assert len(images.pulled) == 1


# -------------------------------------------------------------------------------------- without a registry: the store


@pytest.fixture
def no_registry(images, clients: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away the registry that this client may write to; jobs start in Python's own image."""
    monkeypatch.delenv("KINETIC_IMAGE_REPO")
    clients.project.write("uses.py", USES_ALPHA.replace('"cpu"', '"cpu", container_image="bundled"'))


def test_without_a_registry_packages_are_unpacked_from_the_store_and_nothing_is_installed(
    images, no_registry, clients: Any, site: Any, kinetic: Any
) -> None:
    value, said = clients.both(RUN)
    sent = site.bucket.names("data/layers/")
    again = clients.start("from uses import version\ntell([version(), version.run_async().job_id])")
    out, err = again.communicate(timeout=100)
    (second, job_id) = clients.told(out)[-1]
    wait_for("its end", lambda: "Succeeded" in [pod["status"]["phase"] for pod in site.pods_of(job_id)], 60)
    log = kinetic("jobs", "logs", job_id).out

    assert (value, second) == ("one", "one")
    assert re.search(r"sent 1 package to the store: \d+\.?\d* kB in", said), said
    assert "to the store" not in err
    assert site.bucket.names("data/layers/") == sent
    assert "bytes of packages in" in log
    assert "pip install" not in log


def test_a_layer_in_the_store_that_was_changed_is_not_unpacked(images, no_registry, clients: Any, site: Any) -> None:
    clients.both(RUN)
    for name in site.bucket.names("data/layers/"):
        if "/of-" not in name:
            data = site.bucket.read("jobs-of-a-test", f"below/{name}")
            site.bucket.write("jobs-of-a-test", f"below/{name}", data[:-1] + bytes([data[-1] ^ 1]))

    words = clients.run(
        """
        from uses import version
        try:
            tell(version())
        except Exception as error:
            tell(message(error))
        """
    )

    assert "a layer of packages is not what was submitted; it was not unpacked" in words


def test_a_client_that_is_killed_while_it_sends_packages_leaves_nothing_that_the_next_one_could_not_use(
    images, no_registry, clients: Any, site: Any, index: Any, home: Path
) -> None:
    clients.run("tell(1)")
    first = clients.start(RUN)
    wait_for("its first layer", lambda: site.bucket.names("data/layers/"), 60)
    first.send_signal(signal.SIGKILL)
    first.wait()

    assert clients.run(RUN) == "one"
