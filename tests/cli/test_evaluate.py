"""`headway eval` as a user runs it: a file of tasks, a real gateway with two models, one command, a page."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.config import Config
from headway.engines.scripted import Script, running
from tests.running import MODEL, running_gateway

# Scripted engines say "the morning train left town before anyone ..." to everything.
EXPECTED = {"easy": {"regex": "^ *the morning train"}, "hard": {"exact": "the evening train"}}


def config(full_url: str, student_url: str) -> Config:
    curve = [[1, 200.0], [8, 100.0]]
    tiers = [{"name": "standard"}, {"name": "fast", "floor_tps": 20.0}, {"name": "flex"}]
    models: list[dict[str, Any]] = [
        {"name": MODEL, "tiers": tiers, "replicas": [{"url": full_url, "seats": 8, "curve": curve}]},
        {"name": f"{MODEL}-spark", "replicas": [{"url": student_url, "seats": 8}]},
    ]
    return Config.model_validate({"gateway": {"port": 0, "probe_interval_s": 0.05}, "models": models})


@pytest.mark.anyio
@pytest.mark.timeout(600)
async def test_thirty_tasks_one_command_a_page(tmp_path: Path) -> None:
    rows = [
        {"id": f"t-{n:02}", "kind": kind, "prompt": f"Question {n}?", "expected": EXPECTED[kind]}
        for n, kind in enumerate(["easy", "easy", "hard"] * 10)
    ]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    full, student = Script(MODEL, step_s=((1, 0.02),)), Script(f"{MODEL}-spark", 0.001, ((1, 0.0005),))
    async with (
        running(full) as engine,
        running(student) as small,
        running_gateway(config(engine.url, small.url)) as gateway,
    ):
        command = [sys.executable, "-m", "headway", "eval", "tasks.jsonl", "--url", gateway.url, "--model", MODEL]
        process = await asyncio.create_subprocess_exec(
            *command, "--fix-minutes", "0", "--max-tokens", "20", cwd=tmp_path, env={**os.environ, "COLUMNS": "200"},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output = (await process.communicate())[0].decode()
        assert process.returncode == 0, output
        asked = engine.record()["requests"]
    results = json.loads((tmp_path / "eval" / "results.json").read_text())
    runs = {run["name"]: run["attempts"] for run in results["runs"]}
    assert list(runs) == ["standard", "fast", "spark"]
    assert len(asked) >= 60  # standard and fast; the prober asks too
    for attempts in runs.values():
        assert [one["verdict"] for one in attempts] == ["right", "right", "wrong answer"] * 10
        assert all(one["is_proven"] for one in attempts)
    # Times are the gateway's: twenty tokens of 20 ms each, and of half a millisecond.
    assert all(one["seconds"] >= 19 * 0.02 for one in runs["standard"])
    assert sum(one["seconds"] for one in runs["spark"]) < sum(one["seconds"] for one in runs["standard"])
    whole, *kinds = results["verdicts"]
    assert whole["recommended"]["use"] == "spark"  # where a fix takes no time, speed is all
    assert {one["kind"]: one["tasks"] for one in kinds} == {"easy": 20, "hard": 10}
    page = (tmp_path / "eval" / "report.html").read_text()
    assert page.index("<h1>Use spark") < page.index("<svg") < page.index("What to use, and why")
    assert "all tasks: use spark." in output
    assert list((tmp_path / "eval" / "logs").glob("*.eval"))


@pytest.mark.anyio
async def test_what_is_not_offered_is_said(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "a", "expected": {"exact": "b"}}')
    command = [sys.executable, "-m", "headway", "eval", "tasks.jsonl", "--url", "http://127.0.0.1:9"]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert b"headway serve" in errors
