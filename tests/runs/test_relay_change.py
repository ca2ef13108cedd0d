"""What runs/relay-change.sh compares."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from runs.gateway.relay_change import ROOT, loading_from


def test_the_gateway_of_the_other_commit_is_not_that_of_this_checkout(tmp_path: Path) -> None:
    package = tmp_path / "headway"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("print(__file__)")
    command = [sys.executable, "-m", "headway"]
    ran = subprocess.run(command, env=loading_from(tmp_path), cwd=ROOT, capture_output=True, check=True, text=True)
    assert ran.stdout.strip() == str(package / "__main__.py")
