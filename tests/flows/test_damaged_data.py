"""What a job found damaged or gone in the store is sent again with the next submission, without anybody's doing."""

from __future__ import annotations

import shutil

import pytest

from kinetic._stores.files import FileStore

SCRIPT = """
    import kinetic

    @kinetic.run(accelerator="cpu")
    def read(path):
        return open(path + "/a.txt").read()

    if __name__ == "__main__":
        data = kinetic.Data("./set")
        try:
            print("read", read(data))
        except kinetic.errors.RunnerError as error:
            print(repr(f"refused {error.code} {error.__notes__}"))
"""

BATCH = """
    import kinetic

    @kinetic.run(accelerator="cpu")
    def read(path):
        return open(path + "/a.txt").read()

    if __name__ == "__main__":
        batch = read.run_async_map([kinetic.Data("./set")] * 2, input_mode="single", retries=0)
        found = batch.results(return_exceptions=True)
        print([repr(f"refused {one.__notes__}") if isinstance(one, Exception) else one for one in found])
"""


def damage(home):
    store = FileStore(home / "store")
    for entry in list(store.entries("data/blobs/")):
        store.put(entry.key, store.get(entry.key)[:-1] + b"!")


def lose(home):
    shutil.rmtree(home / "store" / "data" / "blobs")


def forget_what_this_machine_keeps(home):
    for kept in [path for path in home.glob("run/*/data/**/*") if path.is_file()]:
        kept.unlink()


@pytest.mark.parametrize("harm", [damage, lose])
def test_what_is_wrong_in_the_store_fails_one_job_and_no_second_one(project, home, harm):
    project.write("set/a.txt", "what was meant")
    assert project.out(SCRIPT).splitlines()[-1] == "read what was meant"
    harm(home)
    forget_what_this_machine_keeps(home)

    refused, again = project.out(SCRIPT).splitlines()[-1], project.out(SCRIPT).splitlines()[-1]

    assert "refused" in refused
    assert "submit again, and it is sent again" in refused
    assert again == "read what was meant"


@pytest.mark.parametrize("harm", [damage, lose])
def test_it_fails_one_batch_and_no_second_one(project, home, harm):
    project.write("set/a.txt", "what was meant")
    project.out(BATCH)
    harm(home)
    forget_what_this_machine_keeps(home)

    refused, again = project.out(BATCH).splitlines()[-1], project.out(BATCH).splitlines()[-1]

    assert refused.count("submit again, and it is sent again") == 2
    assert again == "['what was meant', 'what was meant']"
