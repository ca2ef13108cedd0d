"""Agent loops with tools through the gateway, with the official SDKs, on an engine that answers as programmed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from headway.engines.scripted import Script, read_answers, running
from tests.engines.test_programmed import (
    LOOP,
    check_anthropic_loop,
    check_openai_loop,
    loop_with_anthropic,
    loop_with_openai,
)
from tests.running import MODEL, config_for, running_gateway

pytestmark = pytest.mark.anyio
SCRIPT = Script(model=MODEL, first_token_s=0.002, step_s=((1, 0.002),))
FAST = {"name": "fast", "floor_tps": 20.0, "max_hold_s": 0.3}
CURVE = [[1, 500.0], [8, 400.0]]
REFUSING = """
[[answers]]
when = { user_contains = "weather" }
error = { status = 400, message = "No weather today.", type = "BadRequestError" }
"""


@pytest.mark.parametrize("tier", ["standard", "fast"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_loop_of_three_turns(tier: str, streamed: bool, tmp_path: Path) -> None:
    path = tmp_path / "answers.toml"
    path.write_text(LOOP)
    speed: dict[str, Any] = {"speed": "fast"} if tier == "fast" else {}
    async with (
        running(SCRIPT, answers=read_answers(path)) as engine,
        running_gateway(config_for([engine], express=[FAST], curve=CURVE)) as here,
    ):
        chosen = {"service_tier": tier} if tier == "fast" else {}
        check_openai_loop(await loop_with_openai(here.openai, streamed, model=MODEL, **chosen))
        check_anthropic_loop(await loop_with_anthropic(here.anthropic, streamed, model=MODEL, extra_body=speed))
        await here.until_empty()


async def test_a_programmed_error_reaches_the_client(tmp_path: Path) -> None:
    path = tmp_path / "answers.toml"
    path.write_text(REFUSING)
    async with running(SCRIPT, answers=read_answers(path)) as engine, running_gateway(config_for([engine])) as here:
        with pytest.raises(openai.BadRequestError, match="No weather today"):
            await loop_with_openai(here.openai, streamed=True, model=MODEL)
