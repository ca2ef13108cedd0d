"""Known models by short name: the fields of their published config.json files that shape.py reads.

Invariant: tests/plan/test_shape.py compares each with the published number of weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.errors import SetupError
from headway.plan.shape import ModelShape, read_shape, shape_of

_LATENT = {
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
_DEEPSEEK_V3: dict[str, Any] = {
    "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "intermediate_size": 18432,
    "vocab_size": 129280, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048, "first_k_dense_replace": 3, **_LATENT,
}  # fmt: skip
_GPT_OSS: dict[str, Any] = {
    "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "intermediate_size": 2880, "vocab_size": 201088, "num_experts_per_tok": 4, "sliding_window": 128,
}  # fmt: skip
_WINDOWED = ["sliding_attention", "full_attention"]


def _llama(layers: int, hidden: int, heads: int, width: int, vocab: int = 128256, **more: Any) -> dict[str, Any]:
    fields = {
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": 8,
        "intermediate_size": width, "vocab_size": vocab,
    }  # fmt: skip
    return fields | more


CONFIGS: dict[str, dict[str, Any]] = {
    "smollm2-135m": _llama(30, 576, 9, 1536, 49152, num_key_value_heads=3, tie_word_embeddings=True),
    "llama-3.2-1b": _llama(16, 2048, 32, 8192, tie_word_embeddings=True),
    "llama-3.1-8b": _llama(32, 4096, 32, 14336),
    "llama-3.1-70b": _llama(80, 8192, 64, 28672),
    "llama-3.1-405b": _llama(126, 16384, 128, 53248),
    "qwen3-8b": _llama(36, 4096, 32, 12288, 151936, head_dim=128),
    "qwen3-32b": _llama(64, 5120, 64, 25600, 151936, head_dim=128),
    "qwen3-30b-a3b": _llama(48, 2048, 32, 6144, 151936, num_key_value_heads=4, head_dim=128, num_experts=128,
                            num_experts_per_tok=8, moe_intermediate_size=768),
    "qwen3-235b-a22b": _llama(94, 4096, 64, 12288, 151936, num_key_value_heads=4, head_dim=128, num_experts=128,
                              num_experts_per_tok=8, moe_intermediate_size=1536),
    "qwen3.5-397b-a17b": _llama(60, 4096, 32, 1024, 248320, num_key_value_heads=2, head_dim=256, attn_output_gate=True,
                                num_experts=512, num_experts_per_tok=10, moe_intermediate_size=1024,
                                shared_expert_intermediate_size=1024, full_attention_interval=4,
                                linear_num_key_heads=16, linear_key_head_dim=128, linear_num_value_heads=64,
                                linear_value_head_dim=128),
    "gpt-oss-20b": {"num_hidden_layers": 24, "num_local_experts": 32, "layer_types": _WINDOWED * 12, **_GPT_OSS},
    "gpt-oss-120b": {"num_hidden_layers": 36, "num_local_experts": 128, "layer_types": _WINDOWED * 18, **_GPT_OSS},
    "minimax-m2.5": _llama(62, 3072, 48, 1536, 200064, head_dim=128, num_local_experts=256, num_experts_per_tok=8),
    "glm-4.5": _llama(92, 5120, 96, 12288, 151552, head_dim=128, n_routed_experts=160, n_shared_experts=1,
                      num_experts_per_tok=8, moe_intermediate_size=1536, first_k_dense_replace=3),
    "glm-5": _DEEPSEEK_V3 | {
        "num_hidden_layers": 78, "hidden_size": 6144, "num_attention_heads": 64, "intermediate_size": 12288,
        "vocab_size": 154880, "q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256, "index_topk": 2048,
        "index_n_heads": 32, "index_head_dim": 128,
    },
    "deepseek-v3": _DEEPSEEK_V3,
    "kimi-k2.5": _DEEPSEEK_V3 | {
        "num_attention_heads": 64, "vocab_size": 163840, "n_routed_experts": 384, "first_k_dense_replace": 1,
    },
}  # fmt: skip


def model_shape(name_or_path: str) -> ModelShape:
    """Return the shape of a known model, or of the config.json at a path or in a folder."""
    if name_or_path.lower() in CONFIGS:
        return shape_of(CONFIGS[name_or_path.lower()], name_or_path.lower())
    path = Path(name_or_path)
    if path.is_dir():
        path /= "config.json"
    if path.is_file():
        return read_shape(path)
    raise SetupError(f"{name_or_path} is neither a path to a config.json nor one of: {', '.join(CONFIGS)}.")
