"""Money through the whole gateway, with the official SDKs: the scripted engine's record says what was delivered."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import openai
import pytest

from headway.core.types import Action, Event, Settled
from headway.engines.base import EngineRequest
from headway.engines.scripted import Faults, Script, ScriptedEngine, running
from headway.errors import Refused, SetupError
from headway.ledger import books as books_module
from headway.ledger import reading
from headway.ledger import spool as spool_module
from headway.ledger.bill import make_bill
from headway.ledger.entries import DAY_US, Entry
from headway.ledger.keys import Key, key_hash
from headway.ledger.sqlite import SQLiteStore
from headway.ledger.store import Lease
from headway.ledger.verify import verify, verify_budgets
from tests.running import MODEL, Running, config_for, post, running_gateway

pytestmark = pytest.mark.anyio
QUICK = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.002),))
SLOW = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.02),))
CURVE = [[1, 500.0], [8, 400.0]]
# One micro-unit per prompt token and ten per output token; fast is three times as much.
PRICE = {"input": 1.0, "output": 10.0}
FAST = {"name": "fast", "floor_tps": 20.0, "price_multiple": 3.0, "max_hold_s": 0.3}
SECRET = "hw-a-key-for-tests"
KEY = Key(id="key-test", hash=key_hash(SECRET.encode()))
ASK: Any = [{"role": "user", "content": "two words"}]


class Desk:
    """A gateway with books, and the store beside it."""

    def __init__(self, here: Running, store: SQLiteStore) -> None:
        self.here = here
        self.store = store

    async def entries(self, calls: int = 1) -> list[Entry]:
        """The entries in the store, when that many calls are over."""
        async with asyncio.timeout(20):
            while True:
                entries = list(self.store.entries())
                if sum(entry.kind == "released" for entry in entries) >= calls:
                    return entries
                await asyncio.sleep(0.02)

    async def one(self, kind: str = "served") -> Entry:
        [entry] = [entry for entry in await self.entries() if entry.kind == kind]
        return entry


@asynccontextmanager
async def desk(
    tmp_path: Path,
    engines: list[ScriptedEngine],
    key: Key = KEY,
    floor_tps: float = 20.0,
    ledger: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Desk]:
    store = SQLiteStore(tmp_path / "books.db")
    store.migrate()
    store.put_key(key)
    tables = {"store": f"sqlite:///{tmp_path}/books.db", "spool": str(tmp_path / "spool"), **(ledger or {})}
    config = config_for(
        engines, express=[{**FAST, "floor_tps": floor_tps}], curve=CURVE, price=PRICE, ledger=tables, **settings
    )
    async with running_gateway(config, key=SECRET) as here:
        yield Desk(here, store)
    verdict = verify(store.entries())
    verify_budgets(verdict, store.slices(), store.keys_since(0))
    assert verdict.problems == []
    assert verdict.open_calls == 0, "after the gateway has ended every call is closed"
    store.close()


async def test_every_call_is_billed_at_the_tier_served_and_the_answer_says_so(tmp_path: Path) -> None:
    async with running(QUICK) as engine, desk(tmp_path, [engine]) as at:
        chat = at.here.openai.chat.completions
        whole = await chat.create(model=MODEL, messages=ASK, max_tokens=20, service_tier="fast")
        usage: Any = whole.usage
        cost = 3 * (usage.prompt_tokens + 10 * 20)
        assert (usage.headway["billed_micro"], usage.headway["refunded_micro"]) == (cost, 0)
        stream = await chat.create(
            model=MODEL, messages=ASK, max_tokens=20, stream=True, stream_options={"include_usage": True}
        )
        last: Any = [chunk async for chunk in stream][-1].usage
        assert last.headway["billed_micro"] == cost // 3
        message = await at.here.anthropic.messages.create(model=MODEL, messages=ASK, max_tokens=20)
        assert message.usage.headway["billed_micro"] == cost // 3  # type: ignore[attr-defined]
        entries = await at.entries(3)
        served = [entry for entry in entries if entry.kind == "served"]
        assert [(entry.tier, entry.amount, entry.output_tokens) for entry in served] == [
            ("fast", cost, 20),
            ("standard", cost // 3, 20),
            ("standard", cost // 3, 20),
        ]
        assert {entry.key for entry in entries} == {"key-test"}
        assert all(entry.seat_us > 0 for entry in served)
        # What is counted, not generated, costs nothing and leaves no entry.
        await at.here.anthropic.messages.count_tokens(model=MODEL, messages=ASK)
        assert len(await at.entries(3)) == 9
        [behind_s] = re.findall(rb"^headway_spool_behind_seconds (.+)$", at.here.gateway.metrics.page(), re.MULTILINE)
        assert 0 <= float(behind_s) < 5


async def test_every_entry_names_the_session_and_the_agent_that_the_client_names(tmp_path: Path) -> None:
    async with running(QUICK) as engine, desk(tmp_path, [engine]) as at:
        named = {"x-claude-code-session-id": "s-1", "x-claude-code-agent-id": "a-1"}
        await at.here.anthropic.messages.create(model=MODEL, messages=ASK, max_tokens=5, extra_headers=named)
        await at.here.anthropic.messages.create(
            model=MODEL, messages=ASK, max_tokens=5, metadata={"user_id": "what I did today"}
        )
        chat = at.here.openai.chat.completions
        await chat.create(model=MODEL, messages=ASK, max_tokens=5, prompt_cache_key="s-2", user="ada")
        await at.here.openai.completions.create(model=MODEL, prompt="hi", max_tokens=5, user="ada")
        entries = await at.entries(4)
        by_call = {
            entry.call_id: {(e.session, e.agent) for e in entries if e.call_id == entry.call_id} for entry in entries
        }
        first, second, *others = [names for [names] in by_call.values()]
        assert (first, others) == (("s-1", "a-1"), [("s-2", None), ("ada", None)])
        assert str(second[0]).startswith("sha256:")
        rows = make_bill(entries, ("session",), {})
        assert [(row.group["session"], row.calls) for row in rows if row.group["session"] in ("ada", "s-1")] == [
            ("ada", 1),
            ("s-1", 1),
        ]


async def usage_of(here: Running, secret: str) -> tuple[int, Any]:
    head = f"GET /v1/usage HTTP/1.1\r\nhost: h\r\nconnection: close\r\nauthorization: Bearer {secret}\r\n\r\n"
    answer = await here.raw(head.encode())
    return int(answer.split(b" ")[1]), msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])


async def test_a_key_sees_its_own_spending_and_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "KEPT_S", 0.0)
    monkeypatch.setattr(reading, "MAX_SHARE", 1e9)
    owner = "hw-of-the-owner"
    key = msgspec.structs.replace(KEY, budget_day=10**6, output_tpm=5_000)
    hashes = [key_hash(owner.encode())]
    async with running(QUICK) as engine, desk(tmp_path, [engine], key, key_hashes=hashes) as at:
        at.store.put_key(Key(id="key-other", hash=key_hash(b"hw-other")))
        chat = at.here.openai.chat.completions
        fast = await chat.create(model=MODEL, messages=ASK, max_tokens=20, service_tier="fast")
        await chat.create(model=MODEL, messages=ASK, max_tokens=20)
        paid = sum(entry.amount for entry in await at.entries(2) if entry.kind in ("served", "refunded"))
        status, page = await usage_of(at.here, SECRET)
        today = page["today"]
        assert (status, page["key"], today["calls"], today["spent_micro"]) == (200, "key-test", 2, paid)
        assert (today["budget_micro"], today["left_micro"]) == (10**6, 10**6 - paid)
        assert [(part["model"], part["tier"]) for part in today["by_model"]] == [(MODEL, "fast"), (MODEL, "standard")]
        assert today["by_model"][0]["spent_micro"] == fast.usage.headway["billed_micro"]  # type: ignore[union-attr]
        assert page["month"]["spent_micro"] == paid
        assert page["limits"][0]["output_tokens_per_minute"] == 5_000
        async with asyncio.timeout(10):
            while (await usage_of(at.here, "hw-other"))[0] == 401:  # until the gateway has read the new key
                await asyncio.sleep(0.05)
        for secret, key_id in (("hw-other", "key-other"), (owner, "key-0")):
            status, page = await usage_of(at.here, secret)
            assert (status, page["key"], page["month"]["calls"], page["month"]["by_model"]) == (200, key_id, 0, [])
        assert (await usage_of(at.here, "hw-unknown"))[0] == 401
        # Without the store the answer is 503: a 401 would make clients throw their key away.
        assert at.here.gateway.books is not None
        at.here.gateway.books.is_store_unavailable = True
        assert (await usage_of(at.here, SECRET))[0] == 503


async def test_a_gateway_with_the_spool_of_another_one_is_not_ready(tmp_path: Path) -> None:
    """A load balancer sends its calls elsewhere: it would refuse them all."""
    async with running(QUICK) as engine, desk(tmp_path, [engine]) as at:
        gateway = at.here.gateway
        assert gateway.books is not None
        assert gateway.is_ready()
        gateway.books._stop_taking_calls(SetupError("another gateway uses it"))
        assert not gateway.is_ready()


async def test_without_a_ledger_there_is_no_usage_page() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        answer = await here.raw(b"GET /v1/usage HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 404")


async def test_a_missed_floor_is_refunded_to_the_standard_price_as_an_entry_of_its_own(tmp_path: Path) -> None:
    async with running(SLOW) as engine, desk(tmp_path, [engine], floor_tps=200.0) as at:  # it gives 50
        whole = await at.here.openai.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=20, service_tier="fast"
        )
        usage: Any = whole.usage
        standard = usage.prompt_tokens + 10 * 20
        assert usage.headway["kept"] is False
        assert (usage.headway["billed_micro"], usage.headway["refunded_micro"]) == (standard, 2 * standard)
        assert (await at.one("served")).amount == 3 * standard
        assert (await at.one("refunded")).amount == -2 * standard


async def test_a_downgraded_call_costs_what_it_was_served_as(tmp_path: Path) -> None:
    async with running(QUICK) as engine, desk(tmp_path, [engine], floor_tps=5_000.0) as at:  # nobody keeps that
        whole = await at.here.openai.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=20, service_tier="fast"
        )
        assert whole.service_tier == "default"
        served = await at.one()
        assert (served.tier_asked, served.tier, served.multiple_milli) == ("fast", "standard", 1000)
        assert served.amount == whole.usage.headway["billed_micro"]  # type: ignore[union-attr]


async def test_a_stream_the_client_cut_is_billed_for_what_was_produced(tmp_path: Path) -> None:
    async with running(SLOW) as engine, desk(tmp_path, [engine]) as at:
        stream = await at.here.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=500, stream=True)
        async for number, _ in _numbered(stream):
            if number == 10:
                break
        await stream.close()
        served = await at.one()
        assert served.outcome == "left"
        assert 8 <= served.output_tokens <= engine.steps.requests[served.call_id].tokens_sent < 500
        assert served.amount == served.prompt_tokens + 10 * served.output_tokens


async def test_seat_time_that_is_told_late_is_booked_by_an_entry_of_its_own(tmp_path: Path) -> None:
    """A client that leaves keeps its seat until the engine has noticed: core tells the seat-time after `served`."""
    async with running(SLOW) as engine, desk(tmp_path, [engine]) as at:
        stream = await at.here.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=500, stream=True)
        async for number, _ in _numbered(stream):
            if number == 10:
                break
        await stream.close()
        served = await at.one()
        assert served.seat_us == 0
        async with asyncio.timeout(10):
            while not (late := [entry for entry in at.store.entries() if entry.kind == "seated"]):
                await asyncio.sleep(0.05)
        assert [(entry.call_id, entry.amount, entry.output_tokens) for entry in late] == [(served.call_id, 0, 0)]
        [row] = make_bill(at.store.entries(), ("key",), {})
        assert row.calls == 1
        assert row.seat_us == late[0].seat_us > 100_000  # the tenth of a second that it kept its seat, and more
        assert not at.here.gateway._unsettled


async def test_an_answer_does_not_wait_for_a_core_that_is_late(tmp_path: Path) -> None:
    async with running(QUICK) as engine, desk(tmp_path, [engine]) as at:
        gateway = at.here.gateway
        late: list[Settled] = []

        def step(event: Event, now: float, real: Any = gateway.machine.step) -> list[Action]:
            actions: list[Action] = real(event, now)
            late.extend(action for action in actions if isinstance(action, Settled))
            return [action for action in actions if not isinstance(action, Settled)]

        gateway.machine.step = step  # type: ignore[method-assign]
        whole = await at.here.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=20)
        assert whole.usage.headway["seat_seconds"] is None  # type: ignore[union-attr]
        await at.here.until_empty()
        [settled] = late
        gateway.do(settled)
        async with asyncio.timeout(10):
            while not (booked := [entry for entry in at.store.entries() if entry.kind == "seated"]):
                await asyncio.sleep(0.05)
        assert [entry.seat_us for entry in booked] == [settled.seat_us]
        assert (await at.one()).seat_us == 0


async def test_an_engine_that_dies_in_the_middle_is_not_billed_beyond_what_was_delivered(tmp_path: Path) -> None:
    async with running(QUICK) as engine, desk(tmp_path, [engine]) as at:
        engine.faults = Faults(die_after_tokens=7, times=1)
        stream = await at.here.openai.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=50, stream=True, seed=1
        )
        with pytest.raises(openai.APIError):
            [chunk async for chunk in stream]
        served = await at.one()
        assert (served.outcome, served.output_tokens) == ("failed", 7)


async def test_a_stream_that_finds_no_other_engine_is_billed_for_what_was_delivered(tmp_path: Path) -> None:
    """Nor does its account wait for ever to hear of its seat-time."""
    async with running(QUICK) as engine, desk(tmp_path, [engine]) as at:
        engine.faults = Faults(die_after_tokens=7)
        stream = await at.here.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=50, stream=True)
        with pytest.raises(openai.APIError, match="closed the connection"):
            [chunk async for chunk in stream]
        served = await at.one()
        assert (served.outcome, served.output_tokens, served.amount > 0) == ("failed", 21, True)
        assert served.seat_us > 0
        assert not at.here.gateway._unsettled
        await at.here.until_empty()


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_call_that_needed_two_engines_is_billed_once(tmp_path: Path, streaming: bool) -> None:
    async with running(QUICK) as bad, running(QUICK) as good, desk(tmp_path, [bad, good]) as at:
        bad.faults = Faults(die_after_tokens=0)

        async def call(number: int) -> None:
            answer: Any = await at.here.openai.completions.create(
                model=MODEL, prompt=f"{number}", max_tokens=9, stream=streaming
            )
            if streaming:
                [chunk async for chunk in answer]

        await asyncio.gather(*[call(number) for number in range(8)])
        served = [entry for entry in await at.entries(8) if entry.kind == "served"]
        assert [(entry.output_tokens, entry.outcome) for entry in served] == [(9, "finished")] * 8
        assert {entry.attempt for entry in served} == {1, 2}


async def test_a_whole_answer_that_never_came_costs_nothing(tmp_path: Path) -> None:
    async with running(QUICK) as engine, desk(tmp_path, [engine]) as at:
        engine.faults = Faults(die_after_tokens=5)
        with pytest.raises(anthropic.APIStatusError):
            await at.here.anthropic.messages.create(model=MODEL, messages=ASK, max_tokens=30, speed="fast")
        assert (await at.one()).amount == 0


async def test_the_budget_is_asked_before_and_what_was_not_used_is_there_again(tmp_path: Path) -> None:
    key = msgspec.structs.replace(KEY, budget_day=20_000)
    async with running(QUICK) as engine, desk(tmp_path, [engine], key) as at:
        for _ in range(5):  # each may cost most of the budget, and costs little
            answer = await at.here.openai.completions.create(model=MODEL, prompt="hi", max_tokens=1_000, stop=["river"])
            assert answer.usage is not None
            assert answer.usage.completion_tokens < 300
        with pytest.raises(openai.APIStatusError, match="budget") as refused:
            await at.here.openai.completions.create(model=MODEL, prompt="hi", max_tokens=4_000)
        assert refused.value.status_code == 402
        with pytest.raises(anthropic.APIStatusError, match="budget") as said:
            await at.here.anthropic.messages.create(model=MODEL, messages=ASK, max_tokens=4_000)
        assert said.value.status_code == 402
        # One that sets no limit is given one, so that its worst case is known.
        with pytest.raises(openai.APIStatusError, match="max_tokens"):
            await at.here.openai.completions.create(model=MODEL, prompt="hi")


async def test_who_has_used_up_the_month_is_told_when_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noon_us = int(datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp()) * 1_000_000
    key = msgspec.structs.replace(KEY, budget_day=10**9, budget_month=1)
    async with running(QUICK) as engine, desk(tmp_path, [engine], key) as at:
        monkeypatch.setattr("headway.ledger.books.now_us", lambda: noon_us)
        with pytest.raises(openai.APIStatusError, match="budget") as refused:
            await at.here.openai.completions.create(model=MODEL, prompt="hi", max_tokens=10)
        assert refused.value.response.headers["retry-after"] == str(15 * 86_400 + 43_200)


@pytest.mark.parametrize("days", [2, -2])
async def test_setting_the_clock_makes_keys_neither_older_nor_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    async with running(QUICK) as engine, desk(tmp_path, [engine]) as at:
        books, ahead_ns, real_ns = at.here.gateway.books, days * DAY_US * 1_000, time.time_ns
        assert books is not None
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + ahead_ns)
        assert books.find_key(KEY.hash) is not None
        books._key_cache_us = 0
        with pytest.raises(Refused):
            books.find_key(KEY.hash)


async def test_a_call_without_a_limit_on_a_key_without_a_budget_leaves_consistent_books(tmp_path: Path) -> None:
    async with running(QUICK) as engine, desk(tmp_path, [engine]) as at:
        answer = await at.here.openai.completions.create(model=MODEL, prompt="hi")
        assert answer.usage is not None
        assert (await at.one()).output_tokens == answer.usage.completion_tokens > 0
        assert (await at.one("reserved")).amount == 0  # it has no maximum


async def test_a_line_that_cannot_be_read_is_counted_and_what_follows_is_billed(tmp_path: Path) -> None:
    async with running(QUICK) as engine, desk(tmp_path, [engine]) as at:
        books = at.here.gateway.books
        assert books is not None
        with books.spool._segments[-1].open("ab") as segment:
            segment.write(b'["entry",{"call_id":1.5}]\n')
        await at.here.openai.completions.create(model=MODEL, prompt="hi", max_tokens=5)
        assert (await at.one()).output_tokens == 5
        assert b"headway_spool_bad_lines 1.0" in at.here.gateway.metrics.page()


async def test_a_question_about_a_budget_that_the_store_does_not_answer_is_a_503(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books_module, "LEASE_S", 0.2)
    may_answer, real = threading.Event(), SQLiteStore.lease

    def late(store: SQLiteStore, lease: Lease, budget: int, at_us: int) -> int:
        may_answer.wait(10)
        return real(store, lease, budget, at_us)

    monkeypatch.setattr(SQLiteStore, "lease", late)
    key = msgspec.structs.replace(KEY, budget_day=10**9)
    async with running(QUICK) as engine, desk(tmp_path, [engine], key) as at:
        with pytest.raises(openai.InternalServerError) as refused:
            await at.here.openai.completions.create(model=MODEL, prompt="hi", max_tokens=5)
        assert refused.value.status_code == 503
        may_answer.set()
        await at.here.openai.completions.create(model=MODEL, prompt="hi", max_tokens=5)
        assert len(at.store.slices()) == 1, "the same question, answered once"


async def test_keys_allow_models_and_tiers(tmp_path: Path) -> None:
    key = msgspec.structs.replace(KEY, tiers=["standard"], models=[MODEL], requests_pm=3)
    async with running(QUICK) as engine, desk(tmp_path, [engine], key) as at:
        completions = at.here.openai.completions
        with pytest.raises(openai.PermissionDeniedError, match="does not allow the tier `fast`"):
            await completions.create(model=MODEL, prompt="hi", max_tokens=2, extra_body={"service_tier": "fast"})
        for _ in range(3):
            await completions.create(model=MODEL, prompt="hi", max_tokens=2)
        with pytest.raises(openai.RateLimitError) as refused:
            await completions.create(model=MODEL, prompt="hi", max_tokens=2)
        assert 0 < int(refused.value.response.headers["retry-after"]) <= 20
        with pytest.raises(openai.AuthenticationError):
            await at.here.openai.with_options(api_key="hw-unknown").models.list()
        page = await at.here.raw(
            b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-api-key: %b\r\n\r\n" % SECRET.encode()
        )
        assert b" 403 " in page.splitlines()[0], "what all tenants do is for the owner's key"
        at.store.put_key(msgspec.structs.replace(key, revoked_us=1))
        async with asyncio.timeout(10):
            while True:
                try:
                    await at.here.openai.models.list()
                except openai.AuthenticationError:
                    break
                await asyncio.sleep(0.05)


async def test_an_end_is_released_only_when_what_it_cost_is_on_the_disk(tmp_path: Path) -> None:
    async with running(QUICK) as engine, desk(tmp_path, [engine]) as at:
        assert at.here.gateway.books is not None
        spool = at.here.gateway.books.spool
        synced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        spool.durable = lambda: synced  # type: ignore[method-assign]
        body = b'{"model":"scripted","prompt":"hi","max_tokens":5,"stream":true}'
        ask = post("/v1/completions", body, b"x-api-key: " + SECRET.encode())
        reader, writer = await asyncio.open_connection("127.0.0.1", at.here.port)
        writer.write(ask)
        before = await reader.readuntil(b'"finish_reason":"length"')
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readuntil(b"[DONE]"), 0.3)
        [path] = spool.directory.glob("*.jsonl")
        assert b'"kind":"served"' in path.read_bytes()
        synced.set_result(None)
        assert b"[DONE]" not in before
        assert b"[DONE]" in await reader.read()
        writer.close()


async def test_a_call_that_waited_while_the_disk_failed_is_refused_and_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would know of it if the gateway was killed before the disk takes something again."""

    def fail(*_: object) -> int:
        raise OSError("the disk fails")

    async with running(SLOW) as engine, desk(tmp_path, [engine], seats=1) as at:
        books = at.here.gateway.books
        assert books is not None
        first = await at.here.openai.completions.create(model=MODEL, prompt="one", max_tokens=20, stream=True)
        second = asyncio.create_task(at.here.openai.completions.create(model=MODEL, prompt="two", max_tokens=5))
        while not at.here.gateway.machine.pool_of(MODEL).waiting.is_anyone_held("standard"):
            await asyncio.sleep(0.01)
        with monkeypatch.context() as patch:
            patch.setattr(spool_module, "create_segment", fail)
            books.spool._is_broken = True
            await first.close()
            with pytest.raises(openai.InternalServerError) as refused:
                await second
        assert (refused.value.status_code, refused.value.code) == (503, "books_full")
        asked = [name for name in engine.record()["requests"] if len(name) > len("0000000000000001")]  # not the probe's
        assert len(asked) == 1
        assert {entry.outcome for entry in await at.entries() if entry.kind == "served"} == {"left"}


async def test_a_killed_gateways_streams_are_billed_by_its_next_run(tmp_path: Path) -> None:
    async with running(SLOW) as engine:
        async with desk(tmp_path, [engine]) as at:
            books = at.here.gateway.books
            assert books is not None
            stream = await at.here.openai.chat.completions.create(
                model=MODEL, messages=ASK, max_tokens=300, stream=True, service_tier="fast"
            )
            async for number, _ in _numbered(stream):
                if number == 20:
                    break
            # The directory as it is at this moment is what a kill leaves.
            left = {path.name: path.read_bytes() for path in books.spool.directory.iterdir()}
            await stream.close()
        for path in tmp_path.glob("books.db*"):
            path.unlink()
        for name, content in left.items():
            (tmp_path / "spool" / name).write_bytes(content)
        async with desk(tmp_path, [engine]) as at:
            served = await at.one()
            assert served.outcome == "gateway_lost"
            assert 20 - 8 <= served.output_tokens <= 21  # at most one checkpoint, of 0.1 s, low
            assert (await at.one("refunded")).amount < 0  # nothing was proved of its speed


async def test_with_the_store_away_calls_are_served_until_the_spool_is_full(tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    ledger = {"store": f"sqlite:///{tmp_path}/away/books.db", "spool_bytes": 64 * 1024}
    async with running(QUICK) as engine, desk(tmp_path, [engine]):
        pass  # one run with the store there: it leaves its keys behind
    (tmp_path / "away").rmdir()
    (tmp_path / "away").write_text("in the way")
    async with running(QUICK) as engine:
        config = config_for([engine], price=PRICE, ledger={**ledger, "spool": str(tmp_path / "spool")})
        async with running_gateway(config, key=SECRET) as here:
            served = 0
            with pytest.raises(openai.InternalServerError) as refused:
                for _ in range(1_000):
                    await here.openai.completions.create(model=MODEL, prompt="hi", max_tokens=2)
                    served += 1
            assert refused.value.status_code == 503
            assert "retry-after" in refused.value.response.headers
            assert served > 20
            page = here.gateway.metrics.page()
            size, limit, behind_s = (
                float(one) for one in re.findall(rb"^headway_spool_(?!bad).+ (.+)$", page, re.MULTILINE)
            )
            assert limit == 64 * 1024 <= size
            assert behind_s > 0.2
            with pytest.raises(openai.InternalServerError):  # perhaps it was made since: not 401
                await here.openai.with_options(api_key="hw-unknown").models.list()
            (tmp_path / "away").unlink()
            async with asyncio.timeout(20):
                while True:
                    try:
                        await here.openai.completions.create(model=MODEL, prompt="hi", max_tokens=2)
                        break
                    except (openai.InternalServerError, openai.AuthenticationError):
                        await asyncio.sleep(0.1)
                        store = SQLiteStore(tmp_path / "away" / "books.db")
                        store.migrate()
                        store.put_key(KEY)
                        store.close()
        store = SQLiteStore(tmp_path / "away" / "books.db")
        verdict = verify(store.entries())
        assert (verdict.problems, verdict.calls) == ([], served + 1)
        store.close()


async def test_tenants_do_not_share_an_engines_cache_and_no_secret_is_written_anywhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    bodies: list[bytes] = []
    async with running(QUICK) as engine, desk(tmp_path, [engine]) as at:
        pool: Any = at.here.gateway.replicas.engine(engine.url)
        real_send = pool.send

        async def send(request: EngineRequest, before_write: Callable[[], None]) -> Any:
            bodies.append(request.body)
            return await real_send(request, before_write)

        pool.send = send
        other = "hw-another-key"
        at.store.put_key(Key(id="key-other", hash=key_hash(other.encode())))
        prompt = "the prompt that nobody may read"
        async with asyncio.timeout(10):
            while len(bodies) < 2:
                try:
                    sdk = at.here.openai.with_options(api_key=other)
                    await sdk.completions.create(model=MODEL, prompt=prompt, max_tokens=2)
                    await at.here.openai.completions.create(model=MODEL, prompt=prompt, max_tokens=2)
                except openai.AuthenticationError:  # not known yet
                    await asyncio.sleep(0.05)
        salts = [msgspec.json.decode(body)["cache_salt"] for body in bodies]
        assert len(set(salts)) == 2
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()) + caplog.text.encode()
    for secret in (SECRET, other, prompt):
        assert secret.encode() not in written


async def _numbered(stream: Any) -> AsyncIterator[tuple[int, Any]]:
    number = 0
    async for chunk in stream:
        yield number, chunk
        number += 1
