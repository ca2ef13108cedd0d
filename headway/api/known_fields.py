"""The fields that clients are known to send and that Headway does not honour: hints, which are ignored, and fields that
are refused by name, with what to do instead (api/fields.py). docs/reference/fields.md is generated from these lists.

A name is a hint if an answer without it is a full answer to the same question: caching, tracing, storage at a vendor,
wishes about length or speed. It is refused if the client would take the answer for something that it is not.
"""

from __future__ import annotations

from headway.api.fields import FieldNames, Refusal

# --- both dialects ---------------------------------------------------------------------------------------------------

# Sent back by frameworks with the messages and tools of earlier turns, or meant for other vendors' caches.
COMMON_HINTS = {
    "additional_kwargs", "annotations", "cache_control", "caller", "citations", "extra_body", "extra_content",
    "extra_headers", "id", "index", "metadata", "mm_payload", "provider_options", "providerOptions",
    "provider_specific_fields", "reasoning_details", "request_id", "response_metadata", "return_mm_kwargs",
    "session_id", "stop_reason", "stop_sequence", "thinking_blocks", "usage", "user_id",
}  # fmt: skip

_KEPT_BY_OPERATOR = "it is the operator's to set on a shared engine. Remove it."
COMMON_REFUSED = {
    "cache_salt": Refusal("Headway separates tenants in the engines' caches itself. Remove it."),
    "chat_template": Refusal(_KEPT_BY_OPERATOR),
    "documents": Refusal("put the text of the documents into a message."),
    "ec_transfer_params": Refusal(_KEPT_BY_OPERATOR),
    "file": Refusal("content is text only. Put the text of the file into a text part."),
    "image_url": Refusal("content is text only. Describe the image in text."),
    "input_audio": Refusal("content is text only. Send a transcript."),
    "kv_transfer_params": Refusal(_KEPT_BY_OPERATOR),
    "media_io_kwargs": Refusal(_KEPT_BY_OPERATOR),
    "mm_processor_kwargs": Refusal(_KEPT_BY_OPERATOR),
    "priority": Refusal("ask for a tier instead.", harmless=(0,)),
    "vllm_xargs": Refusal(_KEPT_BY_OPERATOR),
    "watermarking": Refusal(_KEPT_BY_OPERATOR, harmless=(False,)),
}
COMMON_REFUSED_TYPES = {
    "image": "Content is text only: describe the image in text.",
    "document": "Content is text only: put the text of the document into a text block.",
}

# --- OpenAI ----------------------------------------------------------------------------------------------------------

OPENAI_HINTS = COMMON_HINTS | {
    "disable_any_whitespace", "guided_decoding_backend", "guided_whitespace_pattern", "logprobs_mode", "mock_response",
    "prediction", "prompt_cache_options", "prompt_cache_retention", "return_token_offsets",
    "routed_experts_prompt_start", "safety_identifier", "store", "stream_interval", "thought_signature", "verbosity",
    "whitespace_pattern",
}  # fmt: skip

_ONE_OF = "send a schema as `structured_outputs.json`, an expression as `regex` or a list of texts as `choice`."
OPENAI_REFUSED = COMMON_REFUSED | {
    "add_special_tokens": Refusal("the engine's default applies. Remove it."),
    "allowed_token_ids": Refusal("use `structured_outputs` or `logit_bias`."),
    "audio": Refusal("Headway serves text only. Remove it."),
    "bad_words": Refusal("use `stop` or `logit_bias`."),
    "best_of": Refusal("ask for `n` choices and select among them.", harmless=(1,)),
    "function_call": Refusal(
        "it is replaced by `tool_choice`, and in messages by `tool_calls`.", harmless=("auto", "none")
    ),
    "functions": Refusal("it is replaced by `tools`."),
    "grammar": Refusal(_ONE_OF),
    "guided_grammar": Refusal(_ONE_OF),
    "include_stop_str_in_output": Refusal("add the stop text to the answer yourself.", harmless=(False,)),
    "json_object": Refusal("use `response_format` of the type `json_object`.", harmless=(False,)),
    "length_penalty": Refusal("there is no beam search. Remove it.", harmless=(1,)),
    "logprob_token_ids": Refusal("use `top_logprobs`."),
    "modalities": Refusal('Headway serves text only: send `["text"]`, or remove it.', harmless=(["text"],)),
    "moderation": Refusal("Headway does not moderate. Call a moderation service yourself."),
    "prompt_embeds": Refusal("send the prompt as text or as token ids."),
    "prompt_logprobs": Refusal("use `logprobs` with `echo` on `/v1/completions`."),
    "repetition_detection": Refusal("use `repetition_penalty`."),
    "return_prompt_text": Refusal("Headway does not return prompts. Remove it.", harmless=(False,)),
    "return_token_ids": Refusal("use `logprobs` with `return_tokens_as_token_ids`.", harmless=(False,)),
    "spaces_between_special_tokens": Refusal("the engine's default applies. Remove it.", harmless=(True,)),
    "structural_tag": Refusal(_ONE_OF),
    "suffix": Refusal("the engine cannot insert text. Put the suffix into the prompt."),
    "thinking_token_budget": Refusal("use `reasoning_effort`."),
    "truncate_prompt_tokens": Refusal("cut the prompt before you send it."),
    "truncation_side": Refusal("cut the prompt before you send it."),
    "use_beam_search": Refusal("use `n` and `temperature`.", harmless=(False,)),
    "web_search_options": Refusal("Headway does not search the web. Offer a search tool in `tools`."),
}
_CHAT_IMAGE = "Send an image as a content part of the type `image_url`."
OPENAI_REFUSED_TYPES = COMMON_REFUSED_TYPES | {
    "allowed_tools": "Send only the allowed tools, and `auto` or `required`.",
    "audio_url": "Content is text only: send a transcript.",
    "custom": "Use a tool of the type `function`.",
    "file": "Content is text only: put the text of the file into a text part.",
    "image": _CHAT_IMAGE,
    "input_audio": "Content is text only: send a transcript.",
    "input_image": _CHAT_IMAGE,
    "video_url": "Content is text only: describe the video in text.",
}
# vLLM's names before 0.12; it ignores them today, which would leave the answer without its constraint.
OPENAI_MOVED = {f"guided_{name}": ("structured_outputs", name) for name in ("json", "regex", "choice")}

COMPLETION_FIELDS = FieldNames(
    frozenset(OPENAI_HINTS),
    OPENAI_REFUSED,
    OPENAI_REFUSED_TYPES,
    OPENAI_MOVED,
    alone=frozenset({"prompt"}),  # an engine counts the tokens of several prompts each by itself, and meters do not
)
CHAT_FIELDS = FieldNames(
    frozenset(OPENAI_HINTS),
    OPENAI_REFUSED
    | {
        "echo": Refusal("put the message before the answer yourself.", harmless=(False,)),
        "image_url": Refusal("send an image as a content part of the type `image_url`.", has_place=True),
    },
    OPENAI_REFUSED_TYPES,
    OPENAI_MOVED,
)

# Without them an embedding is another vector, which a client would compare with those that it has.
_AS_THE_MODEL_IS_SET_UP = "the model's own setting applies. Remove it."
_INPUT = "send texts or token ids in `input`."
EMBEDDING_FIELDS = FieldNames(
    frozenset(COMMON_HINTS | {"safety_identifier", "store"}),
    COMMON_REFUSED
    | {
        "add_special_tokens": Refusal(_AS_THE_MODEL_IS_SET_UP, harmless=(True,)),
        "embed_dtype": Refusal("vectors are of the type float32. Remove it.", harmless=("float32",)),
        "endianness": Refusal("base64 vectors are little-endian. Remove it.", harmless=("native", "little")),
        "input_type": Refusal("put the instruction that the model wants for it before each text."),
        "instruction": Refusal("put the instruction before each text."),
        "messages": Refusal(_INPUT),
        "normalize": Refusal(_AS_THE_MODEL_IS_SET_UP),
        "output_dimension": Refusal("use `dimensions`."),
        "output_dtype": Refusal("vectors are of the type float32. Remove it.", harmless=("float",)),
        "padding": Refusal(_AS_THE_MODEL_IS_SET_UP),
        "pooling": Refusal(_AS_THE_MODEL_IS_SET_UP),
        "prompt": Refusal(_INPUT),
        "service_tier": Refusal(
            "embeddings are served at the tier `standard` only. Remove it.",
            harmless=("auto", "default", "standard", "standard_only"),
        ),
        "stream": Refusal("embeddings are not streamed. Remove it.", harmless=(False,)),
        "task": Refusal(_AS_THE_MODEL_IS_SET_UP, harmless=("embed",)),
        "truncate": Refusal("cut the texts before you send them.", harmless=("NONE",)),
        "truncate_prompt_tokens": Refusal("cut the texts before you send them."),
        "truncation": Refusal("cut the texts before you send them.", harmless=(False,)),
        "truncation_side": Refusal("cut the texts before you send them."),
        "use_activation": Refusal(_AS_THE_MODEL_IS_SET_UP),
    },
    COMMON_REFUSED_TYPES,
)

# --- Anthropic -------------------------------------------------------------------------------------------------------

ANTHROPIC_HINTS = COMMON_HINTS | {
    "allowed_callers", "betas", "compaction", "context_management", "defer_loading", "diagnostics",
    "eager_input_streaming", "fallback_credit_token", "fallbacks", "input_examples", "task_budget", "user_profile_id",
    "workspace_id",
}  # fmt: skip
ANTHROPIC_REFUSED = COMMON_REFUSED | {
    "container": Refusal("Headway runs no code. Offer a tool that does, and run it yourself."),
    "inference_geo": Refusal("the engines run where their operator runs them. Remove it."),
    "mcp_servers": Refusal("connect to MCP servers yourself and offer their tools in `tools`."),
    "image_url": Refusal("send an image as a content block of the type `image`."),
    "source": Refusal("only a block of the type `image` has a source. Put text into a text block.", has_place=True),
    "thread": Refusal("send the full conversation without `thread`.", code="thread_unsupported_request"),
}
ANTHROPIC_REFUSED_TYPES = COMMON_REFUSED_TYPES | {
    "container_upload": "Headway runs no code: offer a tool that does, and run it yourself.",
    "file": "Headway keeps no files: send the image itself, as `base64`.",
    "image": "Images are taken in messages of the role `user`, and in results of tools there.",
    "image_url": "Send an image as a content block of the type `image`.",
    "input_image": "Send an image as a content block of the type `image`.",
    "search_result": "Put the text of the result into a text block.",
    "tool_reference": "Send the tools themselves in `tools`.",
    "url": "Headway does not fetch URLs: send the image itself, as `base64`.",
}
# The SDK's name while structured outputs were in beta.
ANTHROPIC_MOVED = {"output_format": ("output_config", "format")}

MESSAGES_FIELDS = FieldNames(frozenset(ANTHROPIC_HINTS), ANTHROPIC_REFUSED, ANTHROPIC_REFUSED_TYPES, ANTHROPIC_MOVED)
