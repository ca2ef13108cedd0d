"""Packing: a shared prefix is stored once, and every row attends to what it would attend to alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.distill.packing import IGNORED, MIN_SHARED_TOKENS, Pack, Row, pack_rows

TOOLS = list(range(1000, 1000 + 2 * MIN_SHARED_TOKENS))


def seen_by_answer(pack: Pack, branch: int) -> tuple[list[int], list[int], list[int]]:
    """The tokens, positions and labels that the last token of a branch attends to."""
    trunk = pack.trunk[pack.branch.index(branch)]
    places = [place for place, one in enumerate(pack.branch) if one in (branch, trunk)]
    ids, positions, labels = ([values[p] for p in places] for values in (pack.input_ids, pack.positions, pack.labels))
    return ids, positions, labels


tokens = st.lists(st.integers(1, 9), min_size=1, max_size=12)
prompts = st.tuples(st.sampled_from(["shared", "own"]), tokens, tokens)


@given(st.lists(prompts, min_size=1, max_size=40), st.integers(1, 300), st.integers(0, 3))
def test_every_row_is_packed_once_and_sees_what_it_would_see_alone(
    said: list[tuple[str, list[int], list[int]]], limit: int, seed: int
) -> None:
    rows = [
        Row(kind if kind == "shared" else str(number), (TOOLS if kind == "shared" else []) + prompt, answer)
        for number, (kind, prompt, answer) in enumerate(said)
    ]
    longest = max(row.length for row in rows)
    found = []
    for pack in pack_rows(rows, limit, seed):
        assert pack.length <= max(limit, longest)
        for branch in sorted({one for one, trunk in zip(pack.branch, pack.trunk, strict=True)}):
            ids, positions, labels = seen_by_answer(pack, branch)
            if any(label != IGNORED for label in labels):
                assert positions == list(range(len(ids)))
                answer = [label for label in labels if label != IGNORED]
                assert ids[-len(answer) :] == answer
                found.append(ids)
    assert sorted(found) == sorted(row.prompt + row.answer for row in rows)


def test_a_shared_prefix_is_stored_once() -> None:
    rows = [Row("tools", [*TOOLS, number], [number], [[number]], [[-0.5]]) for number in range(8)]
    [pack] = pack_rows(rows, 1000, 0)
    assert pack.length == len(TOOLS) + 2 * 8
    answers = [label for label in pack.labels if label != IGNORED]
    assert [top for [top] in pack.top_ids] == answers, "the teacher's tokens are not in the order of the labels"
    short = [Row("hello", [1, 2, number], [number]) for number in range(8)]
    assert sum(pack.length for pack in pack_rows(short, 1000, 0)) == sum(row.length for row in short)
