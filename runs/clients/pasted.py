"""The blocks of docs/how-to/use-your-client.md, run as a reader pastes them.

A block names its client after its language. Only the address and the key are replaced, as the reader does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from runs.clients.scenarios import Scenario, says

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "use-your-client.md"
BLOCK = re.compile(r"^```(python|js|bash) ([\w-]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
URL, KEY = "http://127.0.0.1:8000", "hw-..."  # as on the page
QUESTION = "What is the capital of France?"
PASTED = Scenario("pasted", (says("It is Paris."),), prints="It is Paris.", asks=QUESTION)


@dataclass(frozen=True)
class Block:
    language: str
    text: str

    def command(self, environment: Path, work: Path, url: str, key: str) -> list[str]:
        """Write the block to a file. Returns the command that runs it."""
        text = self.text.replace(URL, url).replace(KEY, key)
        # Node.js looks for packages beside the file.
        folder, name = (environment, "pasted.mjs") if self.language == "js" else (work, f"pasted.{self.language}")
        (folder / name).write_text(text, encoding="utf-8")
        if self.language == "bash":
            programs = f"{environment / 'bin'}:{environment / 'node_modules' / '.bin'}"
            return ["bash", "-c", f'PATH="{programs}:$PATH"; . ./{name}']
        return [str(environment / "bin" / "python") if self.language == "python" else "node", str(folder / name)]


@cache
def read_blocks() -> dict[str, Block]:
    """By client."""
    return {name: Block(language, text) for language, name, text in BLOCK.findall(PAGE.read_text(encoding="utf-8"))}
