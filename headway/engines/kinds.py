"""The kinds of engines, by their names in headway.toml.

docs/explanation/extend.md adds a kind in a single file.
"""

from __future__ import annotations

from collections.abc import Callable

from headway.engines.base import Engine
from headway.engines.openai_server import OpenAIServer
from headway.engines.vllm import VLLMEngine
from headway.errors import SetupError

MakeEngine = Callable[[str, str, str], Engine]  # the replica's name, its URL, the model it serves

KINDS: dict[str, MakeEngine] = {"vllm": VLLMEngine, "openai": OpenAIServer}
HOSTED = "hosted"  # a server that costs money (engines/hosted.py); it has a table of its own, [models.hosted]


def check_kind(url: str, kind: str) -> None:
    """Raises SetupError if there is no such kind."""
    if kind not in (*KINDS, HOSTED):
        raise SetupError(f"Replica {url} has the unknown kind {kind!r}. Known kinds: {', '.join(KINDS)}.")
