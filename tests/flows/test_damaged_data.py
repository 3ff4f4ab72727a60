"""What a job found damaged in the store is sent anew with the next submission, without anybody's doing."""

from __future__ import annotations

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


def test_a_damaged_blob_fails_one_job_and_no_second_one(project, home):
    project.write("set/a.txt", "what was meant")
    assert project.out(SCRIPT).splitlines()[-1] == "read what was meant"
    store = FileStore(home / "store")
    for entry in list(store.entries("data/blobs/")):
        store.put(entry.key, store.get(entry.key)[:-1] + b"!")
    for cached in [path for path in home.glob("run/*/data/**/*") if path.is_file()]:
        cached.unlink()  # this machine's own copy would have done

    refused, again = project.out(SCRIPT).splitlines()[-1], project.out(SCRIPT).splitlines()[-1]

    assert "refused" in refused
    assert "submit again, and it is sent anew" in refused
    assert again == "read what was meant"
