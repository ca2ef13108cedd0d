"""Mends a fault of vLLM's CPU build in the environment that engine_env.py makes.

Guessing ahead at a temperature above 0 (vLLM's issue 55005): the temperature, top-k and top-p of each guessed token are
written into a copy that was made to change their type, and the copy is thrown away; the logits are then divided by
memory nobody wrote, and the engine answers noise. Nothing an engine can be told avoids it.

Only exactly the faulty lines are replaced: where a vLLM has others, it is left as it is. tests/e2e/test_mended_vllm.py
asks the real one; when a version passes there unmended, this file goes.
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
MENDED = """\
    # Mended by Headway: the lines that were here wrote into a copy of `output`, which was lost (vLLM issue 55005).
    of_each = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).to(torch.int64)
    replaced = torch.where(input_val == replace_from, torch.full_like(input_val, replace_to), input_val)
    output.copy_(torch.repeat_interleave(replaced, of_each))
"""


def mend_cpu_vllm(environment: Path) -> None:
    """Does nothing where it was done before, or where the lines are not there."""
    for path in environment.glob(f"lib/python*/site-packages/{FILE}"):
        text = path.read_text()
        if FAULTY in text:
            # Renamed into place: an engine that starts meanwhile reads the one or the other, whole.
            unfinished = path.with_name(f"{path.name}.{os.getpid()}")
            unfinished.write_text(text.replace(FAULTY, MENDED))
            unfinished.rename(path)
