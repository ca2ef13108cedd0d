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
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from headway.errors import SetupError
from headway.fleet.held import HeldProcess, Report
from headway.fleet.keeper import AskedGateway, ClusterAway, FleetKeeper
from headway.fleet.tables import FleetTable, ProcessTable, Times

try:
    import ray
    from ray.exceptions import RayError
except ModuleNotFoundError:
    raise SetupError("`headway fleet` needs Ray: pip install 'headway[ray]' here and on all nodes.") from None

log = logging.getLogger("headway.fleet")

NAMESPACE = "headway"
KEEPER = "headway-fleet"
HOLDER = "headway-process:"  # before the names of holders
ASK_S = 3.0  # for all holders to answer
CONNECT_S = 30.0
END_NOW_S = 5.0  # for all processes to end
# Of all actors. Several methods may run at once: `stop` takes a while.
ALWAYS: dict[str, Any] = {"lifetime": "detached", "max_restarts": -1, "max_concurrency": 4}


Handle = Any  # of an actor: Ray's own type says nothing about its methods


def connect(address: str) -> None:
    """Raises SetupError if there is no cluster, or if it takes orders from anybody."""
    # Without the variable a driver sends no token, even if there is one.
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
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


def _in_background(work: Callable[[], None]) -> None:
    """Run it in a thread. An error that nobody expected ends this actor, and Ray starts it again: an actor whose thread
    is dead would look well and do nothing."""

    def run() -> None:
        is_done = False
        try:
            work()
            is_done = True
        finally:
            if not is_done:
                log.critical("The actor ends by an error", exc_info=True)
                os._exit(1)

    threading.Thread(target=run, daemon=True).start()


class ProcessHolder:
    """Holds one process on its node."""

    def __init__(self, table: str, index: int, version: str) -> None:
        """`table` is JSON: an older version of Headway on a node refuses what it does not know."""
        process = ProcessTable.model_validate_json(table)
        self._held = HeldProcess(process, index, _node_address(), version, process.times)
        _in_background(self._held.run)

    def report(self, times: Times | None) -> Report:
        if times is not None:
            self._held.times = times
        return self._held.report()

    def leave(self, is_leaving: bool) -> None:
        self._held.is_leaving = is_leaving

    def stop(self) -> None:
        self._held.stop()


class KeeperActor:
    """Keeps the fleet. Another table needs another actor: this one is started again with the table that it was made
    with."""

    def __init__(self, table: str, *, is_ending: bool) -> None:
        self._table = table
        fleet = FleetTable.model_validate_json(table)
        self._keeper = FleetKeeper(fleet, RayCluster(), AskedGateway(fleet.gateway), is_ending=is_ending)
        _in_background(self._keeper.run)

    def status(self) -> tuple[list[Report], str]:
        return list(self._keeper.reports.values()), self._keeper.problem

    def table(self) -> str:
        return self._table

    def stop(self) -> None:
        """Change nothing any more."""
        self._keeper.stop()


class RayCluster:
    """The holders, for their keeper."""

    def __init__(self) -> None:
        self._stopping: dict[str, threading.Thread] = {}

    def reports(self, times: Mapping[str, Times]) -> dict[str, Report]:
        named = _named()
        found = {name: known for name, (_, known) in named.items()}
        asked: dict[Any, str] = {}
        for name, (holder, known) in named.items():
            if holder is not None:
                asked[holder.report.remote(times.get(known.group))] = name
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ASK_S) if asked else ([], [])
        for reference in answered:
            with suppress(RayError):
                found[asked[reference]] = ray.get(reference, timeout=ASK_S)
        return found

    def start(self, table: ProcessTable, index: int) -> None:
        name = _actor_name(table, index)
        holder = ray.remote(ProcessHolder).options(**ALWAYS, **_needs(table), name=name, get_if_exists=True)
        holder.remote(table.model_dump_json(), index, table.version)

    def leave(self, name: str, *, is_leaving: bool) -> None:
        holder, _ = _named().get(name, (None, None))
        if holder is not None:
            holder.leave.remote(is_leaving)

    def stop(self, name: str, grace_s: float) -> None:
        if name in self._stopping and self._stopping[name].is_alive():
            return
        holder, _ = _named().get(name, (None, None))
        if holder is not None:
            log.info("%s is stopped", name)
            self._stopping[name] = threading.Thread(target=_stop, args=(holder, grace_s), daemon=True)
            self._stopping[name].start()


def _stop(holder: Handle, grace_s: float) -> None:
    with suppress(RayError):
        ray.get(holder.stop.remote(), timeout=grace_s + ASK_S)
    ray.kill(holder)


def _needs(table: ProcessTable) -> dict[str, Any]:
    needs: dict[str, Any] = {
        "num_cpus": table.cpus,
        "num_gpus": table.gpus,
        "resources": dict(table.resources),
    }
    if table.memory_gb:
        needs["memory"] = int(table.memory_gb * 1e9)
    if table.labels:
        needs["label_selector"] = dict(table.labels)
    return needs


def _actor_name(table: ProcessTable, index: int) -> str:
    """Has all that must be known of a holder that does not answer, or that no node has room for."""
    return f"{HOLDER}{table.name}:{index}:{table.version}:{table.port + index}:{table.model or ''}"


def _known(actor_name: str) -> Report:
    group, index, version, port, model = actor_name.removeprefix(HOLDER).split(":", 4)
    return Report(group, int(index), version, model or None, int(port), "away")


def _named() -> dict[str, tuple[Handle | None, Report]]:
    """All holders by the name of their process, with what is known without asking; without the holder if Ray does not
    know more of it at the moment."""
    found: dict[str, tuple[Handle | None, Report]] = {}
    try:
        for name in ray.util.list_named_actors():
            if name.startswith(HOLDER):
                known = _known(name)
                found[known.name] = None, known
                with suppress(ValueError):  # it has just ended
                    found[known.name] = ray.get_actor(name), known
    except (RayError, RuntimeError, ConnectionError) as error:
        raise ClusterAway(str(error)) from error
    return found


# --- what the commands do ---


def up(table: FleetTable) -> None:
    """Let the cluster have this fleet. What runs already stays, and is replaced where its table has changed."""
    for one in table.processes:
        try:
            ray.remote(ProcessHolder).options(**_needs(one))
        except (ValueError, TypeError) as error:
            raise SetupError(f"Ray cannot place processes {one.name!r}: {error}") from error
    _keep(table.model_dump_json(), is_ending=False)


def _keep(table: str, *, is_ending: bool) -> None:
    """Put a keeper in the place of the one before."""
    if (keeper := _keeper()) is not None:
        with suppress(RayError):
            ray.get(keeper.stop.remote(), timeout=CONNECT_S)
        ray.kill(keeper)
        _until_gone(KEEPER)
    try:
        ray.remote(KeeperActor).options(**ALWAYS, name=KEEPER, num_cpus=0).remote(table, is_ending=is_ending)
    except ValueError as error:  # the name is taken
        raise SetupError(
            "Another command has changed this fleet at the same time. Look with `fleet status`."
        ) from error


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
        raise SetupError("No fleet is up on this cluster. `headway fleet down --now` stops what one has left.")
    try:
        table: str = ray.get(keeper.table.remote(), timeout=CONNECT_S)
    except RayError as error:
        raise SetupError(f"The fleet's actor does not answer ({type(error).__name__}). Try again.") from error
    _keep(table, is_ending=True)


def end_now() -> None:
    """Stop everything, with the streams aboard."""
    forget()
    holders = [holder for holder, _ in _named().values() if holder is not None]
    if holders:
        ray.wait([holder.stop.remote() for holder in holders], num_returns=len(holders), timeout=END_NOW_S)
    for holder in holders:
        ray.kill(holder)


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
