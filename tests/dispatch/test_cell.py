"""A cell in one process: a dispatcher, its relays over a socket, scripted engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI

from headway.config import Config, as_text
from headway.core.types import Cut, Preempt, ReplicaDown, ReplicaSuspect
from headway.deciding import DispatchedConfig, make_dispatcher, members_of, policies_of
from headway.dispatch import relay_session
from headway.dispatch.address import Address, UnixAddress
from headway.dispatch.base import ServedConfig
from headway.dispatch.dispatcher import Dispatcher
from headway.dispatch.endpoints import Listener, listen
from headway.dispatch.record import replay
from headway.dispatch.remote import GRACE_S, RemoteDispatch
from headway.engines.scripted import Faults, Script, running
from headway.gateway.serve import Gateway
from headway.live import RelayConfig
from headway.run import running_gateway as run_gateway
from tests.running import MODEL, config_for, http_client

pytestmark = pytest.mark.anyio
QUICK = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.002),))
SLOW = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.02),))
ASK: Any = [{"role": "user", "content": "two words"}]
CURVE = [[1, 100.0], [4, 90.0], [8, 40.0]]
FAST = {"name": "fast", "floor_tps": 80.0, "max_hold_s": 10.0}


@dataclass
class Relay:
    gateway: Gateway
    sdk: AsyncOpenAI
    dispatch: RemoteDispatch

    async def call(self, tokens: int = 5, tier: str = "default", **more: Any) -> Any:
        return await self.sdk.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=tokens, extra_body={"service_tier": tier}, **more
        )


@dataclass
class Cell:
    config: Config
    path: Path
    dispatcher: Dispatcher
    relays: list[Relay] = field(default_factory=list)
    epoch: int = 1
    _listener: Listener | None = None
    _running: asyncio.Task[None] | None = None

    @property
    def pool(self) -> Any:
        return self.dispatcher.machine.pools[MODEL]

    async def lead(self, record: Path | None = None) -> None:
        """Start a dispatcher, after the one before it if there was one."""
        names = [f"relay-{number}" for number in range(len(self.relays) or 2)]
        self.dispatcher = make_dispatcher(self.config, self.epoch, names, record)
        DispatchedConfig(self.config, lambda: self.dispatcher).lead(self.dispatcher)
        self._listener = await listen(UnixAddress(self.path), self.dispatcher.make_session, None)
        self._running = asyncio.create_task(self.dispatcher.run())

    async def die(self) -> None:
        """As if the dispatcher had been killed."""
        assert self._listener is not None
        assert self._running is not None
        self._running.cancel()
        await self._listener.close()
        for session in self.dispatcher.sessions.values():
            session.link.abort("killed")
        self.dispatcher.close()
        self.epoch += 1

    def change(self, config: Config) -> None:
        """As if the dispatcher had read this in its file."""
        self.config = config
        self.dispatcher.reconfigure(as_text(config), *policies_of(config), members_of(config))

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.01)

    async def until_open(self, replicas: int) -> None:
        await self.until(lambda: self.pool.open_replicas == replicas)

    async def until_empty(self) -> None:
        await self.until(
            lambda: not self.dispatcher.machine.calls and not any(relay.gateway._trips for relay in self.relays)
        )


@asynccontextmanager
async def running_cell(
    tmp_path: Path, config: Config, relays: int = 2, record: Path | None = None
) -> AsyncIterator[Cell]:
    folder = tmp_path / "cell"
    folder.mkdir(mode=0o700)
    cell = Cell(config, folder / "dispatcher", None)  # type: ignore[arg-type]
    async with AsyncExitStack() as stack:
        await cell.lead(record)
        stack.push_async_callback(cell.die)
        for number in range(relays):
            served = ServedConfig(as_text(config), policies_of(config)[1])
            addresses: list[Address] = [UnixAddress(cell.path)]
            live = RelayConfig(config, lambda changed: changed)
            dispatch = RemoteDispatch(addresses, None, f"relay-{number}", f"run-{number}", served, live.take)
            live.dispatch = dispatch
            gateway, port = await stack.enter_async_context(run_gateway(config, relay=(dispatch, live)))
            url = f"http://127.0.0.1:{port}/v1"
            sdk = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, http_client=http_client())
            await stack.enter_async_context(sdk)
            cell.relays.append(Relay(gateway, sdk, dispatch))
        await cell.until_open(len(config.models[0].replicas))
        yield cell


async def test_an_engine_that_stalls_is_taken_out_also_if_another_relay_probes_it(tmp_path: Path) -> None:
    async with running(SLOW) as engine, running_cell(tmp_path, config_for([engine], stall_s=0.5)) as cell:
        prober = cell.dispatcher.cell._dealing.holder(engine.url)
        [other] = [relay for relay in cell.relays if relay.dispatch._run != prober]
        call = asyncio.create_task(other.call(50))
        await cell.until(lambda: engine.record()["running"] == 1)
        engine.faults = Faults(hang_after_tokens=5)
        await cell.until_open(0)
        engine.faults = Faults()
        assert (await call).usage.completion_tokens == 50  # after it was sent again


async def test_calls_of_two_relays_share_the_seats_of_one_replica(tmp_path: Path) -> None:
    async with running(SLOW) as engine, running_cell(tmp_path, config_for([engine], seats=3)) as cell:
        a, b = cell.relays
        answers = await asyncio.gather(*[relay.call(10) for relay in (a, b) for _ in range(5)])
        assert [answer.usage.completion_tokens for answer in answers] == [10] * 10
        assert engine.record()["highest_running"] == 3
        await cell.until_empty()
        assert cell.pool.aboard(engine.url) == 0


async def test_a_floor_holds_over_all_relays(tmp_path: Path) -> None:
    as_its_curve = tuple((int(streams), 1 / tps) for streams, tps in CURVE)  # core learns from an engine that is faster
    async with running(Script(model=MODEL, first_token_s=0.005, step_s=as_its_curve)) as engine:
        config = config_for([engine], seats=8, express=[FAST], curve=CURVE)
        async with running_cell(tmp_path, config) as cell:
            a, b = cell.relays
            answers = await asyncio.gather(*[relay.call(20, "fast") for relay in (a, b) for _ in range(6)])
            assert {answer.service_tier for answer in answers} == {"fast"}
            assert engine.record()["highest_running"] <= 4  # with five, a stream would have 77.5 tokens per second


async def test_only_of_calls_that_may_be_moved_the_dispatcher_hears_that_they_stay(tmp_path: Path) -> None:
    """A call with a seed cannot go on elsewhere, so it stays once it is answered; only a flex call was movable before."""
    record = tmp_path / "record"
    async with (
        running(QUICK) as engine,
        running_cell(tmp_path, config_for([engine], express=[{"name": "flex"}]), relays=1, record=record) as cell,
    ):
        for tier in ("default", "flex"):
            for seed in (1, None):
                async for _ in await cell.relays[0].call(tier=tier, stream=True, seed=seed):
                    pass
        await cell.until_empty()
    assert record.read_text().count('"Arrived"') == 4
    assert record.read_text().count('"Delivering"') == 1


async def test_each_replica_is_probed_by_one_relay(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(running(QUICK)) for _ in range(5)]
        cell = await stack.enter_async_context(running_cell(tmp_path, config_for(engines)))
        hands = cell.dispatcher.cell._dealing.hands.values()
        assert sorted(name for hand in hands for name in hand) == sorted(engine.url for engine in engines)
        assert sorted(map(len, hands)) == [2, 3]


@pytest.mark.parametrize("order", [Cut, Preempt])
async def test_an_order_for_a_seat_that_is_lost_already_does_not_end_the_next_one(
    tmp_path: Path, order: type[Cut | Preempt], caplog: pytest.LogCaptureFixture
) -> None:
    async with running(SLOW) as engine, running_cell(tmp_path, config_for([engine], seats=1)) as cell:
        relay = cell.relays[0]
        first = asyncio.create_task(relay.call(20))
        await cell.until(lambda: engine.record()["running"] == 1)
        held = asyncio.create_task(relay.call(5))
        await cell.until(lambda: cell.pool.waiting.held == 1)
        [waiting] = [trip for trip in relay.gateway._trips.values() if not trip.seat.done()]
        relay.gateway.do(order(waiting.call.id))
        for answer, tokens in zip(await asyncio.gather(first, held), (20, 5), strict=True):
            assert answer.usage.completion_tokens == tokens
        assert waiting.boardings == 1
        assert "taken off" not in caplog.text


async def test_links_outlive_a_pause_of_both_sides(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(QUICK) as engine, running_cell(tmp_path, config_for([engine])) as cell:
        before = {session.link for session in cell.dispatcher.sessions.values()}
        time.sleep(2.0)
        for relay in cell.relays:
            assert (await relay.call()).usage.completion_tokens == 5
        await asyncio.sleep(2 * relay_session.BEAT_S)
        assert {session.link for session in cell.dispatcher.sessions.values()} == before
        assert "silent" not in caplog.text


async def test_streams_go_on_when_the_dispatcher_dies_and_the_next_one_adopts_them(tmp_path: Path) -> None:
    record = tmp_path / "events.jsonl"
    async with running(SLOW) as engine, running_cell(tmp_path, config_for([engine], seats=2)) as cell:
        a, b = cell.relays
        running_calls = [asyncio.create_task(relay.call(60)) for relay in (a, b)]
        await cell.until(lambda: engine.record()["running"] == 2)
        held = asyncio.create_task(a.call(5))
        await cell.until(lambda: cell.pool.waiting.held == 1)
        await cell.die()
        arrived = asyncio.create_task(b.call(5))
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in (*running_calls, held, arrived))
        await cell.lead(record)
        await cell.until_open(1)
        assert cell.pool.aboard(engine.url) == 2
        assert cell.dispatcher.machine.calls == 4
        answers = await asyncio.gather(*running_calls, held, arrived)
        assert [answer.usage.completion_tokens for answer in answers] == [60, 60, 5, 5]
        assert engine.record()["highest_running"] == 2
        await cell.until_empty()
        assert not any(relay.gateway._unsettled for relay in cell.relays)
    assert replay(record).first_difference is None


async def test_what_a_relay_could_not_tell_while_it_was_cut_off_is_told_later(tmp_path: Path) -> None:
    async with running(QUICK) as engine, running(SLOW) as other:
        config = config_for([engine, other], seats=2)
        async with running_cell(tmp_path, config, relays=1) as cell:
            [relay] = cell.relays
            ending = asyncio.create_task(relay.call(20))
            await cell.until(lambda: engine.record()["running"] + other.record()["running"] == 1)
            assert relay.dispatch._link is not None
            idle = engine if other.record()["running"] else other  # a call that is cut would let the relay probe
            relay.gateway.tell(ReplicaDown(idle.url))  # the dispatcher takes it for dead
            await cell.until_open(1)
            relay.dispatch._link.abort("cut off")
            await cell.until_open(2)  # the relay has known all the time that it is up
            await ending
            await cell.until_empty()
            assert not relay.gateway._unsettled


async def test_a_call_that_waits_for_its_entries_takes_no_seat_of_the_next_dispatcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = asyncio.Event()

    async def write(_account: object, _receipt: object) -> None:
        await written.wait()

    async with running(QUICK) as engine, running_cell(tmp_path, config_for([engine], seats=2), relays=1) as cell:
        [relay] = cell.relays
        monkeypatch.setattr(relay.gateway._billing, "write", write)
        ending = asyncio.create_task(relay.call(5))
        await cell.until(lambda: any(trip.is_finished for trip in relay.gateway._trips.values()))
        await cell.die()
        await cell.lead()
        await cell.until_open(1)
        assert cell.pool.aboard(engine.url) == 0
        written.set()
        assert (await ending).usage.completion_tokens == 5
        await cell.until_empty()


async def test_without_a_dispatcher_a_call_is_refused_at_its_deadline(tmp_path: Path) -> None:
    async with running(QUICK) as engine:
        config = config_for([engine], tier={"max_hold_s": 0.3})
        async with running_cell(tmp_path, config) as cell:
            await cell.die()
            with pytest.raises(APIStatusError) as refused:
                await cell.relays[0].call(5)
            assert refused.value.status_code == 503
            assert "assigns seats" in str(refused.value)
            assert not cell.relays[0].gateway._trips
            await cell.lead()


async def test_without_a_dispatcher_a_fast_call_that_may_waits_on_as_standard(tmp_path: Path) -> None:
    fast = {**FAST, "max_hold_s": 0.3}
    async with running(QUICK) as engine:
        config = config_for([engine], tier={"max_hold_s": 20.0}, express=[fast], curve=CURVE)
        async with running_cell(tmp_path, config) as cell:
            relay = cell.relays[0]
            await cell.die()
            with pytest.raises(APIStatusError) as refused:
                await relay.call(5, "fast", extra_headers={"Headway-Fallback": "none"})
            assert refused.value.status_code == 503
            falling = asyncio.create_task(relay.call(5, "fast"))
            await cell.until(lambda: [trip.grant.tier for trip in relay.gateway._trips.values()] == ["standard"])
            [trip] = relay.gateway._trips.values()
            assert trip.adopted(relay.gateway._clock()).waited_s < 0.3  # as standard
            await cell.lead()
            answer = await falling
            proof = answer.usage.model_dump()["headway"]
            assert (answer.service_tier, proof["reason"]) == ("default", "no_dispatcher")
            await cell.until_empty()


async def test_a_relay_stays_ready_while_its_dispatcher_is_replaced(tmp_path: Path) -> None:
    async with running(QUICK) as engine, running_cell(tmp_path, config_for([engine])) as cell:
        relay = cell.relays[0]
        await cell.until(relay.gateway.is_ready)
        await cell.die()
        await cell.until(lambda: relay.dispatch._link is None)
        assert relay.gateway.is_ready()
        now = relay.dispatch._clock
        relay.dispatch._clock = lambda: now() + GRACE_S
        assert not relay.gateway.is_ready()
        relay.dispatch._clock = now
        await cell.lead()


async def test_a_dispatcher_that_renews_no_lease_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(relay_session, "UNDECIDED_S", 0.5)
    async with running(QUICK) as engine, running_cell(tmp_path, config_for([engine])) as cell:
        monkeypatch.setattr(cell.dispatcher, "on_beat", lambda _: False)
        await cell.until(lambda: "the dispatcher does not decide" in caplog.text)
        monkeypatch.undo()
        assert (await cell.relays[0].call(5)).usage.completion_tokens == 5


async def test_what_an_engine_runs_and_nobody_reported_takes_seats_until_it_is_gone(tmp_path: Path) -> None:
    """As of a relay that the new dispatcher has never heard of."""
    async with running(SLOW) as engine, running_cell(tmp_path, config_for([engine], seats=2)) as cell:
        await cell.die()
        stranger = AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", http_client=http_client())
        unknown = asyncio.create_task(stranger.chat.completions.create(model=MODEL, messages=ASK, max_tokens=100))
        await cell.until(lambda: engine.record()["running"] == 1)
        await cell.lead()
        await cell.until_open(1)
        assert cell.pool.replica_state(engine.url).strangers == 1
        await asyncio.gather(*[relay.call(5) for relay in cell.relays for _ in range(3)])
        assert engine.record()["highest_running"] == 2
        await unknown
        await cell.until(lambda: not cell.pool.replica_state(engine.url).strangers)
        await stranger.close()


async def test_the_seats_of_a_relay_that_is_gone_are_freed_when_its_engine_has_stopped_them(tmp_path: Path) -> None:
    async with running(SLOW) as engine, running_cell(tmp_path, config_for([engine], seats=2)) as cell:
        a, b = cell.relays
        lost = asyncio.create_task(a.call(500))
        await cell.until(lambda: engine.record()["running"] == 1)
        a.dispatch._tasks[0].cancel()  # it is cut off, and its stream goes on
        assert a.dispatch._link is not None
        a.dispatch._link.abort("cut off")
        await asyncio.sleep(1.6)
        assert cell.pool.aboard(engine.url) == 1  # the engine still runs it
        lost.cancel()
        await cell.until(lambda: cell.pool.aboard(engine.url) == 0)
        await cell.until(lambda: [one.relay for one in cell.dispatcher.sessions.values()] == ["relay-1"])
        await b.call(5)


async def test_a_relay_does_not_write_to_an_engine_after_its_lease(tmp_path: Path) -> None:
    async with running(QUICK) as engine, running_cell(tmp_path, config_for([engine])) as cell:
        relay = cell.relays[0]
        relay.dispatch._leased_until = 0.0  # it was stopped for so long
        assert not relay.dispatch.may_send(relay.dispatch.epoch)
        assert (await relay.call(5)).usage.completion_tokens == 5  # once a beat has been answered
        assert relay.dispatch.may_send(relay.dispatch.epoch)
        assert not relay.dispatch.may_send(relay.dispatch.epoch - 1)


async def test_an_engine_that_fails_a_call_is_probed_by_whoever_probes_it(tmp_path: Path) -> None:
    async with running(QUICK) as one, running(QUICK) as two, running_cell(tmp_path, config_for([one, two])) as cell:
        one.faults = Faults(die_after_tokens=0)
        answers = await asyncio.gather(*[relay.call(5) for relay in cell.relays for _ in range(4)])
        assert len(answers) == 8
        await cell.until_open(1)
        one.faults = Faults()
        await cell.until_open(2)


async def test_an_event_of_a_replica_that_is_not_known_changes_nothing(tmp_path: Path) -> None:
    async with running(QUICK) as engine, running_cell(tmp_path, config_for([engine])) as cell:
        cell.relays[0].gateway.tell(ReplicaSuspect("http://elsewhere"))
        assert (await cell.relays[0].call(5)).usage.completion_tokens == 5
