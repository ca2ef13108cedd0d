"""Stages of long runs, each done once for the same code and the same inputs.

The result of a stage is kept in NAME.json with a key: a hash of the stage's code (sources.py), of its arguments and of
the files that it reads. With another key the stage is done anew, after what it made before is removed. A stage that was
interrupted goes on from what it made, if its key is still the same.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich.console import Console

from runs.measure.sources import ROOT, Sources


@dataclass(frozen=True)
class Stage:
    name: str
    run: Callable[..., Any]  # at the top level of a module in runs/; its result is JSON
    minutes: float  # what it is expected to take at full size
    arguments: tuple[Any, ...] = ()  # JSON
    reads: tuple[Path, ...] = ()  # files, and folders with all that is in them
    makes: tuple[Path, ...] = ()
    setup: tuple[Any, ...] = ()  # functions that made what it runs on, and what these were given (JSON)


def key_of(stage: Stage, settings: Any, sources: Sources) -> str:
    """`settings` is what all stages of a run depend on."""
    code = [sources.hash_of(one) if callable(one) else one for one in (stage.run, *stage.setup)]
    read = {str(path): content_hash(path) for path in stage.reads}
    parts = [code, stage.arguments, settings, read]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def once(stage: Stage, folder: Path, context: Any, settings: Any, sources: Sources, console: Console) -> Any:
    """The result of `stage.run(context, *stage.arguments)`, kept or made now."""
    key = key_of(stage, settings, sources)
    path, begun = folder / f"{stage.name}.json", folder / f"{stage.name}.begun"
    if path.exists() and all(made.exists() for made in stage.makes):
        kept = json.loads(path.read_text())
        if kept.get("key") == key:
            console.print(f"{stage.name}: kept, made {kept['made']} by the same code from the same inputs")
            return kept["result"]
    if not begun.exists() or begun.read_text() != key:
        for made in stage.makes:
            _remove(made)
        begun.write_text(key)
    path.unlink(missing_ok=True)
    console.rule(f"{stage.name}: about {stage.minutes:g} min")
    since = time.monotonic()
    result = stage.run(context, *stage.arguments)
    minutes = (time.monotonic() - since) / 60
    when = f"{time.strftime('%Y-%m-%d', time.gmtime())} at {commit()}"
    unfinished = path.with_suffix(".partial")
    unfinished.write_text(json.dumps({"key": key, "made": when, "minutes": round(minutes, 2), "result": result}))
    unfinished.replace(path)
    begun.unlink()
    console.print(f"{stage.name}: {minutes:.1f} min (about {stage.minutes:g} expected)")
    return result


def commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return asked.stdout.strip() or "no commit"


def content_hash(path: Path) -> str:
    """Of a file, or of all files of a folder and their names; "missing" if it is not there."""
    if path.is_dir():
        inside = sorted(one for one in path.rglob("*") if one.is_file())
        lines = [f"{one.relative_to(path)} {content_hash(one)}\n" for one in inside]
        return hashlib.sha256("".join(lines).encode()).hexdigest()
    if not path.exists():
        return "missing"
    stat = path.stat()
    return _file_hash(path, stat.st_size, stat.st_mtime_ns)


@lru_cache
def _file_hash(path: Path, _size: int, _changed_ns: int) -> str:
    """Models are hundreds of megabytes and read by several stages."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
