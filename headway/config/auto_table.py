"""The table [models.auto] of headway.toml: a student that answers first, and how it is watched."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from headway.config.table import Table

# With a share of this divided by the budget, 19 of 20 times one of the excess mistakes that double the budget over 500
# calls is among the audits, with room for doubts that have to be raised twice (runs/mistake-budget.sh).
AUDITED_PER_BUDGET = 0.005


class AutoTable(Table):
    """Offer `<model>-auto`: the student answers first, and this model if the student's answer is not trusted."""

    calibration: Annotated[str, StringConstraints(min_length=1, max_length=4096)] = Field(
        description="File written by `headway auto calibrate`, with the measured mistakes of the student."
    )
    student: str | None = Field(None, description="Model that answers first. `<model>-spark` if not set.")
    budget: float = Field(
        0.02,
        gt=0,
        lt=1,
        description="Maximum share of calls with an excess mistake: one that the student makes and this model would "
        "not. Kept with 95 % confidence.",
    )
    budgets: dict[str, Annotated[float, Field(gt=0, lt=1)]] = Field(
        default_factory=dict, max_length=1000, description="Budgets of individual keys, by key id."
    )
    audit_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Random share of `-auto` calls to audit: this model answers too, and the answers are compared. "
        "If not set, 0.5 % divided by the budget: 25 % for a budget of 2 %. With less, a student that gets worse is "
        "noticed too late. Audits use `flex` seats if the model offers them and are not billed to the client. While "
        "audits raise doubts, this model serves every call. If too many answers differ, the student is not used.",
    )
    max_waiting_audits: int = Field(
        4,
        ge=0,
        le=1000,
        description="While more audits than this wait for their answer, the student is not asked. With a higher number "
        "the student serves more calls while seats are scarce, and one that gets worse is noticed later.",
    )
    free_text: bool = Field(
        default=False,
        description="Let the student answer calls for free text too. Such answers are decided on by the prompt alone "
        "and are never audited: a student that gets worse at them is not noticed.",
    )

    def audit_share_of(self, budget: float) -> float:
        return self.audit_share if self.audit_share is not None else min(1.0, AUDITED_PER_BUDGET / budget)
