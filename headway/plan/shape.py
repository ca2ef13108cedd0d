"""The shape of a model, from its Hugging Face config.json: what a step must read, compute and keep.

Knows weights, experts and kinds of attention (grouped, latent, windowed, sparse, linear with a state), and their sizes.
Does not know chips or time. Norms, biases, vision towers and draft heads are left out: less than 2 % together.

Invariant: `params` is the sum of its parts, and a config that lacks a required field is refused with the field's name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.errors import SetupError
from headway.plan.chips import Precision

# Bytes per weight with its scale: nvfp4 has one byte per 16 weights, int4 two per 32 to 128 (64 assumed).
WEIGHT_BYTES: dict[Precision, float] = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5625, "int4": 0.53}
FOUR_BIT: tuple[Precision, ...] = ("fp4", "int4")
KV_BYTES: dict[Precision, float] = {"bf16": 2.0, "fp8": 1.0, "int8": 2.0, "fp4": 1.0, "int4": 2.0}
STATE_BYTES = 4.0  # engines keep the state of linear attention in fp32
# Sparse attention also keeps one small fp8 key per token, to select tokens by.
INDEXER_BYTES = 1.0


@dataclass(frozen=True, slots=True)
class ModelShape:
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int  # 1 if all heads share a latent, which cannot be split
    is_latent: bool
    full_layers: int  # layers that attend to the whole context
    window_layers: int
    window: int
    linear_layers: int
    kv_values: int  # per token in each full or window layer
    state_values: int  # per stream in each linear layer
    sparse_tokens: int  # maximum that a full layer reads; 0 for all
    indexer_values: int
    moe_layers: int
    experts: int
    experts_per_token: int
    expert_params: int  # per expert and layer
    block_params: int  # of all layers, without routed experts
    head_params: int  # of the output head, read at every step
    embedding_params: int  # of the input table, if it is not the head: stored, not read

    @property
    def params(self) -> int:
        return self.experts * self.expert_params * self.moe_layers + self.always_params + self.embedding_params

    @property
    def always_params(self) -> int:
        """Weights read at every step, whatever the batch."""
        return self.block_params + self.head_params

    @property
    def active_params(self) -> int:
        """Weights that one token is multiplied with."""
        return self.always_params + self.experts_per_token * self.expert_params * self.moe_layers

    def experts_touched(self, tokens: float) -> float:
        """Return the expected experts per layer that are read for `tokens` tokens that choose independently."""
        if not self.experts:
            return 0.0
        return self.experts * (1.0 - float((1.0 - self.experts_per_token / self.experts) ** tokens))

    def weight_bytes(self, precision: Precision) -> float:
        """Return the bytes of all weights in memory."""
        experts = self.experts * self.expert_params * self.moe_layers * WEIGHT_BYTES[precision]
        return experts + self.always_bytes(precision) + 2.0 * self.embedding_params

    def always_bytes(self, precision: Precision) -> float:
        """Return the bytes read at every step. The head is bf16; with 4-bit experts, so is all but the experts."""
        is_wide = self.moe_layers and precision in FOUR_BIT
        return self.block_params * (2.0 if is_wide else WEIGHT_BYTES[precision]) + 2.0 * self.head_params

    def expert_bytes(self, tokens: float, precision: Precision) -> float:
        """Return the bytes of routed experts that a step with `tokens` tokens reads."""
        return self.experts_touched(tokens) * self.expert_params * self.moe_layers * WEIGHT_BYTES[precision]

    def kv_bytes(self, context: float, precision: Precision) -> float:
        """Return the bytes kept for a stream of `context` tokens."""
        each = self.kv_values * KV_BYTES[precision]
        full = self.full_layers * context * (each + self.indexer_values * INDEXER_BYTES)
        return full + self.window_layers * min(context, self.window) * each + self.state_bytes

    def kv_read_bytes(self, context: float, precision: Precision) -> float:
        """Return the bytes read for a stream at every step. States of linear layers are also written."""
        each = self.kv_values * KV_BYTES[precision]
        seen = min(context, self.sparse_tokens) if self.sparse_tokens else context
        full = self.full_layers * (seen * each + context * self.indexer_values * INDEXER_BYTES)
        return full + self.window_layers * min(context, self.window) * each + 2.0 * self.state_bytes

    @property
    def state_bytes(self) -> float:
        return self.linear_layers * self.state_values * STATE_BYTES


def read_shape(path: Path) -> ModelShape:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SetupError(f"{path} is not a valid config.json: {error}") from None
    if not isinstance(config, dict):
        raise SetupError(f"{path} is not a config.json: it does not contain an object.")
    return shape_of(config, path.parent.name or path.stem)


def shape_of(config: dict[str, Any], name: str) -> ModelShape:
    """Build a shape from the fields of a config.json. Multimodal models have them in `text_config`."""
    outer, config = config, config.get("text_config") or config
    layers, hidden, vocab = (_need(config, field, name) for field in ("num_hidden_layers", "hidden_size", "vocab_size"))
    tied = bool(config.get("tie_word_embeddings", outer.get("tie_word_embeddings", False)))
    attention, linear, kv_values, kv_heads = _attention(config, name)
    kinds = _layer_kinds(config, layers)
    linear_layers, window_layers = kinds.count("linear_attention"), kinds.count("sliding_attention")
    moe_layers, experts, per_token, expert_params, dense_mlp, moe_always = _mlp(config, name)
    block = attention * (layers - linear_layers) + linear * linear_layers
    block += dense_mlp * (layers - moe_layers) + moe_always * moe_layers
    return ModelShape(
        name=name, layers=layers, hidden=hidden, heads=_need(config, "num_attention_heads", name), kv_heads=kv_heads,
        is_latent="kv_lora_rank" in config, full_layers=layers - linear_layers - window_layers,
        window_layers=window_layers, window=config.get("sliding_window") or 0, linear_layers=linear_layers,
        kv_values=kv_values, state_values=_state_values(config), sparse_tokens=config.get("index_topk", 0),
        indexer_values=config.get("index_head_dim", 0) if "index_topk" in config else 0,
        moe_layers=moe_layers, experts=experts, experts_per_token=per_token, expert_params=expert_params,
        block_params=block, head_params=vocab * hidden, embedding_params=0 if tied else vocab * hidden,
    )  # fmt: skip


def _need(config: dict[str, Any], field: str, name: str) -> int:
    value = config.get(field)
    if not isinstance(value, int) or value < 1:
        raise SetupError(f"the config of {name} has no {field}, which the planner needs.")
    return value


def _attention(config: dict[str, Any], name: str) -> tuple[int, int, int, int]:
    """Return (weights of an attention layer, of a linear layer, values kept per token, heads to split them by)."""
    hidden, heads = _need(config, "hidden_size", name), _need(config, "num_attention_heads", name)
    if config.get("kv_lora_rank"):
        nope, rope, value = (_need(config, f, name) for f in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        latent, query_rank = _need(config, "kv_lora_rank", name), config.get("q_lora_rank") or 0
        query = heads * (nope + rope)
        params = hidden * query_rank + query_rank * query if query_rank else hidden * query
        params += hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden
        if "index_topk" in config:
            index_heads, index_dim = config.get("index_n_heads", 32), config.get("index_head_dim", 128)
            params += query_rank * index_heads * index_dim + hidden * (index_dim + index_heads)
        return params, 0, latent + rope, 1
    head_dim = config.get("head_dim") or hidden // heads
    kv_heads = config.get("num_key_value_heads") or heads
    gate = heads * head_dim if config.get("attn_output_gate") else 0
    params = hidden * (2 * heads * head_dim + gate + 2 * kv_heads * head_dim)
    key = config.get("linear_num_key_heads", 0) * config.get("linear_key_head_dim", 0)
    value = config.get("linear_num_value_heads", 0) * config.get("linear_value_head_dim", 0)
    # A gated delta net: queries, keys, values and a gate as inputs, two numbers per head, values as output.
    linear = hidden * (2 * key + 2 * value + 2 * config.get("linear_num_value_heads", 0)) + value * hidden
    return params, linear, 2 * kv_heads * head_dim, kv_heads


def _state_values(config: dict[str, Any]) -> int:
    heads, key, value = (
        config.get(field, 0) for field in ("linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
    )
    return int(heads * key * value)


def _layer_kinds(config: dict[str, Any], layers: int) -> list[str]:
    kinds = config.get("layer_types")
    if kinds:
        return list(kinds[:layers])
    every = config.get("full_attention_interval")
    if every and config.get("linear_num_value_heads"):
        return ["full_attention" if (layer + 1) % every == 0 else "linear_attention" for layer in range(layers)]
    return ["full_attention"] * layers


def _mlp(config: dict[str, Any], name: str) -> tuple[int, int, int, int, int, int]:
    """Return (MoE layers, experts, experts per token, weights of an expert, of a dense layer, of the shared part)."""
    hidden, layers = _need(config, "hidden_size", name), _need(config, "num_hidden_layers", name)
    experts = next((config[f] for f in ("n_routed_experts", "num_experts", "num_local_experts") if config.get(f)), 0)
    if not experts:
        return 0, 0, 0, 0, 3 * hidden * _need(config, "intermediate_size", name), 0
    chosen = next((config[f] for f in ("num_experts_per_tok", "experts_per_token", "moe_k") if config.get(f)), 0)
    if not chosen:
        raise SetupError(f"the config of {name} has experts but no num_experts_per_tok.")
    width = config.get("moe_intermediate_size") or _need(config, "intermediate_size", name)
    shared = config.get("shared_expert_intermediate_size") or (config.get("n_shared_experts") or 0) * width
    step = config.get("decoder_sparse_step") or 1
    dense = max(config.get("first_k_dense_replace") or 0, len(config.get("mlp_only_layers") or ()))
    moe_layers = (layers - dense) // step
    dense_mlp = 3 * hidden * (config.get("intermediate_size") or width)
    return moe_layers, experts, chosen, 3 * hidden * width, dense_mlp, 3 * hidden * shared + hidden * experts
