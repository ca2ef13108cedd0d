"""`headway drain` and `headway check --against`, on a gateway that runs."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from pathlib import Path

import pytest

from headway.engines.scripted import Script, running
from tests.running import MODEL, config_for, running_gateway

pytestmark = pytest.mark.anyio
SLOW = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.02),))
KEY = "an-admin-key"
HASHED = hashlib.sha256(KEY.encode()).hexdigest()


async def headway(*words: str, key: str = KEY) -> tuple[int | None, str]:
    """The exit code of a command, and what it says."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headway", *words, env={"HEADWAY_ADMIN_KEY": key, "COLUMNS": "200"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    return process.returncode, said.decode()


async def test_drain_waits_until_no_stream_is_aboard() -> None:
    async with (
        running(SLOW) as a,
        running(SLOW) as b,
        running_gateway(config_for([a, b], seats=1, admin_key_hashes=[HASHED])) as here,
    ):
        calls = [
            asyncio.create_task(here.openai.completions.create(model=MODEL, prompt="hi", max_tokens=100))
            for _ in range(2)
        ]
        while a.record()["running"] != 1:
            await asyncio.sleep(0.01)
        code, said = await headway("drain", a.url, "--gateway", here.url, "--no-wait")
        assert (code, "1 streams are aboard" in said) == (0, True), said
        code, said = await headway("drain", a.url, "--gateway", here.url)
        assert (code, "No stream is aboard" in said) == (0, True), said
        assert a.record()["running"] == 0
        assert here.gateway.machine.pools[MODEL].open_replicas == 1
        code, said = await headway("drain", a.url, "--gateway", here.url, "--undo")
        assert (code, "takes calls again" in said) == (0, True), said
        await here.until_up(2)
        await asyncio.gather(*calls)


@pytest.mark.parametrize(
    ("words", "key", "said"),
    [
        (["drain", "http://127.0.0.1:1"], KEY, "There is no replica"),
        (["drain", "http://127.0.0.1:1"], "other", "requires an admin key"),
        (["drain", "http://127.0.0.1:1"], "", "set HEADWAY_ADMIN_KEY"),
    ],
)
async def test_drain_says_what_to_do(words: list[str], key: str, said: str) -> None:
    async with running(SLOW) as engine, running_gateway(config_for([engine], admin_key_hashes=[HASHED])) as here:
        code, output = await headway(*words, "--gateway", here.url, key=key)
        assert code == 2
        assert said in output


async def test_without_a_gateway_drain_says_so() -> None:
    code, said = await headway("drain", "http://127.0.0.1:1", "--gateway", "http://127.0.0.1:1")
    assert (code, "does not answer" in said) == (2, True), said


async def test_check_shows_what_differs_from_what_runs(tmp_path: Path) -> None:
    async with running(SLOW) as engine, running_gateway(config_for([engine], admin_key_hashes=[HASHED])) as here:
        path = tmp_path / "headway.toml"
        path.write_text(
            f'[gateway]\nadmin_key_hashes = ["{HASHED}"]\nport = 0\nprobe_interval_s = 0.05\n'
            f'[[models]]\nname = "{MODEL}"\n[[models.replicas]]\nurl = "{engine.url}"\nseats = 3\n'
        )
        code, said = await headway("check", "--config", str(path), "--against", here.url)
        assert code == 0, said
        assert f"models.{MODEL}.replicas.{engine.url}.seats: 8 -> 3" in said
        assert "1 differences" in said
