"""What only a real kubelet and a real container runtime can show: memory, evictions, names, and images that are pulled.

`make test-node` runs these, and those tests of the other files that are marked `real_node`.
"""

from __future__ import annotations

import contextlib
import json
import platform
from typing import Any

import pytest
from cluster.plane import wait_for
from servers import registry as registry_server
from servers.wheels import Index, made_wheel

from kinetic._backends.kube import pod_exec
from kinetic._backends.kube.client import Client
from kinetic._backends.kube.connection import context_access
from kinetic._stores.parallel import Retry

pytestmark = [pytest.mark.real_node, pytest.mark.only_real_node, pytest.mark.timeout(180)]

JOBS = """
    import os
    import socket
    import time
    import kinetic

    @kinetic.run(accelerator="cpu", resources={"memory": "256Mi"})
    def eat():
        print("hungry", flush=True)
        eaten = []
        while True:
            eaten.append(bytearray(16 << 20))

    @kinetic.run(accelerator="cpu", retries=1)
    def moved(until):
        attempt = int(os.environ["KINETIC_ATTEMPT"])
        print("attempt", attempt, flush=True)
        while attempt == 0 and not os.path.exists(until):
            time.sleep(0.05)
        return attempt

    @kinetic.run(accelerator="cpu", resources={"memory": "300Mi"})
    def limits():
        found = ["/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"]
        (limit,) = [int(open(path).read()) for path in found if os.path.exists(path)]
        return limit

    @kinetic.run(accelerator="cpu")
    def serve():
        with socket.create_server(("127.0.0.1", 8099)) as server:
            print("listening", flush=True)
            while True:
                link, _ = server.accept()
                with link, link.makefile("rb") as lines:
                    for line in lines:
                        link.sendall(line.upper())

    @kinetic.run(accelerator="tpu-v4-2x2x2")
    def meet():
        # Each host waits for the other by its name, as JAX does.
        own = socket.gethostname()
        stem, _, index = own.rpartition("-")
        other = f"{stem}-{1 - int(index)}.{stem.removesuffix('-s-0')}"
        server = socket.create_server(("", 12345))
        limit = time.monotonic() + 60
        while True:
            try:
                link = socket.create_connection((other, 12345), timeout=5)
                break
            except OSError:
                assert time.monotonic() < limit, f"{own} does not find {other}"
                time.sleep(0.1)
        link.sendall(own.encode() + b"\\n")
        accepted, _ = server.accept()
        return [own, accepted.makefile().readline().strip(), socket.gethostbyname(other)]
"""


@pytest.fixture
def jobs(clients: Any) -> Any:
    """Clients that find ``real.py`` with jobs."""
    clients.project.write("real.py", JOBS)
    return clients


@pytest.mark.usefixtures("machine")
def test_a_job_that_the_kernel_ends_for_its_memory_says_so(jobs: Any) -> None:
    code, words, log = jobs.run("""
        from real import eat
        job = eat.run_async()
        error = job.exception(timeout=120)
        tell([error.code, message(error), job.logs()])
    """)

    assert code == "memory", words
    assert "ran out of memory" in words  # the process or, with version 2 of cgroups, the container
    assert "hungry" in log


@pytest.mark.usefixtures("machine")
def test_a_limit_of_memory_is_the_one_of_the_containers_cgroup(jobs: Any) -> None:
    assert jobs.run("from real import limits\ntell(limits())") == 300 << 20


@pytest.mark.usefixtures("machine")
def test_a_pod_that_is_evicted_is_replaced_and_the_job_ends_well(jobs: Any, site: Any, namespace: str) -> None:
    job_id = jobs.run("from real import moved\ntell(moved.run_async('/never').job_id)")
    pod = site.running(job_id, seconds=60)["metadata"]["name"]
    wait_for("its function", lambda: "attempt 0" in site.log(pod), 60)

    site.api.create(
        f"{site.core}/pods/{pod}/eviction",
        {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}},
    )
    value = jobs.run("tell(kinetic.attach(words[0]).result(timeout=120))", job_id)

    assert value == 1


@pytest.mark.usefixtures("machine")
def test_a_port_of_a_pod_is_reached_through_the_api_server_and_its_kubelet(
    jobs: Any, site: Any, plane: Any, namespace: str
) -> None:
    job_id = jobs.run("from real import serve\ntell(serve.run_async().job_id)")
    pod = site.running(job_id, seconds=60)["metadata"]["name"]
    wait_for("its server", lambda: "listening" in site.log(pod), 60)
    access = context_access("", {"KUBECONFIG": str(plane.kubeconfig)})

    with contextlib.closing(Client(access, namespace, Retry(4, 0.1, 1.0, 30.0))) as client:
        answers = []
        for number in range(40):
            with pod_exec.connect_port(client, pod, 8099) as tunnel:
                tunnel.send(b"hello %d\n" % number)
                answers.append(tunnel.receive())

    assert answers == [b"HELLO %d\n" % number for number in range(40)]


def test_the_hosts_of_a_slice_reach_each_other_by_their_names(jobs: Any, machines: Any) -> None:
    machines()

    own, caller, address = jobs.run("from real import meet\ntell(meet())")

    assert own != caller
    assert own.rpartition("-")[0] == caller.rpartition("-")[0]
    assert address.startswith("10.")  # from CoreDNS, which asks the API server


# -------------------------------------------------------------------------------------------------------------- images

PYTHON = ".".join(platform.python_version_tuple()[:2])
USES_A_PACKAGE = """
    import kinetic

    @kinetic.run(accelerator="cpu")
    def greet():
        import sys
        import greeting
        return [greeting.VERSION, sys.prefix, greeting.__file__]
"""


@pytest.fixture
def image_registry(agent: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The repository for images, with the node's own Python as their base; the node pulls from it without TLS."""
    if why := registry_server.build():
        pytest.skip(why)
    with registry_server.started(tmp_path / "registry") as address:
        agent.trust_registry(address)
        base = agent.push_python(address)
        monkeypatch.setenv("KINETIC_IMAGE_REPO", f"{address}/team/kinetic")
        monkeypatch.setenv("KINETIC_BASE_IMAGE", base)
        yield address


@pytest.fixture
def publish(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that publishes a version of the package `greeting` beside those of the usual index."""
    index = Index()
    monkeypatch.setenv("UV_INDEX", index.simple)

    def make(version: str) -> None:
        files = {"greeting.py": f"VERSION = {version!r}\n"}
        index(made_wheel(tmp_path / "index", "greeting", version, files))

    index(made_wheel(tmp_path / "index", "uv", "1.0", {"not_uv.py": ""}))  # nothing is installed, and it is large
    yield make
    index.close()


def require(project: Any, version: str) -> None:
    page = f'[project]\nname = "greets"\nversion = "1"\ndependencies = ["greeting=={version}"]\n'
    (project.root / "pyproject.toml").write_text(page)


@pytest.mark.usefixtures("machine")
def test_a_jobs_image_is_built_by_its_client_and_pulled_by_the_node(
    clients: Any, site: Any, agent: Any, image_registry: str, publish: Any, home: Any
) -> None:
    clients.project.write("greets.py", USES_A_PACKAGE)
    found = []

    for version in ("1.0", "2.0"):
        publish(version)
        require(clients.project, version)
        found.append(
            clients.run("""
            from greets import greet
            job = greet.run_async()
            tell([job.job_id, job.result(timeout=120, cleanup=False)])
        """)
        )
    pods = [site.pods_of(job_id)[-1] for job_id, _ in found]
    pulled = [pod["status"]["containerStatuses"][0] for pod in pods]

    assert [value[0] for _, value in found] == ["1.0", "2.0"]
    assert {value[1] for _, value in found} == {"/opt/kinetic/env"}
    images = [each["spec"]["containers"][0]["image"] for each in pods]
    assert all(image.startswith(f"{image_registry}/team/kinetic@sha256:") for image in images), images
    assert images[0] != images[1]
    assert set(images) <= set(agent.images()), json.dumps(pulled)


@pytest.mark.usefixtures("machine")
def test_a_jobs_packages_are_unpacked_from_the_store_where_there_is_no_registry(
    clients: Any, publish: Any, home: Any, kinetic: Any
) -> None:
    clients.project.write("greets.py", USES_A_PACKAGE.replace('"cpu"', '"cpu", container_image="bundled"'))
    publish("1.0")
    require(clients.project, "1.0")

    job_id, value = clients.run("""
        from greets import greet
        job = greet.run_async()
        tell([job.job_id, job.result(timeout=120, cleanup=False)])
    """)

    assert value[:2] == ["1.0", "/usr/local"]
    assert "/layers/opt/kinetic/env/" in value[2]
    log = kinetic("jobs", "logs", job_id).out
    assert "bytes of packages in" in log
    assert "pip install" not in log


@pytest.mark.usefixtures("machine")
def test_an_image_that_its_registry_does_not_have_is_named(
    clients: Any, kinetic: Any, image_registry: str, home: Any
) -> None:
    image = f"{image_registry}/no/such:1"

    job_id = clients.run(f"""
        from one import add
        tell(add.with_options(container_image={image!r}).run_async(1, 2).job_id)
    """)

    def explained() -> str:
        return str(kinetic("jobs", "explain", job_id).out)

    wait_for("the reason", lambda: f"the image {image} does not exist" in explained(), 60)
