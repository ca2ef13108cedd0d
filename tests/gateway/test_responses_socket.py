"""GET /v1/responses as a WebSocket, with the official SDK and with a plain WebSocket client, on scripted engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
from openai.types.responses import ResponsesServerEvent
from pydantic import BaseModel
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from headway.api import responses_socket, websocket
from headway.api.auth import Keys
from headway.config import Config, ResponsesTable
from headway.engines.scripted import Script, read_answers, running
from headway.errors import Unauthorized
from tests.gateway.test_responses import ANSWERS, SPACE, WEATHER
from tests.gateway.test_stored_responses import ADA, BOB, SAID, rows, two_keys
from tests.running import MODEL, Running, config_for, running_gateway

pytestmark = pytest.mark.anyio
SCRIPT = Script(model=MODEL, first_token_s=0.002, step_s=((1, 0.002),))
SLOW = Script(model=MODEL, first_token_s=0.002, step_s=((1, 0.02),))
FAST = {"name": "fast", "floor_tps": 20.0, "max_hold_s": 0.3}
CURVE = [[1, 500.0], [8, 400.0]]
CLASSES: dict[str, type[BaseModel]] = {
    get_args(one.model_fields["type"].annotation)[0]: one for one in get_args(get_args(ResponsesServerEvent)[0])
}
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
Event = dict[str, Any]


class Socket:
    """A plain client. Every event is checked against the SDK's class of its type."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, **message: Any) -> None:
        await self.connection.send(json.dumps({"type": "response.create", "model": MODEL, **message}))

    async def receive(self) -> Event:
        event: Event = json.loads(await asyncio.wait_for(self.connection.recv(), 20))
        CLASSES[event["type"]].model_validate(event)
        return event

    async def end(self, stream_id: str | None = None) -> Event:
        """The last event of the next answer of this stream; others are skipped."""
        while True:
            event = await self.receive()
            if event["type"] in ENDS and event.get("stream_id") == stream_id:
                return event

    async def ask(self, **message: Any) -> Event:
        await self.send(**message)
        return await self.end(message.get("stream_id"))

    async def closed(self) -> int:
        """The code with which the gateway closes."""
        with pytest.raises(ConnectionClosed):
            while True:
                await asyncio.wait_for(self.connection.recv(), 20)
        assert self.connection.close_code is not None
        return self.connection.close_code


@asynccontextmanager
async def opened(here: Running, key: str = "none", **headers: str) -> AsyncIterator[Socket]:
    sent = {"authorization": f"Bearer {key}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    url = f"ws://127.0.0.1:{here.port}/v1/responses"
    async with connect(url, additional_headers=sent, max_size=None, close_timeout=1, proxy=None) as connection:
        yield Socket(connection)


def with_table(config: Config, **table: Any) -> Config:
    return config.model_copy(update={"responses": ResponsesTable.model_validate(table)})


async def test_the_sdk_connects_and_continues_without_a_store() -> None:
    """The gateway has no ledger: only the socket remembers."""
    async with running(SCRIPT) as engine, running_gateway(config_for([engine])) as here:
        async with here.openai.responses.connect() as connection:
            previous = None
            tokens = []
            for said in ("one two", "three"):
                await connection.response.create(
                    model=MODEL, input=said, max_output_tokens=5, store=False, previous_response_id=previous
                )
                text = ""
                async for event in connection:
                    if event.type == "response.output_text.delta":
                        text += event.delta
                    elif event.type in ENDS:
                        break
                assert event.type == "response.incomplete"
                assert event.response.output_text == text
                assert event.response.previous_response_id == previous
                assert event.response.usage is not None
                assert event.response.usage.to_dict()["headway"]["tier_served"] == "standard"  # type: ignore[index]
                tokens.append(event.response.usage.input_tokens)
                previous = event.response.id
            assert tokens[1] == tokens[0] + 5 + 1
        await here.until_empty()


async def test_each_message_chooses_its_tier() -> None:
    """By its field, else the handshake's header, else the model's name."""
    async with running(SCRIPT) as engine:
        config = config_for([engine], express=[FAST], curve=CURVE)
        async with running_gateway(config) as here:
            async with opened(here) as socket:
                for message, served in (
                    ({}, "standard"),
                    ({"service_tier": "fast"}, "fast"),
                    ({"service_tier": "default"}, "standard"),
                    ({"model": f"{MODEL}-fast"}, "fast"),
                    ({"service_tier": "priority"}, "fast"),
                ):
                    event = await socket.ask(input="hi", max_output_tokens=3, **message)
                    assert event["response"]["usage"]["headway"]["tier_served"] == served, message
            async with opened(here, headway_tier="fast") as socket:
                for message, served in (({}, "fast"), ({"service_tier": "default"}, "standard")):
                    event = await socket.ask(input="hi", max_output_tokens=3, **message)
                    assert event["response"]["usage"]["headway"]["tier_served"] == served, message
            await here.until_empty()


async def test_a_tool_loop(tmp_path: Path) -> None:
    path = tmp_path / "answers.toml"
    path.write_text(ANSWERS)
    async with (
        running(SCRIPT, answers=read_answers(path)) as engine,
        running_gateway(config_for([engine])) as here,
        opened(here) as socket,
    ):
        tools: dict[str, Any] = {"tools": [WEATHER, SPACE], "store": False}
        first = await socket.ask(input="weather?", **tools)
        assert first["type"] == "response.completed"
        calls = [item for item in first["response"]["output"] if item["type"] == "function_call"]
        results = [{"type": "function_call_output", "call_id": one["call_id"], "output": "rain"} for one in calls]
        last = await socket.ask(input=results, previous_response_id=first["response"]["id"], **tools)
        assert last["response"]["output"][-1]["content"][0]["text"] == "Rain in Oslo."


async def test_a_warm_up_generates_nothing_and_can_be_continued() -> None:
    async with running(SCRIPT) as engine, running_gateway(config_for([engine])) as here, opened(here) as socket:
        whole = await socket.ask(input="one two three", max_output_tokens=3)
        asked = len(engine.steps.requests)
        await socket.send(input="one two", generate=False, stream_id="a")
        kinds = [(await socket.receive())["type"], (ready := await socket.receive())["type"]]
        assert kinds == ["response.created", "response.completed"]
        assert (ready["response"]["output"], ready["response"]["usage"]["total_tokens"]) == ([], 0)
        assert ready["stream_id"] == "a"
        assert len(engine.steps.requests) == asked
        event = await socket.ask(
            input="three", previous_response_id=ready["response"]["id"], max_output_tokens=3, stream_id="a"
        )
        assert event["response"]["usage"]["input_tokens"] == whole["response"]["usage"]["input_tokens"]
        refused = await socket.ask(input="x", model="none", generate=False)
        assert refused["status"] == 404
        await here.until_empty()


async def test_ignored_fields_are_named_once_for_each_answer(tmp_path: Path) -> None:
    """In the first event or in the error, as in a header on HTTP."""
    path = tmp_path / "answers.toml"
    path.write_text('[[answers]]\nwhen = { user_contains = "fail" }\nerror = { status = 400, message = "No." }\n')
    hints: dict[str, Any] = {"tools": [{"type": "web_search"}], "made_up": 1}
    named = {"headway-ignored": "made_up, web_search"}
    async with (
        running(SCRIPT, answers=read_answers(path)) as engine,
        running_gateway(config_for([engine])) as here,
        opened(here) as socket,
    ):
        for more in ({}, {"stream_id": "a"}, {"generate": False}, {"input": "fail"}):
            await socket.send(**{"input": "hi", "max_output_tokens": 3} | hints | more)
            events = [await socket.receive()]
            while events[-1]["type"] not in ENDS:
                events.append(await socket.receive())
            assert [event.get("headers") for event in events] == [named, *[None] * (len(events) - 1)]
            assert {event.get("stream_id") for event in events} == {more.get("stream_id")}
        assert events[0]["type"] == "error"
        assert "headers" not in await socket.ask(input="fail")


async def test_no_key_continues_what_another_one_began(tmp_path: Path) -> None:
    async with (
        running(SCRIPT) as engine,
        two_keys(tmp_path, engine) as (here, _),
        opened(here, ADA) as ada,
        opened(here, BOB) as bob,
        opened(here, ADA) as other,
    ):
        ids = {}
        for store in (True, False):
            made = await ada.ask(input=SAID, max_output_tokens=3, store=store, stream_id=str(store))
            ids[store] = made["response"]["id"]
            event = await bob.ask(input="go on", previous_response_id=ids[store])
            assert (event["status"], event["error"]["code"]) == (400, "previous_response_not_found")
            assert event["error"]["param"] == "previous_response_id"
            assert SAID not in json.dumps(event)
        # Another socket of the same key continues what is stored, and only that.
        assert (await other.ask(input="go on", previous_response_id=ids[True], max_output_tokens=3))["response"]
        event = await other.ask(input="go on", previous_response_id=ids[False])
        assert event["error"]["code"] == "previous_response_not_found"
        assert ids[False] not in [row[1] for row in rows(tmp_path)]


async def test_a_stream_remembers_its_newest_response_until_it_fails() -> None:
    async with running(SCRIPT) as engine, running_gateway(config_for([engine])) as here, opened(here) as socket:
        few: dict[str, Any] = {"input": "hi", "max_output_tokens": 3}

        async def made(**more: Any) -> str:
            event = await socket.ask(**few, **more)
            assert event["type"] == "response.incomplete", event
            return str(event["response"]["id"])

        first = await made(stream_id="a")
        fork = await made(stream_id="b", previous_response_id=first)
        second = await made(stream_id="a", previous_response_id=first)
        assert (await socket.ask(**few, previous_response_id=first))["error"]["code"] == "previous_response_not_found"
        # A fork that fails keeps what it forked from; a continuation in the same stream does not.
        assert (await socket.ask(**few, model="none", stream_id="b", previous_response_id=second))["status"] == 404
        await made(stream_id="c", previous_response_id=second)
        assert (await socket.ask(**few, model="none", stream_id="b", previous_response_id=fork))["status"] == 404
        lost = await socket.ask(**few, stream_id="b", previous_response_id=fork)
        assert (lost["error"]["code"], lost["stream_id"]) == ("previous_response_not_found", "b")
        await made(stream_id="a", previous_response_id=second)


async def test_streams_run_at_once_and_each_in_its_order() -> None:
    async with (
        running(SLOW) as engine,
        running_gateway(config_for([engine], seats=32)) as here,
        opened(here) as socket,
    ):
        for name in ("a", "a", "b"):
            await socket.send(input="hi", max_output_tokens=10, stream_id=name)
        await socket.send(input="hi", max_output_tokens=10)
        events: list[Event] = []
        while sum(event["type"] in ENDS for event in events) < 4:
            events.append(await socket.receive())
        order = [(event.get("stream_id"), event["type"].rpartition(".")[2]) for event in events]
        kinds = [kind for name, kind in order if name == "a" and kind in ("created", "incomplete")]
        assert kinds == ["created", "incomplete", "created", "incomplete"]
        first_end = order.index(("a", "incomplete"))
        assert {("b", "created"), (None, "created")} <= set(order[:first_end])


async def test_sixteen_calls_are_in_flight_and_the_seventeenth_waits() -> None:
    async with running(SLOW) as engine, running_gateway(config_for([engine], seats=32)) as here:
        async with opened(here) as socket:
            for number in range(17):
                tokens = 5 if number == 3 else 100
                await socket.send(input="hi", max_output_tokens=tokens, stream_id=f"s{number}")
            most = 0
            ended: set[str] = set()
            while len(ended) < 17:
                event = await socket.receive()
                most = max(most, len(here.gateway._trips))
                if event["type"] == "response.created" and event["stream_id"] == "s16":
                    assert ended == {"s3"}
                if event["type"] in ENDS:
                    ended.add(event["stream_id"])
            assert most == 16
        await here.until_empty()


async def test_thirty_two_names_and_no_more() -> None:
    async with running(SCRIPT) as engine, running_gateway(config_for([engine])) as here, opened(here) as socket:
        for number in range(32):
            await socket.ask(input="hi", generate=False, stream_id=f"agent_{number}")
        refused = await socket.ask(input="hi", generate=False, stream_id="agent_32")
        assert (refused["status"], refused["error"]["code"]) == (400, "websocket_stream_limit_reached")
        for known in ("agent_0", None):
            assert (await socket.ask(input="hi", generate=False, stream_id=known))["type"] == "response.completed"
        for name in ("", "a b", "x" * 257, "\u00e9", "a\n", 1, ["a"]):
            await socket.send(input="hi", stream_id=name)
            event = await socket.receive()
            assert (event["status"], event["error"]["code"]) == (400, "invalid_stream_id"), name
            assert "stream_id" not in event
        assert (await socket.ask(input="hi", generate=False, stream_id="agent_31"))["type"] == "response.completed"


async def test_messages_that_wait_are_bounded() -> None:
    async with (
        running(SLOW) as engine,
        running_gateway(config_for([engine], max_body_bytes=4096)) as here,
        opened(here) as socket,
    ):
        for _ in range(4):
            await socket.send(input="x" * 1_800, max_output_tokens=20)
        events = [await socket.end() for _ in range(4)]
        codes = [event.get("error", {}).get("code") for event in events]
        assert codes == ["websocket_queue_full", None, None, None]
        assert events[0]["status"] == 429
        for _ in range(70):
            await socket.send(input="x", max_output_tokens=1)
        codes = [(await socket.end()).get("error", {}).get("code") for _ in range(70)]
        assert 70 - codes.count(None) == codes.count("websocket_queue_full") > 0


async def test_a_socket_lives_for_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    real, later = responses_socket.clock, [0.0]
    for module in (responses_socket, websocket):
        monkeypatch.setattr(module, "clock", lambda: real() + later[0])
    monkeypatch.setattr(responses_socket, "CHECK_S", 0.05)
    async with running(SLOW) as engine, running_gateway(config_for([engine])) as here:
        async with opened(here) as idle, opened(here) as busy, opened(here) as asking:
            later[0] = 3_500.0
            await busy.send(input="hi", max_output_tokens=60)
            await asking.send(input="hi", max_output_tokens=60, stream_id="a")
            for socket in (busy, asking):
                assert (await socket.receive())["type"] == "response.created"
            later[0] = 3_601.0
            await asking.send(input="hi", stream_id="b")
            assert (await asking.end())["error"]["code"] == "websocket_connection_limit_reached"
            # What runs is served to its end.
            assert (await asking.end("a"))["type"] == "response.incomplete"
            assert await asking.closed() == 1000
            assert (await busy.end())["type"] == "response.incomplete"
            for socket in (busy, idle):
                event = await socket.receive()
                assert (event["status"], event["error"]["code"]) == (400, "websocket_connection_limit_reached")
                assert await socket.closed() == 1000
        await here.until_empty()


async def test_a_revoked_key_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(SLOW) as engine, two_keys(tmp_path, engine) as (here, _), opened(here, ADA) as socket:
        await socket.send(input="hi", max_output_tokens=20, stream_id="a")
        assert (await socket.receive())["type"] == "response.created"

        def unknown(*_: Any) -> None:
            raise Unauthorized("Unknown API key.")

        monkeypatch.setattr(Keys, "check", unknown)
        await socket.send(input="hi", stream_id="b")
        event = await socket.end("b")
        assert (event["status"], event["error"]["code"]) == (401, "invalid_api_key")
        await socket.send(input="hi", stream_id="a")  # waits, and is refused in its turn
        assert (await socket.end("a"))["type"] == "response.incomplete"  # what runs is served to its end
        assert (await socket.end("a"))["status"] == 401
        assert await socket.closed() == 1008
