"""The fleets that runs/internet-scale.sh simulates: one kind of replica, one demand, several layouts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from headway.core.types import ModelPolicy, Replica, TierPolicy
from headway.plan.answers import planned_replica
from headway.plan.chips import CHIPS
from headway.plan.fleet import UNPAID, Candidate, candidate_of
from headway.plan.models import model_shape
from headway.plan.step import Setup
from headway.sim.dispatcher import DispatcherFault, DispatcherTimes
from headway.sim.loop import Fault
from headway.sim.scenario import Outcome, Scenario, play
from headway.sim.workload import Lengths, Recipe, synthesize

USERS, CALLS_A_DAY, PEAK = 10_000_000, 80, 2.0  # calls per user and day; busiest hour ÷ mean hour
REPLICAS = 10_000
CALLS_PER_S = USERS * CALLS_A_DAY * PEAK / 86_400
CONTEXT_TOKENS, READ_TOKENS, ANSWER_TOKENS = 4_096, 1_024, 2_048  # on average; the rest of a prompt is cached
STANDARD_TPS, FLOOR_TPS, FAST_SHARE = 40.0, 60.0, 0.1
SHORT_TOKENS = 40  # of prompts and answers that test the dispatcher alone


def replica_kind() -> Candidate:
    """Llama-70B in fp8 on two B200, as planned; 40 tok/s for standard streams."""
    setup = Setup(
        model_shape("llama-3.1-70b"), CHIPS["b200"], 2, "fp8",
        prompt_tokens=CONTEXT_TOKENS, output_tokens=ANSWER_TOKENS,
    )  # fmt: skip
    candidate = candidate_of(planned_replica(setup), STANDARD_TPS)
    assert candidate is not None
    return candidate


@dataclass(frozen=True)
class Layout:
    """A fleet of one size, with its part of the demand."""

    replicas: int
    seconds: float
    cells: tuple[float, ...] = (1.0,)  # the share of the demand that comes to each
    times: DispatcherTimes | None = None  # None: one process, without a dispatcher
    deaths: tuple[DispatcherFault, ...] = ()
    faults: tuple[Fault, ...] = ()
    summary_s: float = 0.5  # infinite: no call is handed on
    demand: float = 1.0  # factor on its part
    short_calls_per_s: float = 0.0  # instead of its part of the demand: many short calls
    moments: int = 200

    @property
    def recipe(self) -> Recipe:
        part = self.replicas / REPLICAS
        read, answers = (SHORT_TOKENS,) * 2 if self.short_calls_per_s else (READ_TOKENS, ANSWER_TOKENS)
        return Recipe(
            self.short_calls_per_s or CALLS_PER_S * part * self.demand,
            clients=max(20, round(10_000 * part)),  # a smaller fleet has fewer tenants, so it is burstier
            zipf=0.9,
            prompts=Lengths.around(read, 0.95, 128_000),
            answers=Lengths.around(answers, 1.0, 16_000),
            tiers={"standard": 1 - FAST_SHARE, "fast": FAST_SHARE},
        )

    def scenario(self, kind: Candidate) -> Scenario:
        return Scenario(
            ModelPolicy(
                {"fast": TierPolicy(10_000, 2.0, FLOOR_TPS), "standard": TierPolicy(100_000, 30.0)}, standard_share=0.5
            ),
            [Replica(f"r{n}", "m", kind.seats, kind.curve, kind.prompt_tps) for n in range(self.replicas)],
            partial(synthesize, self.recipe),
            self.seconds,
            UNPAID,
            faults=self.faults,
            dispatcher=self.times,
            dispatcher_faults=self.deaths,
            cells=self.cells,
            summary_s=self.summary_s,
            tallied_from_s=0.3 * self.seconds,  # before that no replica is light yet
            moments=self.moments,
        )


def played(layout: Layout) -> tuple[Outcome, float]:
    """Returns the outcome and the CPU seconds that it took."""
    began = time.process_time()
    outcome = play(layout.scenario(replica_kind()), 1)
    return outcome, time.process_time() - began
