"""Logs of several hosts on one screen."""

from __future__ import annotations

import io

from kinetic._cli.job_logs import LogLines


class _Bytes(io.BytesIO):
    def write_bytes(self, data: bytes) -> int:
        return self.write(data)

    def end(self) -> None:
        pass


def test_half_a_line_waits_for_its_other_half_and_the_last_one_gets_a_break() -> None:
    out = _Bytes()
    prefixed = LogLines(out, prefix="[host 2] ")

    for data in (b"on", b"e\ntwo\nth", b"ree"):
        prefixed.write_bytes(data)
    prefixed.end()

    assert out.getvalue() == b"[host 2] one\n[host 2] two\n[host 2] three\n"


def test_a_line_without_end_is_written_in_pieces_and_not_held() -> None:
    out = _Bytes()
    prefixed = LogLines(out, prefix="[host 0] ")

    for _ in range(48):
        prefixed.write_bytes(bytes(1 << 16))
    prefixed.end()

    pieces = out.getvalue().split(b"\n")
    assert [len(piece) for piece in pieces] == [(1 << 20) + len(b"[host 0] ")] * 3 + [0]


def test_a_bar_of_one_host_is_one_line_with_its_prefix() -> None:
    out = _Bytes()
    prefixed = LogLines(out, prefix="[host 1] ")

    prefixed.write_bytes(b"\r 10%\r 50%")
    prefixed.write_bytes(b"\r100%\n\xff")
    prefixed.end()

    assert out.getvalue() == b"[host 1] 100%\n[host 1] \xff\n"
