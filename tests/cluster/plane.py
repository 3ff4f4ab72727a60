"""A real Kubernetes control plane on this machine, started and stopped by the tests; without nodes."""

from __future__ import annotations

import json
import secrets
import shutil
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster import binaries, jobset, settings
from cluster.access import Access, Endpoint, RefusedError
from cluster.certificates import Authority, signing_key
from cluster.processes import Process, answers, free_ports
from cluster.proxy import StreamingProxy
from cluster.settings import Patience, Ports

ADMINISTRATORS = "system:masters"


class Plane:
    """etcd, API server, controllers, scheduler, the JobSet controller; a proxy in front, for the client under test.

    Everybody has a token of their own, so that the client's can be revoked while the rest goes on.

    Attributes:
        proxy: What the client under test speaks to. It counts, and it fails on request.
        api: The test's own way to the server, past the proxy.
        client: Where the client under test finds the server, and its token.
        nodes: The same for the node agent, past the proxy.
        kubeconfig: ``client`` as a file.
    """

    def __init__(
        self, folder: Path, patience: Patience | None = None, *, fair: bool = False, names: bool = False
    ) -> None:
        """Prepare everything; `start` starts it.

        Args:
            folder: For certificates, data and logs; of nobody else.
            patience: How long lost nodes are waited for.
            fair: Priority and fairness on, as in production: the server itself says 429 when it is overrun.
            names: Keep the addresses behind services, for nodes whose pods have addresses of their own.
        """
        missing = binaries.missing()
        assert not missing, f"`make cluster` has not made {', '.join(missing)}"
        self.folder = folder
        self.authority = Authority(folder)
        self._patience = patience or Patience()
        self._fair, self._names = fair, names
        self._processes: dict[str, Process] = {}
        self._is_revoked = False
        self._controllers: dict[str, list[str]] = {}  # what watches the server: names and words
        self.ports = Ports(*free_ports(len(Ports._fields)))
        self._tokens = {name: secrets.token_hex(16) for name in ("client", "tests", "nodes", "components")}
        self._issue()
        straight = f"https://127.0.0.1:{self.ports.api}"
        self.proxy = StreamingProxy(self.ports.api, str(self.authority.certificate), self.authority.issue("proxy"))
        self.client = self._endpoint(self.proxy.url, "client")
        self.nodes = self._endpoint(straight, "nodes")
        self.kubeconfig = self.client.write_kubeconfig(folder / "kubeconfig.yaml")
        self._endpoint(straight, "components").write_kubeconfig(folder / "components.yaml")
        self.api = Access(self._endpoint(straight, "tests"))

    def _endpoint(self, url: str, user: str) -> Endpoint:
        return Endpoint(url, self.authority.certificate, self._tokens[user])

    def _issue(self) -> None:
        self.authority.issue("api")
        self.authority.issue("api-to-nodes", organization=ADMINISTRATORS)
        signing_key(self.folder / "accounts.key")
        self._write_tokens(set(self._tokens))

    def _write_tokens(self, valid: set[str]) -> None:
        path = self.folder / "tokens.csv"
        path.touch(mode=0o600)
        path.write_text("".join(f'{self._tokens[name]},{name},{name},"{ADMINISTRATORS}"\n' for name in sorted(valid)))

    def start(self) -> Plane:
        """Start everything and return when jobs can be created; if that fails, leave nothing running."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self) -> None:
        self._run_etcd()
        self._run_api_server()
        jobset.install_definitions(self.api)
        wait_for("its definitions to be served", lambda: jobset.are_established(self.api))
        self._controllers = {
            "kube-controller-manager": settings.controller_manager(
                self.folder, self.ports, self._patience, names=self._names
            ),
            "kube-scheduler": settings.scheduler(self.folder, self.ports),
            "jobset": jobset.configure(self.folder, self.ports, self.authority),
        }
        self._run_controllers()
        for path, body in jobset.webhooks(self.ports.jobset_webhook, self.authority.certificate):
            self.api.create(path, body)
        self._wait_for_account("default")  # by the controller manager

    def _run_controllers(self) -> None:
        for name, words in self._controllers.items():
            self._run(name, words, KUBECONFIG=str(self.folder / "components.yaml"))
        if self._controllers:  # the server asks JobSet's about each JobSet, and refuses it when there is no answer
            self._processes["jobset"].wait_until(lambda: answers(self.ports.jobset_health, "/readyz", tls=False))

    def _run(self, name: str, words: list[str], **environment: str) -> None:
        log = self.folder / f"{name}.log"
        environment["GOGC"] = "400"  # a quarter of the processor time of a start, for twice the memory
        self._processes[name] = Process(name, [str(binaries.program(name)), *words], log, environment)

    def stop(self) -> None:
        """End exactly what was started here, the server's clients first."""
        self.proxy.close()
        self.api.close()
        for process in reversed(self._processes.values()):
            process.kill()  # in order would take seconds, and nothing of it is kept
        self._processes.clear()

    def process(self, name: str) -> Process:
        """Return one of the programs, to be killed or frozen; names as in `binaries.PROGRAMS`."""
        return self._processes[name]

    # ------------------------------------------------------------------------------------------------ what goes wrong

    def freeze(self) -> None:
        """Let everything hang; a control plane for which nobody asks takes no processor time then."""
        for process in self._processes.values():
            process.freeze()

    def thaw(self) -> None:
        for process in self._processes.values():
            process.thaw()

    def kill_api_server(self) -> None:
        """Kill it, and the controllers, which are started again with it.

        Each lost connection doubles the pause after which client-go asks again, up to a minute, until two minutes pass
        without one: after five such tests in a row nothing got a pod for 18 s, after six for 48 s.
        """
        for name in ("kube-apiserver", *self._controllers):
            self._processes[name].kill()

    def start_api_server(self) -> None:
        """Start it, or start it again after a kill, with the controllers; return when it is ready."""
        self._run_api_server()
        self._run_controllers()

    def _run_api_server(self) -> None:
        self._run("kube-apiserver", settings.api_server(self.folder, self.ports, self._patience, fair=self._fair))
        self._processes["kube-apiserver"].wait_until(lambda: answers(self.ports.api, "/readyz"))

    def restart_api_server(self) -> None:
        self.kill_api_server()
        self.start_api_server()

    def expire_watches(self) -> None:
        """Forget the past: a watch that goes on from any version it saw so far is answered with 410.

        Two things remember it, so both have to forget: etcd is compacted, the server's cache goes with the server.
        """
        self.api.create("/api/v1/namespaces/default/events", _marker())  # a version that nobody has seen
        self.kill_api_server()
        revision = int(self._etcd("kv/range", {"key": "AA=="})["header"]["revision"])
        self._etcd("kv/compaction", {"revision": str(revision), "physical": True})
        self.start_api_server()

    def back_up(self) -> None:
        """Keep all objects as they are now, for `restore`."""
        etcd = self._processes["etcd"]
        etcd.freeze()
        shutil.copytree(self.folder / "etcd", self.folder / "backup", dirs_exist_ok=True)
        etcd.thaw()

    def restore(self) -> None:
        """Have the objects and the versions of the backup again, as an administrator does after a loss."""
        self.kill_api_server()
        self._processes["etcd"].kill()
        shutil.rmtree(self.folder / "etcd")
        shutil.copytree(self.folder / "backup", self.folder / "etcd")
        self._run_etcd()
        self.start_api_server()

    def _run_etcd(self) -> None:
        self._run("etcd", settings.etcd(self.folder, self.ports))
        self._processes["etcd"].wait_until(lambda: answers(self.ports.etcd, "/health", tls=False))

    def _etcd(self, what: str, body: dict[str, Any]) -> Any:
        url = f"http://127.0.0.1:{self.ports.etcd}/v3/{what}"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=10) as answer:
            return json.load(answer)

    def revoke_token(self) -> None:
        """Take the client's token away. The server reads tokens when it starts, so it starts again."""
        self._is_revoked = True
        self._write_tokens(set(self._tokens) - {"client"})
        self.restart_api_server()

    def restore_token(self) -> None:
        self._is_revoked = False
        self._write_tokens(set(self._tokens))
        self.restart_api_server()

    def heal(self) -> None:
        """Undo whatever a test did, also one that failed half-way: the next one finds everything in order."""
        self.proxy.faults.clear()
        self.proxy.seen.clear()
        self.proxy.delay_seconds = 0.0
        self.thaw()
        if self._is_revoked:
            self.restore_token()
        elif not self._processes["kube-apiserver"].is_running:
            self.start_api_server()

    # ---------------------------------------------------------------------------------------------------- what is there

    def create_namespace(self, prefix: str = "test") -> str:
        """Make a namespace that pods can be created in at once; return its name."""
        name = self.api.create("/api/v1/namespaces", {"metadata": {"generateName": f"{prefix}-"}})["metadata"]["name"]
        self._wait_for_account(name)
        return name

    def delete_namespace(self, name: str) -> None:
        """Begin to delete a namespace, unless it is gone; its pods end in their own time."""
        if self._exists(path := f"/api/v1/namespaces/{name}"):
            self.api.delete(path)

    def _wait_for_account(self, namespace: str) -> None:
        """Pods need the account and the certificate that controllers put into each namespace."""
        for path in ("serviceaccounts/default", "configmaps/kube-root-ca.crt"):
            wait_for(
                f"{path} in {namespace}", lambda path=path: self._exists(f"/api/v1/namespaces/{namespace}/{path}"), 90
            )

    def _exists(self, path: str) -> bool:
        try:
            self.api.get(path)
        except RefusedError as refused:
            if refused.status != 404:
                raise
            return False
        return True


def wait_for(what: str, ready: Callable[[], Any], seconds: float = 30) -> Any:
    """Ask again and again until the answer is true, and return it.

    Raises:
        TimeoutError: It did not become true; names ``what``.
    """
    deadline = time.monotonic() + seconds
    while not (answer := ready()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.05)
    return answer


def _marker() -> dict[str, Any]:
    there = {"kind": "Namespace", "name": "default", "namespace": "default"}
    return {
        "metadata": {"generateName": "forget-"},
        "involvedObject": there,
        "reason": "Forget",
        "message": "the test forgets everything before this",
        "type": "Normal",
    }
