"""What jobs wrote is found for every job that ever was, listed, and copied, in folders and in stores of objects."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import threading
from pathlib import Path

import pytest
from servers.sealed import put_history

from kinetic._config import target as settings
from kinetic._jobs import output_search, outputs
from kinetic._stores import open_store
from kinetic._stores.files import FileStore
from kinetic._wire import keys
from kinetic.errors import DataMissingError, JobNotFoundError, KineticError, OptionError

DAY = 24 * 3600


def located(word: str) -> outputs.OutputLocation:
    return output_search.find_location(word, settings.resolve())


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    for name in [*os.environ]:
        if name.startswith("KINETIC_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def store(home) -> FileStore:
    return FileStore(home / "store")


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return an output directory with some files."""
    folder = tmp_path / "out"
    for path, text in {
        "model.bin": "abc",
        "plots/a.txt": "a",
        "plots/deep/b.txt": "bb",
        "run.sh": "#!/bin/sh\n",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
        os.utime(folder / path, (1_700_000_000.5, 1_700_000_000.123456))
    (folder / "run.sh").chmod(0o755)
    (folder / "checkpoints").mkdir()
    return folder


def keep_history(store: FileStore, job_id: str, **more: object) -> None:
    put_history(store, {"job_id": job_id, "created_at": keys.format_utc(1_700_000_000), **more})


def place(folder: object) -> outputs.OutputLocation:
    return outputs.OutputLocation("cpu-f-1", str(folder))


def paths(found: outputs.FoundOutputs) -> list[str]:
    return [file.path for file in found.files]


# ------------------------------------------------------------------------------------------------------- finding


def test_the_outputs_of_a_removed_job_are_where_its_history_says(store):
    keep_history(store, "cpu-f-20261120-1", output_dir="/data/mine")

    assert located("cpu-f-20261120-1") == outputs.OutputLocation("cpu-f-20261120-1", "/data/mine")
    assert located("cpu-f") == outputs.OutputLocation("cpu-f-20261120-1", "/data/mine")


@pytest.mark.parametrize("address", ["gs://bucket/outputs/cpu-f-1", "s3://bucket/outputs/cpu-f-1"])
def test_a_bucket_without_files_is_not_looked_for_on_the_machine_of_the_job(address):
    empty = outputs.OutputLocation("cpu-f-1", address, "gke acme/main/default")

    assert outputs.no_files_text(empty) == f"cpu-f-1 has not written any files to {address}"
    assert "it ran on gke acme/main/default" in outputs.no_files_text(empty._replace(address="/scratch/outputs"))


def test_the_outputs_of_a_forgotten_job_are_found_by_their_folder(store, home):
    store.put("outputs/cpu-f-1/model.bin", b"x")

    assert located("cpu-f") == outputs.OutputLocation("cpu-f-1", f"{home}/store/outputs/cpu-f-1")


def test_an_id_is_exact_before_it_is_a_beginning(store, home):
    store.put("outputs/cpu-f-1/x", b"x")
    store.put("outputs/cpu-f-12/x", b"x")

    assert located("cpu-f-1").job_id == "cpu-f-1"
    with pytest.raises(OptionError, match="beginning of 2 ids") as caught:
        located("cpu-f")

    assert caught.value.code == "ambiguous-id"
    assert caught.value.why == "cpu-f-1, cpu-f-12"


def test_a_job_that_never_was_is_said_so(store):
    with pytest.raises(JobNotFoundError, match="no job cpu-g was found"):
        located("cpu-g")


def test_the_newest_job_may_be_one_that_is_gone(store):
    keep_history(store, "cpu-f-1", output_dir="/a")
    keep_history(store, "cpu-f-2", output_dir="/b", created_at=keys.format_utc(1_700_000_001))

    assert output_search.newest_location(settings.resolve()) == outputs.OutputLocation("cpu-f-2", "/b")


def test_without_any_job_there_is_no_newest(store):
    assert output_search.newest_location(settings.resolve()) is None


# ------------------------------------------------------------------------------------------------------- looking


def test_a_folder_is_listed_with_sizes_and_times(folder):
    found = outputs.find_files(place(folder))

    assert paths(found) == ["model.bin", "plots/a.txt", "plots/deep/b.txt", "run.sh"]
    assert [file.size for file in found.files] == [3, 1, 2, 10]
    assert {round(file.modified, 6) for file in found.files} == {1_700_000_000.123456}
    assert [file.path for file in found.files if file.runs] == ["run.sh"]


@pytest.mark.parametrize("path", ["plots", "plots/", "./plots", "plots/."])
def test_a_path_narrows_a_listing(folder, path):
    assert paths(outputs.find_files(place(folder), path)) == ["plots/a.txt", "plots/deep/b.txt"]


def test_a_path_may_be_a_file(folder):
    assert paths(outputs.find_files(place(folder), "plots/a.txt")) == ["plots/a.txt"]


def test_a_path_that_is_not_there_is_an_error_that_names_near_ones(folder):
    with pytest.raises(DataMissingError, match="wrote nothing at 'plot'") as caught:
        outputs.find_files(place(folder), "plot")

    assert "plots" in caught.value.why


@pytest.mark.parametrize("path", ["..", "plots/../..", "/etc", "plots/../../x"])
def test_a_path_that_leads_out_is_refused(folder, path):
    with pytest.raises(OptionError, match="not a path below the output directory"):
        outputs.find_files(place(folder), path)


def test_a_job_that_wrote_nothing_is_no_error(tmp_path):
    assert outputs.find_files(place(tmp_path / "never made")).files == ()


def test_a_listing_has_one_level_and_folders_put_together(folder):
    files = outputs.find_files(place(folder)).files

    shown = [(row.path, row.files, row.size) for row in outputs.listing_rows(files)]

    assert shown == [("model.bin", 1, 3), ("plots/", 2, 3), ("run.sh", 1, 10)]
    below = [file for file in files if file.path.startswith("plots/")]
    assert [row.path for row in outputs.listing_rows(below, "plots")] == ["plots/a.txt", "plots/deep/"]
    assert [row.path for row in outputs.listing_rows(files[:1], "model.bin")] == ["model.bin"]


def test_a_name_that_stores_use_themselves_is_an_output_like_any_other(folder):
    (folder / ".tmp").mkdir()
    (folder / ".tmp" / "x").write_text("x")

    assert paths(outputs.find_files(place(folder), ".tmp")) == [".tmp/x"]


def test_what_is_no_file_or_has_a_name_that_is_no_key_is_named_and_hinders_no_other(folder, tmp_path):
    os.mkfifo(folder / "pipe")
    (folder / "line\nbreak").write_text("x")
    (folder / os.fsdecode(b"\xff")).write_text("x")
    (folder / "latest").symlink_to("plots")
    (folder / "link.txt").symlink_to("plots/a.txt")
    (folder / "broken").symlink_to("nowhere")

    found = outputs.find_files(place(folder))
    outputs.Copy(found, tmp_path / "here").run()

    assert sorted(found.others) == ["latest", "line\nbreak", "pipe", os.fsdecode(b"\xff")]
    assert (tmp_path / "here" / "link.txt").read_text() == "a"
    assert not (tmp_path / "here" / "link.txt").is_symlink()
    assert sorted(os.listdir(tmp_path / "here")) == ["link.txt", "model.bin", "plots", "run.sh"]


# ------------------------------------------------------------------------------------------------------- copying


def test_files_arrive_with_their_paths_times_and_executable_bits(folder, tmp_path):
    to = tmp_path / "new" / "here"

    outputs.Copy(outputs.find_files(place(folder)), to).run()

    assert (to / "plots" / "deep" / "b.txt").read_text() == "bb"
    assert (to / "model.bin").stat().st_mtime == pytest.approx(1_700_000_000.123456, abs=1e-5)
    assert (to / "run.sh").stat().st_mode & stat.S_IXUSR
    assert not (to / "model.bin").stat().st_mode & stat.S_IXUSR
    assert sorted(os.listdir(to)) == ["model.bin", "plots", "run.sh"]


def test_a_path_is_copied_to_where_it_lies_in_the_whole(folder, tmp_path):
    outputs.Copy(outputs.find_files(place(folder), "plots/deep"), tmp_path / "here").run()

    assert [str(path.relative_to(tmp_path)) for path in (tmp_path / "here").rglob("*.*")] == ["here/plots/deep/b.txt"]


def test_what_is_there_already_is_not_copied_again(folder, tmp_path):
    outputs.Copy(outputs.find_files(place(folder), "plots"), tmp_path / "here").run()
    before = (tmp_path / "here" / "plots" / "a.txt").stat().st_ino

    copy = outputs.Copy(outputs.find_files(place(folder)), tmp_path / "here")
    copy.run()

    assert [file.path for file in copy.same] == ["plots/a.txt", "plots/deep/b.txt"]
    assert sorted(file.path for file in copy.done) == ["model.bin", "run.sh"]  # as they came
    assert (tmp_path / "here" / "plots" / "a.txt").stat().st_ino == before


@pytest.mark.parametrize("seconds", [1, 2, 0.01])
def test_what_is_there_already_is_known_also_where_a_memory_stick_keeps_the_time_in_seconds(
    folder, tmp_path, monkeypatch, seconds
) -> None:
    utime, found = os.utime, outputs.find_files(place(folder))
    monkeypatch.setattr(
        os, "utime", lambda path, times: utime(path, tuple(time // seconds * seconds for time in times))
    )
    outputs.Copy(found, tmp_path / "here").run()

    assert outputs.Copy(found, tmp_path / "here").todo == []

    newer = [file._replace(modified=file.modified + 2.5) for file in found.files]
    with pytest.raises(OptionError, match="holds other files"):
        outputs.Copy(found._replace(files=newer), tmp_path / "here")


def test_nothing_is_replaced_unless_asked_and_then_nothing_at_all_is_copied(folder, tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    (here / "run.sh").write_text("mine")

    with pytest.raises(OptionError, match="holds other files") as caught:
        outputs.Copy(outputs.find_files(place(folder)), here)

    assert (caught.value.code, caught.value.why) == ("file-exists", "run.sh")
    assert os.listdir(here) == ["run.sh"]
    outputs.Copy(outputs.find_files(place(folder)), here, force=True).run()
    assert (here / "run.sh").read_text() == "#!/bin/sh\n"


def test_a_folder_is_never_replaced_by_a_file(folder, tmp_path):
    (tmp_path / "here" / "model.bin").mkdir(parents=True)

    with pytest.raises(OptionError, match="holds other files"):
        outputs.Copy(outputs.find_files(place(folder)), tmp_path / "here", force=True)


def test_a_link_in_the_way_is_replaced_and_not_followed(folder, tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "model.bin").symlink_to(tmp_path / "theirs")

    outputs.Copy(outputs.find_files(place(folder), "model.bin"), tmp_path / "here", force=True).run()

    assert (tmp_path / "theirs").read_text() == "theirs"
    assert (tmp_path / "here" / "model.bin").read_text() == "abc"


def test_what_a_running_job_removed_meanwhile_is_named(folder, tmp_path):
    copy = outputs.Copy(outputs.find_files(place(folder)), tmp_path / "here")
    (folder / "model.bin").unlink()

    copy.run()

    assert copy.missing == ["model.bin"]
    assert len(copy.done) == 3


def test_a_folder_that_cannot_be_made_is_told_in_our_words(folder, tmp_path):
    (tmp_path / "here").write_text("a file")

    with pytest.raises(KineticError, match="not everything could be copied") as caught:
        outputs.Copy(outputs.find_files(place(folder)), tmp_path / "here").run()

    assert caught.value.code == "not-saved"


def test_a_name_that_the_system_refuses_is_told_in_our_words(folder, tmp_path):
    with pytest.raises(KineticError, match="not everything could be copied") as caught:
        outputs.Copy(outputs.find_files(place(folder)), tmp_path / ("x" * 300) / "here")

    assert caught.value.code == "not-saved"


class _Stopping(FileStore):
    """A store that fails after some files."""

    def __init__(self, root: Path, good: int) -> None:
        super().__init__(root)
        self._left = good
        self._lock = threading.Lock()

    def fetch(self, key: str, to: os.PathLike[str]) -> None:
        with self._lock:
            self._left -= 1
            if self._left < 0:
                raise KineticError("the network is gone")
        super().fetch(key, to)


def test_a_copy_that_was_interrupted_goes_on_where_it_stopped(folder, tmp_path):
    here, found = tmp_path / "here", outputs.find_files(place(folder))
    broken = found._replace(store=_Stopping(folder.parent, 2))

    with pytest.raises(KineticError, match="the network is gone"):
        outputs.Copy(broken, here).run()
    arrived = [path for path in here.rglob("*") if path.is_file()]
    again = outputs.Copy(found, here)
    again.run()

    assert len(arrived) == len(again.same) == 2
    assert len(again.done) == 2


def test_how_far_a_copy_is_can_be_asked(folder, tmp_path):
    copy = outputs.Copy(outputs.find_files(place(folder)), tmp_path / "here")

    before = copy.progress_text()
    copy.run()

    assert before == "0 of 4 files, 0 bytes of 16 bytes"
    assert copy.progress_text() == "4 of 4 files, 16 bytes of 16 bytes"


def test_outputs_in_a_store_of_objects_are_listed_and_copied(home, monkeypatch, tmp_path):
    monkeypatch.setenv("KINETIC_STORE", "memory://outputs-of-a-test")
    store = open_store("memory://outputs-of-a-test")
    store.put("outputs/cpu-f-1/a/x.bin", b"xx")
    store.put("outputs/cpu-f-1/y.bin", b"y")
    store.put("outputs/cpu-f-12/z.bin", b"z")

    found = outputs.find_files(located("cpu-f-1"))
    outputs.Copy(found, tmp_path / "here").run()

    assert paths(found) == ["a/x.bin", "y.bin"]
    assert (tmp_path / "here" / "a" / "x.bin").read_bytes() == b"xx"


class _Odd:
    """A bucket in which somebody wrote keys that no folder can hold."""

    local = None

    def __init__(self, folder: Path) -> None:
        self._store = FileStore(folder)
        self.entry, self.fetch, self.url = self._store.entry, self._store.fetch, self._store.url

    def entries(self, prefix: str, *, after: str = ""):
        entry = next(self._store.entries(prefix, after=after))
        yield entry._replace(key=f"{prefix}../../escaped")
        yield entry._replace(key=f"{prefix}folder/")
        yield entry


def test_a_key_that_leads_out_of_the_folder_is_named_and_never_copied(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(outputs, "open_store", lambda _: _Odd(folder.parent))

    found = outputs.find_files(place(folder))
    outputs.Copy(found, tmp_path / "deep" / "er" / "here").run()

    assert found.others == ("../../escaped",)
    assert paths(found) == ["model.bin"]
    assert not (tmp_path / "deep" / "escaped").exists()


def test_what_a_killed_copy_left_half_done_goes_with_the_next_one(folder, tmp_path):
    left = tmp_path / "here" / ".kinetic-get-dead"
    left.mkdir(parents=True)
    (left / "0").write_text("half")
    at_work = tmp_path / "here" / ".kinetic-get-alive"
    at_work.mkdir()
    descriptor = os.open(at_work, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    outputs.Copy(outputs.find_files(place(folder)), tmp_path / "here").run()
    os.close(descriptor)

    assert sorted(os.listdir(tmp_path / "here")) == [".kinetic-get-alive", "model.bin", "plots", "run.sh"]


def test_a_link_to_a_folder_is_said_to_be_one_and_not_that_there_are_no_files(folder, tmp_path):
    (folder / "latest").symlink_to("plots")

    with pytest.raises(DataMissingError, match="nothing to copy there: latest") as refused:
        outputs.Copy.of(place(folder), "latest", tmp_path / "here")

    assert "a link to a folder" in str(refused.value.why)
    assert refused.value.next == "kinetic outputs ls cpu-f-1 --recursive"


def test_links_out_of_the_outputs_are_named_and_never_read(folder, tmp_path):
    (tmp_path / "secret").write_text("theirs")
    (folder / "key").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to("../secret")
    (folder / "around").symlink_to("plots/../../secret")

    found = outputs.find_files(place(folder))
    outputs.Copy(found, tmp_path / "here").run()

    assert found.others == ("around", "key", "up")
    assert not {"around", "key", "up"} & set(os.listdir(tmp_path / "here"))


def test_nothing_is_written_through_a_link_in_the_target(folder, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "plots").symlink_to(tmp_path / "theirs")

    with pytest.raises(OptionError, match="nothing was copied"):
        outputs.Copy(outputs.find_files(place(folder)), tmp_path / "here", force=True)

    assert os.listdir(tmp_path / "theirs") == []


def test_copies_that_begin_at_the_same_time_in_one_folder_leave_each_other_alone(folder, tmp_path, monkeypatch):
    make = tempfile.TemporaryDirectory

    def made_and_overtaken(**named):
        monkeypatch.setattr(tempfile, "TemporaryDirectory", make)
        made = make(**named)
        outputs.Copy(found, tmp_path / "to").run()
        return made

    found = outputs.find_files(place(folder))
    monkeypatch.setattr(tempfile, "TemporaryDirectory", made_and_overtaken)

    copy = outputs.Copy(found, tmp_path / "to")
    copy.run()

    assert (len(copy.done), copy.missing) == (4, [])
    assert sorted(os.listdir(tmp_path / "to")) == ["model.bin", "plots", "run.sh"]
