"""The ledger on real vLLM: the tokens billed are those that the engines counted, for each tenant."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

from headway.engines.vllm import read_metrics
from headway.ledger.keys import Key, key_hash
from headway.ledger.sqlite import SQLiteStore
from headway.ledger.verify import verify
from headway.local.engine_env import MODEL_NAME as MODEL
from headway.local.engine_process import EngineProcess, free_port
from tests.e2e.conftest import CURVE, SEATS, get, serve_command, wait_until

pytestmark = pytest.mark.engine
FIRST, SECOND = "hw-first-tenant", "hw-second-tenant"
CONFIG = """\
[gateway]
port = {port}
probe_interval_s = 0.5
stall_s = 20.0
[ledger]
store = "sqlite:///{folder}/books.db"
spool = "{folder}/spool"
[[models]]
name = "{model}"
price = {{ input = 4.0, cached_input = 1.0, output = 10.0 }}
[[models.tiers]]
name = "standard"
[[models.tiers]]
name = "fast"
floor_tps = 0.5
price_multiple = 3.0
{replicas}"""
LONG = "The bus left at seven. " * 60  # several blocks of the engine's prefix cache


class Books:
    def __init__(self, port: int, folder: Path, config: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.folder = folder
        self.config = config
        self.process = subprocess.Popen(serve_command(config))

    def openai(self, key: str) -> OpenAI:
        return OpenAI(base_url=self.url + "/v1", api_key=key, max_retries=0)

    def is_ready(self) -> bool:
        try:
            return get(self.url + "/ready") == b"ready\n"
        except OSError:  # refused, or not answered in time
            return False


@pytest.fixture(scope="module")
def books(engines: list[EngineProcess], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Books]:
    folder, port = tmp_path_factory.mktemp("books"), free_port()
    config = folder / "headway.toml"
    replicas = "".join(f'[[models.replicas]]\nurl = "{one.url}"\nseats = {SEATS}\n{CURVE}\n' for one in engines)
    config.write_text(CONFIG.format(port=port, folder=folder, model=MODEL, replicas=replicas))
    store = SQLiteStore(folder / "books.db")
    store.migrate()
    for name, secret in (("first", FIRST), ("second", SECOND)):
        store.put_key(Key(id=name, hash=key_hash(secret.encode()), budget_day=10**9))
    store.close()
    started = Books(port, folder, config)
    wait_until("the gateway is ready", started.is_ready)
    yield started
    if started.process.poll() is None:
        started.process.terminate()
        started.process.wait(30)


def hits_of(engines: list[EngineProcess]) -> int:
    """The prompt tokens that the engines found in their caches, by their own count."""
    pages = [get(one.url + "/metrics") for one in engines]
    return int(sum(read_metrics(page, (b"vllm:prefix_cache_hits_total",))[0] for page in pages))


def read_of(usage: Any) -> int:
    """The prompt tokens of a message that were not in the engine's cache."""
    return int(usage.input_tokens + (usage.cache_creation_input_tokens or 0))


def cached_of(usage: Any) -> int:
    return int(usage.prompt_tokens_details.cached_tokens or 0) if usage.prompt_tokens_details else 0


def test_tenants_do_not_share_prefix_caches(books: Books, engines: list[EngineProcess]) -> None:
    def ask(key: str) -> int:
        before = hits_of(engines)
        with books.openai(key) as sdk:
            sdk.completions.create(model=MODEL, prompt=LONG, max_tokens=1)
        return hits_of(engines) - before

    assert ask(FIRST) == 0
    assert ask(FIRST) > 100, "its own prompt is in the cache"
    assert ask(SECOND) == 0, "the other tenant's is not"


def test_a_conversation_is_billed_for_the_cached_tokens_that_the_engines_counted(
    books: Books, engines: list[EngineProcess]
) -> None:
    before, told, billed, whole = hits_of(engines), 0, 0, 0
    messages: list[Any] = [{"role": "user", "content": f"{LONG} Where is it now?"}]
    with books.openai(FIRST) as sdk:
        for _ in range(4):
            said: Any = sdk.chat.completions.create(model=MODEL, messages=messages, max_tokens=8)
            told += cached_of(said.usage)
            billed += said.usage.headway["billed_micro"]
            whole += 4 * said.usage.prompt_tokens + 10 * said.usage.completion_tokens
            messages += [{"role": "assistant", "content": said.choices[0].message.content or "Yes."}]
            messages += [{"role": "user", "content": "And now?"}]
    with Anthropic(base_url=books.url, api_key=FIRST, max_retries=0) as anthropic:
        last: Any = anthropic.messages.create(model=MODEL, messages=messages, max_tokens=8).usage
    told += last.cache_read_input_tokens or 0
    billed += last.headway["billed_micro"]
    whole += 4 * (read_of(last) + (last.cache_read_input_tokens or 0)) + 10 * last.output_tokens
    assert told == hits_of(engines) - before > 500, "most of the prompts were cached"
    assert billed == whole - 3 * told


def test_the_bill_matches_the_tokens_that_the_engines_counted(books: Books) -> None:
    messages: Any = [{"role": "user", "content": "Count from one to five."}]
    with books.openai(FIRST) as sdk:
        stream = sdk.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=24, service_tier="fast", stream=True,
            stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
        )  # fmt: skip
        usage: Any = next(chunk.usage for chunk in stream if chunk.usage)
        assert usage.headway["billed_micro"] == 3 * (4 * usage.prompt_tokens - 3 * cached_of(usage) + 10 * 24)
        whole: Any = sdk.chat.completions.create(model=MODEL, messages=messages, max_tokens=8).usage
        prompt = 4 * whole.prompt_tokens - 3 * cached_of(whole)
        assert whole.headway["billed_micro"] == prompt + 10 * whole.completion_tokens
        cut = sdk.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=400, stream=True, extra_body={"ignore_eos": True}
        )
        for number, _ in enumerate(cut):
            if number == 5:
                break
        cut.close()
    with Anthropic(base_url=books.url, api_key=SECOND, max_retries=0) as anthropic:
        message: Any = anthropic.messages.create(model=MODEL, messages=messages, max_tokens=8, speed="fast")
        prompt = 4 * read_of(message.usage) + (message.usage.cache_read_input_tokens or 0)
        assert message.usage.headway["billed_micro"] == 3 * (prompt + 10 * message.usage.output_tokens)
    books.process.terminate()
    assert books.process.wait(30) == 0
    store = SQLiteStore(books.folder / "books.db")
    verdict, entries = verify(store.entries()), list(store.entries())
    store.close()
    assert (verdict.problems, verdict.open_calls) == ([], 0)
    [left] = [entry for entry in entries if entry.outcome == "left" and entry.kind == "served"]
    assert 5 <= left.output_tokens < 400
    command = [sys.executable, "-m", "headway", "ledger", "verify", "--engines", "--config", str(books.config)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "The ledger is consistent." in said.stdout
