"""Gateways and commands of two versions of Headway on the same ledger, for runs/ledger/upgrade.py."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.local.engine_process import free_port
from runs.gateway.relay_change import VERSION_0_1, checked_out, loading_from
from runs.measure.fetch import fetch

START_S = 60.0


@dataclass(frozen=True)
class Release:
    name: str
    env: Mapping[str, str]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "headway", *arguments]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=120)

    def output(self, *arguments: str) -> str:
        done = self.run(*arguments)
        if done.returncode != 0:
            raise SystemExit(f"headway {' '.join(arguments)} of {self.name} failed: {done.stdout}{done.stderr}")
        return done.stdout

    async def bill(self, config: Path) -> list[dict[str, Any]]:
        by = ("--by", "day,key,model,tier", "--format", "json")
        rows: list[dict[str, Any]] = json.loads(
            await asyncio.to_thread(self.output, "bill", *by, "--config", str(config))
        )
        return rows

    async def verify(self, config: Path) -> tuple[bool, str]:
        """Whether its `headway ledger verify` finds no problem, and its last words."""
        done = await asyncio.to_thread(self.run, "ledger", "verify", "--config", str(config))
        return done.returncode == 0, (done.stdout + done.stderr).strip().splitlines()[-1]


def both_releases(folder: Path) -> tuple[Release, Release]:
    return Release("0.1", loading_from(checked_out(VERSION_0_1, folder))), Release("this version", dict(os.environ))


class NotStarted(Exception):
    """A gateway ended before it was ready; with the end of what it printed."""


class ReleasedGateway:
    """One spool and one port, on which gateways of either version run, one after the other."""

    def __init__(self, folder: Path, name: str, store_url: str, models: str) -> None:
        self.port = free_port()
        self.spool = folder / f"spool-{name}"
        self.config = folder / f"{name}.toml"
        self._log = folder / f"{name}.log"
        self.config.write_text(
            f"[gateway]\nport = {self.port}\nprobe_interval_s = 0.2\ndrain_timeout_s = 5.0\n"
            f'[ledger]\nstore = "{store_url}"\nspool = "{self.spool}"\n{models}'
        )
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self, release: Release) -> None:
        """Return when it is ready. Raises NotStarted if it ends before."""
        command = [sys.executable, "-m", "headway", "serve", "--config", str(self.config)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, env=release.env, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while True:
            try:
                await asyncio.to_thread(fetch, f"http://127.0.0.1:{self.port}/ready", timeout_s=2.0)
                return
            except OSError:
                if self._process.poll() is not None:
                    self._process = None
                    raise NotStarted(self.last_words()) from None
                if time.monotonic() > deadline:
                    raise SystemExit(f"a gateway of {release.name} is not ready: see {self._log}") from None
            await asyncio.sleep(0.05)

    def last_words(self) -> str:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else ""

    async def end(self, number: signal.Signals) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.send_signal(number)
            await asyncio.to_thread(process.wait)
