"""Writes a Llama of three million parameters with random weights. Run by the training Python, not by pytest."""

from __future__ import annotations

import sys


def main(tokenizer_from: str, to: str) -> None:
    import torch  # type: ignore[import-not-found,unused-ignore]
    from transformers import (  # type: ignore[import-not-found,unused-ignore]
        AutoTokenizer,
        LlamaConfig,
        LlamaForCausalLM,
    )

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_from)
    # vLLM's CPU build has kernels for heads of 64.
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=5, num_attention_heads=1,
        num_key_value_heads=1, head_dim=64, max_position_embeddings=2048, tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(to)
    tokenizer.save_pretrained(to)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
