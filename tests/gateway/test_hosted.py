"""Calls that find no seat here and go to a hosted server: TLS, keys, header, bill and budget, with the official SDKs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from headway.config import Config
from headway.engines.scripted import Script, running
from headway.errors import SetupError
from headway.ledger.entries import Entry, day_of, now_us
from headway.ledger.keys import Key, key_hash
from headway.ledger.sqlite import SQLiteStore
from runs.fleet.hosted_server import HostedStandIn, make_certificate, running_hosted
from tests.running import MODEL, Running, config_for, running_gateway

pytestmark = pytest.mark.anyio
HERE = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.02),))
THERE = Script(model="theirs", first_token_s=0.005, step_s=((1, 0.005),))
KEY, THEIR_KEY = "hw-a-key-for-tests", "the-operators-key"
PRICE, THEIR_PRICE = {"input": 1.0, "output": 10.0}, {"input": 3.0, "output": 50.0, "cached_input": 1.0}
ASK: Any = [{"role": "user", "content": "two words"}]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("hosted"))


class Hosted:
    """A gateway with one seat here, and a hosted server."""

    def __init__(self, here: Running, there: HostedStandIn, store: SQLiteStore) -> None:
        self.here, self.there, self.store = here, there, store

    def busy(self, tokens: int = 100) -> asyncio.Task[Any]:
        """A call that takes the seat here."""
        return asyncio.create_task(self.ask(tokens))

    async def ask(self, tokens: int = 10, **more: Any) -> httpx.Response:
        create = self.here.openai.chat.completions.with_raw_response.create
        answer = await create(model=MODEL, messages=ASK, max_tokens=tokens, **more)
        response: httpx.Response = answer.http_response
        return response

    async def until_seat_is_taken(self) -> None:
        async with asyncio.timeout(10):
            while not self.here.gateway.machine.pools[MODEL].streams:
                await asyncio.sleep(0.005)

    async def served(self, calls: int) -> list[Entry]:
        async with asyncio.timeout(20):
            while True:
                entries = [entry for entry in self.store.entries() if entry.kind == "served"]
                if len(entries) >= calls:
                    return entries
                await asyncio.sleep(0.02)


@pytest.fixture
async def hosted(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Hosted]:
    """The settings of [models.hosted] are the fixture's parameter."""
    monkeypatch.setenv("THEIR_KEY", THEIR_KEY)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    store = SQLiteStore(tmp_path / "books.db")
    store.migrate()
    store.put_key(Key(id="key-test", hash=key_hash(KEY.encode())))
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(running(HERE))
        there = await stack.enter_async_context(running_hosted(THERE, THEIR_KEY, *certificate))
        config = with_hosted(
            config_for([here], seats=1, price=PRICE, ledger=books(tmp_path), tier={"max_hold_s": 2.0}),
            there.url,
            request,
        )
        gateway = await stack.enter_async_context(running_gateway(config, key=KEY))
        async with asyncio.timeout(10):
            while not gateway.gateway.machine.pools[f"{MODEL} (hosted)"].open_replicas:
                await asyncio.sleep(0.01)
        yield Hosted(gateway, there, store)


def books(tmp_path: Path) -> dict[str, Any]:
    return {"store": f"sqlite:///{tmp_path}/books.db", "spool": str(tmp_path / "spool")}


def with_hosted(config: Config, url: str, request: pytest.FixtureRequest) -> Config:
    tables = config.model_dump()
    tables["models"][0]["hosted"] = {
        "url": url,
        "model": "theirs",
        "key_env": "THEIR_KEY",
        "after_s": 0.05,
        "budget_day": 100.0,
        "price": THEIR_PRICE,
        **getattr(request, "param", {}),
    }
    return Config.model_validate(tables)


def their_cost(entry: Entry) -> int:
    return 3 * entry.prompt_tokens + 50 * entry.output_tokens


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_call_without_a_seat_is_served_there_and_billed_at_its_price(hosted: Hosted, streaming: bool) -> None:
    staying = hosted.busy()
    await hosted.until_seat_is_taken()
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if streaming else {}
    answer = await hosted.ask(**options)
    assert answer.headers["headway-served-by"] == "127.0.0.1"
    text = (await answer.aread()).decode()
    assert '"served_by":"127.0.0.1"' in text
    assert hosted.there.engine.record()["tokens_sent"] == 10
    assert "headway-served-by" not in (await staying).headers
    here, there = sorted(await hosted.served(2), key=lambda entry: -entry.output_tokens)
    assert (there.replica, there.output_tokens, there.seat_us) == (hosted.there.url, 10, 0)
    assert there.amount == their_cost(there)
    assert here.amount == here.prompt_tokens + 10 * here.output_tokens


async def test_a_call_waits_for_a_seat_here_first(hosted: Hosted) -> None:
    staying = hosted.busy(tokens=2)
    await hosted.until_seat_is_taken()
    assert "headway-served-by" not in (await hosted.ask()).headers
    await staying


@pytest.mark.parametrize("hosted", [{"budget_day": 0.03}], indirect=True)
async def test_the_budget_is_never_exceeded(hosted: Hosted) -> None:
    """A call may cost some 0.0015: its prompt is at most as many tokens as its bytes. It does cost 0.0005."""
    staying = hosted.busy(tokens=3_000)
    await hosted.until_seat_is_taken()
    served = 0
    with pytest.raises(openai.RateLimitError, match="No seat"):  # it waits for one here, in vain
        while (await hosted.ask()).headers["headway-served-by"]:
            served += 1
    entries = await hosted.served(served)
    spent = sum(map(their_cost, entries))
    assert 30_000 - 3_000 < spent <= 30_000
    assert sum(entry.output_tokens for entry in entries) == hosted.there.engine.record()["tokens_sent"]
    [(period, leased)] = [(row[1], row[3]) for row in hosted.store.slices() if row[0] == hosted.there.url]
    assert period == day_of(now_us())
    assert spent <= leased <= 30_000
    staying.cancel()


async def test_what_the_server_refuses_is_served_here(hosted: Hosted) -> None:
    staying = hosted.busy(tokens=20)
    await hosted.until_seat_is_taken()
    hosted.there.is_limited = True
    answer = await hosted.ask()
    assert hosted.there.refused == 1
    assert "headway-served-by" not in answer.headers
    assert "operator" not in (await answer.aread()).decode()
    await staying


@pytest.mark.parametrize("more", [{"extra_body": {"top_k": 3}}, {"extra_body": {"structured_outputs": {"regex": "a"}}}])
async def test_a_call_with_fields_of_vllm_alone_stays_here(hosted: Hosted, more: dict[str, Any]) -> None:
    staying = hosted.busy(tokens=20)
    await hosted.until_seat_is_taken()
    assert "headway-served-by" not in (await hosted.ask(**more)).headers
    await staying


async def test_messages_stay_here(hosted: Hosted) -> None:
    staying = hosted.busy(tokens=20)
    await hosted.until_seat_is_taken()
    answer = await hosted.here.anthropic.messages.with_raw_response.create(model=MODEL, messages=ASK, max_tokens=5)
    assert "headway-served-by" not in answer.headers
    await staying


async def test_with_no_replica_here_calls_are_served_there(hosted: Hosted) -> None:
    fleet = hosted.here.gateway.dispatch.fleet  # type: ignore[attr-defined]
    assert fleet.drain(next(url for url in fleet.members if url != hosted.there.url))
    assert (await hosted.ask()).headers["headway-served-by"] == "127.0.0.1"


async def test_a_client_that_leaves_costs_what_was_generated(hosted: Hosted) -> None:
    staying = hosted.busy(tokens=3_000)
    await hosted.until_seat_is_taken()
    stream = await hosted.here.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=1000, stream=True)
    async for _ in stream:
        break
    await stream.close()
    staying.cancel()
    [there] = [entry for entry in await hosted.served(2) if entry.replica == hosted.there.url]
    assert (there.outcome, there.amount) == ("left", their_cost(there))
    assert 0 < there.output_tokens < 1000


async def test_models_lists_who_else_serves(hosted: Hosted) -> None:
    [row] = [one async for one in hosted.here.openai.models.list()]
    assert row.overflow == {  # type: ignore[attr-defined]
        "served_by": "127.0.0.1",
        "tiers": ["standard"],
        "price": {"input": 3.0, "output": 50.0},
    }


async def test_with_a_wrong_key_nobody_is_sent_there(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("THEIR_KEY", "another")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    store = SQLiteStore(tmp_path / "books.db")
    store.migrate()
    store.put_key(Key(id="key-test", hash=key_hash(KEY.encode())))
    async with running(HERE) as here, running_hosted(THERE, THEIR_KEY, *certificate) as there:
        config = with_hosted(
            config_for([here], seats=1, ledger=books(tmp_path), tier={"max_hold_s": 0.3}), there.url, request
        )
        async with running_gateway(config, key=KEY) as gateway:
            desk = Hosted(gateway, there, store)
            staying = desk.busy(tokens=100)
            await desk.until_seat_is_taken()
            with pytest.raises(openai.RateLimitError, match="No seat"):
                await desk.ask()
            assert there.refused
            staying.cancel()


async def test_without_its_key_the_gateway_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.delenv("THEIR_KEY", raising=False)
    async with running(HERE) as here:
        config = with_hosted(config_for([here], ledger=books(tmp_path)), "https://127.0.0.1:1", request)
        with pytest.raises(SetupError, match="set it to the key of the server"):
            async with running_gateway(config, key=KEY):
                pass


async def test_what_a_killed_gateway_spent_there_stays_spent(hosted: Hosted) -> None:
    """Its next run frees what it had leased, but for what the entries say."""
    staying = hosted.busy(tokens=3_000)
    await hosted.until_seat_is_taken()
    await hosted.ask()
    staying.cancel()
    [entry] = [entry for entry in await hosted.served(2) if entry.replica == hosted.there.url]
    name, _, run = entry.gateway.partition("/")
    hosted.store.settle_previous_runs(f"{name}/{int(run) + 1}", now_us())
    [left] = [amount for key, _, _, amount in hosted.store.slices() if key == hosted.there.url]
    assert left == entry.amount
