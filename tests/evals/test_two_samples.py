"""The two-sample test: it finds differences, accepts equal distributions, and has the level it claims."""

from __future__ import annotations

import random

from headway.evals.two_samples import distance, divergence, same_distribution


def answers(dice: random.Random, weights: list[float], prompts: int = 12, each: int = 30) -> list[list[str]]:
    return [dice.choices("abcdef", weights, k=each) for _ in range(prompts)]


def test_samples_of_one_distribution_pass_as_often_as_the_level_says() -> None:
    dice = random.Random(0)
    weights = [8.0, 4, 2, 1, 1, 1]
    p_values = [
        same_distribution(answers(dice, weights, 3, 12), answers(dice, weights, 3, 12), splits=99, seed=number)
        for number in range(200)
    ]
    assert 0.01 <= sum(p <= 0.05 for p in p_values) / 200 <= 0.10


def test_a_distribution_that_is_a_little_sharper_is_found() -> None:
    dice = random.Random(1)
    plain, sharper = answers(dice, [8, 4, 2, 1, 1, 1], 24, 60), answers(dice, [12, 3, 1, 1, 1, 0.5], 24, 60)
    assert same_distribution(plain, sharper, splits=199) <= 0.01
    assert same_distribution(plain, plain, splits=99) == 1.0


def test_texts_that_are_all_different_are_compared_word_by_word() -> None:
    dice = random.Random(2)

    def texts(weights: list[float]) -> list[list[str]]:
        return [[f"{dice.choices('abcdef', weights)[0]} {dice.random()}" for _ in range(60)] for _ in range(12)]

    plain = texts([8, 4, 2, 1, 1, 1])
    assert same_distribution(plain, texts([12, 3, 1, 1, 1, 0.5]), splits=199) <= 0.01
    assert same_distribution(plain, texts([8, 4, 2, 1, 1, 1]), splits=199) > 0.05


def test_distance_is_zero_only_if_shares_are_equal() -> None:
    assert distance("aab", "baa") == 0
    assert distance("aaa", "bbb") > distance("aab", "abb") > 0


def test_where_greedy_answers_diverge() -> None:
    found = divergence(["same", "abcd", "abc"], ["same", "abxd", "abcde"])
    assert (found.same, found.of, found.parted_after) == (1, 3, [2, 3])
    assert found.share == 1 - 1 / 3
