"""The data examples of the API reference run in a job: buckets mapped to a test server, paths to files here.

The reference shows constructor calls only. Each is given to a job as an argument, and what the job finds is compared.
Where the copy of the reference is at hand, the list below is compared with it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from flows.conftest import last_json
from servers.gcs import GcsServer

from kinetic._stores import open_store

REFERENCE = Path(__file__).parents[3] / "shared" / "spec" / "python-api.txt"
IMAGES = {"1.png": "one", "deep/2.png": "two"}
FOUND = {
    'Data("./my_dataset/")': {"a.csv": "1,2", "b/c.csv": "3,4"},
    'Data("./config.json")': '{"lr": 0.1}',
    'Data("gs://my-bucket/datasets/imagenet/")': IMAGES,
    'Data("gs://my-bucket/datasets/weights.h5")': "weights",
    'Data("./large_dataset/", fuse=True)': {"big.bin": "0" * 1000},
    'Data("gs://my-bucket/datasets/imagenet/", fuse=True)': IMAGES,
    'Data("hf://imdb?split=train")': ["good", "bad"],
    'Data("hf://custom/repo", hf_trust_remote_code=True)': {"train": ["mine"]},
}

SCRIPT = """
    import json
    import os
    import sys
    import kinetic
    from kinetic import Data

    @kinetic.run(accelerator="cpu")
    def look(path):
        if os.path.isfile(path):
            return open(path).read()
        names = [os.path.join(top, name) for top, _, files in os.walk(path) for name in files]
        if any(name.endswith(".arrow") for name in names):
            import datasets
            loaded = datasets.load_from_disk(path)
            sets = loaded if hasattr(loaded, "items") else {"": loaded}
            texts = {name: list(rows["text"]) for name, rows in sets.items()}
            return texts.get("", texts)
        return {os.path.relpath(name, path): open(name).read() for name in names}

    if __name__ == "__main__":
        print(json.dumps(look(eval(sys.argv[1]))))
"""


@pytest.fixture(scope="module")
def gcs():
    server = GcsServer().start()
    server.bucket("my-bucket")
    yield server
    server.close()


@pytest.fixture
def project(project, gcs, home, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    bucket = open_store("gs://my-bucket")
    for name, text in IMAGES.items():
        bucket.put(f"datasets/imagenet/{name}", text.encode())
    bucket.put("datasets/weights.h5", b"weights")
    for name, text in {
        "my_dataset/a.csv": "1,2",
        "my_dataset/b/c.csv": "3,4",
        "large_dataset/big.bin": "0" * 1000,
    }.items():
        project.write(name, text)
    project.write("config.json", '{"lr": 0.1}')
    project.write("imdb/train.jsonl", '{"text": "good"}\n{"text": "bad"}\n')
    project.write("custom/repo/train.jsonl", '{"text": "mine"}\n')
    return project


def test_the_list_is_what_the_reference_shows():
    if not REFERENCE.exists():
        pytest.skip("the reference is not beside this clone")
    text = REFERENCE.read_text()
    shown = re.findall(r'^Data\(".*\)$', text, re.MULTILINE)

    assert sorted(shown) == sorted(FOUND)


@pytest.mark.parametrize("example", FOUND)
def test_an_example_of_the_reference_gives_the_job_what_it_says(project, example):
    if "hf://" in example:
        pytest.importorskip("datasets")
    there = example.replace("hf://", f"hf://{project.root}/")  # no hub is reachable here: these lie on the disk

    found = last_json(project.out(SCRIPT, there))

    assert found == FOUND[example]
