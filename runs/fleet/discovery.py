"""Replicas that a real name server names while 200 streams run. See runs/discovery.sh."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dns.exception
import dns.message
import dns.query
import msgspec
import uvloop
from rich.console import Console

from headway.engines.vllm import read_metrics
from headway.errors import ConnectionFailed
from headway.local.engine_process import free_port
from runs.measure.fetch import fetch
from runs.measure.streams import Stream, call, chat_request, process, scripted
from runs.measure.verdict import Verdict, at_least, finish, none_of

console = Console(width=120)
MODEL, NAME, SERVER = "m", "engines.test", "127.0.9.53"
REPLICAS, SEATS, STREAMS, EVERY_S = 8, 32, 200, 0.3
MIN_NAMED = 7  # of the replicas: fewer have too few seats for all streams
FAULT_S = 6.0  # that each fault of DNS lasts: many lookups
START_S = 10.0  # for the name server to answer
SETTLE_S = 15.0  # for a change of DNS to take effect
OPEN = b"headway_replica_open"


@dataclass(frozen=True)
class Figures:
    changes: int
    late: int  # changes of DNS that did not take effect in time
    served: int
    lost: int
    closed_by: dict[str, int]  # by fault of DNS: the replicas that were open before and not meanwhile
    stranger_calls: int  # that an engine of another model got, though DNS named it
    most_running: int  # streams at once, on all replicas


def verdict(figures: Figures) -> Verdict:
    closed = figures.closed_by
    bars = (
        none_of("streams lost", figures.lost),
        none_of("changes of DNS that took no effect in time", figures.late),
        *[none_of(f"replicas closed while the name server {fault}", count) for fault, count in closed.items()],
        none_of("calls to an engine of another model that DNS named", figures.stranger_calls),
        at_least("faults of DNS", len(closed), 4, "d"),
        at_least("streams at once", figures.most_running, 150, "d"),
        at_least("calls served", figures.served, 10 * figures.changes, ",d"),
    )
    figure = (
        f"{figures.changes} times a replica came or went by DNS, and the name server failed in {len(closed)} ways, "
        f"under {figures.served:,} calls, up to {figures.most_running} at once: {figures.lost} streams lost, "
        f"{sum(closed.values())} replicas closed by a fault of DNS, {figures.stranger_calls} calls to an engine of "
        "another model"
    )
    return Verdict(figure, bars)


class NameServer:
    """dnsmasq, with the addresses of one name."""

    def __init__(self, folder: Path) -> None:
        self._hosts = folder / "hosts"
        self._hosts.write_text("")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = ["--keep-in-foreground", "--no-resolv", "--no-hosts", "--local-ttl=0", "--bind-interfaces"]
        where = [f"--listen-address={SERVER}", "--port=53", f"--addn-hosts={self._hosts}", "--local=/test/"]
        command = ["dnsmasq", *options, *where, "--user=root", "--pid-file="]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        question, until = dns.message.make_query(NAME, "A"), time.monotonic() + START_S
        while time.monotonic() < until:  # before that, a SIGHUP ends it
            with suppress(dns.exception.DNSException, OSError):
                dns.query.udp(question, SERVER, timeout=0.2)
                return
        raise SystemExit("dnsmasq does not answer")

    def name(self, addresses: Sequence[str]) -> None:
        self._hosts.write_text("".join(f"{address} {NAME}\n" for address in addresses))
        self.signal(signal.SIGHUP)

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def gateway(folder: Path, port: int, engine_port: int) -> Iterator[int]:
    """A gateway whose machine has our name server."""
    resolv, config = folder / "resolv.conf", folder / "headway.toml"
    resolv.write_text(f"nameserver {SERVER}\noptions timeout:1 attempts:1\n")
    discover = f'[models.discover]\ndns = "{NAME}:{engine_port}"\nevery_s = {EVERY_S}\nseats = {SEATS}\n'
    config.write_text(f'[gateway]\nport = {port}\nprobe_interval_s = 0.2\n[[models]]\nname = "{MODEL}"\n{discover}')
    serve = f"mount --bind {resolv} /etc/resolv.conf && exec {sys.executable} -m headway serve --config {config}"
    with process(["unshare", "--mount", "sh", "-c", serve], f"http://127.0.0.1:{port}/ready") as pid:
        yield pid


class Watch:
    """Calls all the time, and looks at the gateway's metrics."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.served = self.lost = self.most_running = 0

    async def keep_calling(self, dice: random.Random, until: asyncio.Event) -> None:
        while not until.is_set():
            tokens = dice.randint(50, 150)
            try:
                stream = await call(self._url, chat_request(MODEL, tokens))
            except (ConnectionFailed, TimeoutError):
                stream = Stream()
            if stream.status == 200 and stream.complete and stream.tokens == tokens:
                self.served += 1
            else:
                self.lost += 1
                await asyncio.sleep(0.1)

    def open_at(self) -> set[str]:
        """The addresses of the replicas that take calls."""
        page = fetch(f"{self._url}/metrics", timeout_s=10)
        (running,) = read_metrics(page, (b"headway_aboard",))
        self.most_running = max(self.most_running, int(running))
        lines = [line.decode() for line in page.splitlines() if line.startswith(OPEN) and line.endswith(b" 1.0")]
        return {line.partition("//")[2].partition(":")[0] for line in lines}

    async def until_open(self, addresses: set[str]) -> bool:
        try:
            async with asyncio.timeout(SETTLE_S):
                while self.open_at() != addresses:
                    await asyncio.sleep(0.1)
        except TimeoutError:
            return False
        return True

    async def closed_in(self, seconds: float, expected: set[str]) -> int:
        """The most of these that were not open at some moment."""
        closed, until = 0, asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until:
            closed = max(closed, len(expected - self.open_at()))
            await asyncio.sleep(0.1)
        return closed


def requests_of(url: str) -> int:
    """The calls that an engine got, without the tokens that it is asked for before it is opened."""
    record: dict[str, Any] = msgspec.json.decode(fetch(f"{url}/scripted/record", timeout_s=10))
    return sum(one["tokens_sent"] > 1 for one in record["requests"].values())


async def run(changes: int, seed: int, addresses: list[str], stranger: str, names: NameServer, watch: Watch) -> Figures:
    dice, done = random.Random(seed), asyncio.Event()
    named, late = set(addresses), 0
    await watch.until_open(named)
    callers = [asyncio.create_task(watch.keep_calling(random.Random(f"{seed} {one}"), done)) for one in range(STREAMS)]
    for _ in range(changes):
        missing = [one for one in addresses if one not in named]
        if missing and (len(named) <= MIN_NAMED or dice.random() < 0.5):
            named.add(dice.choice(missing))
        else:
            named.discard(dice.choice(sorted(named)))
        names.name(sorted(named))
        late += not await watch.until_open(named)
    names.name(addresses)
    late += not await watch.until_open(set(addresses))
    closed_by = {}
    nobody = [f"127.0.9.{number}" for number in range(100, 110)]
    faults: dict[str, Callable[[], None]] = {
        "is stopped": lambda: names.signal(signal.SIGSTOP),
        "is dead": names.stop,
        "names nobody": lambda: names.name([]),
        "names others": lambda: names.name([*nobody, stranger]),
    }
    for fault, begin in faults.items():
        begin()
        closed_by[fault] = await watch.closed_in(FAULT_S, set(addresses))
        names.stop()
        names.start()
        names.name(addresses)
        await watch.until_open(set(addresses))
    done.set()
    await asyncio.gather(*callers)
    return Figures(changes, late, watch.served, watch.lost, closed_by, 0, watch.most_running)


def main() -> int:
    changes = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        addresses, stranger, port = [f"127.0.9.{one}" for one in range(1, REPLICAS + 1)], "127.0.9.99", free_port()
        for address in (*addresses, stranger):
            model = MODEL if address != stranger else "another"
            engine = scripted(port, model=model, first_token_ms=20, step_ms="1:20", seats=64, host=address)
            stack.enter_context(engine)
        names = NameServer(folder)
        names.start()
        stack.callback(names.stop)
        names.name(addresses)
        own = free_port()
        stack.enter_context(gateway(folder, own, port))
        figures = uvloop.run(run(changes, seed, addresses, stranger, names, Watch(f"http://127.0.0.1:{own}")))
        figures = Figures(**vars(figures) | {"stranger_calls": requests_of(f"http://{stranger}:{port}")})
    console.print(figures, highlight=False)
    return finish(console, verdict(figures))


if __name__ == "__main__":
    sys.exit(main())
