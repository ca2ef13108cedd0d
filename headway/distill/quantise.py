"""Quantises a model to int8 (W8A8): weights per output channel, activations dynamically per token, round to nearest.

Run by the training Python: `python quantise.py '{"model": DIR, "to": DIR}'`. Writes compressed-tensors'
`int-quantized` format, which vLLM loads on CPUs and GPUs. Only the projections inside the layers are quantised; the
embedding is not, because in small models it is also the output head. Imports nothing of Headway.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

PROJECTION = re.compile(r"\.layers\.\d+\..*_proj\.weight$")
LARGEST = 127
QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "global_compression_ratio": None,
    "kv_cache_scheme": None,
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def quantised(weight: Any) -> tuple[Any, Any]:
    """The weight as int8, and the scale of each row: int8 × scale is the weight, rounded to the nearest step."""
    import torch  # type: ignore[import-not-found,unused-ignore]

    wide = weight.float()
    scale = wide.abs().amax(dim=1, keepdim=True).clamp(min=1e-8) / LARGEST
    return torch.round(wide / scale).clamp(-LARGEST, LARGEST).to(torch.int8), scale


def main(settings: dict[str, Any]) -> None:
    from safetensors.torch import load_file, save_file  # type: ignore[import-not-found,unused-ignore]

    source, unfinished = Path(settings["model"]), Path(settings["to"] + ".partial")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    shutil.copytree(source, unfinished, ignore=shutil.ignore_patterns("*.safetensors", "*.safetensors.index.json"))
    tensors: dict[str, Any] = {}
    worst = 0.0
    for file in sorted(source.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            if PROJECTION.search(name):
                tensors[name], scale = quantised(tensor)
                tensors[f"{name}_scale"] = scale
                off = (tensors[name].float() * scale - tensor.float()).norm() / tensor.float().norm().clamp(min=1e-8)
                worst = max(worst, float(off))
            else:
                tensors[name] = tensor
    save_file(tensors, unfinished / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = QUANTIZATION
    (unfinished / "config.json").write_text(json.dumps(config, indent=2))
    if Path(settings["to"]).exists():
        shutil.rmtree(settings["to"])
    unfinished.rename(settings["to"])
    size_bytes = sum(one.numel() * one.element_size() for one in tensors.values())
    say(written=settings["to"], bytes=size_bytes, worst_relative_error=worst)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
