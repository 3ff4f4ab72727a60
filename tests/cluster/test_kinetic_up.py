"""The whole way of `kinetic up` and `kinetic down` as commands: Google is a fake, the cluster's API server is real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kinetic._backends.kube.client import RESOURCE_QUOTA, SERVICE_ACCOUNT, Client
from kinetic._backends.kube.connection import context_access

if TYPE_CHECKING:
    from servers.google_cloud import GoogleCloud

pytestmark = pytest.mark.timeout(180)


def test_from_an_empty_project_to_a_profile_and_back(cloud: GoogleCloud, plane, namespace: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KINETIC_", "GOOGLE_"))}
    environ = kept | cloud.environ(tmp_path) | {"KINETIC_HOME": str(home)}

    def kinetic(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kinetic", *words, "--cluster", "team", "--yes"]
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 120}
        return subprocess.run(command, env=environ, check=False, **options)

    up = ("up", "--namespace", namespace, "--limit", "tpu=16", "-a", "v5litepod-16")
    made = kinetic(*up)

    assert made.returncode == 0, made.stderr
    assert "profile team leads to it" in made.stderr
    page = json.loads((home / "profiles.json").read_text())
    assert page["current"] == "team"
    # Compute Engine was off and could not be asked where the hardware is sold, so its usual region was taken.
    place = {"project": cloud.project, "zone": "us-west4", "cluster": "team", "namespace": namespace}
    place["cpu_disk"] = "10Gi"  # JAX does not fit into the disk that Autopilot gives otherwise
    assert page["profiles"] == {"team": place}
    client = Client(context_access("", {"KUBECONFIG": str(plane.kubeconfig)}), namespace)
    assert client.get(SERVICE_ACCOUNT, "kinetic") is not None
    assert client.get(RESOURCE_QUOTA, "kinetic") is not None

    cloud.forget()
    cloud.read_only = True
    again = kinetic(*up)
    assert again.returncode == 0, again.stderr
    assert "everything is there" in again.stdout
    cloud.read_only = False

    gone = kinetic("down", "--delete-data")
    assert gone.returncode == 0, gone.stderr
    assert cloud.container.clusters == {}
    assert cloud.compute.things == {}
    assert cloud.storage.buckets == {}
    assert cloud.projects.policy.bindings == []
    assert json.loads((home / "profiles.json").read_text()) == {"current": None, "profiles": {}}
    client.close()
