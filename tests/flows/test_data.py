"""Flow (e): data goes in with a call, lies in a store, and is a plain path in the job; on every store that there is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from servers.gcs import GcsServer
from servers.moto_s3 import MotoServer

from kinetic._stores import open_store

BUCKET = "jobs"

SCRIPT = """
    import dataclasses
    import json
    import os
    import sys
    from collections import OrderedDict, namedtuple
    import kinetic

    Pair = namedtuple("Pair", "left right")

    @dataclasses.dataclass
    class Config:
        train: object
        epochs: int

    class Names(list):
        pass

    def tree(top):
        found = {}
        for folder, folders, files in os.walk(top):
            for name in sorted(folders):
                found[os.path.relpath(os.path.join(folder, name), top) + "/"] = ""
            for name in sorted(files):
                path = os.path.join(folder, name)
                found[os.path.relpath(path, top)] = open(path).read() + ("x" if os.access(path, os.X_OK) else "")
        return found

    @kinetic.run(accelerator="cpu")
    def look(whole, config, *, nested):
        return {
            "tree": tree(whole),
            "same": config.train is whole and nested["pair"].left is whole,
            "types": [type(config).__name__, type(nested).__name__, type(nested["pair"]).__name__,
                      type(nested["names"]).__name__],
            "file": open(nested["names"][0]).read(),
            "name": os.path.basename(nested["names"][0]),
            "project": sorted(os.listdir(".")),
        }

    if __name__ == "__main__":
        whole = kinetic.Data("./set")
        nested = OrderedDict(pair=Pair(whole, 1), names=Names([kinetic.Data("set/a.txt")]))
        print(json.dumps(look(whole, Config(whole, 3), nested=nested)))
"""

SET = {"a.txt": "first", "deep/er/b.txt": "second", "deep/run.sh": "third"}


@pytest.fixture(scope="module")
def gcs():
    server = GcsServer().start()
    yield server
    server.close()


@pytest.fixture(scope="module")
def s3():
    server = MotoServer(1000)
    yield server
    server.close()


@pytest.fixture(params=["files", "gs", "s3"])
def store_url(request, home, monkeypatch):
    """Give the test a store of each kind, empty, with everything in the environment that leads to it."""
    if request.param == "files":
        return f"file://{home}/store"
    bucket = f"{BUCKET}-{os.urandom(4).hex()}"
    server = request.getfixturevalue("gcs" if request.param == "gs" else "s3")
    server.bucket(bucket)
    variables = {"STORAGE_EMULATOR_HOST": server.url} if request.param == "gs" else server.environment()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KINETIC_STORE", f"{request.param}://{bucket}/below")
    return f"{request.param}://{bucket}/below"


@pytest.fixture
def project(project):
    for name, text in SET.items():
        project.write(f"set/{name}", text)
    (project.root / "set/deep/run.sh").chmod(0o755)
    (project.root / "set/hollow").mkdir()
    return project


def test_data_is_found_anywhere_in_the_arguments_and_is_a_path_in_the_job(project, store_url):
    import json

    found = json.loads(project.out(SCRIPT).splitlines()[-1])

    assert found["tree"] == {
        "deep/": "", "hollow/": "", "deep/er/": "",
        "a.txt": "first", "deep/er/b.txt": "second", "deep/run.sh": "thirdx",
    }  # fmt: skip
    assert found["same"] is True
    assert found["types"] == ["Config", "OrderedDict", "Pair", "Names"]
    assert (found["file"], found["name"]) == ("first", "a.txt")
    assert "set" not in found["project"], "what ships as data does not ship with the project as well"
    assert any(True for _ in open_store(store_url).entries("data/manifests/"))


def test_unchanged_data_is_not_sent_again(project, store_url):
    store = open_store(store_url)
    project.out(SCRIPT)
    before = [(entry.key, entry.modified) for entry in store.entries("data/")]

    project.out(SCRIPT)

    assert [(entry.key, entry.modified) for entry in store.entries("data/")] == before


def test_data_among_the_inputs_of_a_batch_is_sent_once(project, store_url):
    out = project.out(
        """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def read(path, number):
            return open(path + "/a.txt").read() * number

        if __name__ == "__main__":
            data = kinetic.Data("./set")
            print(read.run_async_map([(data, 1), (data, 2), (data, 3)]).results())
        """
    )

    assert out.splitlines()[-1] == "['first', 'firstfirst', 'firstfirstfirst']"
    assert len(list(open_store(store_url).entries("data/manifests/"))) == 1


def test_what_lies_in_a_bucket_is_fetched_by_the_job(project, gcs, home, monkeypatch):
    bucket = f"sets-{os.urandom(4).hex()}"
    gcs.bucket(bucket)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    store = open_store(f"gs://{bucket}")
    for key in ("dir/f.h5", "dir/more/g.h5", "top.txt"):
        store.put(key, key.encode())

    out = project.out(
        f"""
        import os
        import kinetic

        @kinetic.run(accelerator="cpu")
        def look(one, below, everything):
            count = lambda top: sum(len(files) for _, _, files in os.walk(top))
            return open(one).read(), os.path.basename(one), count(below), count(everything)

        if __name__ == "__main__":
            print(look(*(kinetic.Data("gs://{bucket}/" + path) for path in ("dir/f.h5", "dir/", ""))))
            for path in ("dir/g.h5", "dri/", "dir"):
                try:
                    look(kinetic.Data("gs://{bucket}/" + path), "", "")
                except FileNotFoundError as error:
                    print("missing:", path, type(error).__name__)
        """
    )

    assert out.splitlines()[-4:] == [
        "('dir/f.h5', 'f.h5', 2, 3)",
        "missing: dir/g.h5 DataMissingError",
        "missing: dri/ DataMissingError",
        "missing: dir DataMissingError",
    ]
    queue = next(home.glob("run/*/queue.db"))
    import sqlite3

    with sqlite3.connect(queue) as db:
        assert db.execute("SELECT count(*) FROM jobs").fetchone() == (0,), "nothing was launched in vain"
    db.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace without root depends on the kernel's settings")
def test_a_volume_appears_at_its_path_for_the_job_alone(project, store_url):
    mount = f"/kinetic-test-{os.urandom(4).hex()}/deep"
    out = project.out(
        f"""
        import os
        import kinetic

        @kinetic.run(accelerator="cpu", volumes={{"{mount}": kinetic.Data("./set")}})
        def look():
            return sorted(os.listdir("{mount}")), os.path.exists("{Path(mount).parent}")

        if __name__ == "__main__":
            print(look())
        """
    )

    assert out.splitlines()[-1] == "(['a.txt', 'deep', 'hollow'], True)"
    assert not Path(mount).parent.exists()


def test_a_plain_call_gets_paths_as_well(project, home):
    out = project.out(
        """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def read(paths):
            return [open(path).read() for path in paths]

        @kinetic.run(accelerator="cpu")
        def outer(path):
            return read([path])

        if __name__ == "__main__":
            print(read.local([kinetic.Data("set/a.txt")]), outer(kinetic.Data("set/a.txt")))
        """
    )

    assert out.splitlines()[-1] == "['first'] ['first']"


@pytest.mark.parametrize(("given", "words"), [("{{data}}", "a member of a set"), ("{{data: 1}}", "a key of a dict")])
def test_data_where_no_path_can_take_its_place_is_refused_by_its_position(project, home, given, words):
    done = project.run(
        "-c",
        "import kinetic\n"
        "run = kinetic.run(accelerator='cpu')(len)\n"
        "data = kinetic.Data('set')\n"
        f"try:\n    run([{given.format(data='data')}])\n"
        "except ValueError as error:\n    print(error)",
    )

    assert words in done.stdout
    assert "argument 0[0]" in done.stdout
