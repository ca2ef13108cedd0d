"""A fixed slice of runs/hostile.sh: hostile input for every parser, and a gateway between hostile clients and engines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.api import anthropic, openai, responses
from headway.api.dialect import Dialect
from runs.hostile import corpus
from runs.hostile.clients import PATHS, Answer
from runs.hostile.live import in_process
from runs.hostile.mutate import Mutator
from runs.hostile.parsers import fuzz, prove
from runs.hostile.targets import TARGETS

SEED = 17
INPUTS, EXAMPLES, REQUESTS = 20_000, 100, 2_000


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    """A hostile input is logged, and there are thousands."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", TARGETS)
def test_no_hostile_input_breaks_a_parser(name: str) -> None:
    outcome = fuzz(name, INPUTS, SEED)
    outcome.add(prove(name, EXAMPLES, SEED))
    assert outcome.inputs >= INPUTS
    assert not outcome.failures, list(outcome.failures.values())[:5]


def test_nothing_is_left_after_hostile_clients_and_engines(tmp_path: Path) -> None:
    found = asyncio.run(in_process(tmp_path, REQUESTS, SEED))
    assert not found.tally.problems, found.tally.examples
    assert len(found.tally.served) > REQUESTS / 8
    assert (found.calls, found.tasks) == (0, 0)
    assert (found.missing, found.left_in_spool, found.ledger_problems) == (0, 0, ())


# --- the tools themselves ---


def test_the_same_seed_makes_the_same_inputs() -> None:
    one, same, other = (Mutator(corpus.CHATS, seed) for seed in (1, 1, 2))
    first = [one.next() for _ in range(200)]
    assert first == [same.next() for _ in range(200)]
    assert first != [other.next() for _ in range(200)]
    assert len(set(first)) > 150


@pytest.mark.parametrize("dialect", [openai, anthropic, responses], ids=lambda dialect: dialect.__name__)
def test_the_requests_that_are_mutated_are_valid(dialect: Dialect) -> None:
    bodies = {**PATHS, "/v1/messages/count_tokens": corpus.PROMPTS, "/v1/embeddings": corpus.EMBEDDINGS}
    bodies |= {"/v1/responses": corpus.RESPONSES, "/v1/responses/input_tokens": corpus.RESPONSES}
    for route in dialect.ROUTES:
        for body in bodies[route.path]:
            assert route.parse(body, "call-1", {}, refuses_unknown=False)[0].call.model == "m"


@pytest.mark.parametrize(
    ("body", "is_in_dialect"),
    [
        (b'{"error":{"message":"no"}}', True),
        (b'{"error":{}}', False),
        (b"Internal Server Error", False),
        (b"[]", False),
        (b"", False),
    ],
)
def test_an_error_in_the_form_of_a_dialect_is_told_from_others(body: bytes, is_in_dialect: bool) -> None:
    assert Answer(500, {b"x-request-id": b"1"}, body).is_in_dialect is is_in_dialect
    assert not Answer(500, {}, body).is_in_dialect
