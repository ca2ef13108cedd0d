"""Ports for processes that are killed and started again with the same one."""

from __future__ import annotations

import random
import socket

# Below those that Linux gives to outgoing connections: one of them could take the port while its process is away.
LOWEST, HIGHEST = 12_000, 32_000


def free_ports(count: int) -> list[int]:
    """Different ports of loopback that are free now."""
    found: list[int] = []
    for port in random.sample(range(LOWEST, HIGHEST), HIGHEST - LOWEST):
        if len(found) == count:
            break
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    return found
