"""The questions that users of such tools ask, and the words that they meet: each is answered, each is explained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"

# A question, by words of its heading, and what its answer must speak of.
TOPICS = {
    "call the function, or use `run_async`": ("train.run_async", "handle", "Ctrl-C"),
    "first job take longer": ("environment", "second"),
    "Prebuilt or bundled": ("container_image", "image"),
    "data into a job": ("kinetic.Data", "path"),
    "`gs://…` in my own code": ("path", "bucket"),
    "checkpoints": ("KINETIC_OUTPUT_DIR", "return value"),
    "find a job again": ("kinetic.attach", "list_jobs", "@last"),
    "removed automatically": ("result()", "failed", "Outputs are always kept"),
    "spot=True": ("capacity", "slice"),
    "more than one cluster": ("profiles",),
    "Pathways": ("hosts", "jax.distributed"),
}
WORDS = (
    *("accelerator", "topology", "Pathways", "node pool", "cluster", "bundled image", "prebuilt image", "FUSE mount"),
    *("handle", "output folder"),
)


def answers() -> dict[str, str]:
    """Return the questions of the page and what stands below each."""
    _, *parts = re.split(r"(?m)^## ", (DOCS / "faq.md").read_text())
    return {heading: " ".join(text.split()) for heading, _, text in (part.partition("\n") for part in parts)}


@pytest.mark.parametrize("topic", TOPICS)
def test_a_question_has_its_answer(topic: str) -> None:
    found = [text for heading, text in answers().items() if topic in heading]

    assert len(found) == 1
    assert [word for word in TOPICS[topic] if word not in found[0]] == []


@pytest.mark.parametrize("word", WORDS)
def test_a_word_is_explained(word: str) -> None:
    rows = [line for line in (DOCS / "glossary.md").read_text().splitlines() if line.startswith(f"| **{word}** |")]

    assert len(rows) == 1
    assert len(rows[0].split("|")[2].split()) > 3
