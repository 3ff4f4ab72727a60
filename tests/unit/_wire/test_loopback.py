"""Who is at the other end of a loopback connection."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys

import pytest

from kinetic._wire import inspection

CONNECT = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    connection.sendall(b"here")
    connection.recv(1)
"""
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
# Not Python: another user may not be let into the folder that ours is installed in, as with pyenv below /root.
CONNECT_IN_BASH = ["bash", "-c", 'exec 3<>"/dev/tcp/127.0.0.1/$0" && printf here >&3 && read -r -n1 <&3']


def accepted_from(command: list[str]) -> bool:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        peer = subprocess.Popen([*command, port])
        listener.settimeout(15)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(4) == b"here"
            found = inspection.is_own_peer(connection)
        peer.wait(10)
    return found


def test_a_process_of_our_own_user_is_known():
    assert accepted_from([sys.executable, "-c", CONNECT])


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can become another user")
@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
def test_a_process_of_another_user_is_known_as_such():
    assert not accepted_from([*NOBODY, *CONNECT_IN_BASH])


def test_one_that_has_closed_its_end_is_not_taken_for_ours():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        socket.create_connection(listener.getsockname()).close()
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1) == b""  # it is closed now, and the kernel shows user 0 as its owner

            assert not inspection.is_own_peer(connection)
            assert not inspection.is_own_client(connection.getpeername(), connection.getsockname(), elsewhere=True)


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="the kernel shows no table of connections")
def test_one_that_has_closed_half_of_it_is_not_taken_for_ours_nor_for_one_from_elsewhere():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as peer,
        listener.accept()[0] as connection,
    ):
        peer.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""

        assert not inspection.is_own_client(peer.getsockname(), listener.getsockname(), elsewhere=True)


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="the kernel shows no table of connections")
def test_a_client_that_this_kernel_does_not_have_is_let_in_only_where_that_is_asked_for():
    theirs, ours = ("127.0.0.1", 1), ("127.0.0.1", 2)

    assert inspection.is_own_client(theirs, ours, elsewhere=True)
    assert not inspection.is_own_client(theirs, ours)


@pytest.mark.skipif(not shutil.which("lsof"), reason="lsof is not installed")
def test_lsof_knows_our_own_where_there_is_no_table_of_the_kernel():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", ours)) as peer:
            theirs = peer.getsockname()[1]

            assert inspection._is_seen_by_lsof(theirs, ours)
            assert not inspection._is_seen_by_lsof(theirs, ours + 1)
