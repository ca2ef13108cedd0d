"""Cuts layers out of a model. Run by the training Python: `python cut.py '{"model": .., "rows": .., "count": 64}'`.

Prints {"layers": N} when the model is loaded, then executes commands from its input, one JSON object per line:
    {"measure": [0, 1, ..]}                              measure the influence of these layers, without the others
    {"write": [0, 1, ..], "to": DIR, "template": ".."}   write the model with only these layers, and its tokenizer
layers.py decides which layers to keep. Imports nothing of Headway.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def read_texts(path: str, count: int, tokenizer: Any, max_tokens: int) -> list[list[int]]:
    """Tokens of prompts with their answers: layers are measured on what the student will be trained on."""
    texts: list[list[int]] = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            prompt = tokenizer.apply_chat_template(
                row["messages"], tools=row.get("tools"), add_generation_prompt=True, tokenize=False
            )
            ids = tokenizer(prompt + row["answer"] + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
            texts.append(ids[:max_tokens])
            if len(texts) == count:
                break
    return texts


def influences(model: Any, kept: list[int], layers: list[Any], texts: list[list[int]]) -> list[float]:
    """The influence of each layer: 1 − cos(h_in, h_out), averaged over all tokens."""
    import torch  # type: ignore[import-not-found,unused-ignore]

    totals, tokens = [0.0] * len(kept), 0
    hooks = []

    def watch(place: int) -> Any:
        def hook(_layer: Any, arguments: Any, named: Any, result: Any) -> None:
            before = arguments[0] if arguments else named["hidden_states"]
            after = result[0] if isinstance(result, tuple) else result
            change = 1 - torch.nn.functional.cosine_similarity(before.float(), after.float(), dim=-1)
            totals[place] += float(change.sum())

        return hook

    use_layers(model, [layers[number] for number in kept])
    for place, number in enumerate(kept):
        hooks.append(layers[number].register_forward_hook(watch(place), with_kwargs=True))
    try:
        with torch.no_grad():
            for ids in texts:
                model.model(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
                tokens += len(ids)
    finally:
        for hook in hooks:
            hook.remove()
    return [total / max(1, tokens) for total in totals]


def use_layers(model: Any, layers: list[Any]) -> None:
    import torch

    model.model.layers = torch.nn.ModuleList(layers)
    model.config.num_hidden_layers = len(layers)


def write(model: Any, tokenizer: Any, layers: list[Any], kept: list[int], command: dict[str, Any]) -> None:
    use_layers(model, [layers[number] for number in kept])
    if isinstance(getattr(model.config, "layer_types", None), list):
        model.config.layer_types = [model.config.layer_types[number] for number in kept]
    if command.get("template"):
        tokenizer.chat_template = command["template"]
    unfinished = Path(command["to"] + ".partial")
    model.save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    unfinished.rename(command["to"])
    say(written=command["to"], params=sum(one.numel() for one in model.parameters()))


def main(settings: dict[str, Any]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer  # type: ignore[import-not-found,unused-ignore]

    if settings.get("threads"):
        torch.set_num_threads(settings["threads"])
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.bfloat16)
    if torch.cuda.is_available():
        model = model.to("cuda")
    model.eval()
    layers = list(model.model.layers)
    texts = read_texts(settings["rows"], settings.get("count", 64), tokenizer, settings.get("max_tokens", 1024))
    say(layers=len(layers), params=sum(one.numel() for one in model.parameters()), texts=len(texts))
    for line in sys.stdin:
        command = json.loads(line)
        if "measure" in command:
            say(influences=influences(model, command["measure"], layers, texts))
        else:
            write(model, tokenizer, layers, command["write"], command)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
