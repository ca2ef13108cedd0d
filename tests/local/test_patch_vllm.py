"""The patch on a file like vLLM's. tests/e2e/test_patched_vllm.py tests the real vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.local.patch_vllm import FAULTY, FILE, FIXED, patch_cpu_vllm

BEFORE, AFTER = "def _expand_kernel_impl(\n    output,\n):\n", "\n\ndef another():\n    pass\n"


@pytest.fixture
def utils(tmp_path: Path) -> Path:
    path = tmp_path / "lib" / "python3.11" / "site-packages" / FILE
    path.parent.mkdir(parents=True)
    return path


def test_only_the_faulty_lines_change_and_once(tmp_path: Path, utils: Path) -> None:
    utils.write_text(BEFORE + FAULTY + AFTER)
    for _ in range(2):
        patch_cpu_vllm(tmp_path)
        assert utils.read_text() == BEFORE + FIXED + AFTER
    assert list(utils.parent.iterdir()) == [utils]


def test_other_lines_are_left_alone(tmp_path: Path, utils: Path) -> None:
    utils.write_text(BEFORE + FAULTY.replace("_ensure_int64(output)", "output") + AFTER)
    as_it_was = utils.stat()
    patch_cpu_vllm(tmp_path)
    assert utils.stat() == as_it_was


def test_an_environment_without_the_file_is_left_alone(tmp_path: Path) -> None:
    patch_cpu_vllm(tmp_path)
    assert list(tmp_path.iterdir()) == []
