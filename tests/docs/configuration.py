"""The headway.toml that pages show parts of, and how a part is put into it."""

from __future__ import annotations

import tomllib
from typing import Any

# Two engines with the tiers that pages talk about, and a student.
BASE = tomllib.loads("""\
[gateway]
port = 8000

[[models]]
name = "my-model"

[[models.tiers]]
name = "standard"

[[models.tiers]]
name = "fast"
floor_tps = 60.0

[[models.replicas]]
url = "http://127.0.0.1:8001"
seats = 64
curve = [[1, 120.0], [8, 96.0], [64, 37.0]]
prompt_tps = 9000.0

[[models.replicas]]
url = "http://127.0.0.1:8002"
seats = 64
curve = [[1, 120.0], [8, 96.0], [64, 37.0]]
prompt_tps = 9000.0

[[models]]
name = "my-model-spark"

[[models.replicas]]
url = "http://127.0.0.1:8005"
""")


def merged(base: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """The base with the part in it. A table is added to, a list is replaced; of models, the first is meant where none is
    named, and the one of the same name otherwise."""
    result = dict(base)
    for name, value in part.items():
        if name != "models":
            result[name] = result.get(name, {}) | value
            continue
        models = {model["name"]: model for model in base["models"]}
        first = base["models"][0]["name"]
        for model in value if isinstance(value, list) else [value]:
            key = model.get("name", first)
            models[key] = models.get(key, {}) | model
        result["models"] = list(models.values())
    return result


def placed(value: Any) -> Any:
    """With something in the place of what the reader has to fill in."""
    if isinstance(value, dict):
        return {name: placed(one) for name, one in value.items()}
    if isinstance(value, list):
        return [placed(one) for one in value]
    return "0" * 64 if isinstance(value, str) and (value == "..." or value.startswith("<")) else value
