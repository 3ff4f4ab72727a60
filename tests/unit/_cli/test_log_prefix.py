"""Logs of several hosts on one screen."""

from __future__ import annotations

import io

from kinetic._cli.job_results import PrefixedLog


def test_half_a_line_waits_for_its_other_half_and_the_last_one_gets_a_break() -> None:
    out = io.BytesIO()
    prefixed = PrefixedLog(out, 2)

    for data in (b"on", b"e\ntwo\nth", b"ree"):
        prefixed.write(data)
    prefixed.finish()

    assert out.getvalue() == b"[host 2] one\n[host 2] two\n[host 2] three\n"


def test_a_line_without_end_is_written_in_pieces_and_not_held() -> None:
    out = io.BytesIO()
    prefixed = PrefixedLog(out, 0)

    for _ in range(48):
        prefixed.write(bytes(1 << 16))
    prefixed.finish()

    pieces = out.getvalue().split(b"\n")
    assert [len(piece) for piece in pieces] == [(1 << 20) + len(b"[host 0] ")] * 3 + [0]
