"""A store that a team shares: what is sealed with keys of others is not shown, and not read again for each list."""

from __future__ import annotations

from pathlib import Path

import other_user
import pytest

from kinetic._config import home as config_home
from kinetic._config import target
from kinetic._jobs import collect, index, job_list, locate
from kinetic._jobs.status import Snapshot
from kinetic._stores.memory import MemoryStore
from kinetic._wire import keys, records
from kinetic._wire.records import JobRecord
from kinetic.job_status import JobStatus

NAMES = [f"cpu-f-20261123-070000-{number}" for number in range(4)]


class Team(MemoryStore):
    """A store that ann and bob share, which notes what is read."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__("team")
        self.url = "gs://team"
        self.read: list[str] = []
        self.homes, self._environment = folder, monkeypatch
        monkeypatch.setattr(locate, "open_store", lambda _: self)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        self.read.append(key)
        return super().get(key, start=start, length=length)

    def use_home_of(self, user: str) -> str:
        """Begin a process of somebody; return the name of the home's own key."""
        self._environment.setenv("KINETIC_HOME", str(self.homes / user))
        index._indexes.clear()
        index._rows.clear()
        self.read.clear()
        return config_home.own_key(locate.home())[0]

    def listed(self) -> tuple[list[str], list[str]]:
        """List the jobs that are stored and those of the history; both belong to the current user."""
        stored = [job.job_id for job in locate.read_records([(self, NAMES[:2])])]
        return sorted(stored), sorted(row.job_id for row in job_list.history_rows(self))


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Team:
    """Let ann have two jobs, and two that were removed."""
    store = Team(tmp_path, monkeypatch)
    key_id = store.use_home_of("ann")
    rest = ("gke", "", "", "", "default", "", "", "", "cpu", "f", "f", "2026-11-23T07:00:00Z")
    for name in NAMES:
        job = JobRecord(name, *rest, store=store.url, key_id=key_id)
        if name in NAMES[:2]:
            page = locate.seal_record(records.plain(job), {}, locate.key_to_seal(job))
            store.put(keys.record(name), page)
        else:
            past = collect.history_page(job, Snapshot(JobStatus.SUCCEEDED))
            locate.write_page(store, past, locate.key_to_seal(job))
    return store


def test_jobs_that_others_sealed_are_read_once_and_named_by_each_list(
    team: Team, caplog: pytest.LogCaptureFixture
) -> None:
    team.use_home_of("bob")
    first, read = team.listed(), [*team.read]
    team.use_home_of("bob")
    second = team.listed()

    assert first == second == ([], [])
    assert len(read) == len(NAMES)
    assert team.read == []
    assert [line.count("2 unverified jobs are not listed") for line in caplog.messages] == [1, 1]
    assert all("kinetic key export" in line for line in caplog.messages)


def test_jobs_of_others_are_listed_once_their_key_was_imported(team: Team, tmp_path: Path) -> None:
    key_id = team.use_home_of("ann")
    team.use_home_of("bob")
    before = team.listed()

    team.use_home_of("bob")
    (locate.home() / "keys" / key_id).write_bytes((tmp_path / "ann" / "keys" / key_id).read_bytes())
    after = team.listed()
    team.use_home_of("bob")
    (locate.home() / "keys" / key_id).unlink()
    without = team.listed()

    assert before == without == ([], [])
    assert after == (NAMES[:2], NAMES[2:])


def test_a_page_with_a_wrong_seal_removes_no_job_once_the_key_that_it_names_was_imported(
    team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_list, "stores", lambda _: [team])
    key_id = team.use_home_of("ann")
    forged = MemoryStore.get(team, keys.history(NAMES[3])).replace(NAMES[3].encode(), NAMES[0].encode())
    team.put(keys.history(NAMES[0]), forged)
    team.use_home_of("bob")
    team.listed()

    team.use_home_of("bob")
    (locate.home() / "keys" / key_id).write_bytes((tmp_path / "ann" / "keys" / key_id).read_bytes())
    ((_, names, _),) = job_list.unremoved(target.resolve(backend="local"))

    assert names == NAMES[:2]


def test_a_page_that_its_owner_wrote_anew_is_read_again(team: Team) -> None:
    team.use_home_of("bob")
    team.listed()
    forged = keys.history(NAMES[3])
    team.put(forged, MemoryStore.get(team, forged) + b" ")

    team.use_home_of("bob")
    team.listed()

    assert team.read == [forged]


def test_a_record_of_a_home_that_only_another_user_may_enter_is_explained(tmp_path):
    (tmp_path / "closed").mkdir(mode=0)

    with other_user.without_rights():
        advice = locate._way_to(f"file://{tmp_path}/closed/.kinetic/store", "file:///home/ada/store", "cpu-f-1")

    assert advice.startswith("if it was moved here: ")
