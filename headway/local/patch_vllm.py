"""Patch a bug of vLLM's CPU build in the environment that engine_env.py creates.

The bug is vLLM's issue 55005: with speculative decoding at a temperature above 0, the temperature, top-k and top-p of
each draft token are written to a temporary copy of the output instead of the output. The logits are then divided by
uninitialised memory and the engine answers with noise. No setting of the engine avoids it.

The patch replaces exactly the faulty lines; a vLLM with other lines is not changed. tests/e2e/test_patched_vllm.py
tests the real vLLM; remove this file when a version passes that test without it.
"""

from __future__ import annotations

import os
from pathlib import Path

FILE = "vllm/utils/cpu_triton_utils.py"
FAULTY = """\
    torch.ops._C.expand_kernel_impl(
        _ensure_int64(output),
        _ensure_int64(input_val),
        _ensure_int64(cu_num_tokens),
        replace_from,
        replace_to,
    )
"""
FIXED = """\
    # Patched by Headway: the original lines wrote to a temporary copy of `output` (vLLM issue 55005).
    of_each = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).to(torch.int64)
    replaced = torch.where(input_val == replace_from, torch.full_like(input_val, replace_to), input_val)
    output.copy_(torch.repeat_interleave(replaced, of_each))
"""


def patch_cpu_vllm(environment: Path) -> None:
    """Does nothing if the patch is applied already or the faulty lines are not there."""
    for path in environment.glob(f"lib/python*/site-packages/{FILE}"):
        text = path.read_text()
        if FAULTY in text:
            # Renamed into place, so that an engine that starts meanwhile never reads half a file.
            unfinished = path.with_name(f"{path.name}.{os.getpid()}")
            unfinished.write_text(text.replace(FAULTY, FIXED))
            unfinished.rename(path)
