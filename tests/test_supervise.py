"""Background tasks: a task that fails is started again, counted and told, and the gateway says when it cannot do without."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from headway import supervise
from headway.dispatch.local import LocalDispatch
from headway.engines.scripted import Script, running
from headway.supervise import Supervisor, measure_lag
from tests.running import MODEL, config_for, running_gateway

pytestmark = pytest.mark.anyio
QUICK = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.002),))


async def test_a_task_that_fails_is_started_again_counted_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervise, "FIRST_WAIT_S", 0.001)
    runs = 0
    is_working = asyncio.Event()

    async def fails_twice() -> None:
        nonlocal runs
        runs += 1
        if runs <= 2:
            raise ZeroDivisionError("of no use")
        is_working.set()
        await asyncio.Event().wait()

    supervisor = Supervisor()
    task = supervisor.start("worker", fails_twice, matters=True)
    await asyncio.wait_for(is_working.wait(), 20)
    assert supervisor.restarts() == {"worker": 2}
    assert supervisor.is_well
    told = [record for record in caplog.records if record.name == "headway.tasks"]
    assert [record.levelno for record in told] == [logging.ERROR] * 2
    assert all(record.exc_info is not None and "of no use" in str(record.exc_info[1]) for record in told)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert supervisor.restarts() == {}


async def test_each_failure_in_a_row_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    sleep = asyncio.sleep

    async def note(wait_s: float) -> None:
        waits.append(wait_s)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    enough = asyncio.Event()

    async def fails() -> None:
        if len(waits) == 1_100:  # of which the doubled wait is larger than any float
            enough.set()
            await asyncio.Event().wait()
        raise OSError

    task = Supervisor().start("worker", fails)
    await asyncio.wait_for(enough.wait(), 20)
    task.cancel()
    assert waits[:4] == [0.1, 0.2, 0.4, 0.8]
    assert set(waits[7:]) == {supervise.MAX_WAIT_S}


async def test_without_a_task_that_matters_nothing_is_well_until_it_has_recovered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervise, "FIRST_WAIT_S", 0.001)
    now = 0.0
    is_broken, is_working = True, asyncio.Event()

    async def work() -> None:
        if is_broken:
            raise OSError
        is_working.set()
        await asyncio.Event().wait()

    async def fails() -> None:
        raise OSError

    supervisor = Supervisor(lambda: now)
    tasks = [supervisor.start("matters", work, matters=True), supervisor.start("does not", fails)]
    async with asyncio.timeout(20):
        while supervisor.restarts()["matters"] < supervise.MAX_FAILURES:
            await asyncio.sleep(0.001)
    assert not supervisor.is_well
    is_broken = False
    await asyncio.wait_for(is_working.wait(), 20)
    assert not supervisor.is_well, "it may fail again at once"
    now += supervise.STEADY_S
    assert supervisor.is_well
    for task in tasks:
        task.cancel()


async def test_a_late_event_loop_is_measured() -> None:
    seen: list[float] = []
    task = asyncio.create_task(measure_lag(seen.append))
    await asyncio.sleep(0)
    time.sleep(supervise.LAG_S + 0.11)
    async with asyncio.timeout(20):
        while not seen:
            await asyncio.sleep(0.001)
    task.cancel()
    assert seen[0] >= 0.1


async def test_the_gateway_counts_its_tasks_and_is_not_ready_without_one_that_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervise, "FIRST_WAIT_S", 0.001)

    async def fails(_self: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(LocalDispatch, "_tick", fails)
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        async with asyncio.timeout(20):
            while here.gateway.supervisor.restarts()["tick"] < supervise.MAX_FAILURES:
                await asyncio.sleep(0.001)
        assert not here.gateway.is_ready()
        page = (await here.raw(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")).decode()
        assert f'headway_task_restarts_total{{task="prober {engine.url}"}} 0.0' in page
        assert 'headway_task_restarts_total{task="tick"}' in page
        assert "headway_loop_lag_seconds_bucket" in page
