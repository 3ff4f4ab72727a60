"""One container of a pod's spec, through all its runs: its state, its logs, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cluster import statuses

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.containers import Container, Exit
    from cluster.logs import Log

SIMULATED = "simulated by the test's node agent"


@dataclass
class Seat:
    """What is known of one container of the spec, through all its runs."""

    spec: dict[str, Any]
    is_init: bool
    state: dict[str, Any] = field(default_factory=lambda: statuses.waiting("PodInitializing"))
    last_state: dict[str, Any] = field(default_factory=dict)
    restarts: int = 0
    container: Container | None = None
    container_id: str = ""
    logs: list[Log] = field(default_factory=list)
    out_of_memory: bool = False

    def status(self) -> dict[str, Any]:
        done = "terminated" in self.state and self.state["terminated"]["exitCode"] == 0
        up = "running" in self.state
        return {
            "name": self.spec["name"],
            "image": self.spec["image"],
            "imageID": f"test/{self.spec['image']}",
            "containerID": self.container_id,
            "restartCount": self.restarts,
            "ready": done if self.is_init else up,
            "started": up,
            "state": self.state,
            "lastState": self.last_state,
        }

    def epitaph(self, ended: Exit, began: str, last_words: Path) -> dict[str, Any]:
        """Say how its container ended, with its last words if it left any."""
        assert self.container is not None
        words = last_words.read_bytes()[:4096].decode(errors="replace")
        if not words and ended.code and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            words = self.container.log.tail(80, 2048)
        if self.out_of_memory:
            return statuses.terminated(137, "OOMKilled", began, self.container_id, words or SIMULATED)
        reason = "Completed" if ended.code == 0 else "Error"
        return statuses.terminated(ended.code, reason, began, self.container_id, words)
