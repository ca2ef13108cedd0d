"""What needs no torch: the choice of layers, the fit into memories, publishing, and the card."""

from __future__ import annotations

import json
import struct
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from headway.config import ProfileTable, load
from headway.distill.card import card_page, ratio_interval, tally
from headway.distill.fit import Place, Weights, cpu_caches, fits, places, weigh
from headway.distill.layers import choose_layers
from headway.distill.publish import Drafting, FirstRung, Spark, best_tokens, profile_lines, publish
from headway.errors import SetupError
from headway.evals.shares import Share

CONFIG = """\
# ours
[[models]]
name = "m"   # the large one

[[models.replicas]]
url = "http://127.0.0.1:8001"
seats = 64

[models.engine]
weights = "big"
"""


def test_the_layer_with_the_least_influence_is_dropped_first_and_the_ends_are_kept() -> None:
    influence = [0.0, 0.5, 0.1, 0.4, 0.2, 0.0]
    measured: list[list[int]] = []

    def measure(kept: Sequence[int]) -> list[float]:
        measured.append(list(kept))
        # A layer matters more once its neighbour is gone.
        return [influence[layer] + (0.35 if layer + 1 not in kept else 0.0) for layer in kept]

    assert choose_layers(measure, 6, 3) == [0, 1, 5]
    assert [len(kept) for kept in measured] == [6, 5, 4]
    assert choose_layers(measure, 6, 3, at_once=3) == [0, 1, 5]
    with pytest.raises(SetupError, match="can be cut to 2 to 5"):
        choose_layers(measure, 6, 6)


def write_model(folder: Path, *, tied: bool) -> None:
    header = {
        "model.embed_tokens.weight": {"dtype": "BF16", "shape": [100, 8], "data_offsets": [0, 1600]},
        "model.layers.0.q.weight": {"dtype": "I8", "shape": [8, 8], "data_offsets": [1600, 1664]},
        "model.layers.0.q.weight_scale": {"dtype": "F32", "shape": [8, 1], "data_offsets": [1664, 1696]},
        "__metadata__": {"format": "pt"},
    }
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))


def test_sizes_are_read_from_headers(tmp_path: Path) -> None:
    write_model(tmp_path, tied=True)
    assert weigh(tmp_path) == Weights(864, 1696, 1696)
    write_model(tmp_path, tied=False)
    assert weigh(tmp_path).step_bytes == 96
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(SetupError, match="safetensors"):
        weigh(tmp_path)


def test_which_memories_hold_it_and_the_least_step_time(tmp_path: Path) -> None:
    one, three = fits(Weights(0, 250, 200), [Place("large", 1000, 1e6), Place("small", 100)])
    assert one.holds
    assert one.least_step_ms == 0.2
    assert (three.needed, three.holds, three.least_step_ms) == (3, False, None)
    for number, (kind, level, size) in enumerate((("Data", 1, "48K"), ("Unified", 3, "32M"), ("Unified", 2, "2048K"))):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, value in (("type", kind), ("level", level), ("size", size)):
            (folder / name).write_text(f"{value}\n")
    assert [(place.name, place.size_bytes) for place in cpu_caches(tmp_path)] == [
        ("this CPU's L2", 2**21),
        ("this CPU's L3", 2**25),
    ]
    assert cpu_caches(tmp_path / "nothing") == []
    assert any("SRAM" in place.name for place in places())


def test_the_number_of_draft_tokens_with_the_highest_gain() -> None:
    assert best_tokens([0.0, 0.0], 0.3) == (0, 1.0)
    tokens, gain = best_tokens([0.9, 0.9, 0.9, 0.9], 0.1)
    assert tokens == 4
    assert gain == pytest.approx((1 + 0.9 + 0.81 + 0.729 + 0.6561) / 1.4)
    assert best_tokens([0.8, 0.1, 0.1], 0.2)[0] == 1
    assert best_tokens([0.5], 0.6)[0] == 0


def test_publishing_writes_a_configuration_that_loads_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "headway.toml"
    path.write_text(CONFIG)
    spark = Spark("student", "http://127.0.0.1:8002", 16, 40.0, [(1, 90.0), (16, 60.0)])
    for _ in range(2):  # publishing twice has the same result
        said = publish(path, "m", spark, Drafting.up_to("student", 3, 8, 64), load)
    assert said == [
        "m-spark is served by http://127.0.0.1:8002 with a floor of 40 tok/s",
        "m drafts 3 tokens at 1 to 8 streams, 0 tokens at 9 to 64 streams",
    ]
    text = path.read_text()
    assert text.startswith(CONFIG.splitlines()[0])
    assert "# the large one" in text
    full, student = load(path).models
    assert full.engine is not None
    assert full.engine.speculation is not None
    assert full.engine.speculation.by_streams == [(1, 8, 3), (9, 64, 0)]
    assert student.name == "m-spark"
    assert student.tiers[1].floor_tps == 40.0
    assert student.engine is not None
    assert student.engine.weights == "student"
    publish(path, "m", None, None, load, FirstRung("auto.json", 0.01))
    auto = load(path).models[0].auto
    assert auto is not None
    assert (auto.calibration, auto.budget) == ("auto.json", 0.01)
    publish(path, "m", None, Drafting.up_to("student", 0, None), load)
    full = load(path).models[0]
    assert full.engine is not None
    assert full.engine.speculation is None


def test_a_profile_with_the_drafter_can_be_pasted() -> None:
    lines = profile_lines("drafter", Drafting.up_to("student", 3, 8, 64))
    profile = ProfileTable.model_validate(tomllib.loads(lines)["models"]["profiles"][0])
    assert profile.name == "drafter"
    assert profile.speculation is not None
    assert (profile.speculation.drafter, profile.speculation.tokens) == ("student", 3)
    assert profile.speculation.by_streams == [(1, 8, 3), (9, 64, 0)]


def test_a_configuration_that_would_not_load_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "headway.toml"
    path.write_text(CONFIG)
    with pytest.raises(SetupError, match="curve"):
        publish(path, "m", Spark("student", "http://127.0.0.1:8002", 16, 40.0), None, load)
    with pytest.raises(SetupError, match="its student 'm-spark' is not another"):
        publish(path, "m", None, None, load, FirstRung("auto.json", 0.01))
    with pytest.raises(SetupError, match="no model 'x'"):
        publish(path, "x", None, None, load)
    assert path.read_text() == CONFIG
    assert list(tmp_path.iterdir()) == [path]


def test_shares_have_wilson_intervals() -> None:
    assert str(Share(570, 600)) == "95.0% (93.0% .. 96.5%)"
    assert Share(10, 10).interval[1] == pytest.approx(1.0)
    assert Share(10, 10).interval[0] < 0.8
    assert Share(0, 0).interval == (0.0, 1.0)
    ratio, low, high = ratio_interval(Share(540, 600), Share(570, 600))
    assert ratio == pytest.approx(0.947, abs=0.001)
    assert low < ratio < high
    assert ratio_interval(Share(0, 5), Share(5, 5))[2] == float("inf")


def test_the_card_says_what_was_measured_and_what_was_not() -> None:
    empty = card_page({"name": "s"})
    assert empty.count("not measured") >= 5
    mistakes = {
        "routine": {"teacher": {"right": 98, "no call": 2}, "student": {"right": 95, "no call": 5}},
        "hard": {"teacher": {"right": 50, "wrong tool": 50}, "student": tally(["right"] * 5 + ["wrong argument"] * 95)},
    }
    speeds = [{"model": "s", "streams": 1, "stream_tps": 91.25}]
    acceptance = {"routine": {"tokens": 3, "acceptance": 0.8, "speedup": 1.4}}
    page = card_page(
        {"name": "s", "bytes": 1000, "params": 5, "mistakes": mistakes, "speeds": speeds, "acceptance": acceptance}
    )
    assert "| student | 100 | 95.0% (88.8% .. 97.8%) | 5 |" in page
    assert (
        "- **hard**: right on 5.0% of the tasks, its teacher on 50.0%; most common mistake: wrong argument (95 of 100)."
        in page
    )
    assert "- **routine**" not in page
    assert "| s | 1 | 91.2 |" in page
    assert "| routine | 3 | 80.0% | 1.40 |" in page
