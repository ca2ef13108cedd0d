"""Certificates with a chosen lifetime, and HAProxy that ends clients' TLS with them.

OpenSSL counts lifetimes in days. So that a certificate can expire during a run, a process issues it whose clock is
set back.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from runs.torture.clocks import FaultyClock

DAY_S = 86_400
ORDER_S = 10.0
LONG_S = 30 * DAY_S
NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"]
FRONT = """
global
    maxconn 8192
    nbthread 1
    stats socket {folder}/front.socket level admin
defaults
    mode tcp
    timeout connect 2s
    timeout client 90s
    timeout server 90s
frontend tls
    bind {host}:{port} ssl crt {pem}
    default_backend plain
backend plain
    server plain {host}:{target_port}
"""


@dataclass(frozen=True)
class Certificate:
    """Files in PEM."""

    certificate: Path
    key: Path
    both: Path  # as HAProxy wants them
    ca: Path


class Authority:
    def __init__(self, folder: Path) -> None:
        self.ca, self._key = folder / "ca.pem", folder / "ca.key"
        self._folder = folder
        self._clock = FaultyClock(folder / "authority.clock")
        name = ["-days", "365", "-subj", "/CN=torture"]
        self._openssl("req", "-x509", *NEW_KEY, *name, "-keyout", str(self._key), "-out", str(self.ca))

    def issue(self, name: str, lifetime_s: float = LONG_S) -> Certificate:
        """Replace the certificate of this name. It began before now, and ends when its lifetime is over."""
        made = [self._folder / f"{name}{suffix}" for suffix in (".pem", ".key", ".both.pem", ".csr")]
        certificate, key, both, request = made
        if not key.exists():
            self._openssl("req", *NEW_KEY, "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request))
        names = self._folder / "names"
        names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
        days = int(lifetime_s // DAY_S) + 1
        self._clock.step(lifetime_s - days * DAY_S)
        signed = ["-CA", str(self.ca), "-CAkey", str(self._key), "-CAcreateserial", "-days", str(days)]
        self._openssl("x509", "-req", "-in", str(request), *signed, "-extfile", str(names), "-out", str(certificate))
        self._clock.mend()
        new = both.with_suffix(".new")
        new.write_bytes(certificate.read_bytes() + key.read_bytes())
        new.replace(both)
        return Certificate(certificate, key, both, self.ca)

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, env=os.environ | self._clock.env())


class TlsFront:
    """HAProxy, which passes what clients say over TLS on to a port, such as a load balancer's."""

    def __init__(self, folder: Path, port: int, target_port: int, *, host: str = "127.0.0.1") -> None:
        self.authority = Authority(folder)
        self._certificate = self.authority.issue("front")
        self._config = folder / "front.cfg"
        pem = self._certificate.both
        own = {"folder": folder, "host": host, "port": port, "target_port": target_port, "pem": pem}
        self._config.write_text(FRONT.format(**own))
        self._log = (folder / "front.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")  # where Debian puts it
        if command is None:
            raise SystemExit("HAProxy is not installed: apt-get install haproxy")
        self._process = subprocess.Popen([command, "-db", "-f", str(self._config)], stdout=self._log, stderr=self._log)

    def expire(self, after_s: float = 0.0) -> None:
        """Serve with a certificate that ends then. Connections that are open go on."""
        self._serve_with(after_s)

    def mend(self) -> None:
        self._serve_with(LONG_S)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._log.close()

    def _serve_with(self, lifetime_s: float) -> None:
        """HAProxy is told, because a signal to read it again may come before its handler is there."""
        pem = self.authority.issue("front", lifetime_s).both
        self._order(f"set ssl cert {pem} <<\n{pem.read_text().strip()}\n\n")
        self._order(f"commit ssl cert {pem}\n")

    def _order(self, order: str) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ORDER_S)
            connection.connect(str(self._config.with_name("front.socket")))
            connection.sendall(order.encode())
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
