"""Parses the faults and the rates of the auto tier that are given on the command line."""

from __future__ import annotations

from dataclasses import replace

from headway.core.types import ModelPolicy, Replica
from headway.errors import SetupError
from headway.price import Price
from headway.sim.dispatcher import DispatcherFault
from headway.sim.loop import Fault
from headway.sim.rungs import STUDENT, SimRungs

AUTO_EXAMPLE = "share=0.5,replicas=2,faster=5,escalated=0.3,caught=0.9,mistakes=0.1,full=0.02,budget=0.02,audited=0.25"


def replica_fault(said: str, fleet: list[Replica]) -> Fault:
    parts = said.split(":")
    try:
        name, at, lasts_s = parts[0], float(parts[1]), float(parts[2])
        slowness = float(parts[3]) if len(parts) > 3 else None
    except (IndexError, ValueError):
        raise SetupError(f"--fault {said}: must be like 0:600:120 (it dies) or 0:600:120:3 (3 times slower).") from None
    if name not in {replica.name for replica in fleet}:
        raise SetupError(f"--fault {said}: replicas are numbered from 0 to {len(fleet) - 1}.")
    return Fault(at, name, lasts_s, slowness)


def dispatcher_dies(said: str, cells: int) -> DispatcherFault:
    try:
        cell, at, takeover_s = said.split(":")
        fault = DispatcherFault(float(at), float(takeover_s), int(cell))
    except ValueError:
        raise SetupError(
            f"--dispatcher-fault {said}: must be like 0:600:1.5, the standby leads 1.5 s after a death at 600 s."
        ) from None
    if not 0 <= fault.cell < cells or fault.takeover_s < 0:
        raise SetupError(f"--dispatcher-fault {said}: cells are numbered from 0 to {cells - 1}; seconds are positive.")
    return fault


def auto_rungs(said: str, policy: ModelPolicy, full: Replica, price: Price) -> SimRungs:
    """A student on replicas like `full` that is `faster` times as fast, at a price that is lower by the same factor."""
    rates = dict[str, float](share=1, replicas=1, faster=5, escalated=0.3, caught=0.9, mistakes=0.1, full=0.02)
    rates |= {"budget": 0.02, "audited": 0.25}
    known = set(rates)
    try:
        rates |= {name: float(value) for name, _, value in (part.partition("=") for part in said.split(","))}
    except ValueError:
        raise SetupError(f"--auto {said}: must be like {AUTO_EXAMPLE}.") from None
    shares = [rates[name] for name in ("share", "escalated", "caught", "mistakes", "full", "budget", "audited")]
    is_possible = rates["mistakes"] < 1.0 and 0.0 < rates["budget"] < 1.0
    if set(rates) != known or not all(0.0 <= share <= 1.0 for share in shares) or not is_possible:
        raise SetupError(f"--auto {said}: must be like {AUTO_EXAMPLE}, with shares between 0 and 1.")
    faster = rates["faster"]
    if faster <= 0 or rates["replicas"] < 1:
        raise SetupError(f"--auto {said}: `faster` must be above 0, and `replicas` 1 or more.")
    assert full.curve is not None
    student = replace(full, pool=STUDENT, curve=full.curve.slower(1 / faster), prompt_tps=full.prompt_tps * faster)
    return SimRungs(
        rates["share"],
        replace(policy, tiers={"standard": policy.tiers["standard"]}),
        [replace(student, name=f"student {n}") for n in range(int(rates["replicas"]))],
        replace(price, multiple_milli=round(price.multiple_milli / faster)),
        rates["escalated"],
        rates["caught"],
        rates["mistakes"],
        rates["full"],
        rates["budget"],
        rates["audited"],
    )
