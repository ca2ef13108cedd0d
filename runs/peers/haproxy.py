"""HAProxy from Debian as a peer to measure: the price of relaying bytes alone. See runs/peers.sh.

Its defaults, with one thread per core, but for two settings. `option http-no-delay`: by default it lets the kernel wait
up to 200 ms for a full packet, which its manual says of interactive payloads and which every token would pay.
`http-reuse always`: the load client opens a connection for each call, and by default the first call of a connection
gets a new one to the engine too; Headway and the routers reuse theirs. It checks the engine's health as the others do
and logs nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runs.measure.streams import process
from runs.peers.peer import Gateway, environ

SETTINGS = "one thread per core, mode http, option http-no-delay, http-reuse always, option httpchk, no log"
CONFIG = """
global
    maxconn 4096
defaults
    mode http
    option http-no-delay
    http-reuse always
    timeout connect 5s
    timeout client 600s
    timeout server 600s
frontend gateway
    bind 127.0.0.1:{port}
    default_backend engine
backend engine
    option httpchk GET /health
    server engine {engine} check
"""


def haproxy() -> Gateway:
    """The installed one; runs/peers.sh installs Debian's where there is none."""
    command = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")  # where Debian puts it
    if command is None:
        raise SystemExit("HAProxy is not installed: apt-get install haproxy")
    banner = subprocess.run([command, "-v"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"version (\d+(?:\.\d+)+)", banner)
    assert version, banner

    @contextmanager
    def start(port: int, engine_url: str, folder: Path) -> Iterator[int]:
        config = folder / f"haproxy-{port}.cfg"
        config.write_text(CONFIG.format(port=port, engine=engine_url.removeprefix("http://")))
        with process([command, "-db", "-f", str(config)], f"http://127.0.0.1:{port}/health", environ()) as pid:
            yield pid

    return Gateway("HAProxy", version[1], SETTINGS, start)
