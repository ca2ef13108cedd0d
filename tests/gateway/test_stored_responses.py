"""Stored responses: continued, read and deleted by the key that made them, and by no other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from headway.config import ResponsesTable
from headway.engines.scripted import Script, ScriptedEngine, read_answers, running
from headway.ledger.entries import now_us
from headway.ledger.keys import Key, key_hash
from headway.ledger.responses import ResponseLimits, ResponseRows
from headway.ledger.sqlite import SQLiteStore
from headway.ledger.store import StoreUnavailable
from tests.gateway.test_responses import ANSWERS, SPACE, WEATHER
from tests.running import MODEL, Running, config_for, http_client, post, running_gateway

pytestmark = pytest.mark.anyio
SCRIPT = Script(model=MODEL, first_token_s=0.002, step_s=((1, 0.002),))
ADA, BOB = "hw-ada", "hw-bob"
PRICE = {"input": 1.0, "output": 10.0}
SAID = "a secret sentence about otters"


@asynccontextmanager
async def two_keys(tmp_path: Path, engine: ScriptedEngine, **table: Any) -> AsyncIterator[tuple[Running, AsyncOpenAI]]:
    """A gateway with Ada's client, and Bob's."""
    store = SQLiteStore(tmp_path / "books.db")
    store.migrate()
    for name in (ADA, BOB):
        store.put_key(Key(id=f"key-{name}", hash=key_hash(name.encode())))
    store.close()
    ledger = {"store": f"sqlite:///{tmp_path}/books.db", "spool": str(tmp_path / "spool")}
    config = config_for([engine], price=PRICE, ledger=ledger)
    config = config.model_copy(update={"responses": ResponsesTable.model_validate(table)})
    async with (
        running_gateway(config, key=ADA) as here,
        AsyncOpenAI(base_url=f"{here.url}/v1", api_key=BOB, max_retries=0, http_client=http_client()) as bob,
    ):
        yield here, bob


def rows(tmp_path: Path) -> list[Any]:
    store = SQLiteStore(tmp_path / "books.db")
    with store.transaction() as cursor:
        cursor.execute("SELECT tenant, id, bytes, sealed FROM responses ORDER BY at_us")
        found = cursor.fetchall()
    store.close()
    return found


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_tool_loop_with_previous_response_id(streamed: bool, tmp_path: Path) -> None:
    path = tmp_path / "answers.toml"
    path.write_text(ANSWERS)
    async with running(SCRIPT, answers=read_answers(path)) as engine, two_keys(tmp_path, engine) as (here, _):
        asked: dict[str, Any] = {"model": MODEL, "tools": [WEATHER, SPACE]}
        new: Any = "weather?"
        previous: str | None = None
        for _ in range(2):
            more: dict[str, Any] = {"previous_response_id": previous} if previous else {}
            if streamed:
                async with here.openai.responses.stream(input=new, **asked, **more) as stream:
                    response: Any = await stream.get_final_response()
            else:
                response = await here.openai.responses.create(input=new, **asked, **more)
            assert response.previous_response_id == previous
            assert response.store is True
            calls = [item for item in response.output if item.type == "function_call"]
            new = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in calls]
            previous = response.id
        assert response.output_text == "Rain in Oslo."
        read = await here.openai.responses.retrieve(response.id)
        assert (read.output_text, read.usage) == (response.output_text, response.usage)
        assert read.to_dict().keys() == response.to_dict().keys()
        items = [item async for item in here.openai.responses.input_items.list(response.id, order="asc", limit=2)]
        assert [item.type for item in items] == [
            "message",
            "reasoning",
            "message",
            "function_call",
            "function_call",
            "function_call_output",
            "function_call_output",
        ]
        assert len({item.id for item in items}) == 7


async def test_the_engine_gets_the_whole_conversation(tmp_path: Path) -> None:
    async with running(SCRIPT) as engine, two_keys(tmp_path, engine) as (here, _):
        first = await here.openai.responses.create(model=MODEL, input="one two", max_output_tokens=5)
        again = await here.openai.responses.create(
            model=MODEL, input="three", max_output_tokens=5, previous_response_id=first.id
        )
        assert first.usage is not None
        assert again.usage is not None
        assert again.usage.input_tokens == first.usage.input_tokens + 5 + 1
        counted = await here.openai.responses.input_tokens.count(
            model=MODEL, input="three", previous_response_id=first.id
        )
        assert counted.input_tokens == again.usage.input_tokens


async def test_an_input_may_refer_to_stored_items(tmp_path: Path) -> None:
    """As the AI SDK does, if it is not told not to store."""
    path = tmp_path / "answers.toml"
    path.write_text(ANSWERS)
    async with running(SCRIPT, answers=read_answers(path)) as engine, two_keys(tmp_path, engine) as (here, bob):
        asked: dict[str, Any] = {"model": MODEL, "tools": [WEATHER, SPACE]}
        first = await here.openai.responses.create(input="weather?", **asked)
        question = {"role": "user", "content": "weather?"}
        calls = [item for item in first.output if item.type == "function_call"]
        results = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in calls]
        references = [{"type": "item_reference", "id": item.id} for item in first.output]
        new: Any = [question, *references, *results]
        assert (await here.openai.responses.create(input=new, **asked)).output_text == "Rain in Oslo."
        items: Any = [question, *first.output, *results]
        count = here.openai.responses.input_tokens.count
        assert (await count(model=MODEL, input=new)) == (await count(model=MODEL, input=items))
        for who, wrong in ((bob, references[0]["id"]), (here.openai, "msg_none"), (here.openai, first.id)):
            with pytest.raises(openai.BadRequestError, match=f"item `{wrong}` is not stored. Send the item itself"):
                await who.responses.create(input=[{"type": "item_reference", "id": wrong}], model=MODEL)
        for odd in ("", "\0", "x" * 129):
            with pytest.raises(openai.BadRequestError, match="is not stored"):
                await here.openai.responses.create(input=[{"type": "item_reference", "id": odd}], model=MODEL)
        many: Any = [references[0]] * 1_025
        with pytest.raises(openai.BadRequestError, match="more than 1024"):
            await here.openai.responses.create(input=many, model=MODEL)
        await here.openai.responses.delete(first.id)
        with pytest.raises(openai.BadRequestError, match="is not stored"):
            await here.openai.responses.create(input=new, **asked)


async def test_what_only_looks_like_a_reference_is_left_to_the_reader(tmp_path: Path) -> None:
    async with running(SCRIPT) as engine, two_keys(tmp_path, engine) as (here, _):
        quoted = [{"role": "user", "content": '"item_reference"'}]
        await here.openai.responses.create(model=MODEL, input=quoted, max_output_tokens=3)  # type: ignore[arg-type]
        for wrong in ([{"type": "item_reference"}], [{"type": "item_reference", "id": 1}]):
            with pytest.raises(openai.BadRequestError, match="not supported"):
                await here.openai.responses.create(model=MODEL, input=wrong)  # type: ignore[arg-type]


async def test_an_item_is_no_response(tmp_path: Path) -> None:
    async with running(SCRIPT) as engine, two_keys(tmp_path, engine) as (here, _):
        made = await here.openai.responses.create(model=MODEL, input="hi", max_output_tokens=3)
        item_id = str(made.output[0].id)
        for attempt in (here.openai.responses.retrieve, here.openai.responses.delete):
            with pytest.raises(openai.NotFoundError):
                await attempt(item_id)
        with pytest.raises(openai.BadRequestError, match="not stored"):
            await here.openai.responses.create(model=MODEL, input="go on", previous_response_id=item_id)


async def test_no_key_reaches_anothers_response_on_any_route(tmp_path: Path) -> None:
    async with running(SCRIPT) as engine, two_keys(tmp_path, engine) as (here, bob):
        made = await here.openai.responses.create(model=MODEL, input=SAID, max_output_tokens=3)
        tries: dict[str, Callable[[AsyncOpenAI], Any]] = {
            "retrieve": lambda who: who.responses.retrieve(made.id),
            "cancel": lambda who: who.responses.cancel(made.id),
            "delete": lambda who: who.responses.delete(made.id),
            "input_items": lambda who: who.responses.input_items.list(made.id),
        }
        answers = {}
        for name, attempt in tries.items():
            with pytest.raises(openai.NotFoundError) as refused:
                await attempt(bob)
            answers[name] = refused.value.message
            assert SAID not in refused.value.response.text
        for continued in (bob.responses.create, bob.responses.input_tokens.count):
            with pytest.raises(openai.BadRequestError) as unknown:
                await continued(model=MODEL, input="go on", previous_response_id=made.id)
            assert unknown.value.code == "previous_response_not_found"
        # One that does not exist at all looks the same.
        with pytest.raises(openai.NotFoundError) as missing:
            await bob.responses.retrieve("resp_none")
        assert missing.value.message.replace("resp_none", made.id) == answers["retrieve"]
        # And it is still there for its own key.
        assert (await here.openai.responses.retrieve(made.id)).id == made.id
        with pytest.raises(openai.BadRequestError, match="complete"):
            await here.openai.responses.cancel(made.id)


async def test_a_deleted_response_is_gone(tmp_path: Path) -> None:
    async with running(SCRIPT) as engine, two_keys(tmp_path, engine) as (here, _):
        made = await here.openai.responses.create(model=MODEL, input="hi", max_output_tokens=3)
        await here.openai.responses.delete(made.id)
        for attempt in (here.openai.responses.retrieve, here.openai.responses.delete):
            with pytest.raises(openai.NotFoundError):
                await attempt(made.id)
        assert rows(tmp_path) == []


async def test_nothing_readable_is_stored(tmp_path: Path) -> None:
    async with running(SCRIPT) as engine, two_keys(tmp_path, engine) as (here, _):
        await here.openai.responses.create(model=MODEL, input=SAID, max_output_tokens=3)
        assert len(rows(tmp_path)) == 2  # the response and its item
        for tenant, _, _, sealed in rows(tmp_path):
            assert tenant == key_hash(ADA.encode())
            assert "otters" not in sealed
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert b"otters" not in file.read_bytes()


async def test_what_the_client_or_the_owner_does_not_want_stored(tmp_path: Path) -> None:
    async with running(SCRIPT) as engine, two_keys(tmp_path, engine) as (here, _):
        made = await here.openai.responses.create(model=MODEL, input="hi", max_output_tokens=3, store=False)
        assert made.to_dict()["store"] is False
        assert rows(tmp_path) == []
    async with running(SCRIPT) as engine, two_keys(tmp_path, engine, store=False) as (here, _):
        made = await here.openai.responses.create(model=MODEL, input="hi", max_output_tokens=3)
        assert made.to_dict()["store"] is False
        with pytest.raises(openai.BadRequestError, match="not stored"):
            await here.openai.responses.create(model=MODEL, input="go on", previous_response_id=made.id)
        assert rows(tmp_path) == []


async def test_a_key_has_room_for_so_many_bytes_and_the_oldest_go_first(tmp_path: Path) -> None:
    async with (
        running(SCRIPT) as engine,
        two_keys(tmp_path, engine, max_bytes_per_key=4_000, max_response_bytes=3_000) as (here, bob),
    ):
        kept = await bob.responses.create(model=MODEL, input="hi", max_output_tokens=3)
        made = [await here.openai.responses.create(model=MODEL, input="hi", max_output_tokens=3) for _ in range(6)]
        left = [row[1] for row in rows(tmp_path) if row[1].startswith("resp_")]
        assert left[0] == kept.id  # others have their own room
        assert 0 < len(left) - 1 < 6
        assert left[1:] == [response.id for response in made][-(len(left) - 1) :]
        large = await here.openai.responses.create(model=MODEL, input="x" * 4_000, max_output_tokens=3)
        assert large.id not in [row[1] for row in rows(tmp_path)]


async def test_a_response_is_stored_for_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(SCRIPT) as engine, two_keys(tmp_path, engine, keep_days=2) as (here, _):
        made = await here.openai.responses.create(model=MODEL, input="hi", max_output_tokens=3)
        day_us = 86_400_000_000
        for days, is_there in ((1.9, True), (2.1, False)):
            monkeypatch.setattr(SQLiteStore, "now_us", lambda _, days=days: now_us() + round(days * day_us))
            if is_there:
                await here.openai.responses.retrieve(made.id)
            else:
                with pytest.raises(openai.NotFoundError):
                    await here.openai.responses.retrieve(made.id)
        # What is old is deleted, whoever calls.
        store = SQLiteStore(tmp_path / "books.db")
        ResponseRows(store, ResponseLimits(2 * day_us, 1, 1)).expire()
        store.close()
        assert rows(tmp_path) == []


async def test_with_the_store_away_answers_are_delivered_and_what_needs_it_gets_503(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(SCRIPT) as engine, two_keys(tmp_path, engine) as (here, _):
        made = await here.openai.responses.create(model=MODEL, input="hi", max_output_tokens=3)

        def away(*_: Any) -> None:
            raise StoreUnavailable("away")

        monkeypatch.setattr("headway.ledger.responses.ResponseRows.keep", away)
        monkeypatch.setattr("headway.ledger.responses.ResponseRows.sealed", away)
        other = await here.openai.responses.create(model=MODEL, input="hi", max_output_tokens=3)
        assert other.output_text
        with pytest.raises(openai.InternalServerError) as refused:
            await here.openai.responses.create(model=MODEL, input="go on", previous_response_id=made.id)
        assert refused.value.status_code == 503
        monkeypatch.undo()
        with pytest.raises(openai.NotFoundError):
            await here.openai.responses.retrieve(other.id)


async def test_a_conversation_has_the_size_of_a_request_at_most(tmp_path: Path) -> None:
    async with running(SCRIPT) as engine, two_keys(tmp_path, engine) as (here, _):
        made = await here.openai.responses.create(model=MODEL, input="hi", max_output_tokens=3)
        body = {"model": MODEL, "previous_response_id": made.id, "input": "x" * (8 * 2**20 - 120)}
        with pytest.raises(openai.APIStatusError) as refused:
            await here.openai.post("/responses", body=body, cast_to=object)
        assert refused.value.status_code == 413
        assert json.loads(refused.value.response.text)["error"]["param"] == "previous_response_id"


async def test_a_body_with_the_field_twice_or_in_odd_forms_is_read_once(tmp_path: Path) -> None:
    async with running(SCRIPT) as engine, two_keys(tmp_path, engine) as (here, bob):
        made = await here.openai.responses.create(model=MODEL, input="hi", max_output_tokens=3)
        theirs = await bob.responses.create(model=MODEL, input=SAID, max_output_tokens=3)
        head = b'{"model": "%b", "max_output_tokens": 3, "input": "go on"' % MODEL.encode()
        for more, expected in (
            (b', "previous_response_id": null', 200),
            (b', "previous_response_id": ""', 400),
            (b', "previous_response_id": 1', 400),
            (b', "previous_response_id": "%b", "input": {"a": 1}' % made.id.encode(), 400),
            (b', "previous_response_id": "%b", "input": null' % made.id.encode(), 400),
            (b', "previous_response_id": "%b", "input": []' % made.id.encode(), 200),
            (b', "previous_response_id": "' + b"x" * 9_000 + b'"', 400),
            (b', "previous_response_id": "%b"' % made.id.encode(), 200),
            (b', "previous_response_id": "%b", "previous_response_id": null' % theirs.id.encode(), 200),
            (
                b', "previous_response_id": "%b", "previous_response_id": "%b"'
                % (made.id.encode(), theirs.id.encode()),
                400,
            ),
            (b', "previous_\\u0072esponse_id": "%b"' % theirs.id.encode(), 400),
        ):
            asked = post(
                "/v1/responses", head + more + b"} \n", b"content-type: application/json", b"x-api-key: " + ADA.encode()
            )
            answer = await here.raw(asked)
            assert int(answer.split(b" ")[1]) == expected, (more, answer)
            assert b"otters" not in answer
        only_continued = {"model": MODEL, "max_output_tokens": 3, "previous_response_id": made.id}
        await here.openai.post("/responses", body=only_continued, cast_to=object)
