"""How many tokens a tenant may have of a tier per minute: two buckets that fill at the limit's rate.

What a call takes is known when it has ended, so a bucket may be overdrawn by the calls under way; the next one is then
refused until it has filled again. `now` is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import ceil

MINUTE_S = 60.0
MAX_TENANTS = 65_536


@dataclass(frozen=True, slots=True)
class TokenLimit:
    """Tokens per minute; 0 is no limit."""

    input_tpm: int = 0
    output_tpm: int = 0


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left of a limit, and how long until nothing is missing from it."""

    limit: TokenLimit
    input_left: int
    output_left: int
    input_full_in_s: float
    output_full_in_s: float

    @property
    def is_used_up(self) -> bool:
        return (self.limit.input_tpm > 0 and self.input_left <= 0) or (
            self.limit.output_tpm > 0 and self.output_left <= 0
        )

    @property
    def retry_after_s(self) -> int:
        """When one token will be there of each kind."""
        waits = [1.0]
        for tpm, left in ((self.limit.input_tpm, self.input_left), (self.limit.output_tpm, self.output_left)):
            if tpm:
                waits.append((1 - left) * MINUTE_S / tpm)
        return ceil(max(waits))


class Allowances:
    """The buckets of all tenants of a tier. Bounded: the longest unused is forgotten, and full if it comes again."""

    def __init__(self, limit: TokenLimit) -> None:
        self.limit = limit
        self._is_limited = bool(limit.input_tpm or limit.output_tpm)
        self._missing: OrderedDict[str, tuple[float, float, float]] = OrderedDict()  # tenant -> at, input, output

    def of(self, tenant: str, now: float) -> Allowance | None:
        """None where there is no limit."""
        if not self._is_limited:
            return None
        missing_input, missing_output = self._missing_now(tenant, now)
        return Allowance(
            self.limit,
            int(self.limit.input_tpm - missing_input),
            int(self.limit.output_tpm - missing_output),
            missing_input * MINUTE_S / self.limit.input_tpm if self.limit.input_tpm else 0.0,
            missing_output * MINUTE_S / self.limit.output_tpm if self.limit.output_tpm else 0.0,
        )

    def spend(self, tenant: str, input_tokens: int, output_tokens: int, now: float) -> None:
        if not self._is_limited:
            return
        missing_input, missing_output = self._missing_now(tenant, now)
        self._missing[tenant] = (now, missing_input + input_tokens, missing_output + output_tokens)
        self._missing.move_to_end(tenant)
        if len(self._missing) > MAX_TENANTS:
            self._missing.popitem(last=False)

    def _missing_now(self, tenant: str, now: float) -> tuple[float, float]:
        at, missing_input, missing_output = self._missing.get(tenant, (now, 0.0, 0.0))
        minutes = (now - at) / MINUTE_S
        return (
            max(0.0, missing_input - minutes * self.limit.input_tpm),
            max(0.0, missing_output - minutes * self.limit.output_tpm),
        )
