"""A configuration that changes while the gateway runs, and what an admin may do."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from headway import config_file
from headway.config import load
from headway.core.demand import PoolDemand
from headway.dispatch.record import replay
from headway.engines.scripted import Script, ScriptedEngine, running
from tests.running import MODEL, Running, config_for, running_gateway

pytestmark = pytest.mark.anyio
SLOW = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.02),))
ADMIN = "an-admin-key"
HASHED = hashlib.sha256(ADMIN.encode()).hexdigest()
AS_ADMIN = {"authorization": f"Bearer {ADMIN}"}


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_file, "LOOK_S", 0.02)


def toml(engines: list[ScriptedEngine], *lines: str, seats: int = 4, name: str = MODEL, tiers: str = "") -> str:
    """`lines` are of the table [gateway]."""
    head = ["[gateway]", "port = 0", "probe_interval_s = 0.05", f'admin_key_hashes = ["{HASHED}"]', *lines]
    replicas = [f'[[models.replicas]]\nurl = "{engine.url}"\nseats = {seats}' for engine in engines]
    return "\n".join([*head, "[[models]]", f'name = "{name}"', tiers, *replicas])


class Changing:
    """A gateway, and the file of its configuration."""

    def __init__(self, here: Running, path: Path) -> None:
        self.here = here
        self._path = path

    def reads(self, result: str) -> float:
        page = self.here.gateway.metrics.page().decode()
        start = f'headway_config_reads_total{{result="{result}"}} '
        return sum(float(line.removeprefix(start)) for line in page.splitlines() if line.startswith(start))

    async def write(self, text: str, result: str = "applied") -> None:
        """Returns once it was read."""
        before = self.reads(result)
        new = self._path.with_suffix(".new")
        new.write_text(text)
        new.replace(self._path)
        await until(lambda: self.reads(result) > before)

    def call(self, tokens: int = 5, model: str = MODEL, tier: str = "default") -> asyncio.Task[Any]:
        asked: Any = {"model": model, "prompt": "hi", "max_tokens": tokens, "extra_body": {"service_tier": tier}}
        return asyncio.create_task(self.here.openai.completions.create(**asked))

    async def admin(self, method: str, path: str, headers: dict[str, str] = AS_ADMIN, **more: Any) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.here.url) as client:
            return await client.request(method, path, headers=headers, **more)


@asynccontextmanager
async def changing(tmp_path: Path, text: str, record: Path | None = None) -> AsyncIterator[Changing]:
    path = tmp_path / "headway.toml"
    path.write_text(text)
    async with running_gateway(load(path), record, source=path) as here:
        yield Changing(here, path)


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def running_on(engine: ScriptedEngine) -> int:
    return int(engine.record()["running"])


async def test_seats_and_replicas_change_with_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    record = tmp_path / "record.jsonl"
    async with running(SLOW) as a, running(SLOW) as b:
        async with changing(tmp_path, toml([a]), record) as one:
            calls = [one.call(50) for _ in range(8)]
            await until(lambda: running_on(a) == 4)
            await one.write(toml([a, b], seats=2))
            await until(lambda: running_on(b) == 2)
            await one.write(toml([b], seats=2))
            await asyncio.gather(*calls)
            await until(lambda: a.url not in one.here.gateway.replicas.pools)
            assert b.record()["highest_running"] == 2
            assert f"models.scripted.replicas.{b.url} added" in caplog.text
            assert f"models.scripted.replicas.{a.url} removed" in caplog.text
        assert replay(record).first_difference is None


async def test_a_file_that_is_not_valid_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(SLOW) as engine, changing(tmp_path, toml([engine])) as one:
        await one.write(toml([engine], seats=0), "refused")
        assert "greater than or equal to 1" in caplog.text
        await one.write("[[models", "refused")
        await one.write(toml([engine]).replace('name = "scripted"', 'name = "scripted"\nkind = "none"'), "refused")
        await one.call()
        assert one.reads("applied") == 0


async def test_sighup_reads_the_file_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(SLOW) as engine, changing(tmp_path, toml([engine])) as one:
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: one.reads("applied") == 1)
        assert "nothing has changed" in caplog.text


async def test_a_model_that_is_removed_serves_its_calls_to_their_end(tmp_path: Path) -> None:
    async with running(SLOW) as a, running(Script(model="other")) as b, changing(tmp_path, toml([a])) as one:
        running_call = one.call(50)
        await until(lambda: running_on(a) == 1)
        await one.write(toml([b], name="other"))
        with pytest.raises(openai.NotFoundError, match="other"):
            await one.call()
        await until(lambda: one.here.gateway.machine.pools["other"].open_replicas)
        assert (await one.call(model="other")).usage.completion_tokens == 5
        assert (await running_call).usage.completion_tokens == 50
        await until(lambda: a.url not in one.here.gateway.replicas.pools)
        await one.write(toml([b], name="other", seats=2))
        assert list(one.here.gateway.machine.pools) == ["other"]


async def test_a_replica_of_one_model_becomes_a_replica_of_another(tmp_path: Path) -> None:
    async with running(SLOW) as engine, changing(tmp_path, toml([engine])) as one:
        running_call = one.call(50)
        await until(lambda: running_on(engine) == 1)
        await one.write(toml([engine], name="other"))
        assert one.here.gateway.replicas.pools == {engine.url: MODEL}
        assert (await running_call).usage.completion_tokens == 50
        await until(lambda: one.here.gateway.replicas.pools == {engine.url: "other"})


async def test_calls_that_wait_keep_the_tier_that_they_asked_for(tmp_path: Path) -> None:
    flex = '[[models.tiers]]\nname = "standard"\n[[models.tiers]]\nname = "flex"'
    async with running(SLOW) as engine, changing(tmp_path, toml([engine], seats=1, tiers=flex)) as one:
        first, waiting = one.call(30), one.call(5, tier="flex")
        await until(lambda: one.here.gateway.machine.pools[MODEL].waiting.held == 1)
        await one.write(toml([engine], seats=1))
        with pytest.raises(openai.BadRequestError, match="not offered at `flex`"):
            await one.call(tier="flex")
        await first
        assert (await waiting).service_tier == "flex"


async def test_prices_and_aliases_change_with_the_file(tmp_path: Path) -> None:
    ledger = f'[ledger]\nstore = "sqlite:///{tmp_path}/books.db"\nspool = "{tmp_path}/spool"\n'
    hashed = hashlib.sha256(b"mine").hexdigest()

    def text(output: float, aliases: str) -> str:
        written = toml([engine], f'key_hashes = ["{hashed}"]', tiers=f"aliases = {aliases}")
        return f"{written}\n[models.price]\ninput = 0\noutput = {output}\n{ledger}"

    async with running(SLOW) as engine, changing(tmp_path, text(10.0, "[]")) as one:
        sdk = one.here.openai.with_options(api_key="mine")

        async def billed(model: str) -> int:
            answer: Any = await sdk.completions.create(model=model, prompt="hi", max_tokens=5)
            return int(answer.usage.headway["billed_micro"])

        assert await billed(MODEL) == 50
        await one.write(text(20.0, '["also"]'))
        assert await billed("also") == 100


async def test_what_needs_a_restart_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(SLOW) as engine, changing(tmp_path, toml([engine])) as one:
        await one.write(toml([engine], "stall_s = 7.0", seats=2))
        assert "gateway.stall_s: 30.0 -> 7.0 (takes effect after a restart)" in caplog.text
        assert one.here.gateway.machine.pools[MODEL].replica_state(engine.url).replica.seats == 2  # type: ignore[union-attr]


async def test_an_admin_drains_a_replica_and_opens_it_again(tmp_path: Path) -> None:
    async with running(SLOW) as a, running(SLOW) as b, changing(tmp_path, toml([a, b])) as one:
        calls = [one.call(50) for _ in range(8)]
        await until(lambda: running_on(a) == running_on(b) == 4)
        answer = (await one.admin("POST", "/admin/drain", json={"url": a.url + "/"})).json()
        assert [(row["url"], row["state"], row["aboard"]) for row in answer["replicas"]] == [
            (a.url, "draining", 4),
            (b.url, "open", 4),
        ]
        await asyncio.gather(*calls)
        finished = a.record()["finished"]
        await asyncio.gather(*[one.call() for _ in range(8)])
        assert a.record()["finished"] == finished
        await one.write(toml([a, b], seats=3))  # what an operator has drained stays so
        assert (await one.admin("GET", "/admin/replicas")).json()["replicas"][0]["state"] == "draining"
        await one.admin("POST", "/admin/drain", json={"url": a.url, "undo": True})
        await one.here.until_up(2)


async def test_engines_that_are_registered_are_the_replicas(tmp_path: Path) -> None:
    text = toml([]) + "[models.discover]\nregistered = true\nseats = 4\n"
    async with running(SLOW) as a, running(SLOW) as b, changing(tmp_path, text) as one:

        async def register(*urls: str) -> None:
            answer = await one.admin("POST", "/admin/registered", json={"model": MODEL, "urls": urls})
            assert answer.status_code == 200, answer.text

        await register(a.url, b.url + "/")
        await one.here.until_up(2)
        calls = [one.call(50) for _ in range(8)]
        await until(lambda: running_on(a) == running_on(b) == 4)
        await register(b.url)
        rows = (await one.admin("GET", "/admin/replicas")).json()["replicas"]
        assert {row["url"]: row["state"] for row in rows} == {a.url: "draining", b.url: "open"}
        answers = await asyncio.gather(*calls)
        assert all(answer.usage.completion_tokens == 50 for answer in answers)
        await until(lambda: list(one.here.gateway.replicas.pools) == [b.url])
        finished = a.record()["finished"]
        await one.write(text.replace("seats = 4", "seats = 3"))  # what is registered stays so
        await asyncio.gather(*[one.call() for _ in range(4)])
        assert a.record()["finished"] == finished


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"model": MODEL, "urls": ["http://x"]}, 404, "registered = true"),
        ({"model": "other", "urls": ["http://x"]}, 404, "registered = true"),
        ({"model": MODEL, "urls": ["ftp://x"]}, 400, "must look like"),
        ({"model": MODEL, "urls": ["http://" + 300 * "x"]}, 400, "must look like"),
        ({"model": MODEL}, 400, "must look like"),
    ],
)
async def test_what_is_not_registered(tmp_path: Path, body: Any, status: int, said: str) -> None:
    async with running(SLOW) as engine, changing(tmp_path, toml([engine])) as one:
        answer = await one.admin("POST", "/admin/registered", json=body)
        assert (answer.status_code, said in answer.text) == (status, True), answer.text


async def test_an_admin_reads_what_calls_need_of_replicas(tmp_path: Path) -> None:
    async with running(SLOW) as engine, changing(tmp_path, toml([engine])) as one:
        calls = [one.call(50) for _ in range(6)]
        await until(lambda: running_on(engine) == 4)
        [pool] = (await one.admin("GET", "/admin/demand")).json()["pools"]
        assert (pool["pool"], pool["tiers"][0]["wanted"], pool["tiers"][0]["ready"]) == (MODEL, 6, 4)
        demand = PoolDemand(**pool["demand"])
        assert (demand.replicas, demand.seats, demand.standard_load, demand.standard_held) == (1, 4.0, 1.0, 2)
        page = one.here.gateway.metrics.page().decode()
        assert f'headway_seats_wanted{{model="{MODEL}",tier="standard"}} 6.0' in page
        assert f'headway_seats_ready{{model="{MODEL}",tier="standard"}} 4.0' in page
        await asyncio.gather(*calls)


@pytest.mark.parametrize(
    ("headers", "body", "status", "said"),
    [
        ({}, {"url": "http://x"}, 401, "Missing API key"),
        ({"authorization": "Bearer other"}, {"url": "http://x"}, 403, "admin key"),
        (AS_ADMIN, {"url": "http://x"}, 404, "no replica"),
        (AS_ADMIN, {"uri": "http://x"}, 400, "must look like"),
    ],
)
async def test_what_an_admin_endpoint_refuses(
    tmp_path: Path, headers: dict[str, str], body: Any, status: int, said: str
) -> None:
    async with running(SLOW) as engine, changing(tmp_path, toml([engine])) as one:
        answer = await one.admin("POST", "/admin/drain", headers, json=body)
        assert answer.status_code == status
        assert said in answer.text


async def test_without_admin_keys_nobody_is_an_admin() -> None:
    async with running(SLOW) as engine, running_gateway(config_for([engine])) as here:
        answer = await Changing(here, Path()).admin("GET", "/admin/replicas")
        assert answer.status_code == 403
        assert "admin_key_hashes" in answer.text


async def test_an_admin_key_may_not_send_calls(tmp_path: Path) -> None:
    hashed = hashlib.sha256(b"mine").hexdigest()
    async with running(SLOW) as engine, changing(tmp_path, toml([engine], f'key_hashes = ["{hashed}"]')) as one:
        with pytest.raises(openai.AuthenticationError):
            await one.here.openai.with_options(api_key=ADMIN).completions.create(model=MODEL, prompt="hi")


async def test_a_file_is_compared_with_what_runs(tmp_path: Path) -> None:
    async with running(SLOW) as engine, changing(tmp_path, toml([engine])) as one:
        answer = await one.admin("POST", "/admin/differences", content=toml([engine], seats=9))
        [found] = answer.json()["differences"]
        assert (found["setting"], found["before"], found["after"]) == (
            f"models.scripted.replicas.{engine.url}.seats",
            "4",
            "9",
        )
        wrong = await one.admin("POST", "/admin/differences", content="[[models")
        assert (wrong.status_code, "not valid TOML" in wrong.text) == (400, True)
