"""Where the node agent listens, on a machine that has other things to do as well."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from cluster.agent import KUBELET_PORTS, NoBlockError, claim_block


def listen(address: str, port: int = 0) -> socket.socket:
    sock = socket.create_server((address, port))
    sock.listen()
    return sock


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody has on all addresses, as a kubelet does."""
    with listen("0.0.0.0") as sock:
        yield sock.getsockname()[1]


def free_port() -> int:
    with listen("0.0.0.0") as sock:
        return int(sock.getsockname()[1])


def test_where_a_kubelet_listens_on_all_addresses_the_agent_takes_another_port(taken: int) -> None:
    other = free_port()

    sock, block = claim_block((taken, other))

    with sock:
        assert sock.getsockname() == (f"127.{block}.0.1", other)


def test_two_agents_never_share_their_addresses() -> None:
    port = free_port()
    one, first = claim_block((port,))
    other, second = claim_block((port,))

    with one, other:
        assert first != second


def test_where_every_port_is_taken_the_reason_names_them(taken: int) -> None:
    with pytest.raises(NoBlockError, match=f"the ports {taken} are taken"):
        claim_block((taken,))


def test_a_kubelets_own_port_is_tried_first() -> None:
    assert KUBELET_PORTS[0] == 10250
