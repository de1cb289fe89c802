"""Ports of loopback for servers that tests start, none of which is given out twice on this machine."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"

# Below the ports that the kernel takes for outgoing connections, one of which could come first while a server is down,
# and below those among which `free_loopback_port` chooses for the servers of the product.
_PORTS = range(10_000, 20_000)

_claims: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """So many of `free_port`."""
    return [free_port() for _ in range(count)]


def free_port() -> int:
    """A port that nobody listens on, and that no other test gets as long as this process lives.

    A server listens only some time after its port was chosen, and is down at times: that nobody listens does not say
    that nobody counts on the port. What says so is a UDP socket on the same port, which is in nobody's way and is
    closed with its process, however that ends.
    """
    for port in random.sample(_PORTS, len(_PORTS)):
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind((HOST, port))
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((HOST, port))
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port
    raise OSError(f"no free port on {HOST} between {_PORTS.start} and {_PORTS.stop}")
