"""What is measured of an engine, as settings of headway.toml."""

from __future__ import annotations

from pydantic import Field

from headway.config.rows import Curve
from headway.config.table import Table


class MeasuredTable(Table):
    """Of one engine, or of all that are started in the same way."""

    seats: int = Field(
        64, ge=1, le=4096, description="Maximum number of concurrent streams, at most the server's `--max-num-seqs`."
    )
    prompt_tps: float | None = Field(
        None,
        gt=0,
        le=10_000_000,
        description="Prompt tokens read per second, as measured by `headway calibrate`. If set, a call whose prompt "
        "would push running streams below their floor is sent to another replica.",
    )
    curve: Curve | None = Field(
        None,
        description="Measured speed as `[[streams, tokens per second of each stream], ...]`. Three points are enough: "
        "`headway calibrate URL` measures them. A point `[streams, tokens per second, tokens of context of each "
        "stream]` says what long contexts cost; without one they are assumed to cost nothing. Without a curve the "
        "replica serves no tier with a floor.",
    )
