"""Replicas that are found by DNS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from headway.config import Config, DiscoverTable
from headway.discovery import MISSED, Discovery, FoundReplicas
from headway.errors import LookupFailed

pytestmark = pytest.mark.anyio
A, B, C = (f"http://10.0.0.{number}:8000" for number in (1, 2, 3))


def everything_is_open(_url: str) -> bool:
    return True


def nothing_is_open(_url: str) -> bool:
    return False


def found_by(*answers: set[str], is_open: Callable[[str], bool] = everything_is_open) -> set[str]:
    found = FoundReplicas()
    for urls in answers:
        found.answered(urls, is_open)
    return set(found.urls)


def test_a_new_address_is_a_replica_at_once() -> None:
    found = FoundReplicas()
    assert found.answered({A}, nothing_is_open)
    assert not found.answered({A}, nothing_is_open)
    assert found.answered({A, B}, nothing_is_open)
    assert set(found.urls) == {A, B}


def test_a_missing_address_goes_after_three_answers_in_a_row() -> None:
    assert found_by({A, B}, *[{A}] * (MISSED - 1)) == {A, B}
    assert found_by({A, B}, *[{A}] * MISSED) == {A}
    assert found_by({A, B}, {A}, {A}, {A, B}, {A}, {A}) == {A, B}, "it was there in between"


def test_an_empty_answer_changes_nothing() -> None:
    assert found_by({A, B}, *[set[str]()] * 10) == {A, B}


def test_if_nothing_that_dns_names_is_open_nothing_goes() -> None:
    assert found_by({A, B}, *[{C}] * 10, is_open=lambda url: url != C) == {A, B, C}
    assert found_by({A, B}, *[{C}] * 10) == {C}


def config(**discover: Any) -> Config:
    model = {"name": "m", "discover": {"dns": "engines.test:8000", "every_s": 0.1, **discover}}
    return Config.model_validate({"models": [model]})


class Resolver:
    """Answers with what a test says."""

    def __init__(self) -> None:
        self.answer: set[str] | Exception = set()
        self.asked = 0

    async def __call__(self, table: DiscoverTable) -> set[str]:
        assert table.dns == "engines.test:8000"
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def twice_more(self) -> None:
        asked = self.asked
        async with asyncio.timeout(10):
            while self.asked < asked + 2:
                await asyncio.sleep(0.01)


async def test_answers_that_fail_are_told_once_and_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    resolver, changes = Resolver(), list[set[str]]()
    discovery = Discovery(
        config(), everything_is_open, lambda: changes.append({one.name for one in discovery.members()}), resolver
    )
    resolver.answer = {A, B}
    discovery.start()
    try:
        await resolver.twice_more()
        resolver.answer = LookupFailed("the name server is away")
        for _ in range(3):
            await resolver.twice_more()
        assert caplog.text.count("the name server is away") == 1
        resolver.answer = {A}
        for _ in range(3):
            await resolver.twice_more()
        assert changes == [{A, B}, {A}]
    finally:
        discovery.stop()


async def test_settings_change_and_what_was_found_stays() -> None:
    resolver = Resolver()
    resolver.answer = {A}
    discovery = Discovery(config(seats=4), everything_is_open, lambda: None, resolver)
    discovery.start()
    try:
        await resolver.twice_more()
        discovery.configure(config(seats=8, kind="vllm"))
        assert [(one.name, one.replica.seats) for one in discovery.members()] == [(A, 8)]
        discovery.configure(Config.model_validate({"models": [{"name": "m", "replicas": [{"url": B}]}]}))
        assert discovery.members() == []
    finally:
        discovery.stop()


@pytest.mark.parametrize("dns", ["", "engines.test", "engines.test:", ":8000", "a b:1", "http://engines.test:8000"])
def test_what_is_not_a_name(dns: str) -> None:
    with pytest.raises(ValidationError, match="must look like"):
        config(dns=dns)


def test_a_model_is_served_by_replicas_of_one_kind_or_the_other() -> None:
    listed = config().model_dump()["models"][0] | {"replicas": [{"url": A}]}
    assert Config.model_validate({"models": [listed]}).models[0].has_replicas
    with pytest.raises(ValidationError, match="replicas_of"):
        Config.model_validate({"models": [{"name": "m"}]})
    with pytest.raises(ValidationError, match="none of its replicas has a curve"):
        express = listed | {"tiers": [{"name": "standard"}, {"name": "fast", "floor_tps": 9.0}]}
        Config.model_validate({"models": [express]})
