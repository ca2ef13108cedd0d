from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Async tests run on the event loop that serves."""
    return "asyncio", {"use_uvloop": True}
