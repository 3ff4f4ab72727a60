"""Cloud Build: runs programs for real, in a folder of this machine, and plays docker."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servers.google_cloud import refusals
from servers.google_cloud.refusals import Refusal

if TYPE_CHECKING:
    from servers.google_cloud.cloud import Call, GoogleCloud

Page = dict[str, Any]
_ENDED = {"SUCCESS", "FAILURE", "TIMEOUT", "CANCELLED"}


class Builds:
    """The builds of a project: each request for one brings it a step further.

    Attributes:
        pages: What each is, by its id.
        folders: The files that each had, by its id: their contents by path.
        pushed: The names of images that were pushed.
        fate: What docker says before it fails; "" where it does not.
        restricted: Regions in which this project may not build, as it is new.
        stays: The status in which builds stay, e.g. "QUEUED"; "" for none.
    """

    def __init__(self, cloud: GoogleCloud) -> None:
        self._cloud = cloud
        self.pages: dict[str, Page] = {}
        self.folders: dict[str, dict[str, bytes]] = {}
        self.pushed: list[str] = []
        self.fate = ""
        self.stays = ""
        self.restricted: set[str] = set()
        self._logs: dict[str, bytes] = {}
        self._ends: dict[str, Page] = {}

    def answer(self, call: Call) -> Page:
        _, project, _, location, _, *names = call.parts
        if project not in {self._cloud.project, self._cloud.number}:
            raise refusals.denied(f"cloudbuild.builds.{call.action}", f"projects/{project}")
        if call.action == "create":
            return self._create(location, call.body)
        if names[0] not in self.pages:
            raise refusals.missing(names[0])
        page = self.pages[names[0]]
        if call.action == "get":
            if page["status"] not in _ENDED and page["status"] != self.stays:
                self._continue(page)
            return page
        if call.action == "cancel":
            if page["status"] in _ENDED:
                raise Refusal(400, "the build has ended")
            page["status"] = "CANCELLED"
            return page
        raise Refusal(400, f"{call.method} is not played")

    def _create(self, location: str, body: Page) -> Page:
        if location in self.restricted:
            message = "failed precondition: due to quota restrictions, cannot run builds in this region."
            raise Refusal(400, message, "FAILED_PRECONDITION")
        name = f"b-{next(self._cloud.ids)}"
        self.pages[name] = {**body, "id": name, "status": "QUEUED", "createTime": "2026-11-23T00:00:00.000000Z"}
        kind = "type.googleapis.com/google.devtools.cloudbuild.v1.BuildOperationMetadata"
        metadata = {"@type": kind, "build": dict(self.pages[name])}
        return {"name": f"operations/build/{self._cloud.project}/{name}-{location}", "metadata": metadata}

    def _continue(self, page: Page) -> None:
        if page["status"] == "QUEUED":
            page["status"] = "WORKING"
            self._ends[page["id"]] = self._run(page)
            log = self._logs[page["id"]]
            self._write_log(page, log[: len(log) // 2])
        else:
            self._write_log(page, self._logs[page["id"]])
            page.update(self._ends[page["id"]])

    def _write_log(self, page: Page, data: bytes) -> None:
        bucket, _, folder = page["logsBucket"].removeprefix("gs://").partition("/")
        self._cloud.objects.buckets[bucket].put("/".join(filter(None, [folder, f"log-{page['id']}.txt"])), data)

    def _run(self, page: Page) -> Page:
        """Run the steps; return how the build ends."""
        at = page["source"]["storageSource"]
        self._logs[page["id"]] = b"starting build\n"
        found = self._cloud.objects.buckets[at["bucket"]].items.get(at["object"])
        if found is None:
            return {"status": "FAILURE", "failureInfo": {"type": "FETCH_SOURCE_FAILED", "detail": "no such object"}}
        with tempfile.TemporaryDirectory(prefix="cloud-build-") as name:
            folder = Path(name)
            with tarfile.open(fileobj=io.BytesIO(found.data)) as archive:
                archive.extractall(folder, filter="data")
            files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
            self.folders[page["id"]] = files
            outputs = []
            for number, step in enumerate(page["steps"]):
                with tempfile.TemporaryDirectory(prefix="cloud-build-output-") as output:
                    if code := self._step(page, step, folder, output):
                        detail = f"step {number} exited with {code}"
                        return {"status": "FAILURE", "failureInfo": {"type": "USER_BUILD_STEP", "detail": detail}}
                    said = Path(output, "output")
                    outputs.append(base64.b64encode(said.read_bytes() if said.exists() else b"").decode())
            if failure := self._keep(page, folder):
                return failure
        self.pushed += page.get("images", [])
        return {"status": "SUCCESS", "results": {"buildStepOutputs": outputs}}

    def _keep(self, page: Page, folder: Path) -> Page | None:
        """Bring the artifacts of a build into their bucket; one that has none of those it names fails."""
        wanted = page.get("artifacts", {}).get("objects")
        if wanted is None:
            return None
        bucket, _, prefix = wanted["location"].removeprefix("gs://").partition("/")
        files = [file for pattern in wanted["paths"] for file in folder.glob(pattern)]
        if not files:
            return {"status": "FAILURE", "failureInfo": {"type": "PUSH_FAILED", "detail": "no artifacts matched"}}
        for file in files:
            self._cloud.objects.buckets[bucket].put(f"{prefix}{file.name}", file.read_bytes())
        return None

    def _step(self, page: Page, step: Page, folder: Path, output: str) -> int:
        if step["name"] == "gcr.io/cloud-builders/docker":
            dockerfile = folder / step["args"][step["args"].index("--file") + 1]
            said = dockerfile.read_bytes() if dockerfile.is_file() else b"no such Dockerfile"
            self._logs[page["id"]] += said + self.fate.encode()
            return 1 if self.fate or not dockerfile.is_file() else 0
        environ = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG"}}
        environ["BUILDER_OUTPUT"] = output
        words = [sys.executable, "-I", *step["args"]]  # of our packages it sees only what is in the folder
        done = subprocess.run(words, cwd=folder, env=environ | {"HOME": str(folder)}, capture_output=True, check=False)
        self._logs[page["id"]] += done.stdout + done.stderr
        return done.returncode
