"""The chat template of a distilled model: ChatML with Hermes tools in a compact form, without tools known by heart.

Engines and trainers render the same template, so the served prompt is the trained one. A tool in the prompt costs
tokens in every call; a tool that the model learned in training need not be there. The client still sends it (the
engine's parser makes tool calls only if the request has tools), and the template leaves it out.

A small model copies a word poorly if its tokens change: `Hugo` after a space is one token, in `"Hugo"` it is three
others, and a student that never saw these writes the nearest name it knows. With `words_again`, the template repeats
the words of a request after it with the tokens they have in an answer, so that the model only has to repeat them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

MAX_TOOL_WORDS, MAX_ARGUMENT_WORDS = 200, 160  # maximum characters of a description

_LINES = r"""
{%- set by_heart = BY_HEART -%}
{%- macro kind(p) -%}
{%- if p['enum'] -%}{{ p['enum'] | join('|') }}
{%- elif p['type'] == 'array' -%}[{{ kind(p['items'] or {}) }}]
{%- elif p['properties'] -%}{ {{- fields(p) -}} }
{%- else -%}{{ p['type'] or 'any' }}
{%- endif -%}
{%- endmacro -%}
{%- macro fields(p) -%}
{%- for name, one in p['properties'].items() -%}
{{ name }}{{ '' if name in (p['required'] or []) else '?' }}: {{ kind(one) }}{{ '' if loop.last else ', ' }}
{%- endfor -%}
{%- endmacro -%}
{%- macro show(f) -%}
{{ '\n' + f['name'] + ': ' + (f['description'] or '')[:TOOL_WORDS] }}
{%- set p = f['parameters'] or {} -%}
{%- for name, one in (p['properties'] or {}).items() -%}
{{ '\n ' + name + ('' if name in (p['required'] or []) else '?') + ': ' + kind(one) }}
{%- if one['description'] -%}{{ '; ' + one['description'][:ARGUMENT_WORDS] }}{%- endif -%}
{%- endfor -%}
{%- endmacro -%}
{%- set ns = namespace(tools='') -%}
{%- for tool in tools or [] -%}
{%- if tool['function']['name'] not in by_heart -%}{%- set ns.tools = ns.tools + show(tool['function']) -%}{%- endif -%}
{%- endfor -%}
{%- if messages[0]['role'] == 'system' -%}{%- set said = messages[0]['content'] -%}
{%- else -%}{%- set said = '' if tools else DEFAULT_SYSTEM -%}
{%- endif -%}
{%- if said or ns.tools -%}
{{ '<|im_start|>system\n' + said }}
{%- if ns.tools -%}{{ ('\n' if said else '') + '<tools>' + ns.tools + '\n</tools>' }}{%- endif -%}
{{ '<|im_end|>\n' }}
{%- endif -%}
{%- for message in messages -%}
{%- if message['role'] == 'tool' -%}
{{ '<|im_start|>user\n<tool_response>\n' + (message['content'] or '') + '\n</tool_response><|im_end|>\n' }}
{%- elif message['role'] != 'system' or not loop.first -%}
{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') }}
{%- if WORDS_AGAIN and message['role'] == 'user' -%}{{ '\n "' + message['content'].split() | join(' "') }}{%- endif -%}
{%- for call in message['tool_calls'] or [] -%}
{%- set f = call['function'] -%}
{{ '\n' if message['content'] or not loop.first else '' }}
{{- '<tool_call>\n{"name": "' + f['name'] + '", "arguments": ' -}}
{%- if f['arguments'] is string -%}{{ f['arguments'] }}{%- else -%}{{ f['arguments'] | tojson }}{%- endif -%}
{{- '}\n</tool_call>' -}}
{%- endfor -%}
{{ '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""


def hermes_template(by_heart: Sequence[str] = (), *, words_again: bool = False, default_system: str = "") -> str:
    """The Jinja template. `default_system` is the system message of a chat that has neither tools nor its own."""
    return (
        _LINES.strip()
        .replace("WORDS_AGAIN", "true" if words_again else "false")
        .replace("BY_HEART", json.dumps(sorted(by_heart)))
        .replace("DEFAULT_SYSTEM", json.dumps(default_system))
        .replace("TOOL_WORDS", str(MAX_TOOL_WORDS))
        .replace("ARGUMENT_WORDS", str(MAX_ARGUMENT_WORDS))
    )
