"""Shapes compared with what the makers of the models publish."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.errors import SetupError
from headway.plan.models import CONFIGS, model_shape
from headway.plan.shape import read_shape, shape_of

# Billions of weights, in all and for one token, as on the model's page; None where only one of them is given.
PUBLISHED: dict[str, tuple[float, float | None]] = {
    "smollm2-135m": (0.1345, None),
    "llama-3.2-1b": (1.24, None),
    "llama-3.1-8b": (8.03, None),
    "llama-3.1-70b": (70.6, None),
    "llama-3.1-405b": (406.0, None),
    "qwen3-8b": (8.19, None),
    "qwen3-32b": (32.8, None),
    "qwen3-30b-a3b": (30.5, 3.3),
    "qwen3-235b-a22b": (235.0, 22.0),
    "qwen3.5-397b-a17b": (397.0, 17.0),
    "gpt-oss-20b": (20.9, 3.6),
    "gpt-oss-120b": (116.8, 5.1),
    "minimax-m2.5": (229.0, 10.0),
    "glm-4.5": (355.0, 32.0),
    "glm-5": (744.0, 40.0),
    "deepseek-v3": (671.0, 37.0),
    "kimi-k2.5": (1_040.0, 32.0),
}


def test_every_known_model_is_checked() -> None:
    assert PUBLISHED.keys() == CONFIGS.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_are_what_is_published(name: str) -> None:
    shape = model_shape(name)
    total, active = PUBLISHED[name]
    assert shape.params / 1e9 == pytest.approx(total, rel=0.03)
    if active is not None:  # published to one or two digits, with or without the input table
        assert shape.active_params / 1e9 == pytest.approx(active, rel=0.09)


def test_context_kept_for_a_token() -> None:
    assert model_shape("llama-3.1-70b").kv_bytes(1000, "bf16") == 1000 * 80 * 2 * 8 * 128 * 2
    # A latent of 512 and 64 values, whatever the heads.
    assert model_shape("deepseek-v3").kv_bytes(1000, "bf16") == 1000 * 61 * 576 * 2


def test_windows_states_and_sparse_layers_stop_growing() -> None:
    windowed = model_shape("gpt-oss-120b")
    assert windowed.kv_bytes(20_000, "bf16") - windowed.kv_bytes(10_000, "bf16") == 18 * 10_000 * 2 * 8 * 64 * 2
    hybrid = model_shape("qwen3.5-397b-a17b")
    assert hybrid.full_layers == 15
    assert hybrid.kv_bytes(0, "bf16") == hybrid.state_bytes > 0
    sparse = model_shape("glm-5")
    kept, read = (f(100_000, "fp8") for f in (sparse.kv_bytes, sparse.kv_read_bytes))
    assert read < kept / 3


def test_experts_touched_by_a_batch() -> None:
    shape = model_shape("deepseek-v3")
    assert shape.experts_touched(1) == pytest.approx(8)
    assert shape.experts_touched(32) / 256 == pytest.approx(0.638, abs=0.001)
    assert shape.experts_touched(10_000) == pytest.approx(256)
    assert model_shape("llama-3.1-8b").experts_touched(32) == 0


def test_a_config_json_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": CONFIGS["qwen3-32b"], "vision_config": {}}))
    assert model_shape(str(tmp_path)).params == read_shape(tmp_path / "config.json").params
    assert model_shape(str(tmp_path)).params == model_shape("qwen3-32b").params


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="num_hidden_layers"):
        shape_of({"hidden_size": 10, "vocab_size": 10}, "broken")
    with pytest.raises(SetupError, match=r"neither a path .* llama-3.1-8b"):
        model_shape("no-such-model")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(SetupError, match="does not contain an object"):
        model_shape(str(tmp_path))
