"""`headway status`: who leads a cell, and how its relays and replicas are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headway.cli.options import Authority, Certificate, CertificateKey, SecretFile, security_of
from headway.dispatch.address import Address, parse_address
from headway.dispatch.asking import ask_status
from headway.dispatch.frames import RelayStatus, Status
from headway.dispatch.security import Security
from headway.errors import ConnectionFailed

MAX_ROWS = 40  # replicas in the table
ROLES = {"leader": "leads", "candidate": "has the lease, waits for relays", "standby": "stands by"}


@dataclass(frozen=True)
class Told:
    """What one dispatcher said, or why it said nothing."""

    address: str
    status: Status | None
    why: str = ""


def status(
    dispatcher: Annotated[
        list[str],
        typer.Option(help="Where a dispatcher listens: tcp://HOST:PORT, or unix:PATH. Repeat it for each of them."),
    ],
    secret_file: SecretFile = None,
    certificate: Certificate = None,
    key: CertificateKey = None,
    ca: Authority = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    security = security_of(secret_file, certificate, key, ca)
    told = asyncio.run(_ask_all([parse_address(one) for one in dispatcher], security))
    advice = advice_for(told)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(as_record(told, advice))).decode())
    else:
        _show(told, Console())
        if advice:
            Console(stderr=True).print(advice, style="red", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(1 if advice else 0)


async def _ask_all(addresses: Sequence[Address], security: Security) -> list[Told]:
    return list(await asyncio.gather(*[_ask_one(address, security) for address in addresses]))


async def _ask_one(address: Address, security: Security) -> Told:
    try:
        return Told(str(address), await ask_status(address, security))
    except ConnectionFailed as failed:
        return Told(str(address), None, failed.message)


def leading(told: Sequence[Told]) -> tuple[str, Status] | None:
    """The address and the status of the one that leads, or else of one that tries to. If two believe that they lead,
    relays obey the higher epoch."""
    trying = [(one.address, one.status) for one in told if one.status is not None and one.status.role != "standby"]
    return max(trying, key=lambda one: (one[1].role == "leader", one[1].epoch), default=None)


def advice_for(told: Sequence[Told]) -> str:
    """What to do so that calls are served; empty if they are."""
    if all(one.status is None for one in told):
        return (
            "No dispatcher answers: start `headway dispatch`, or correct --dispatcher and the secret or certificates."
        )
    if (found := leading(told)) is None:
        return (
            "No dispatcher leads. If this lasts for more than a few seconds, start the dispatchers that do not answer, "
            "and look into the logs of those that stand by: they say so if the lease cannot be reached."
        )
    address, status = found
    relays = status.relays
    connected = sum(relay.beat_s is not None for relay in relays)
    if status.role == "candidate":
        return (
            f"{address} has the lease and does not decide yet: {connected} of {len(relays)} relays are connected "
            "and more than half must obey it. Start the others, or correct `relays` in [cell]."
        )
    if not status.open_replicas:
        if not connected:
            return "No relay is connected: start `headway relay`, or look into the logs of the relays."
        if any(one.is_silent for one in status.replicas):
            return (
                "No replica is open: engines are up and do not say how many streams they run. Let relays read their "
                "/metrics."
            )
        return "No replica is open: check that the engines run and that relays reach them. The relays' logs say why."
    return ""


def as_record(told: Sequence[Told], advice: str) -> dict[str, Any]:
    address, status = leading(told) or ("", Status("standby"))
    return {
        "leader": address if status.role == "leader" else None,
        "epoch": status.epoch,
        "dispatchers": [
            {"address": one.address, "role": one.status.role if one.status else None, "why": one.why} for one in told
        ],
        "relays": [
            {"name": one.name, "connected": one.beat_s is not None, "calls": one.calls, "beat_s": one.beat_s}
            for one in status.relays
        ],
        "replicas": [
            {
                "name": one.name,
                "pool": one.pool,
                "open": one.is_open,
                "seats": one.seats,
                "aboard": one.aboard,
                "behind": one.is_behind,
                "silent": one.is_silent,
            }
            for one in status.replicas
        ],
        "more_replicas": status.more_replicas,
        "open_replicas": status.open_replicas,
        "held": status.held,
        "lag_s": status.lag_s,
        "advice": advice,
    }


def _show(told: Sequence[Told], console: Console) -> None:
    dispatchers = Table("dispatcher", "state", "epoch")
    for one in told:
        state = ROLES[one.status.role] if one.status else one.why
        dispatchers.add_row(escape(one.address), escape(state), str(one.status.epoch or "") if one.status else "")
    console.print(dispatchers)
    if (found := leading(told)) is None:
        return
    _, status = found
    console.print(_relays_table(status.relays))
    if status.role != "leader":
        return
    if status.replicas:
        console.print(_replicas_table(status))
    left_out = len(status.replicas[MAX_ROWS:]) + status.more_replicas
    if left_out:
        console.print(f"{left_out:,} more replicas: --json lists up to 10,000. Those that take no calls come first.")
    console.print(f"Calls held: {status.held:,}. Lag of the dispatcher's loop: {status.lag_s * 1000:.0f} ms.")


def _relays_table(relays: Sequence[RelayStatus]) -> Table:
    table = Table("relay", "state", "calls", "last beat")
    for relay in relays:
        beat = f"{relay.beat_s * 1000:.0f} ms ago" if relay.beat_s is not None else ""
        table.add_row(relay.name, "connected" if beat else "[red]lost[/red]", f"{relay.calls:,}", beat)
    return table


def _replicas_table(status: Status) -> Table:
    all_replicas = len(status.replicas) + status.more_replicas
    title = f"{status.open_replicas:,} of {all_replicas:,} replicas are open"
    table = Table("replica", "pool", "state", "aboard", "seats", "behind its floors", title=title)
    for one in status.replicas[:MAX_ROWS]:
        state = "open" if one.is_open else "[red]up, streams unknown[/red]" if one.is_silent else "[red]closed[/red]"
        behind = "yes" if one.is_behind else ""
        table.add_row(escape(one.name), escape(one.pool), state, str(one.aboard), str(one.seats), behind)
    return table
