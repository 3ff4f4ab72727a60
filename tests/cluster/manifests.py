"""Small Jobs and pods for the tests of the cluster itself, and questions about what became of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from cluster.plane import wait_for

if TYPE_CHECKING:
    from cluster.access import Access

IMAGE = "python:3-test"


def objects_on(page: str) -> dict[str, dict[str, Any]]:
    """Return the objects on a page of the manual, by kind."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    found = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return {each["kind"]: each for part in found for each in yaml.safe_load_all(part)}


def container(code: str, **more: Any) -> dict[str, Any]:
    """Describe a container that runs a program of Python."""
    return {"name": "main", "image": IMAGE, "command": ["python", "-u", "-c", code], **more}


def pod_spec(code: str, node: str = "", *, of_container: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Describe a pod that runs once, on a node of its own if one is named."""
    selector = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    account = {"automountServiceAccountToken": False}
    return {
        "restartPolicy": "Never",
        "containers": [container(code, **(of_container or {}))],
        **selector,
        **account,
        **more,
    }


def job(name: str, template: dict[str, Any], *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    inner = {"metadata": {"labels": labels or {}}, "spec": template}
    return {"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": inner, **spec}}


class Objects:
    """The objects of one namespace."""

    def __init__(self, api: Access, namespace: str) -> None:
        self.api = api
        self.core = f"/api/v1/namespaces/{namespace}"
        self.batch = f"/apis/batch/v1/namespaces/{namespace}"

    def run_job(self, name: str, template: dict[str, Any], **spec: Any) -> None:
        self.api.create(f"{self.batch}/jobs", job(name, template, **spec))

    def run_pod(self, name: str, spec: dict[str, Any], **metadata: Any) -> None:
        self.api.create(f"{self.core}/pods", {"metadata": {"name": name, **metadata}, "spec": spec})

    def job(self, name: str) -> dict[str, Any]:
        return self.api.get(f"{self.batch}/jobs/{name}")

    def pod(self, name: str) -> dict[str, Any]:
        return self.api.get(f"{self.core}/pods/{name}")

    def pods(self, selector: str = "") -> list[dict[str, Any]]:
        return self.api.get(f"{self.core}/pods", labelSelector=selector)["items"]

    def log(self, pod: str, **query: str) -> str:
        return self.api.get(f"{self.core}/pods/{pod}/log", **query)

    def finished(self, name: str) -> str:
        """Wait until a Job is over; return "Complete" or "Failed"."""
        return wait_for(f"Job {name} to be over", lambda: _over(self.job(name)))

    def phase(self, name: str, *phases: str) -> dict[str, Any]:
        """Wait until a pod is in one of these phases; return the pod."""

        def there() -> dict[str, Any] | None:
            pod = self.pod(name)
            return pod if pod["status"].get("phase") in phases else None

        return wait_for(f"pod {name} to be {' or '.join(phases)}", there)

    def waiting(self, name: str, reason: str) -> dict[str, Any]:
        """Wait until a pod's container waits for a reason; return its state."""

        def there() -> dict[str, Any] | None:
            for status in self.pod(name)["status"].get("containerStatuses") or []:
                state = status["state"].get("waiting", {})
                if state.get("reason") == reason:
                    return state
            return None

        return wait_for(f"pod {name} to wait because of {reason}", there)

    def wrote(self, name: str, text: str) -> str:
        """Wait until a pod's log contains a text; return the log."""

        def there() -> str:
            log = self.log(name) if self.pod(name)["status"].get("phase") not in {None, "Pending"} else ""
            return log if text in log else ""

        return wait_for(f"pod {name} to write {text!r}", there)

    def events(self, about: str) -> list[str]:
        found = self.api.get(f"{self.core}/events", fieldSelector=f"involvedObject.name={about}")["items"]
        return [f"{each['reason']}: {each['message']}" for each in found]


def _over(job: dict[str, Any]) -> str:
    return condition(job, "Complete", "Failed").get("type", "")


def condition(thing: dict[str, Any], *kinds: str) -> dict[str, Any]:
    """Return the first of an object's conditions of these types that is true, or {}."""
    for each in thing["status"].get("conditions") or []:
        if each["type"] in kinds and each["status"] == "True":
            return each
    return {}
