"""`headway demo` on real vLLM, from its own measurement to the calls that it prints."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from headway.local.demo.calls import calls_to_paste
from headway.local.engine_env import MODEL_NAME, ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import cache_dir
from headway.local.guard import group_members
from tests.local.demo_process import DemoProcess, assert_all_ended, paste, tiers_proved

pytestmark = pytest.mark.engine
SEATS = 32  # with fewer, a stream alone is hardly faster than one of a full engine


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with the engine and the model, and nothing measured."""
    ensure_smollm2(ensure_cpu_engine(print), print)
    folder = tmp_path / "cache"
    folder.mkdir()
    for name in ("engine-*", "models"):
        for installed in cache_dir().glob(name):
            (folder / installed.name).symlink_to(installed)
    monkeypatch.setenv("HEADWAY_CACHE", str(folder))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return folder


def engine_groups(cache: Path) -> list[int]:
    """Of each engine, by the process id of its API server in its log."""
    found = [re.search(r"\(APIServer pid=(\d+)\)", log.read_text()) for log in (cache / "logs").iterdir()]
    return [int(one[1]) for one in found if one and group_members(int(one[1]))]


def test_the_demo_shows_that_fast_is_faster_and_leaves_nothing(cache: Path) -> None:
    demo = DemoProcess("--seats", str(SEATS), "--rounds", "1")
    try:
        demo.wait_for("Ctrl-C stops the gateway and the engines.", 420)
        found = re.search(
            r"^round 1: standard ([\d.]+) tok/s at 1x, .*; fast ([\d.]+) tok/s at [\d.]+x, proof: (.*)",
            demo.output,
            re.MULTILINE,
        )
        assert found, demo.output
        assert "served as fast" in found[3]
        # Not than the raced standard call: that one may ride along on the light replica, where it is as fast.
        full = re.search(r"standard at ([\d.]+) tok/s on a full engine", demo.output)
        assert full, demo.output
        assert float(found[2]) > float(full[1]), demo.output
        calls = calls_to_paste(MODEL_NAME, demo.port)
        for command in calls.values():
            assert f"\n{command}\n" in demo.output
        # The SDKs' commands are pasted in tests/local/test_demo.py, where answers take no time.
        assert tiers_proved(paste(calls["curl"])) == ["standard", "fast"]
        # vLLM writes over its environment, so that its processes are found by their groups only.
        groups = engine_groups(cache)
        assert len(groups) == 2
        assert demo.end(signal.SIGINT) == 0, demo.output
    finally:
        demo.close()
    assert_all_ended(cache)
    assert [group_members(group) for group in groups] == [[], []]
