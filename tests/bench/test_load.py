from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import msgspec
import pytest

from headway.bench.client import LoadCall, LoadClient, Prompts
from headway.bench.load import Arrival, Load, bursts, closed_loop, open_loop, poisson
from headway.engines.scripted import Faults, Script, running
from headway.errors import SetupError
from headway.http1 import ConnectionPool, fetch
from tests.bench.mock_process import mock_engine
from tests.running import MODEL, config_for, raw_server, running_gateway

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("streams", [1, 16, 64])
async def test_figures_match_the_engines_own_record(streams: int) -> None:
    """A run's figures are right, or the run says that the client was too slow for them: on a machine with other work
    it may be. The record includes delays of the engine itself. runs/bench-truth.sh compares with the programmed speed.
    """
    with mock_engine(100.0, "1:20") as url:
        client = LoadClient(url, "scripted")
        load = await closed_loop(client, streams, 32, 64, max(1, 4 // streams))
        pool = ConnectionPool(url)
        _, page = await fetch(pool, "/scripted/record", 5.0)
        pool.close()
        client.close()
    finished = [one for one in msgspec.json.decode(page)["requests"].values() if one["state"] == "finished"]
    by_engine = [(one["ended_s"] - one["first_token_s"]) / 63 for one in finished if one["tokens_sent"] == 64]
    assert len(load.complete) == len(load.calls) >= streams
    tpot_s = statistics.median(call.tpot_s for call in load.complete)
    assert load.problems() or tpot_s == pytest.approx(statistics.median(by_engine), rel=0.01)
    assert all(call.ttft_s >= 0.0999 for call in load.complete)
    assert {call.tokens for call in load.complete} == {64}


async def test_throughput_is_that_of_full_load() -> None:
    """Neither start nor end is counted: the throughput is that of 8 streams at the time that each call takes."""
    async with running(Script(model="m", first_token_s=0.1, step_s=((1, 0.02),))) as engine:
        client = LoadClient(engine.url, "m")
        load = await closed_loop(client, 8, 16, 16, 3)
        client.close()
    took_s = statistics.mean(call.latency_s for call in load.complete)
    assert took_s >= 0.1 + 15 * 0.02
    assert load.output_tps == pytest.approx(8 * 16 / took_s, rel=0.08)
    assert load.prompt_tps == pytest.approx(8 * (15 + 4) / took_s, rel=0.15)  # 15 words and what a template adds
    assert engine.record()["highest_running"] == 8


async def test_a_gateway_is_measured_as_an_engine_is() -> None:
    script = Script(model=MODEL, first_token_s=0.1, step_s=((1, 0.02),))
    async with running(script) as engine, running_gateway(config_for([engine])) as gateway:
        client = LoadClient(gateway.url, MODEL)
        load = await closed_loop(client, 4, 16, 16)
        client.close()
        await gateway.until_empty()
    assert not [call.error for call in load.calls if call.error]
    assert {call.tokens for call in load.calls} == {16}
    by_engine = [(one.ended_s - one.first_token_s) / 15 for one in engine.record()["requests"].values()
                 if one.tokens_sent == 16]  # fmt: skip
    assert statistics.median(call.tpot_s for call in load.calls) == pytest.approx(statistics.median(by_engine), rel=0.1)


async def test_latency_counts_from_the_schedule() -> None:
    """One seat, 0.2 s per call, one call every 0.1 s: the last call waits for all earlier ones."""
    async with running(Script(model="m", first_token_s=0.1, step_s=((1, 0.05),), max_num_seqs=1)) as engine:
        client = LoadClient(engine.url, "m")
        load = await open_loop(client, [Arrival(0.1 * number, 8, 3) for number in range(10)], warm_up_s=0.05)
        client.close()
    waits = [call.ttft_s for call in load.calls]
    assert len(waits) == 9  # the first was warm-up
    assert waits == sorted(waits)
    # On a busy box it waits longer. Counted from when the seat was free it would be 0.1 s, from sending hardly more.
    assert waits[-1] >= 9 * 0.2 - 0.9 + 0.1 - 0.01
    assert all(call.sent_at >= call.scheduled_at for call in load.calls)


async def test_a_client_that_is_the_bottleneck_says_so() -> None:
    async with running(Script(model="m")) as engine:
        client = LoadClient(engine.url, "m")
        measuring = asyncio.create_task(open_loop(client, poisson(50, 1.0, 8, 4)))
        while not measuring.done():
            await asyncio.sleep(0.02)
            time.sleep(0.05)  # what a busy client does to itself
        client.close()
    problems = " ".join(measuring.result().problems())
    assert "late to read" in problems
    assert "late to send" in problems


def test_a_run_of_failures_is_invalid() -> None:
    good = LoadCall(0.0, 2, first_at=0.5, last_at=0.6, tokens=2, first_tokens=1)
    assert Load([good], lags_s=[0.0005]).problems() == []
    assert Load([good, LoadCall(0.0, 2, error="gone")], lags_s=[0.0]).problems() == ["1 calls failed: gone"]
    assert Load([], lags_s=[0.0]).problems() == ["no call succeeded"]


async def test_a_refused_call_is_made_again_and_its_time_goes_on() -> None:
    async with running(Script(model="m")) as engine:
        engine.faults = Faults(refuse=True)
        client = LoadClient(engine.url, "m")
        measuring = asyncio.create_task(closed_loop(client, 1, 8, 4))
        await asyncio.sleep(0.25)
        engine.faults = Faults()
        load = await measuring
        assert [call.refusals for call in load.calls] == [0]
        with pytest.raises(SetupError, match="status 404"):
            await closed_loop(LoadClient(engine.url, "another"), 1, 8, 4)


@asynccontextmanager
async def answering(pieces: list[bytes], pause_s: float) -> AsyncIterator[str]:
    """A server that answers every request with these chunks, each in its own write."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for piece in pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(pause_s)
        writer.write(b"0\r\n\r\n")
        writer.close()

    async with raw_server(serve) as url:
        yield url


def event(tokens: int) -> bytes:
    usage = b'"usage":{"prompt_tokens":31,"total_tokens":%d,"completion_tokens":%d,"completion_tokens_details":null}'
    return b'data: {"choices":[],' + usage % (31 + tokens, tokens) + b"}\n\n"


async def test_tokens_are_the_servers_count_and_not_the_pieces() -> None:
    """A role without a token, chunks of four tokens, an event split within its count, and a last event without a token."""
    cut = event(12)
    middle = cut.index(b"12,") + 1
    pieces = [event(0), event(4), event(8), cut[:middle], cut[middle:], event(12), b"data: [DONE]\n\n"]
    async with answering(pieces, 0.05) as url:
        client, call, heard = LoadClient(url, "m"), LoadCall(time.perf_counter(), 12), []
        await client.make(call, client.request(8, 12), lambda at, tokens: heard.append(tokens))
        client.close()
    assert (call.error, call.tokens, call.first_tokens, call.prompt_tokens) == ("", 12, 4, 31)
    assert heard == [4, 4, 4]
    assert call.tpot_s == (call.last_at - call.first_at) / 8
    assert call.last_at - call.first_at >= 3 * 0.05 - 0.005
    assert time.perf_counter() - call.last_at >= 2 * 0.05 - 0.005  # what closes the answer is no token


async def test_a_server_that_counts_only_at_the_end_is_not_measured() -> None:
    async with answering([b'data: {"choices":[]}\n\n', event(12)], 0.0) as url:
        with pytest.raises(SetupError, match="continuous_usage_stats"):
            await closed_loop(LoadClient(url, "m"), 1, 8, 12)


async def test_counts_that_arrive_in_one_piece_are_not_taken_for_one_at_the_end() -> None:
    """A busy machine reads both tokens of a short answer at once."""
    async with answering([event(0) + event(1) + event(2)], 0.0) as url:
        client, call = LoadClient(url, "m"), LoadCall(time.perf_counter(), 2)
        await client.make(call, client.request(8, 2), lambda _at, _tokens: None)
        client.close()
    assert (call.error, call.tokens, call.first_tokens) == ("", 2, 2)


def test_arrivals_have_the_rate_and_the_bursts_asked_for() -> None:
    for variation in (1.0, 4.0):
        times = [arrival.at_s for arrival in bursts(50, variation, 2000, 8, 4, seed=3)]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert len(times) / 2000 == pytest.approx(50, rel=0.1)
        assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(variation, rel=0.1)


def test_no_two_prompts_begin_alike() -> None:
    prompts = Prompts()
    texts = [prompts.text(100) for _ in range(200)]
    assert len({text.split()[0] for text in texts}) == 200
    assert all(95 <= len(text.split()) <= 100 for text in texts)


async def test_the_key_is_sent() -> None:
    heads: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    async with raw_server(listen) as url:
        for client in (LoadClient(url, "m", "k1"), LoadClient(url, "m")):
            call = LoadCall(time.perf_counter(), 4)
            await client.make(call, client.request(8, 4), lambda _at, _tokens: None)
            assert call.error == "the server closed the connection"
    assert b"\r\nauthorization: Bearer k1\r\n" in heads[0]
    assert b"authorization" not in heads[1]
