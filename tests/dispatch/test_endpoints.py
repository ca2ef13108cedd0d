"""Links over real sockets: who gets one, who does not, and that nobody is waited for without end."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from headway.core.types import Cut, Delivering
from headway.dispatch import endpoints, security
from headway.dispatch import link as link_module
from headway.dispatch.address import Address, TcpAddress, UnixAddress
from headway.dispatch.codec import encode
from headway.dispatch.endpoints import Listener, connect, listen
from headway.dispatch.frames import PROTOCOL, Actions, Beat, BeatEcho, Events, Hello, Turned, Welcome
from headway.dispatch.link import Link
from headway.dispatch.security import MutualTls, Security, SharedSecret
from headway.errors import ConnectionFailed, SetupError
from tests.dispatch.links import LENGTH, Remembering, Sessions, frame
from tests.running import raw_server

pytestmark = pytest.mark.anyio

SECRET = SharedSecret(b"s" * 32)
OTHER_SECRET = SharedSecret(b"o" * 32)
LOOPBACK = TcpAddress("127.0.0.1", 0)


@asynccontextmanager
async def listening(address: Address, given: Security = None) -> AsyncIterator[tuple[Listener, Sessions]]:
    sessions = Sessions()
    listener = await listen(address, sessions, given)
    try:
        yield listener, sessions
    finally:
        await listener.close()
        for session in sessions.made:
            session.link.abort("the test is over")
            await session.until(lost=True)


@asynccontextmanager
async def connected(address: Address, given: Security = None) -> AsyncIterator[Remembering]:
    sessions = Sessions()
    link = await connect(address, sessions, given)
    [session] = sessions.made
    try:
        yield session
    finally:
        link.abort("the test is over")
        await session.until(lost=True)


@pytest.fixture
def unix(tmp_path: Path) -> UnixAddress:
    return UnixAddress(tmp_path / "own" / "socket")


class Certificates:
    """Made by openssl: two CAs, and certificates of each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for ca in ("ca", "other-ca"):
            self._run(f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 2 -subj /CN={ca}", ca)
        self.dispatcher = self._make("dispatcher", "ca", "IP:127.0.0.1")
        self.relay = self._make("relay", "ca", "DNS:relay-1")
        self.elsewhere = self._make("elsewhere", "ca", "IP:127.0.0.2")
        stranger = self._make("stranger", "other-ca", "IP:127.0.0.1")
        self.stranger = MutualTls(stranger.certificate, stranger.key, self.relay.ca)  # trusts ours, and is not trusted

    def _make(self, name: str, ca: str, san: str) -> MutualTls:
        command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 2"
        self._run(f"{command} -subj /CN={name} -addext subjectAltName={san} -CA {ca}.pem -CAkey {ca}.key", name)
        return MutualTls(self._folder / f"{name}.pem", self._folder / f"{name}.key", self._folder / f"{ca}.pem")

    def _run(self, command: str, name: str) -> None:
        files = f" -keyout {name}.key -out {name}.pem"
        subprocess.run(["openssl", *(command + files).split()], cwd=self._folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


# --- links that are made ---


async def talk(address: Address, given: Security, of_relay: Security) -> None:
    async with listening(address, given) as (listener, sessions), connected(listener.address, of_relay) as relay:
        relay.link.send(Hello("v", "relay-1", "run"))
        relay.link.tell(Delivering("a"))
        dispatcher = await sessions.first()
        await dispatcher.until(2)
        assert dispatcher.messages == [Hello("v", "relay-1", "run"), Events([Delivering("a")])]
        dispatcher.link.act(Cut("a"))
        dispatcher.link.send(BeatEcho(1, is_ready=True, renews=True))
        await relay.until(2)
        assert relay.messages == [Actions([Cut("a")]), BeatEcho(1, is_ready=True, renews=True)]
        relay.link.close("the relay ends")
        await relay.until(lost=True)
        await dispatcher.until(lost=True)
        assert relay.lost == ["the relay ends"]
        assert dispatcher.lost == ["the other side closed the connection"]


async def test_a_link_over_a_unix_socket(unix: UnixAddress) -> None:
    await talk(unix, None, None)


async def test_a_unix_socket_does_not_use_the_secret(unix: UnixAddress) -> None:
    await talk(unix, SECRET, None)


async def test_a_link_with_a_shared_secret() -> None:
    await talk(LOOPBACK, SECRET, SECRET)


async def test_a_link_with_mutual_tls(certificates: Certificates) -> None:
    await talk(LOOPBACK, certificates.dispatcher, certificates.relay)


async def test_a_link_over_ipv6() -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this machine has no IPv6")
    await talk(TcpAddress("::1", 0), SECRET, SECRET)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("kind", ["unix", "secret", "tls"])
async def test_a_large_burst_arrives_whole_and_in_order(
    loop: str, kind: str, unix: UnixAddress, certificates: Certificates
) -> None:
    ways: dict[str, tuple[Address, Security, Security]] = {
        "unix": (unix, None, None),
        "secret": (LOOPBACK, SECRET, SECRET),
        "tls": (LOOPBACK, certificates.dispatcher, certificates.relay),
    }
    address, given, of_relay = ways[kind]

    async def burst() -> None:
        async with listening(address, given) as (listener, sessions), connected(listener.address, of_relay) as relay:
            told = [Delivering(f"{number}-{'x' * (number % 500)}") for number in range(5_000)]
            for event in told:
                relay.link.tell(event)
            relay.link.send(Beat(1, 1))
            dispatcher = await sessions.first()
            while not dispatcher.messages or not isinstance(dispatcher.messages[-1], Beat):
                await dispatcher.until(len(dispatcher.messages) + 1)
            *batches, _beat = dispatcher.messages
            assert [event for batch in batches for event in batch.events] == told
            assert len(batches) < 50

    if loop == "uvloop":
        await burst()
    else:  # in a thread, because a loop runs here already
        await asyncio.to_thread(asyncio.run, burst())


@pytest.mark.parametrize("with_tls", [False, True], ids=["unix", "tls"])
async def test_a_relay_that_does_not_read_loses_its_link(
    *, with_tls: bool, unix: UnixAddress, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "MAX_UNSENT", 2**22)
    address: Address = LOOPBACK if with_tls else unix
    async with listening(address, certificates.dispatcher if with_tls else None) as (listener, sessions):
        if with_tls:
            context = certificates.relay.client_context()
            _reader, writer = await asyncio.open_connection("127.0.0.1", port_of(listener), ssl=context)
        else:
            _reader, writer = await asyncio.open_unix_connection(str(unix.path))
        dispatcher = await sessions.first()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(200):  # far more than the buffers of the system take
            dispatcher.link.send(Welcome(1, "x" * 2**20, 1.0, "leader"))
            await asyncio.sleep(0)
            if dispatcher.lost:
                break
        await dispatcher.until(lost=True)
        assert "the other side does not read" in dispatcher.lost[0]
        writer.transport.abort()


async def test_both_sides_close_a_link_with_tls_at_once(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a dispatcher turns a relay away: it closes after its answer, and the relay when it has read that."""

    class TurnsAway(Remembering):
        def on_message(self, message: Any) -> None:
            super().on_message(message)
            self.link.send(Turned("it stands by", ""))
            self.link.close("turned away")

    class Leaves(Remembering):
        def on_message(self, message: Any) -> None:
            super().on_message(message)
            self.link.close("turned away")

    listener = await listen(LOOPBACK, TurnsAway, certificates.dispatcher)
    try:
        for _ in range(20):
            made: list[Leaves] = []

            def meet(link: Link, made: list[Leaves] = made) -> Leaves:
                made.append(Leaves(link))
                return made[0]

            link = await connect(listener.address, meet, certificates.relay)
            link.send(Hello(PROTOCOL, "relay-1", "run"))
            await made[0].until(1, lost=True)
    finally:
        await listener.close()
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_a_relay_that_is_killed_is_lost_once() -> None:
    """Its connection is reset, and whatever the dispatcher says after that goes nowhere."""
    async with listening(LOOPBACK, SECRET) as (listener, sessions), connected(listener.address, SECRET) as relay:
        dispatcher = await sessions.first()
        relay.link.abort("killed")
        for _ in range(20):
            dispatcher.link.act(Cut("a"))
            await asyncio.sleep(0)
        await dispatcher.until(lost=True)
        dispatcher.link.act(Cut("a"))
        await asyncio.sleep(0)
        assert len(dispatcher.lost) == 1
        assert relay.lost == ["killed"]


async def test_a_receiver_learns_the_end_though_connecting_was_cancelled(unix: UnixAddress) -> None:
    """Cancelled in each turn of the event loop until it succeeds: whoever was made is told of the end."""
    async with listening(unix) as (listener, _sessions):
        for turns in range(20):
            sessions = Sessions()
            attempt = asyncio.create_task(connect(listener.address, sessions, None))
            for _ in range(turns):
                await asyncio.sleep(0)
            attempt.cancel()
            with suppress(asyncio.CancelledError):
                (await attempt).abort("the test is over")
            for session in sessions.made:
                await session.until(lost=True)


# --- links that are refused ---


async def refused(listener: Listener, given: Security, *, match: str) -> None:
    with pytest.raises(ConnectionFailed, match=match):
        async with connected(listener.address, given):
            pass


async def test_another_secret_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with listening(LOOPBACK, SECRET) as (listener, sessions):
        await refused(listener, OTHER_SECRET, match="closed the connection|reset")
        assert sessions.made == []
    assert "does not have the same shared secret" in caplog.text
    assert "sss" not in caplog.text


async def test_a_dispatcher_without_the_secret_is_refused() -> None:
    async def false_dispatcher(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(b"c" * 32))
        await reader.readexactly(LENGTH.size + 32)
        writer.write(frame(await reader.readexactly(32)))  # the relay's own proof
        await reader.read()
        writer.close()

    async with raw_server(false_dispatcher) as url:
        address = TcpAddress("127.0.0.1", int(url.rpartition(":")[2]))
        with pytest.raises(ConnectionFailed, match="does not have the same shared secret"):
            async with connected(address, SECRET):
                pass


async def test_a_message_before_the_handshake_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with listening(LOOPBACK, SECRET) as (listener, sessions):
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(listener))
        writer.write(frame(encode(Hello("v", "r", "r"))))
        await until_closed(reader, writer)
        assert sessions.made == []
    assert "does not have the same shared secret" in caplog.text


async def test_a_long_frame_before_the_handshake_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with listening(LOOPBACK, SECRET) as (listener, sessions):
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(listener))
        writer.write(LENGTH.pack(65))
        await until_closed(reader, writer)
        assert sessions.made == []
    assert "a frame of 65 bytes is longer than 64" in caplog.text


@pytest.mark.parametrize("with_tls", [False, True], ids=["secret", "tls"])
async def test_a_silent_connection_is_closed_in_time(
    *, with_tls: bool, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(endpoints, "OPEN_S", 0.05)
    async with listening(LOOPBACK, certificates.dispatcher if with_tls else SECRET) as (listener, sessions):
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(listener))
        await until_closed(reader, writer)
        assert sessions.made == []
        assert not listener._unopened
    assert "timed out" in caplog.text


async def test_a_silent_dispatcher_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "OPEN_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ConnectionFailed, match="timed out"):
        await connect(TcpAddress("127.0.0.1", silent.getsockname()[1]), Sessions(), SECRET)


@pytest.mark.parametrize("with_tls", [False, True], ids=["secret", "tls"])
async def test_the_oldest_of_too_many_silent_connections_is_closed(
    *, with_tls: bool, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "MAX_UNOPENED", 3)
    monkeypatch.setattr(endpoints, "OPEN_S", 1_000.0)  # so that it is not what closes them
    given = certificates.dispatcher if with_tls else SECRET
    async with listening(LOOPBACK, given) as (listener, _sessions):
        silent = [await asyncio.open_connection("127.0.0.1", port_of(listener)) for _ in range(3)]
        async with connected(listener.address, certificates.relay if with_tls else SECRET):
            await until_closed(*silent[0])
            assert len(listener._unopened) <= 3
        for _reader, writer in silent[1:]:
            writer.close()


async def test_tcp_without_security_is_refused_at_once() -> None:
    for attempt in (listen(LOOPBACK, Sessions(), None), connect(LOOPBACK, Sessions(), None)):
        with pytest.raises(SetupError, match=r"open to anyone.*Give both sides a certificate.*unix:PATH"):
            await attempt


async def test_nobody_listens(unix: UnixAddress) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for address, given in ((TcpAddress("127.0.0.1", port), SECRET), (unix, None)):
        with pytest.raises(ConnectionFailed, match="cannot connect to"):
            await connect(address, Sessions(), given)


# --- TLS ---


async def test_a_client_certificate_of_another_ca_is_refused(certificates: Certificates) -> None:
    async with listening(LOOPBACK, certificates.dispatcher) as (listener, sessions):
        # In TLS 1.3 a client is connected before its certificate has been checked: it learns of it from `on_lost`.
        async with connected(listener.address, certificates.stranger) as relay:
            await relay.until(lost=True)
            assert relay.messages == []
        assert sessions.made == []


async def test_a_client_without_a_certificate_is_refused(certificates: Certificates) -> None:
    context = certificates.relay.client_context()
    bare = type(context)(context.protocol)
    bare.load_verify_locations(certificates.relay.ca)
    async with listening(LOOPBACK, certificates.dispatcher) as (listener, sessions):
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(listener), ssl=bare)
        with pytest.raises(OSError):
            assert not await reader.read()
            raise ConnectionResetError
        writer.close()
        assert sessions.made == []


async def test_a_client_without_tls_is_refused(certificates: Certificates) -> None:
    async with listening(LOOPBACK, certificates.dispatcher) as (listener, sessions):
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(listener))
        writer.write(frame(encode(Hello("v", "r", "r"))))
        await until_closed(reader, writer)
        assert sessions.made == []


async def test_an_older_tls_is_refused(certificates: Certificates) -> None:
    context = certificates.relay.client_context()
    context.minimum_version = context.maximum_version = 0x0303  # type: ignore[assignment]
    async with listening(LOOPBACK, certificates.dispatcher) as (listener, sessions):
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port_of(listener), ssl=context)
        assert sessions.made == []


async def test_a_dispatcher_with_another_host_name_is_refused(certificates: Certificates) -> None:
    async with listening(LOOPBACK, certificates.elsewhere) as (listener, sessions):
        await refused(listener, certificates.relay, match="not valid for '127.0.0.1'")
        assert sessions.made == []


async def test_a_dispatcher_of_another_ca_is_refused(certificates: Certificates) -> None:
    own = certificates.dispatcher
    async with listening(LOOPBACK, own) as (listener, _sessions):
        suspicious = MutualTls(own.certificate, own.key, certificates._folder / "other-ca.pem")
        await refused(listener, suspicious, match="certificate verify failed")


async def test_a_renewed_certificate_is_used_at_once(certificates: Certificates, tmp_path: Path) -> None:
    def put(source: MutualTls) -> None:
        own.certificate.write_bytes(source.certificate.read_bytes())
        own.key.write_bytes(source.key.read_bytes())
        number = next(times)
        os.utime(own.certificate, (number, number))

    times = iter(range(10))
    own = MutualTls(tmp_path / "own.pem", tmp_path / "own.key", certificates.dispatcher.ca)
    put(certificates.elsewhere)
    async with listening(LOOPBACK, own) as (listener, _sessions):
        await refused(listener, certificates.relay, match="not valid for '127.0.0.1'")
        put(certificates.dispatcher)
        async with connected(listener.address, certificates.relay):
            pass
        own.key.write_text("half a file")
        async with connected(listener.address, certificates.relay):
            pass


async def test_files_that_are_no_certificates_are_named(certificates: Certificates, tmp_path: Path) -> None:
    good = certificates.relay
    nothing, junk = tmp_path / "nothing.pem", tmp_path / "junk.pem"
    junk.write_text("no certificate")
    for files, at_fault in (
        (MutualTls(nothing, good.key, good.ca), nothing),
        (MutualTls(good.certificate, good.key, nothing), nothing),
        (MutualTls(junk, good.key, good.ca), junk),
        (MutualTls(good.certificate, good.key, junk), junk),
        (MutualTls(good.certificate, certificates.dispatcher.key, good.ca), certificates.dispatcher.key),
    ):
        with pytest.raises(SetupError, match=str(at_fault)):
            await listen(LOOPBACK, Sessions(), files)


async def test_a_key_with_a_password_is_refused_without_asking(certificates: Certificates, tmp_path: Path) -> None:
    locked = tmp_path / "locked.key"
    command = f"pkey -in {certificates.relay.key} -aes256 -passout pass:word -out {locked}"
    subprocess.run(["openssl", *command.split()], check=True, capture_output=True)
    good = certificates.relay
    with pytest.raises(SetupError, match="without a password"):
        MutualTls(good.certificate, locked, good.ca).client_context()


# --- UNIX sockets ---


async def test_the_socket_is_for_this_user_only_and_removed_at_the_end(unix: UnixAddress) -> None:
    async with listening(unix):
        assert stat.S_IMODE(unix.path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(unix.path.stat().st_mode) == 0o600
    assert not unix.path.exists()


async def test_a_relay_of_another_user_is_refused(
    unix: UnixAddress, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(unix) as (_listener, sessions):
        monkeypatch.setattr(security, "peer_uid", lambda connected: os.getuid() + 1)
        reader, writer = await asyncio.open_unix_connection(str(unix.path))
        await until_closed(reader, writer)
        assert sessions.made == []
    assert f"runs as user {os.getuid() + 1}, this one as {os.getuid()}" in caplog.text


async def test_a_dispatcher_of_another_user_is_refused(unix: UnixAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    users = iter([os.getuid() + 1, os.getuid(), os.getuid()])
    async with listening(unix) as (listener, _sessions):
        monkeypatch.setattr(security, "peer_uid", lambda connected: next(users))
        await refused(listener, None, match="runs as user")


async def test_a_directory_that_others_can_use_is_refused(unix: UnixAddress) -> None:
    unix.path.parent.mkdir()
    for mode in (0o710, 0o701, 0o777):
        unix.path.parent.chmod(mode)
        with pytest.raises(SetupError, match="chmod 700"):
            await listen(unix, Sessions(), None)


async def test_a_directory_of_another_user_is_refused(unix: UnixAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    with pytest.raises(SetupError, match="a directory of its own"):
        await listen(unix, Sessions(), None)


async def test_the_socket_of_a_dead_process_is_replaced(unix: UnixAddress) -> None:
    unix.path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(unix.path))
    await talk(unix, None, None)


async def test_the_socket_of_a_living_process_is_kept(unix: UnixAddress) -> None:
    async with listening(unix) as (listener, _sessions):
        with pytest.raises(SetupError, match="Another process listens"):
            await listen(unix, Sessions(), None)
        async with connected(listener.address):
            pass


async def test_a_file_is_not_replaced(unix: UnixAddress) -> None:
    unix.path.parent.mkdir(mode=0o700)
    unix.path.write_text("kept")
    with pytest.raises(SetupError, match="is not a socket"):
        await listen(unix, Sessions(), None)
    assert unix.path.read_text() == "kept"


async def test_the_socket_of_a_successor_is_not_removed(unix: UnixAddress) -> None:
    first = await listen(unix, Sessions(), None)
    unix.path.unlink()
    async with listening(unix) as (successor, _sessions):
        await first.close()
        async with connected(successor.address):
            pass


# --- garbage on real sockets ---


async def test_garbage_on_sockets_reaches_no_exception_handler(unix: UnixAddress) -> None:
    loop = asyncio.get_running_loop()
    seen: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: seen.append(context))
    try:
        for address, given in ((unix, None), (LOOPBACK, SECRET)):
            async with listening(address, given) as (listener, _sessions):
                for number in range(100):
                    if isinstance(listener.address, TcpAddress):
                        reader, writer = await asyncio.open_connection("127.0.0.1", listener.address.port)
                    else:
                        reader, writer = await asyncio.open_unix_connection(str(unix.path))
                    writer.write(bytes((number * at) % 256 for at in range(number)))
                    writer.write_eof()
                    await until_closed(reader, writer)
    finally:
        loop.set_exception_handler(None)
    assert seen == []


def port_of(listener: Listener) -> int:
    assert isinstance(listener.address, TcpAddress)
    return listener.address.port


async def until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async with asyncio.timeout(20):
        with suppress(ConnectionError):
            await reader.read()
    writer.close()
