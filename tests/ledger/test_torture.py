"""The short form of runs/ledger-torture.sh: kills and outages of everything, judged by the replicas' own records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.timeout(300)
def test_nothing_is_lost_doubled_or_over_billed_under_fifty_five_faults() -> None:
    command = [sys.executable, "-m", "runs.ledger.torture", "3000", "55", "7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
