"""What engines are expected to have in their caches."""

from __future__ import annotations

import random

import pytest

from headway.core.prefix_index import HOLDERS, UNKNOWN_KV_TOKENS, PrefixIndex
from headway.core.types import KEYED_TOKENS, Call


def call(*keys: int, tokens: tuple[int, ...] | None = None) -> Call:
    """100 tokens from one key to the next."""
    lengths = tokens or tuple(100 * (place + 1) for place in range(len(keys)))
    return Call("c", "m", "standard", prefix_keys=keys, prefix_tokens=lengths, prompt_tokens=lengths[-1])


def index(*names: str, max_held: int = 1_000) -> PrefixIndex:
    made = PrefixIndex(max_held)
    for name in names:
        made.add(name)
    return made


def holders(made: PrefixIndex, *keys: int) -> list[str]:
    return [part.name for part in made.holders(call(*keys))]


def test_the_longest_prefix_that_was_read_is_expected() -> None:
    made = index("r0", "r1")
    made.boarded(call(1, 2, 3, 4), "r0", 0, 0)
    made.boarded(call(1, 2), "r1", 0, 0)
    for keys, expected in (((1, 2, 3, 4, 5), 400), ((1, 2, 9), 200), ((9, 8), 0), ((1,), 100)):
        assert made.parts["r0"].cached_tokens(call(*keys)) == expected
    assert holders(made, 1, 2, 3, 7) == ["r0", "r1"]
    assert holders(made, 1, 2) == ["r1", "r0"]
    assert holders(made, 5) == []
    made.check()


def test_no_more_is_expected_than_the_prompt_has() -> None:
    made = index("r0")
    made.boarded(call(1, 2), "r0", 0, 0)
    shorter = Call("c", "m", "standard", prefix_keys=(1, 2), prefix_tokens=(100, 200), prompt_tokens=150)
    assert made.parts["r0"].cached_tokens(shorter) == 150


def test_a_part_forgets_as_a_cache_of_its_size_does() -> None:
    made = index("r0")
    made.boarded(call(1, 2, 3), "r0", 450, 0)
    made.boarded(call(1, 7), "r0", 450, 0)  # 400 tokens; (1, 2, 3) are no longer the last used
    made.boarded(call(1, 8), "r0", 450, 0)
    part = made.parts["r0"]
    assert part.tokens <= 450
    assert part.cached_tokens(call(1, 2, 3)) == 200
    assert part.cached_tokens(call(1, 7)) == 200
    made.check()


def test_answers_take_memory_too() -> None:
    made = index("r0")
    made.boarded(call(1, 2), "r0", 500, 250)
    assert made.parts["r0"].tokens == 450
    made.boarded(call(1, 2, 3, 4), "r0", 500, 50)  # the answer is part of this prompt
    assert made.parts["r0"].tokens == 450
    assert made.parts["r0"].cached_tokens(call(1, 2, 3, 4)) == 400


def test_an_unknown_memory_is_bounded() -> None:
    made = index("r0")
    for number in range(1_000, 3_000):
        made.boarded(call(number, tokens=(1_000,)), "r0", 0, 0)
    assert made.parts["r0"].tokens <= UNKNOWN_KV_TOKENS


@pytest.mark.parametrize("replicas", [1, 3, 40])
def test_all_parts_together_are_bounded(replicas: int) -> None:
    names = [f"r{number}" for number in range(replicas)]
    made = index(*names, max_held=200)
    for number in range(1, 2_000):
        made.boarded(call(number * 10, number * 10 + 1, tokens=(1, 2)), names[number * number % replicas], 0, 0)
        assert made.count <= 200
    made.check()
    made.add("new")
    made.boarded(call(1, 2, 3, tokens=(1, 2, 3)), "new", 0, 0)
    assert made.parts["new"].cached_tokens(call(1, 2, 3, tokens=(1, 2, 3))) == 3


def test_a_prefix_that_everybody_holds_names_few() -> None:
    names = [f"r{number}" for number in range(50)]
    made = index(*names)
    for name in names:
        made.boarded(call(1), name, 0, 0)
    assert holders(made, 1, 2) == ["r49", "r48", "r47"]
    assert len(holders(made, 1)) == HOLDERS
    made.check()


def test_what_an_engine_has_lost_is_expected_no_more() -> None:
    made = index("r0", "r1")
    for name in ("r0", "r1"):
        made.boarded(call(1, 2, 3), name, 0, 0)
    made.lose("r0", [2, 3, 99])
    assert made.parts["r0"].cached_tokens(call(1, 2, 3)) == 100
    assert made.parts["r1"].cached_tokens(call(1, 2, 3)) == 300
    made.check()


def test_a_replica_that_is_gone_is_named_no_more_and_forgotten_step_by_step() -> None:
    made = index("r0", "r1")
    for number in range(300):
        made.boarded(call(number, tokens=(1,)), "r0", 0, 0)
    made.remove("r0")
    assert holders(made, 299) == []
    made.add("r2")
    made.check()
    for _ in range(300):
        made.boarded(call(1_000), "r1", 0, 0)
    assert made.count == 1
    made.check()


def test_a_shared_beginning_does_not_keep_the_rest_of_a_prompt() -> None:
    made = index("r0")
    made.boarded(call(1, 2, 3, 4), "r0", 600, 0)
    for key in range(10, 16):
        made.boarded(call(1, 2, key), "r0", 600, 0)
    assert made.parts["r0"].cached_tokens(call(1, 2, 3, 4)) == 200
    assert made.parts["r0"].cached_tokens(call(1, 2, 15)) == 300
    made.check()


def test_what_continues_a_lost_prefix_is_lost_too() -> None:
    made = index("r0")
    made.boarded(call(1, 2, 3), "r0", 0, 0)
    made.boarded(call(1, 2, 3, 4, 5), "r0", 0, 70)
    made.boarded(call(1, 9), "r0", 0, 0)
    made.lose("r0", [2])
    assert made.parts["r0"].cached_tokens(call(1, 2, 3, 4, 5)) == 100
    assert made.parts["r0"].cached_tokens(call(1, 9)) == 200
    assert made.parts["r0"].tokens == 200
    made.check()


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_nothing_is_miscounted(seed: int) -> None:
    chance = random.Random(seed)
    made = index("r0", "r1", "r2", max_held=chance.choice([20, 60, 1_000]))
    many = chance.randint(2, 5)  # ways in which a prompt can go on

    def some_call() -> Call:
        keys = [chance.randrange(many) + 1]
        for _ in range(chance.randrange(6)):
            keys.append(keys[-1] * 10 + chance.randrange(many))
        return call(*keys)

    for _ in range(400):
        name, some = chance.choice(list(made.parts)), some_call()
        match chance.randrange(20):
            case 0:
                made.remove(name)
                made.add(name)
            case 1 | 2:
                made.lose(name, [chance.choice(some.prefix_keys)])
            case _:
                made.boarded(some, name, chance.choice([0, 700, 2_000]), chance.randrange(300))
                assert name in holders(made, *some.prefix_keys) or made.parts[name].cached_tokens(some) < 100
        for part in made.parts.values():
            assert 0 <= part.cached_tokens(some) <= some.prompt_tokens
        made.check()


def test_keys_beyond_the_bound_and_keys_without_a_length_are_not_kept() -> None:
    made = index("r0")
    many = call(*range(1, len(KEYED_TOKENS) + 20))
    made.boarded(many, "r0", 0, 0)
    assert made.count == len(KEYED_TOKENS)
    short = Call("c", "m", "standard", prefix_keys=(71, 72, 73), prefix_tokens=(100,), prompt_tokens=300)
    made.boarded(short, "r0", 0, 0)
    assert made.count == len(KEYED_TOKENS) + 1
    assert made.parts["r0"].cached_tokens(short) == 100
    made.check()
