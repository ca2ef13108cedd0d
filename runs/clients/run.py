"""Drives real clients, unchanged, through a gateway on an engine that answers as programmed. See runs/clients.sh.

A row passes if the client ends with 0 in time, prints the word that only the last programmed answer has, has written
what it was told to write, and the engine has seen as many calls as the loop has turns. The gateway must have counted
all of them as calls over its WebSocket if that is what the row is about, else none.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Literal

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from runs.clients.catalog import CLIENTS, KEY, MODEL, TASK, Client
from runs.clients.environments import NotInstalled, ensure_client
from runs.clients.pasted import PASTED, read_blocks
from runs.clients.scenarios import NOTES, OUT, Scenario, write_answers
from runs.clients.service import Service, running_service
from runs.measure.verdict import Verdict, finish, none_of

console = Console(width=150)
DRIVERS = Path(__file__).with_name("drivers")
MUST_BE_THERE = {"openai-python", "anthropic-python", "claude-code", "codex"}
KEPT_CHARS = 300  # of what a client that failed has said
# All that a client gets from the shell. A proxy or a key of the user's own would change what is tried.
PASSED_ON = ("PATH", "LANG", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")


@dataclass(frozen=True)
class Row:
    client: str
    version: str
    scenario: str
    outcome: Literal["passed", "failed", "not installed"]
    calls: int = 0
    detail: str = ""


def verdict(rows: Sequence[Row]) -> Verdict:
    passed = [row for row in rows if row.outcome == "passed"]
    clients, absent = {row.client for row in rows}, {row.client for row in rows if row.outcome == "not installed"}
    figure = f"{len(passed)} of {len(rows)} rows pass, with {len(clients - absent)} of {len(clients)} clients"
    if absent:
        figure += f"; not installed: {', '.join(sorted(absent))}"
    return Verdict(
        f"{figure}.",
        (
            none_of("rows that failed", sum(row.outcome == "failed" for row in rows)),
            none_of(
                "of openai, anthropic, Claude Code and Codex not passed",
                len(MUST_BE_THERE - {row.client for row in passed}),
            ),
        ),
    )


@dataclass(frozen=True)
class Attempt:
    """One client in one scenario, with folders of its own."""

    client: Client
    scenario: Scenario
    folder: Path

    @property
    def mark(self) -> str:
        """What the engine tells this attempt's calls by."""
        return self.scenario.asks or f"[{self.client.name}: {self.scenario.name}]"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def run(self, service: Service) -> Row:
        try:
            environment = ensure_client(self.client)
        except NotInstalled as reason:
            return self._row("not installed", detail=str(reason))
        before, before_on_socket = service.count_calls(), service.count_socket_calls()
        problem = self._drive(service, environment)
        calls, on_socket = service.count_calls() - before, service.count_socket_calls() - before_on_socket
        if not problem and calls < len(self.scenario.answers):
            problem = f"{calls} calls reached the engine, {len(self.scenario.answers)} are needed"
        wanted = calls if self.scenario.name in self.client.on_socket else 0
        if not problem and on_socket != wanted:
            problem = f"{on_socket} of {calls} calls came over the WebSocket, {wanted} must"
        return self._row("failed" if problem else "passed", calls, problem)

    def _row(self, outcome: Literal["passed", "failed", "not installed"], calls: int = 0, detail: str = "") -> Row:
        return Row(self.client.name, self.client.version, self.scenario.name, outcome, calls, detail)

    def _drive(self, service: Service, environment: Path) -> str:
        """Run the client. Returns the problem, or an empty text."""
        home = self.folder / "home"
        names = {
            "url": service.url, "key": KEY, "model": MODEL, "prompt": f"{self.mark} {TASK}",
            "environment": str(environment), "work": str(self.work), "home": str(home), "scenario": self.scenario.name,
            "page_origin": service.page_origin, "program": shutil.which(self.client.program) or "",
        }  # fmt: skip

        def fill(text: str) -> str:
            return Template(text).safe_substitute(names)

        self.work.mkdir(parents=True)
        home.mkdir()
        (self.work / NOTES).write_text("The word is goose.\n")
        environ = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {"HOME": str(home)}
        if self.scenario is PASTED:
            block = read_blocks()[self.client.name]
            command = block.command(environment, self.work, service.url, KEY)
        else:
            environ |= self._set_up(service, fill)
            command = self._command(environment, fill)
        status, output = _run(command, self.work, environ, self.client.timeout_s)
        if status != 0:
            return f"exit {status}: {output[-KEPT_CHARS:]}"
        if self.scenario.prints not in output:
            return f"the last answer is not in what it printed: {output[-KEPT_CHARS:]}"
        out = self.work / OUT
        if self.scenario.writes and not (out.exists() and self.scenario.writes in out.read_text()):
            return f"{OUT} was not written as told"
        return ""

    def _set_up(self, service: Service, fill: Callable[[str], str]) -> dict[str, str]:
        """Write the client's files. Returns its settings."""
        for path, content in self.client.files.items():
            Path(fill(path)).parent.mkdir(parents=True, exist_ok=True)
            Path(fill(path)).write_text(fill(content))
        settings = {name: fill(value) for name, value in self.client.settings.items()}
        if self.client.driver:
            settings |= {"HEADWAY_URL": service.url, "HEADWAY_KEY": KEY, "HEADWAY_MODEL": MODEL}
        return settings

    def _command(self, environment: Path, fill: Callable[[str], str]) -> list[str]:
        if not self.client.driver:
            return [fill(part) for part in self.client.command]
        driver = DRIVERS / self.client.driver
        if self.client.registry == "PyPI":
            command = [str(environment / "bin" / "python"), str(driver)]
        else:
            for file in DRIVERS.glob("*.mjs"):  # Node.js looks for packages beside the file
                shutil.copy(file, environment)
            command = ["node", str(environment / driver.name)]
        return [*command, self.scenario.name, fill("$prompt")]


def scenarios_of(client: Client) -> tuple[Scenario, ...]:
    return (*client.scenarios, PASTED) if client.name in read_blocks() else client.scenarios


def _run(command: list[str], work: Path, environ: dict[str, str], timeout_s: float) -> tuple[int | str, str]:
    """Run a command in a session of its own, which ends with it. Returns the exit status and what it printed."""
    with (work.parent / "output.txt").open("w+", encoding="utf-8", errors="replace") as output:
        try:
            started = subprocess.Popen(
                command, cwd=work, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return "none", str(error)
        status: int | str
        try:
            status = started.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = f"none after {timeout_s:.0f} s"
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        output.seek(0)
        return status, output.read()


def main(names: list[str]) -> int:
    """Drive the clients with these names, or all."""
    unknown = set(names) - {client.name for client in CLIENTS}
    if unknown:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}. There are: {', '.join(one.name for one in CLIENTS)}")
    chosen = [client for client in CLIENTS if not names or client.name in names]
    with tempfile.TemporaryDirectory(prefix="headway-clients-", ignore_cleanup_errors=True) as folder:
        attempts = [
            Attempt(client, scenario, Path(folder) / client.name / str(number))
            for client in chosen
            for number, scenario in enumerate(scenarios_of(client))
        ]
        answers = Path(folder) / "answers.toml"
        write_answers(answers, [(one.mark, one.work, one.scenario) for one in attempts])
        rows = []
        with running_service(Path(folder), answers) as service, Progress(console=console, transient=True) as progress:
            bar = progress.add_task("clients", total=len(attempts))
            for attempt in attempts:
                progress.update(bar, description=f"{attempt.client.name}: {attempt.scenario.name}")
                rows.append(attempt.run(service))
                done = f"{attempt.client.name}: {attempt.scenario.name}: {rows[-1].outcome}"
                progress.console.print(done, highlight=False, markup=False)
                progress.advance(bar)
    table = Table("client", "version", "scenario", "", "calls", "why", title="Real clients through the gateway")
    for row in rows:
        table.add_row(row.client, row.version, row.scenario, row.outcome, str(row.calls), Text(row.detail))
    console.print(table)
    return finish(console, verdict(rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
