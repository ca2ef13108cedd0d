"""The kinds of engines, by their names in headway.toml.

docs/explanation/extend.md adds a kind in a single file.
"""

from __future__ import annotations

from collections.abc import Callable

from headway.engines.base import Engine
from headway.engines.vllm import VLLMEngine

MakeEngine = Callable[[str, str, str], Engine]  # the replica's name, its URL, the model it serves

KINDS: dict[str, MakeEngine] = {"vllm": VLLMEngine}
