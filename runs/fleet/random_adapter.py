"""Writes a LoRA adapter with random weights for a model of Llama's kind: `python random_adapter.py MODEL OUT SEED`.

Run by the engine's Python. The weights are large enough to change what the model says, and differ by seed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

RANK, SIZE = 8, 0.2
MODULES = ("q_proj", "v_proj")


def write_adapter(model: Path, out: Path, seed: int) -> None:
    import torch  # type: ignore[import-not-found,unused-ignore]
    from safetensors.torch import save_file  # type: ignore[import-not-found,unused-ignore]

    shape = json.loads((model / "config.json").read_text())
    hidden, heads = shape["hidden_size"], shape["num_attention_heads"]
    outputs = {"q_proj": hidden, "v_proj": hidden // heads * shape["num_key_value_heads"]}
    dice = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(shape["num_hidden_layers"]):
        for module in MODULES:
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{name}.lora_A.weight"] = SIZE * torch.randn(RANK, hidden, generator=dice)
            weights[f"{name}.lora_B.weight"] = SIZE * torch.randn(outputs[module], RANK, generator=dice)
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights, out / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": list(MODULES), "bias": "none"}
    settings |= {"task_type": "CAUSAL_LM", "base_model_name_or_path": str(model)}
    (out / "adapter_config.json").write_text(json.dumps(settings))


if __name__ == "__main__":
    write_adapter(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
