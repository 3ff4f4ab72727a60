"""What a worker says reaches its supervisor, whatever user code does to the pipe; and nothing else is believed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kinetic._runner.supervisor import verdicts
from kinetic._runner.supervisor.verdicts import ReportReader, ReportWriter

WORD = {"status": "succeeded", "cause": "value", "body_length": 3, "body_sha256": "ab", "error": {}}


class Line(NamedTuple):
    teller: ReportWriter
    listener: ReportReader
    mouth: int
    page: Path

    def hear(self) -> dict[str, object] | None:
        while self.listener.read() and self._more():
            pass
        return self.listener.report.done

    def _more(self) -> bool:
        import select

        return bool(select.select([self.listener.descriptor], [], [], 0)[0])


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    ear, mouth = os.pipe()
    os.set_blocking(ear, False)
    spare = os.dup(mouth)
    yield Line(ReportWriter(mouth, tmp_path / "word"), ReportReader(ear), mouth, tmp_path / "word")
    for descriptor in (ear, mouth, spare):
        os.close(descriptor)


def test_the_last_word_is_heard_and_is_on_the_disk(line: Line) -> None:
    line.teller.enter("execute")

    told = line.teller.done(WORD)

    heard = line.hear()
    assert told
    assert heard is not None
    assert (heard["status"], heard["body_length"]) == ("succeeded", 3)
    assert line.listener.report.phase == "execute"
    assert verdicts.read_final_report(line.page) == heard


def test_a_forked_child_says_nothing(line: Line) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(int(line.teller.done({**WORD, "status": "failed"})))
    _, status = os.waitpid(pid, 0)

    assert (os.waitstatus_to_exitcode(status), line.hear(), verdicts.read_final_report(line.page)) == (0, None, None)
    assert line.teller.done(WORD)


def test_another_file_under_the_number_of_the_pipe_gets_nothing(line: Line, tmp_path: Path) -> None:
    theirs = os.open(tmp_path / "theirs", os.O_WRONLY | os.O_CREAT)
    os.dup2(theirs, line.mouth)
    os.close(theirs)

    told = line.teller.done(WORD)

    assert not told
    assert (tmp_path / "theirs").read_bytes() == b""
    assert verdicts.read_final_report(line.page) is not None


def test_another_file_under_the_number_of_the_page_gets_nothing(line: Line, tmp_path: Path) -> None:
    (number,) = [n for n in map(int, os.listdir("/proc/self/fd")) if _is(n, line.page)]
    theirs = os.open(tmp_path / "theirs", os.O_WRONLY | os.O_CREAT)
    os.dup2(theirs, number)
    os.close(theirs)

    line.teller.done(WORD)
    os.close(number)

    assert (tmp_path / "theirs").read_bytes() == b""
    assert verdicts.read_final_report(line.page) is not None


def _is(number: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(number), path.stat())
    except OSError:
        return False


GARBAGE = [
    b"no JSON\n",
    b'{"done": ',  # without an end
    b"\xff\xfe\0\n",
    b"[" * 50_000 + b"\n",
    b'{"phase": 3, "done": "x"}\n',
    b'{"done": [1]}\n',
    b'{"done": {"status": []}}\n',
    b'{"done": {"status": "succeeded", "body_length": "3"}}\n',
    b'{"done": {"status": "succeeded", "body_length": -1}}\n',
    b'{"done": {"status": "succeeded", "error": 3}}\n',
    b'{"done": {"status": "succeeded", "phases": [1]}}\n',
    b'{"done": {"status": "cancelled"}}\n',
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_is_not_believed_and_hides_nothing(line: Line, garbage: bytes) -> None:
    os.write(line.mouth, garbage)
    after_garbage = line.hear()

    line.teller.done(WORD)

    heard = line.hear()
    assert after_garbage is None
    assert heard is not None
    assert heard["status"] == "succeeded"
    assert isinstance(line.listener.report.phase, str)


def test_a_line_without_end_is_not_kept_for_ever(line: Line) -> None:
    for _ in range(300):
        os.write(line.mouth, b"x" * 60_000)
        line.listener.read()
    assert len(line.listener._half) < 9 << 20

    line.teller.done(WORD)

    assert line.hear() is not None


def test_what_user_code_says_after_the_last_word_does_not_replace_it(line: Line) -> None:
    line.teller.done(WORD)
    for said in ({"phase": "execute"}, {"done": None}, {"done": {"status": "cancelled"}}):
        os.write(line.mouth, json.dumps(said).encode() + b"\n")

    heard = line.hear()

    assert heard is not None
    assert heard["status"] == "succeeded"


def test_what_is_in_the_working_folder_is_believed_once_before_user_code_runs(line: Line) -> None:
    line.teller.unpacked({"manifest": "ours"})
    os.write(line.mouth, b'{"workspace": {"manifest": "of user code"}}\n')

    line.hear()

    assert line.listener.report.workspace == {"manifest": "ours"}


def test_a_worker_begins_again_once_so_user_code_moves_no_deadline(line: Line, monkeypatch) -> None:
    monkeypatch.setattr(verdicts, "monotonic", iter([5.0, 6.0]).__next__)
    for _ in range(2):
        line.teller.begins_again()

    line.hear()

    assert line.listener.report.begun_again == 5.0


def test_a_last_word_that_is_shorter_than_the_phase_before_it_is_read_back(line: Line) -> None:
    line.teller.enter("artifact verification")

    line.teller.done({"status": "succeeded"})

    assert verdicts.read_final_report(line.page) is not None


def test_what_is_nested_in_a_word_is_left_out_and_half_characters_are_spelt(line: Line) -> None:
    line.teller.done({**WORD, "error": {"message": "na\udcefve", "more": [[[]]]}, "files": ["a\udcff", 3]})

    heard = line.hear()

    assert heard is not None
    assert heard["error"] == {"message": "na\\udcefve"}
    assert heard["files"] == ["a\\udcff"]
    json.dumps(heard, ensure_ascii=False).encode()  # as the pages of the store are written


@pytest.mark.parametrize("cut", [1, 20, 50])
def test_a_word_that_was_cut_short_is_not_believed(line: Line, cut: int) -> None:
    line.teller.done(WORD)

    line.page.write_bytes(line.page.read_bytes()[:-cut])

    assert verdicts.read_final_report(line.page) is None


def test_a_fifo_or_a_link_in_the_place_of_the_word_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "real").write_text(json.dumps(WORD))
    (tmp_path / "link").symlink_to("real")

    assert verdicts.read_final_report(tmp_path / "fifo") is None
    assert verdicts.read_final_report(tmp_path / "link") is None
    assert verdicts.read_final_report(tmp_path / "absent") is None
