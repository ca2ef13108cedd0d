"""Writes an Idefics3 of six million parameters with random weights: an image of any size becomes 16 tokens, and three
around them. Run by the engine's Python, not by pytest. The engine's environment has no torchvision, which vLLM needs for
most other vision models."""

from __future__ import annotations

import sys

IMAGE_SIZE, PATCH_SIZE, SCALE_FACTOR = 112, 14, 2


def main(tokenizer_from: str, to: str) -> None:
    import torch  # type: ignore[import-not-found,unused-ignore]
    from transformers import (  # type: ignore[import-not-found,unused-ignore]
        AutoTokenizer,
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3ImageProcessorPil,
        Idefics3Processor,
        LlamaConfig,
    )

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_from)
    images = ["<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>"]
    tokenizer.add_tokens(images, special_tokens=True)
    edge = {"longest_edge": IMAGE_SIZE}
    processor = Idefics3Processor(
        Idefics3ImageProcessorPil(size=edge, max_image_size=edge, do_image_splitting=False),
        tokenizer,
        image_seq_len=(IMAGE_SIZE // PATCH_SIZE // SCALE_FACTOR) ** 2,
        chat_template=tokenizer.chat_template,
    )
    processor.save_pretrained(to)
    vision = {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 1,
        "image_size": IMAGE_SIZE, "patch_size": PATCH_SIZE,
    }  # fmt: skip
    # vLLM's CPU build has kernels for heads of 64.
    text = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=1,
        num_key_value_heads=1, head_dim=64, max_position_embeddings=2048, tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    config = Idefics3Config(
        vision_config=vision, text_config=text, scale_factor=SCALE_FACTOR, tie_word_embeddings=False,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"), pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    Idefics3ForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(to)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
