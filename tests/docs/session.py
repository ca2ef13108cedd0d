"""Runs the blocks of a page in order, as a reader does: in one folder, in one shell, with scripted engines.

What a reader replaces is replaced: addresses on this machine (by free ports), `hw-...` and the id of a key (by those of
the key that was made last). A command that serves until it is stopped runs until the end of the page. Engines that the
configuration names and nobody has started are scripted ones, and if a block calls the gateway before the page has started
it, it is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import tomlkit

from headway.engines.scripted import Script, running
from tests.docs.configuration import BASE, merged, placed
from tests.docs.pages import Block

GATEWAY = 8000  # its port on the pages
ADDRESS = re.compile(r"((?:127\.0\.0\.1|localhost):|--port |^port = )(\d{4})\b", re.MULTILINE)
SERVES = re.compile(r"(?:^|&& )headway (serve|mock-engine)\b(?!.*&$).*$")
KEY, KEY_ID = re.compile(r"\bhw-[\w-]{20,}"), re.compile(r"\bkey-[0-9a-f]{10}\b")
WAIT_S = 60.0


class Session:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports: dict[int, int] = {}  # on the page -> here
        self.key = self.key_id = ""
        self.names: dict[str, Any] = {}  # of the page's Python
        self._is_serving = False
        self._processes: list[subprocess.Popen[bytes]] = []
        self._engines: list[_Engine] = []
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        (folder / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")  # an error ends the block
        self.env = {**os.environ, "PATH": path, "HOME": str(folder), "PYTHONWARNINGS": "default"}

    def run(self, block: Block) -> None:
        """Raises AssertionError with the output if a command or a program fails."""
        if block.language == "toml":
            self._write_toml(block)
            return
        for number in map(int, re.findall(r"(?:127\.0\.0\.1|localhost):(\d{4})\b", block.text)):
            if number != GATEWAY:
                self._start_engine("my-model", self._port(number))
            elif not self._is_serving:
                self._serve("headway serve")
        if block.language == "python":
            self._python(block)
        elif block.language == "bash":
            self._bash(block)

    def _write_toml(self, block: Block) -> None:
        if block.file_name:
            (self.folder / block.file_name).write_text(self.here(block.text), encoding="utf-8")
        elif block.comment == "part of headway.toml":
            path = self.folder / "headway.toml"
            before = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else BASE
            after = placed(merged(before, tomllib.loads(self.here(block.text))))
            path.write_text(self.here(tomlkit.dumps(after)), encoding="utf-8")

    def here(self, text: str) -> str:
        """The text with the addresses and the key of this session."""
        text = ADDRESS.sub(lambda found: f"{found[1]}{self._port(int(found[2]))}", text)
        text = KEY_ID.sub(self.key_id, text) if self.key_id else text
        return text.replace("hw-...", self.key) if self.key else text

    def _port(self, number: int) -> int:
        if number not in self.ports:
            self.ports[number] = _free_port()
        return self.ports[number]

    def _bash(self, block: Block) -> None:
        lines = self.here(block.text).rstrip("\n").replace("\\\n", " ").splitlines()
        last = lines.pop() if lines and SERVES.search(lines[-1]) else ""
        if lines:
            self._shell("\n".join(lines), block)
            for port in re.findall(r"--port (\d+).*&$", "\n".join(lines), re.MULTILINE):
                self._wait_for(int(port))
        if last:
            self._serve(last)

    def _shell(self, script: str, block: Block) -> None:
        """What is exported holds for the blocks below. A program in the background runs until the end of the page."""
        script = (
            f"set -eo pipefail\n[[ ! -e .exported ]] || . ./.exported\ntrap 'export -p > .exported' EXIT\n{script}\n"
        )
        process, output = self._start(script)
        code = process.wait(WAIT_S)
        said = output.read_text(encoding="utf-8", errors="replace")
        assert code == 0, f"{block} ended with {code}:\n{said[-3000:]}"
        if found := KEY.search(said):
            self.key = found[0]
            self.env |= {"KEY": self.key, "HEADWAY_KEY": self.key}
        if ids := KEY_ID.findall(said):
            self.key_id = self.key_id or ids[0]

    def _serve(self, command: str) -> None:
        """Start it, and wait until it takes calls."""
        port = self._port(GATEWAY)
        if "mock-engine" in command:
            found = re.search(r"--port (\d+)", command)
            port = int(found[1]) if found else 9100
        else:
            self._is_serving = True
            path = self.folder / "headway.toml"
            if not path.exists():
                path.write_text(self.here(tomlkit.dumps(BASE)), encoding="utf-8")
            self._start_engines(tomllib.loads(path.read_text(encoding="utf-8")))
        process, output = self._start(f"[[ ! -e .exported ]] || . ./.exported\n{command}\n")
        with suppress(TimeoutError):
            self._wait_for(port, process, "" if "mock-engine" in command else "/ready")
            return
        said = output.read_text(encoding="utf-8", errors="replace")
        raise AssertionError(f"`{command}` takes no calls:\n{said[-3000:]}")

    def _start(self, script: str) -> tuple[subprocess.Popen[bytes], Path]:
        output = self.folder / f".output-{len(self._processes)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)
        return process, output

    def _start_engines(self, config: dict[str, Any]) -> None:
        for model in config["models"]:
            for replica in model.get("replicas", ()):
                url = urlsplit(replica["url"])
                if url.hostname == "127.0.0.1" and url.port:
                    self._start_engine(model["name"], url.port, 8 if model.get("embeddings") else 0)

    def _start_engine(self, model: str, port: int, embedding_size: int = 0) -> None:
        if not _answers(port):
            self._engines.append(_Engine(model, port, embedding_size))

    def _wait_for(self, port: int, process: subprocess.Popen[bytes] | None = None, path: str = "") -> None:
        until = time.monotonic() + WAIT_S
        while not (_is_ready(f"http://127.0.0.1:{port}{path}") if path else _answers(port)):
            if time.monotonic() > until or (process is not None and process.poll() is not None):
                raise TimeoutError
            time.sleep(0.05)

    def _python(self, block: Block) -> None:
        code = compile(self.here(block.text), str(block), "exec", dont_inherit=True)
        with _environment(self.env), contextlib.redirect_stdout(io.StringIO()):
            exec(code, self.names)

    def close(self) -> None:
        for one in self.names.values():
            if hasattr(one, "base_url") and not isinstance(
                one, type
            ):  # a client, whose sockets would be closed by the garbage collector
                one.close()
        for process in reversed(self._processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in reversed(self._processes):
            process.wait(WAIT_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for engine in self._engines:
            engine.stop()


class _Engine:
    """A scripted engine on a thread of this process: much sooner there than `headway mock-engine`."""

    def __init__(self, model: str, port: int, embedding_size: int) -> None:
        self._script = Script(model, 0.005, ((1, 0.008), (64, 0.027)), 64, embedding_size=embedding_size)
        self._port = port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),))
        self._thread.start()
        assert self._is_up.wait(WAIT_S)

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        async with running(self._script, port=self._port):
            self._is_up.set()
            await self._ended.wait()

    def stop(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(WAIT_S)


@contextmanager
def _environment(env: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _free_port() -> int:
    """Below the ports that the system gives to connections, so that none of these takes it before it is used."""
    first = 15_000 + os.getpid() * 7 % 15_000
    for port in range(first, first + 1_000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port
    raise OSError("no free port")


_given: set[int] = set()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_ready(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        return bool(answer.status == 200)
    return False
