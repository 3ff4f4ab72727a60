"""Data of jobs on a cluster: it is sent into the bucket, lies in the pod as a plain path, and what is written stays."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("machine")

LOOK = """
    import os
    import kinetic

    def tree(top):
        return {
            os.path.relpath(os.path.join(folder, name), top): open(os.path.join(folder, name)).read()
            for folder, _, names in os.walk(top) for name in names
        }

    @kinetic.run(accelerator="cpu")
    def look(*paths):
        return [tree(path) if os.path.isdir(path) else open(path).read() for path in paths]

    @kinetic.run(accelerator="cpu", volumes={"/kinetic-volume/deep": kinetic.Data("set")})
    def volume():
        return tree("/kinetic-volume/deep")

    @kinetic.run(accelerator="cpu")
    def write(name):
        from kinetic._stores import open_store  # in place of what users have for buckets

        open_store(kinetic.output_dir()).put(name, f"this is {name}".encode())
        with open(os.path.join(kinetic.output_dir(), "plain.txt"), "w") as file:  # sent by the pod
            file.write("written with open()")
        return kinetic.output_dir()
"""
SET = {"a.txt": "first", "deep/er/b.txt": "second"}


@pytest.fixture
def looking(clients: Any) -> Any:
    """Clients with a folder of data, and ``look.py`` with jobs that read it."""
    clients.project.write("look.py", LOOK)
    for name, text in SET.items():
        clients.project.write(f"set/{name}", text)
    return clients


def test_a_folder_and_a_file_of_this_machine_are_paths_in_the_job(looking: Any, site: Any) -> None:
    found = looking.run("from look import *\ntell(look(kinetic.Data('set'), kinetic.Data('set/a.txt')))")

    assert found == [SET, "first"]
    assert site.bucket.names("data/manifests/")


def test_data_that_was_sent_before_is_not_sent_again(looking: Any, site: Any) -> None:
    looking.run("from look import *\ntell(look(kinetic.Data('set')))")
    before = site.bucket.names("data/")
    refused = site.bucket.fail(target="data/blobs", method="PUT|POST")

    found = looking.run("from look import *\ntell(look(kinetic.Data('set')))")

    assert found == [SET]
    assert refused.met == 0
    assert site.bucket.names("data/") == before


def test_a_volume_appears_at_its_path(looking: Any) -> None:
    assert looking.run("from look import *\ntell(volume())") == SET


def test_data_of_a_bucket_is_fetched_by_the_job(looking: Any, site: Any) -> None:
    site.bucket.make("sets-of-a-test")
    for name, text in SET.items():
        site.bucket.write("sets-of-a-test", f"below/{name}", text.encode())

    found = looking.run(
        "from look import *\ntell(look(*map(kinetic.Data, words)))",
        "gs://sets-of-a-test/below/",
        "gs://sets-of-a-test/below/a.txt",
    )

    assert found == [SET, "first"]


def test_data_that_is_missing_in_a_bucket_is_told_before_anything_is_launched(looking: Any, site: Any) -> None:
    site.bucket.make("sets-of-a-test")

    found = looking.run("""
        from look import *
        try:
            look(kinetic.Data("gs://sets-of-a-test/nothing.txt"))
        except FileNotFoundError as error:
            tell(type(error).__name__)
    """)

    assert found == "DataMissingError"
    assert site.jobs() == []


def test_what_a_job_writes_stays_in_the_bucket_and_is_copied_from_there(
    looking: Any, site: Any, kinetic: Any, tmp_path: Any
) -> None:
    job_id, folder = looking.run("""
        from look import *
        job = write.run_async("deep/model.txt")
        tell([job.job_id, job.result()])
    """)

    listed = kinetic("outputs", "ls", job_id, "--recursive")
    copied = kinetic("outputs", "get", job_id, "--to", str(tmp_path / "copied"))

    assert folder == f"{site.bucket.address}/outputs/{job_id}"
    stored = site.bucket.names(f"outputs/{job_id}/")
    assert stored == [f"outputs/{job_id}/{name}" for name in (".kinetic-files/0.json", "deep/model.txt", "plain.txt")]
    assert "deep/model.txt" in listed.out, listed.err
    assert ".kinetic-files" not in listed.out
    assert copied.code == 0, copied.err
    assert (tmp_path / "copied" / "plain.txt").read_text() == "written with open()"
    assert (tmp_path / "copied" / "deep" / "model.txt").read_text() == "this is deep/model.txt"


def test_an_output_folder_of_the_users_own_in_a_bucket_is_used(looking: Any, site: Any) -> None:
    site.bucket.make("mine-of-a-test")

    found = looking.run("""
        from look import *
        tell(write.with_options(output_dir="gs://mine-of-a-test/runs")("model.txt"))
    """)

    assert found == "gs://mine-of-a-test/runs"
    assert site.bucket.read("mine-of-a-test", "runs/model.txt") == b"this is model.txt"


def test_an_output_folder_on_this_machine_is_refused_for_a_job_elsewhere(
    looking: Any, site: Any, tmp_path: Any
) -> None:
    found = looking.run(
        """
        from look import *
        try:
            write.with_options(output_dir=words[0]).run_async("model.txt")
        except kinetic.errors.OptionError as error:
            tell(str(error))
        """,
        str(tmp_path / "runs"),
    )

    assert str(tmp_path / "runs") in found
    assert site.jobs() == []
