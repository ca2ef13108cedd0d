"""The names of the Responses dialect that Headway does not honour, as api/known_fields.py has them for the others."""

from __future__ import annotations

from headway.api.fields import FieldNames, Refusal
from headway.api.known_fields import OPENAI_HINTS, OPENAI_REFUSED, OPENAI_REFUSED_TYPES

HINTS = OPENAI_HINTS | {
    "async", "async_", "client_metadata", "context_management", "created_by", "defer_loading",
    "encrypted_content", "include_obfuscation", "internal_chat_message_metadata_passthrough", "max_tool_calls", "phase",
    "stream_options", "summary_index",
}  # fmt: skip

_FULL_HISTORY = "send the conversation in `input`, or continue it with `previous_response_id`."
REFUSED = OPENAI_REFUSED | {
    "background": Refusal("ask for a stream, or wait for the answer.", harmless=(False,)),
    "conversation": Refusal(_FULL_HISTORY),
    "enable_response_messages": Refusal("Headway does not return prompts. Remove it.", harmless=(False,)),
    "image_url": Refusal("send an image as a part of the type `input_image`.", has_place=True),
    "previous_input_messages": Refusal(_FULL_HISTORY),
    "prompt": Refusal("send the text of the template in `instructions` and `input`."),
}

# Tools that a vendor runs at its own place, and what they left in a conversation. An answer without them is the answer
# of a model that does not have them; clients offer them to every model.
HOSTED_TOOLS = frozenset({
    "apply_patch", "code_interpreter", "computer", "computer_use_preview", "file_search", "image_generation",
    "local_shell", "mcp", "shell", "tool_search", "web_search", "web_search_2025_08_26", "web_search_preview",
    "web_search_preview_2025_03_11",
})  # fmt: skip
HOSTED_ITEMS = frozenset({
    "code_interpreter_call", "compaction", "computer_call", "computer_call_output", "file_search_call",
    "image_generation_call", "local_shell_call", "local_shell_call_output", "mcp_approval_request",
    "mcp_approval_response", "mcp_call", "mcp_list_tools", "tool_search_call", "tool_search_output", "web_search_call",
})  # fmt: skip
_NOT_HERE = "Headway runs no tools: offer a tool of the type `function`, and run it yourself."
_IMAGE = "Send an image as a part of the type `input_image`."
REFUSED_TYPES = OPENAI_REFUSED_TYPES | {
    "additional_tools": "List tools in `tools`. Codex sends this to models with its vendor's names: use another name.",
    "custom": "Use a tool of the type `function`.",
    "image": _IMAGE,
    "image_url": _IMAGE,
    "grammar": "Custom tools take free text: remove the format, or use a tool of the type `function`.",
    "input_audio": "Content is text only: send a transcript.",
    "input_file": "Content is text only: put the text of the file into an `input_text` part.",
    "item_reference": "Send the item itself, or continue the response with `previous_response_id`.",
    **dict.fromkeys(HOSTED_TOOLS, _NOT_HERE),  # as the choice of a tool that must be called
}

RESPONSES_FIELDS = FieldNames(frozenset(HINTS), REFUSED, REFUSED_TYPES, ignored_types=HOSTED_TOOLS | HOSTED_ITEMS)
