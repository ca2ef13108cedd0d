"""The HTTP client, with and without TLS: connections are reused, lost ones are noticed, and everything is bounded."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from headway import http1
from headway.errors import ConnectionFailed
from headway.http1 import ConnectionPool, fetch
from tests.running import Serve, raw_server

pytestmark = pytest.mark.anyio
OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Server:
    """A server that does what a test says with each connection, and counts them."""

    def __init__(self, serve: Serve) -> None:
        self.connections = 0
        self.url = ""
        self._serve = serve

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await self._serve(reader, writer)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a self-signed certificate for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 2 -subj /CN=127.0.0.1"
    command += " -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out certificate.pem"
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_bytes((folder / "certificate.pem").read_bytes() + (folder / "key.pem").read_bytes())
    return both


@asynccontextmanager
async def serving_over(scheme: str, certificate: Path, serve: Serve) -> AsyncIterator[tuple[Server, ConnectionPool]]:
    own = trusted = None
    if scheme == "https":
        own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        own.load_cert_chain(certificate)
        trusted = ssl.create_default_context(cafile=str(certificate))
    server = Server(serve)
    async with raw_server(server, tls=own) as server.url:
        pool = ConnectionPool(server.url, tls=trusted)
        try:
            yield server, pool
        finally:
            pool.close()


Serving = Callable[[Serve], AbstractAsyncContextManager[tuple[Server, ConnectionPool]]]


@pytest.fixture(params=["http", "https"])
def serving(request: pytest.FixtureRequest, certificate: Path) -> Serving:
    return lambda serve: serving_over(request.param, certificate, serve)


async def say_hi_always(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.readuntil(b"\r\n\r\n"):
        writer.write(OK)


async def say_hi_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(OK)


async def whole(pool: ConnectionPool) -> bytes:
    _status, body = await pool.exchange(b"GET", "/")
    return body


# --- connections ---


async def test_a_connection_is_used_again(serving: Serving) -> None:
    async with serving(say_hi_always) as (server, pool):
        for _ in range(5):
            assert await whole(pool) == b"hi"
        assert server.connections == 1


async def test_chunked_answers_leave_the_connection_usable(serving: Serving) -> None:
    async def chunked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(CHUNKED + b"2\r\nhi\r\n0\r\n\r\n")

    async with serving(chunked) as (server, pool):
        for _ in range(5):
            response = await pool.request(b"POST", "/", b"{}")
            got: list[bytes] = []
            await response.pipe(got.append)
            response.close()
            assert b"".join(got) == b"hi"
        assert server.connections == 1


async def test_a_connection_the_server_closed_meanwhile_is_replaced(serving: Serving) -> None:
    async with serving(say_hi_once) as (server, pool):
        for _ in range(3):
            assert await whole(pool) == b"hi"
        assert server.connections == 3


async def test_a_request_that_is_prevented_is_not_written_and_its_connection_is_kept(serving: Serving) -> None:
    def prevent() -> None:
        raise PermissionError

    requests: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await reader.readuntil(b"\r\n\r\n"):
            requests.append(request)
            writer.write(OK)

    async with serving(listen) as (server, pool):
        for _ in range(2):  # on a new connection, then on an idle one
            with pytest.raises(PermissionError):
                await pool.request(b"GET", "/", before_write=prevent)
        assert await whole(pool) == b"hi"
        assert (server.connections, len(requests)) == (1, 1)


async def test_a_request_that_is_sent_once_is_not_retried(serving: Serving) -> None:
    """A server that closes its idle connection only when the next request is there: nobody can see it coming."""

    async def hang_up_on_the_second(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await say_hi_once(reader, writer)
        await reader.readuntil(b"\r\n\r\n")

    async with serving(hang_up_on_the_second) as (server, pool):
        assert await whole(pool) == b"hi"
        response = await pool.send(b"GET", "/")
        with pytest.raises(ConnectionFailed, match="closed the connection") as failed:
            await response.pipe(lambda data: None)
        response.close()
        assert failed.value.reached
        assert server.connections == 1
        assert [await whole(pool), await whole(pool)] == [b"hi", b"hi"]
        assert server.connections == 3


async def test_calls_at_the_same_time_have_connections_of_their_own(serving: Serving) -> None:
    async with serving(say_hi_always) as (server, pool):
        assert await asyncio.gather(*[whole(pool) for _ in range(8)]) == [b"hi"] * 8
        assert server.connections == 8
        await asyncio.gather(*[whole(pool) for _ in range(8)])
        assert server.connections == 8


async def test_closing_a_response_twice_gives_its_connection_back_once(serving: Serving) -> None:
    async with serving(say_hi_always) as (server, pool):
        response = await pool.request(b"GET", "/")
        await response.read()
        response.close()
        response.close()
        assert await asyncio.gather(*[whole(pool) for _ in range(2)]) == [b"hi"] * 2
        assert server.connections == 2


async def test_an_old_idle_connection_is_not_used(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "IDLE_REUSE_S", 0.0)
    async with serving(say_hi_always) as (server, pool):
        for _ in range(3):
            await whole(pool)
        assert server.connections == 3


async def test_a_connection_on_which_something_came_unasked_is_not_used(serving: Serving) -> None:
    gone = asyncio.Event()

    async def time_out(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await say_hi_once(reader, writer)
        await asked_again.wait()
        writer.write(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        await reader.read()
        gone.set()

    asked_again = asyncio.Event()
    async with serving(time_out) as (server, pool):
        assert await whole(pool) == b"hi"
        asked_again.set()
        await asyncio.wait_for(gone.wait(), 5)
        assert await whole(pool) == b"hi"
        assert server.connections == 2


async def test_a_response_that_is_given_up_closes_its_connection(serving: Serving) -> None:
    gone = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED + b"2\r\nhi\r\n")
        try:
            await reader.read()
        finally:
            gone.set()

    async with serving(endless) as (_server, pool):
        response = await pool.request(b"GET", "/")
        response.close()
        await asyncio.wait_for(gone.wait(), 5)


async def test_nobody_there(serving: Serving) -> None:
    async with serving(say_hi_always) as (server, _pool):
        url = server.url
    with pytest.raises(ConnectionFailed, match="cannot connect") as failed:
        await ConnectionPool(url).request(b"GET", "/")
    assert not failed.value.reached
    assert await fetch(ConnectionPool(url), "/health", 1.0) == (0, b"")


# --- certificates ---


async def test_a_certificate_the_system_does_not_know_is_refused(certificate: Path) -> None:
    async with serving_over("https", certificate, say_hi_always) as (server, _pool):
        stranger = ConnectionPool(server.url)
        with pytest.raises(ConnectionFailed, match=r"cannot connect.*certificate verify failed") as failed:
            await stranger.request(b"GET", "/")
        assert not failed.value.reached
        assert server.connections == 0


async def test_an_authority_of_the_owner_is_trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with serving_over("https", certificate, say_hi_always) as (server, _pool):
        pool = ConnectionPool(server.url)
        assert await whole(pool) == b"hi"
        pool.close()


async def test_a_certificate_for_another_host_is_refused(certificate: Path) -> None:
    async with serving_over("https", certificate, say_hi_always) as (server, _pool):
        trusted = ssl.create_default_context(cafile=str(certificate))
        elsewhere = ConnectionPool(server.url.replace("127.0.0.1", "localhost"), tls=trusted)
        with pytest.raises(ConnectionFailed, match=r"cannot connect.*Hostname mismatch"):
            await elsewhere.request(b"GET", "/")


@pytest.mark.parametrize(("served", "asked"), [("http", "https"), ("https", "http")])
async def test_one_side_that_speaks_tls_alone_is_an_error(served: str, asked: str, certificate: Path) -> None:
    async def say_hi_to_anything(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(OK)

    async with serving_over(served, certificate, say_hi_to_anything) as (server, _pool):
        with pytest.raises(ConnectionFailed):
            await ConnectionPool(server.url.replace(served, asked, 1)).request(b"GET", "/")


async def test_a_server_that_does_not_shake_hands_is_not_waited_for(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1, "CONNECT_TIMEOUT_S", 0.1)

    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving_over("http", certificate, silent) as (server, _pool):
        with pytest.raises(ConnectionFailed, match="timed out") as failed:
            await ConnectionPool(server.url.replace("http", "https")).request(b"GET", "/")
        assert not failed.value.reached


# --- bodies ---


async def test_pieces_are_handed_over_as_they_come(serving: Serving) -> None:
    """The server says the next one only when the last has been heard."""
    heard = asyncio.Event()

    async def say_after_the_last(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(CHUNKED)
            for number in range(20):
                writer.write(b"2\r\n%02d\r\n" % number)
                await asyncio.wait_for(heard.wait(), 5)
                heard.clear()
            writer.write(b"0\r\n\r\n")

    async with serving(say_after_the_last) as (_server, pool):
        for send in (pool.request, pool.send):
            response = await send(b"GET", "/")
            got: list[bytes] = []

            def sink(data: bytes, got: list[bytes] = got) -> None:
                got.append(data)
                heard.set()

            await response.pipe(sink)
            response.close()
            assert got == [b"%02d" % number for number in range(20)]


async def test_a_paused_response_is_not_read(serving: Serving) -> None:
    size = 16 * 2**20  # more than the buffers of two sockets hold
    all_written = asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
            for _ in range(size // 2**16):
                writer.write(b"x" * 2**16)
                await writer.drain()
            all_written.set()

    async with serving(flood) as (server, pool):
        for _ in range(2):
            response = await pool.send(b"GET", "/")
            sizes: list[int] = []
            first = asyncio.Event()

            def sink(data: bytes, sizes: list[int] = sizes, first: asyncio.Event = first) -> None:
                sizes.append(len(data))
                first.set()

            piping = asyncio.create_task(response.pipe(sink))
            await first.wait()
            response.pause()
            read_so_far = sum(sizes)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(all_written.wait(), 0.3)
            assert sum(sizes) == read_so_far
            response.resume()
            await piping
            response.close()
            assert sum(sizes) == size
            all_written.clear()
        assert server.connections == 1


async def test_a_response_that_ends_paused_leaves_its_connection_usable(serving: Serving) -> None:
    async with serving(say_hi_always) as (server, pool):
        for _ in range(3):
            response = await pool.send(b"GET", "/")
            await response.pipe(lambda data, response=response: response.pause())  # type: ignore[misc]
            response.close()
            response.pause()  # no longer its connection
        assert await asyncio.wait_for(whole(pool), 5) == b"hi"
        assert server.connections == 1


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort",
        CHUNKED + b"5\r\nhi",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: other\r\nconnection: upgrade\r\n\r\n",
    ],
)
async def test_an_answer_that_breaks_off_is_a_failed_connection(serving: Serving, said: bytes) -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)

    async with serving(broken) as (_server, pool):
        with pytest.raises(ConnectionFailed) as failed:
            await whole(pool)
        assert failed.value.reached


async def test_a_server_that_closes_in_the_middle_of_a_stream(serving: Serving) -> None:
    async def cut_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED + b"2\r\nhi\r\n")

    async with serving(cut_off) as (_server, pool):
        response = await pool.request(b"GET", "/")
        got: list[bytes] = []
        with pytest.raises(ConnectionFailed, match="closed the connection"):
            await response.pipe(got.append)
        response.close()
        assert got == [b"hi"]


async def test_an_interim_response_is_not_the_response(serving: Serving) -> None:
    async def hint_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + OK)

    async with serving(hint_first) as (server, pool):
        for _ in range(2):
            assert await pool.exchange(b"GET", "/") == (200, b"hi")
        assert server.connections == 1


@pytest.mark.parametrize("pieces", [0, 1])
async def test_what_the_sink_raises_is_raised_where_the_body_is_piped(serving: Serving, pieces: int) -> None:
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        for number in range(3):
            writer.write(b"1\r\n%d\r\n" % number)
            await writer.drain()
        await reader.read()

    def sink(data: bytes) -> None:
        assert int(data) < pieces, "enough"

    async with serving(count) as (_server, pool):
        response = await pool.request(b"GET", "/")
        with pytest.raises(AssertionError, match="enough"):
            await response.pipe(sink)
        response.close()


@pytest.mark.parametrize("size", [100, 300])
async def test_the_chunks_of_a_large_read_are_one_piece(serving: Serving, size: int) -> None:
    async def say_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(CHUNKED + b"2\r\nhi\r\n" * size + b"0\r\n\r\n")

    async with serving(say_all) as (server, pool):
        for _ in range(2):
            response = await pool.send(b"GET", "/")
            got: list[bytes] = []
            await response.pipe(got.append)
            response.close()
            assert got == [b"hi" * size]
        assert server.connections == 1


@pytest.mark.parametrize(
    "more", [b"HTTP/1.1 100 Continue\r\n\r\n", CHUNKED + b"2\r\nno\r\n0\r\n\r\n"], ids=["100", "200"]
)
async def test_what_follows_a_response_in_the_same_read_changes_nothing(serving: Serving, more: bytes) -> None:
    async def say_more(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED + b"2\r\nhi\r\n0\r\n\r\n" + more)
        await reader.read()

    async with serving(say_more) as (server, pool):
        for _ in range(2):
            assert await pool.exchange(b"GET", "/") == (200, b"hi")
        assert server.connections == 2


@pytest.mark.parametrize("size", [1, 300])
async def test_what_came_before_something_invalid_is_passed_on(serving: Serving, size: int) -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED + b"2\r\nhi\r\n" * size + b"no chunk\r\n")
        await reader.read()

    async with serving(break_off) as (_server, pool):
        response = await pool.send(b"GET", "/")
        got: list[bytes] = []
        with pytest.raises(ConnectionFailed, match="not valid HTTP"):
            await response.pipe(got.append)
        response.close()
        assert got == [b"hi" * size]


@pytest.mark.parametrize("size", [1, 300])
@pytest.mark.parametrize("end", [b"", b"0\r\n\r\n", b"no chunk\r\n"], ids=["open", "end", "invalid"])
async def test_what_the_sink_raises_counts_more_than_what_follows_in_the_same_read(
    serving: Serving, end: bytes, size: int
) -> None:
    async def say_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED + b"2\r\nhi\r\n" * size + end)
        await reader.read()

    def sink(_data: bytes) -> None:
        raise AssertionError("enough")

    async with serving(say_all) as (_server, pool):
        response = await pool.send(b"GET", "/")
        with pytest.raises(AssertionError, match="enough"):
            await response.pipe(sink)
        response.close()


async def test_a_whole_body_is_bounded(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "MAX_WHOLE_BODY_BYTES", 1000)

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + b"x" * 100_000)
        await reader.read()

    async with serving(flood) as (_server, pool):
        with pytest.raises(ConnectionFailed, match="larger than 1000 bytes"):
            await whole(pool)


async def test_a_server_that_does_not_answer_a_small_question_is_not_waited_for(serving: Serving) -> None:
    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(silent) as (_server, pool):
        assert await fetch(pool, "/health", 0.1) == (0, b"")


async def test_headers_can_be_read(serving: Serving) -> None:
    async def head_of(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for value in (b"one", b"two"):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nX-Name: %b\r\ncontent-length: 0\r\n\r\n" % value)

    async with serving(head_of) as (_server, pool):
        for value in (b"one", b"two"):
            response = await pool.request(b"GET", "/")
            response.close()
            assert response.headers == {b"x-name": value, b"content-length": b"0"}


@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_a_head_without_an_end_is_bounded(serving: Serving, before: bytes) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(before + b"HTTP/1.1 200 OK\r\nx: ")
        while True:
            writer.write(b"a" * 10_000)
            await writer.drain()

    async with serving(endless) as (_server, pool):
        with pytest.raises(ConnectionFailed, match="the head of the server's response is larger"):
            await asyncio.wait_for(whole(pool), 20)
