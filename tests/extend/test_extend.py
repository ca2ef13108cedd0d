"""docs/explanation/extend.md: a dialect and a kind of engine, each one file and its registration."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headway.api import app
from headway.api.dialect import Dialect
from headway.config import Config
from headway.engines import kinds
from headway.engines.scripted import Script, running
from tests.extend import short_dialect
from tests.extend.echo_engine import EchoEngine
from tests.running import MODEL, config_for, post, running_gateway

pytestmark = pytest.mark.anyio
HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "explanation" / "extend.md"
SHORT: Dialect = short_dialect  # checked by mypy


def said(answer: bytes) -> tuple[int, dict[str, object]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), msgspec.json.decode(body)


async def test_a_dialect_is_one_file_and_its_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "DIALECTS", (short_dialect, *app.DIALECTS))
    quick = Script(model=MODEL, first_token_s=0.001, step_s=((1, 0.001),))
    async with running(quick) as engine, running_gateway(config_for([engine])) as here:
        status, answer = said(await here.raw(post(f"/v1/short/{MODEL}", b'{"ask": "hello", "max_tokens": 4}')))
        assert status == 200
        assert len(str(answer["say"]).split()) == 4
        assert answer["proof"]["tier_served"] == "standard"  # type: ignore[index]
        status, answer = said(await here.raw(post("/v1/short/unknown", b'{"ask": "hello"}')))
        assert status == 404
        status, answer = said(await here.raw(post(f"/v1/short/{MODEL}", b'{"ask": "hello", "n": 9}')))
        assert status == 400


async def test_a_kind_of_engine_is_one_file_and_its_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kinds.KINDS, "echo", EchoEngine)
    replicas = [{"url": "http://unused", "kind": "echo"}]
    model = {"name": MODEL, "replicas": replicas}
    config = Config.model_validate({"gateway": {"port": 0, "probe_interval_s": 0.05}, "models": [model]})
    async with running_gateway(config) as here:
        answer = await here.openai.completions.create(model=MODEL, prompt="so it goes")
        assert answer.choices[0].text == "so it goes"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 3


@pytest.mark.parametrize("name", ["short_dialect.py", "echo_engine.py"])
def test_the_page_shows_the_code_that_is_tested(name: str) -> None:
    code = (HERE / name).read_text(encoding="utf-8")
    assert f"```python\n{code}```" in PAGE.read_text(encoding="utf-8"), f"copy tests/extend/{name} into {PAGE.name}"
