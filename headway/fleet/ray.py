"""A fleet on a Ray cluster: an actor for each process, and one that keeps the fleet.

All actors are detached, so that they outlive the command that started them, and Ray starts them again when they or
their nodes die. An actor starts its process on its node, and the process ends with it; tokens never pass through Ray.
While Ray's head is away, processes run on and nothing is placed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from headway.errors import SetupError
from headway.fleet.decisions import unknown
from headway.fleet.held import HeldProcess, Report
from headway.fleet.keeper import AskedGateway, ClusterAway, FleetKeeper
from headway.fleet.tables import FleetTable, ProcessTable

try:
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError, RayError
except ModuleNotFoundError:
    raise SetupError("`headway fleet` needs Ray: pip install 'headway[ray]' here and on all nodes.") from None

NAMESPACE = "headway"
KEEPER = "headway-fleet"
HOLDER = "headway-process:"  # before the names of holders
ASK_S = 3.0  # for all holders to answer
CONNECT_S = 30.0
# Of all actors. Several methods may run at once: `stop` takes a while.
ALWAYS: dict[str, Any] = {"lifetime": "detached", "max_restarts": -1, "max_concurrency": 4}
TOKEN_FILE = Path.home() / ".ray" / "auth_token"  # where Ray looks for it


Handle = Any  # of an actor: Ray's own type says nothing about its methods


def connect(address: str) -> None:
    """Raises SetupError if there is no cluster, or if it takes orders from anybody."""
    if os.environ.get("RAY_AUTH_MODE") != "token" and not TOKEN_FILE.exists():
        raise SetupError(
            "Ray runs what anybody who reaches it asks for, unless it requires a token. Start all nodes with "
            "RAY_AUTH_MODE=token and one token (`ray get-auth-token --generate`), and set both here too."
        )
    try:
        ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RayError, ValueError, RuntimeError) as error:
        raise SetupError(
            f"The Ray cluster at {address!r} cannot be reached: {error}. Run this on one of its nodes."
        ) from error


def _node_address() -> str:
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


class ProcessHolder:
    """Holds one process on its node."""

    def __init__(self, table: str, index: int, version: str) -> None:
        """`table` is JSON: an older version of Headway on a node refuses what it does not know."""
        process = ProcessTable.model_validate_json(table)
        self._held = HeldProcess(process, index, _node_address(), version)
        threading.Thread(target=self._held.run, daemon=True).start()

    def report(self) -> Report:
        return self._held.report()

    def leave(self, is_leaving: bool) -> None:
        self._held.is_leaving = is_leaving

    def stop(self) -> None:
        self._held.stop()


class KeeperActor:
    """Keeps the fleet. Another table needs another actor: this one is started again with the table that it was made
    with."""

    def __init__(self, table: str) -> None:
        fleet = FleetTable.model_validate_json(table)
        self._keeper = FleetKeeper(fleet, RayCluster(), AskedGateway(fleet.gateway))
        threading.Thread(target=self._keeper.run, daemon=True).start()

    def status(self) -> tuple[list[Report], str]:
        return list(self._keeper.reports.values()), self._keeper.problem

    def end(self) -> None:
        """Drain and stop everything."""
        self._keeper.is_ending = True

    def stop(self) -> None:
        """Change nothing any more."""
        self._keeper.stop()


class RayCluster:
    """The holders, for their keeper."""

    def reports(self) -> dict[str, Report]:
        named = _named()
        asked: dict[Any, str] = {}
        for name, holder in named.items():
            if holder is not None:
                asked[holder.report.remote()] = name
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ASK_S) if asked else ([], [])
        found = {name: unknown(*_parts(name)) for name in named}
        for reference in answered:
            with suppress(RayActorError, GetTimeoutError):
                found[asked[reference]] = ray.get(reference, timeout=ASK_S)
        return found

    def start(self, table: ProcessTable, index: int) -> None:
        options: dict[str, Any] = {
            "name": f"{HOLDER}{table.name}-{index}",
            "get_if_exists": True,
            "num_cpus": table.cpus,
            "num_gpus": table.gpus,
            "resources": dict(table.resources),
        }
        if table.memory_gb:
            options["memory"] = int(table.memory_gb * 1e9)
        if table.labels:
            options["label_selector"] = dict(table.labels)
        ray.remote(ProcessHolder).options(**ALWAYS, **options).remote(table.model_dump_json(), index, table.version)

    def leave(self, name: str, *, is_leaving: bool) -> None:
        if (holder := _named().get(name)) is not None:
            holder.leave.remote(is_leaving)

    def stop(self, name: str, grace_s: float) -> None:
        if (holder := _named().get(name)) is not None:
            threading.Thread(target=_stop, args=(holder, grace_s), daemon=True).start()


def _stop(holder: Handle, grace_s: float) -> None:
    with suppress(RayError):
        ray.get(holder.stop.remote(), timeout=grace_s + ASK_S)
    ray.kill(holder)


def _named() -> dict[str, Handle | None]:
    """All holders by the name of their process; None if Ray does not know more of it at the moment."""
    try:
        names = [name for name in ray.util.list_named_actors() if name.startswith(HOLDER)]
    except (RayError, RuntimeError, ConnectionError) as error:
        raise ClusterAway(str(error)) from error
    found: dict[str, Handle | None] = {}
    for name in names:
        found[name.removeprefix(HOLDER)] = None
        with suppress(ValueError):  # it has just ended
            found[name.removeprefix(HOLDER)] = ray.get_actor(name)
    return found


def _parts(name: str) -> tuple[str, int]:
    group, _, index = name.rpartition("-")
    return group, int(index)


# --- what the commands do ---


def up(table: FleetTable) -> None:
    """Let the cluster have this fleet. What runs already stays, and is replaced where its table has changed."""
    if (keeper := _keeper()) is not None:
        with suppress(RayError):
            ray.get(keeper.stop.remote(), timeout=CONNECT_S)
        ray.kill(keeper)
        _until_gone(KEEPER)
    ray.remote(KeeperActor).options(**ALWAYS, name=KEEPER, num_cpus=0).remote(table.model_dump_json())


def status() -> tuple[list[Report], str]:
    """What runs, and why it is not as it should be. Raises SetupError if no fleet is up."""
    if (keeper := _keeper()) is None:
        raise SetupError("No fleet is up on this cluster: `headway fleet up fleet.toml` starts one.")
    try:
        told: tuple[list[Report], str] = ray.get(keeper.status.remote(), timeout=CONNECT_S)
    except RayError as error:
        raise SetupError(f"The fleet's actor does not answer ({type(error).__name__}); Ray starts it again.") from error
    return told


def end() -> None:
    """Drain and stop everything. Returns before that: `status` tells."""
    if (keeper := _keeper()) is None:
        raise SetupError("No fleet is up on this cluster.")
    ray.get(keeper.end.remote(), timeout=CONNECT_S)


def end_now() -> None:
    """Stop everything, with the streams aboard."""
    forget()
    for holder in _named().values():
        if holder is not None:
            _stop(holder, ASK_S)


def forget() -> None:
    """End the keeper. Processes run on."""
    if (keeper := _keeper()) is not None:
        ray.kill(keeper)
        _until_gone(KEEPER)


def _keeper() -> Handle | None:
    try:
        return ray.get_actor(KEEPER)
    except ValueError:
        return None


def _until_gone(name: str) -> None:
    """Ray gives a name again only once its last actor is dead."""
    deadline = time.monotonic() + CONNECT_S
    while name in ray.util.list_named_actors():
        if time.monotonic() > deadline:
            raise SetupError(f"The actor {name!r} does not end. Look for it with `ray list actors`.")
        time.sleep(0.1)
