"""Sampling with speculative decoding in the real vLLM: each draft token gets the settings of its own call.

`runs/drafter.sh` compares whole distributions; this tests the one function that headway/local/patch_vllm.py fixes.
"""

from __future__ import annotations

import subprocess

import pytest

from headway.local.engine_env import ensure_cpu_engine

pytestmark = pytest.mark.engine
ASK = """\
import torch
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.sample.rejection_sampler import expand_batch_to_tokens

CpuPlatform.register_triton_kernel_overrides()
guesses_up_to = torch.tensor([2, 2, 5, 6], dtype=torch.int32)  # 2, none, 3 and 1
temperatures = expand_batch_to_tokens(torch.tensor([0.7, 0.9, 0.0, 1.5]), guesses_up_to, 6, replace_from=0, replace_to=1)
top_k = expand_batch_to_tokens(torch.tensor([5, 6, 7, 8], dtype=torch.int32), guesses_up_to, 6)
print([round(one, 3) for one in temperatures.tolist()], top_k.tolist())
"""


def test_draft_tokens_have_the_temperature_of_their_call() -> None:
    python = ensure_cpu_engine(print)
    done = subprocess.run([str(python), "-c", ASK], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1:] == ["[0.7, 0.7, 1.0, 1.0, 1.0, 1.5] [5, 5, 7, 7, 7, 8]"], done.stderr
