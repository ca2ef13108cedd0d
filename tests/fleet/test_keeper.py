"""The keeper: what it does when the cluster, the gateway or a holder does not answer, and in which order a fleet ends."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from anyio.to_thread import run_sync

from headway.config import load
from headway.core.demand import PoolDemand
from headway.errors import SetupError
from headway.fleet import keeper as keeper_module
from headway.fleet.keeper import AskedGateway, ClusterAway, FleetKeeper
from headway.fleet.tables import FleetGatewayTable, ProcessTable
from tests.fleet.simulated import FakeCluster, FakeGateway, engines, fleet_of, relays
from tests.running import MODEL, running_gateway


class KeptFleet:
    def __init__(self, *tables: ProcessTable) -> None:
        self.gateway = FakeGateway()
        self.cluster = FakeCluster(self.gateway)
        self.now = 0.0
        self.keep(*tables)

    def keep(self, *tables: ProcessTable, is_ending: bool = False) -> None:
        """With a new keeper, which remembers nothing."""
        fleet = fleet_of(*tables)
        self.keeper = FleetKeeper(fleet, self.cluster, self.gateway, lambda: self.now, is_ending=is_ending)

    def go_on(self, times: int = 8) -> list[str]:
        """Returns what was ordered."""
        begin = len(self.cluster.log)
        for _ in range(times):
            self.keeper.problem = self.keeper.step()
            self.cluster.pass_time()
        return self.cluster.log[begin:]


def test_a_fleet_comes_up_and_is_registered() -> None:
    fleet = KeptFleet(engines(), relays(count=1))
    assert fleet.go_on() == ["start engine-0", "start engine-1", "start relay-0"]
    assert fleet.gateway.registered == {"m": {"http://node0:9000", "http://node1:9001"}}
    assert (len(fleet.gateway.opened), fleet.keeper.problem) == (2, "")


def test_a_cluster_that_is_away_changes_nothing() -> None:
    fleet = KeptFleet(engines())
    fleet.go_on()
    before = dict(fleet.keeper.reports)
    fleet.cluster.is_away = True
    with pytest.raises(ClusterAway):
        fleet.keeper.step()
    assert fleet.keeper.reports == before
    assert len(fleet.gateway.opened) == 2


def test_a_keeper_goes_on_after_the_cluster_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "STEP_S", 0.001)
    fleet = KeptFleet(engines())
    fleet.cluster.is_away = True
    said: list[str] = []

    def wait_then(timeout: float) -> bool:
        said.append(fleet.keeper.problem)
        fleet.cluster.is_away = len(said) < 3
        return len(said) == 5

    monkeypatch.setattr(fleet.keeper._is_stopped, "wait", wait_then)
    fleet.keeper.run()
    away = "The cluster cannot be asked: no head"
    assert said == ["The fleet's processes have not been asked yet.", away, away, "", ""]


def test_without_the_gateway_processes_start_but_no_engine_leaves_or_stops() -> None:
    fleet = KeptFleet(engines(count=1))
    fleet.gateway.is_away = True
    assert fleet.go_on() == ["start engine-0"]
    assert fleet.keeper.problem == "The gateway does not answer"
    fleet.keep(engines(count=0))
    assert fleet.go_on() == []
    fleet.keep(engines(count=1, command=["b"]))
    assert fleet.go_on() == []
    fleet.gateway.is_away = False
    assert fleet.go_on() == ["leave engine-0", "stop engine-0 20", "start engine-1"]


def test_a_gateway_that_was_started_again_is_told_the_engines() -> None:
    fleet = KeptFleet(engines())
    fleet.go_on()
    fleet.gateway.restart()
    assert fleet.go_on() == []
    assert len(fleet.gateway.opened) == 2


@pytest.mark.parametrize("is_keeper_new", [False, True])
def test_a_holder_that_cannot_be_asked_stays_registered(is_keeper_new: bool) -> None:
    fleet = KeptFleet(engines())
    fleet.go_on()
    fleet.cluster.holders["engine-0"].is_mute = True
    if is_keeper_new:
        fleet.keep(engines())
    assert fleet.go_on() == []
    assert fleet.gateway.opened == {"http://node0:9000", "http://node1:9001"}
    assert fleet.keeper.reports["engine-0"].phase == "away"


@pytest.mark.parametrize("is_keeper_new", [False, True])
def test_a_holder_that_cannot_be_asked_is_not_stopped_with_streams_aboard(is_keeper_new: bool) -> None:
    fleet = KeptFleet(engines())
    fleet.go_on()
    fleet.cluster.holders["engine-0"].is_mute = True
    fleet.gateway.aboard["http://node0:9000"] = 1
    if not is_keeper_new:
        fleet.keeper.table = fleet_of(engines(count=0))
    else:
        fleet.keep(engines(count=0))
    said = fleet.go_on()
    assert "leave engine-0" in said
    assert "stop engine-0 20" not in said
    fleet.gateway.aboard.clear()
    fleet.go_on()
    assert not fleet.cluster.holders


def test_a_process_for_which_no_node_has_room_is_replaced_when_its_table_changes() -> None:
    fleet = KeptFleet(engines(command=["huge"]))
    fleet.go_on()
    assert [report.phase for report in fleet.keeper.reports.values()] == ["away", "away"]
    fleet.keep(engines())
    fleet.go_on(20)
    assert len(fleet.gateway.opened) == 2


def test_a_new_keeper_goes_on_with_what_leaves() -> None:
    fleet = KeptFleet(engines())
    fleet.go_on()
    fleet.gateway.aboard["http://node1:9001"] = 1
    fleet.keep(engines(command=["b"]))
    assert fleet.go_on(1) == ["leave engine-0"]
    fleet.keep(engines(command=["b"]))
    assert fleet.go_on(1) == ["stop engine-0 20", "start engine-2"]
    fleet.gateway.aboard.clear()
    assert fleet.go_on() == ["leave engine-1", "stop engine-1 20", "start engine-0"]


def test_a_fleet_ends_engines_first() -> None:
    fleet = KeptFleet(engines(count=1), relays(count=1, grace_s=900))
    fleet.go_on()
    fleet.gateway.aboard["http://node0:9000"] = 1
    fleet.keep(engines(count=1), relays(count=1, grace_s=900), is_ending=True)
    assert fleet.go_on() == ["leave engine-0"]
    fleet.gateway.aboard.clear()
    assert fleet.go_on() == ["stop engine-0 20", "leave relay-0", "stop relay-0 900"]
    assert not fleet.keeper.reports


def test_a_fleet_whose_relays_were_the_gateway_ends_without_a_problem() -> None:
    fleet = KeptFleet(engines(count=1), relays(count=1))
    fleet.go_on()
    fleet.keep(engines(count=1), relays(count=1), is_ending=True)
    fleet.go_on(3)
    fleet.gateway.is_away = True
    fleet.go_on()
    assert (fleet.keeper.reports, fleet.keeper.problem) == ({}, "")


def test_tables_that_left_the_file_are_drained_with_their_model_and_their_own_grace() -> None:
    fleet = KeptFleet(engines(count=1), engines("other", 8000, model="n", count=1, grace_s=7), relays(count=1))
    fleet.go_on()
    fleet.gateway.aboard["http://node1:8000"] = 1
    fleet.keep(engines(count=1))
    assert fleet.go_on() == ["leave other-0", "leave relay-0", "stop relay-0 20"]
    assert fleet.gateway.registered["n"] == set()
    fleet.gateway.aboard.clear()
    assert fleet.go_on() == ["stop other-0 7"]


def test_an_engine_that_will_serve_another_model_serves_its_own_until_it_is_replaced() -> None:
    fleet = KeptFleet(engines())
    fleet.go_on()
    fleet.keep(engines(model="n"))
    fleet.go_on(1)
    assert len(fleet.gateway.registered["m"]) == 1
    fleet.go_on(20)
    assert (fleet.gateway.registered["m"], len(fleet.gateway.registered["n"])) == (set(), 2)


def test_a_model_that_is_not_registered_is_a_problem_and_the_others_are_registered() -> None:
    fleet = KeptFleet(engines(), engines("other", 8000, model="n", count=1))
    fleet.gateway.unknown_models = {"m"}
    fleet.go_on()
    assert fleet.keeper.problem == "Engines of 'm' are not registered"
    assert len(fleet.gateway.opened) == 1


def test_holders_are_told_other_times_without_being_replaced() -> None:
    fleet = KeptFleet(engines(count=1))
    fleet.go_on()
    fleet.keep(engines(count=1, start_s=5, unhealthy_s=6, grace_s=7))
    assert fleet.go_on() == []
    assert fleet.cluster.holders["engine-0"].times == engines(start_s=5, unhealthy_s=6, grace_s=7).times


def test_a_step_is_taken_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "STEP_S", 0.001)
    fleet = KeptFleet(engines())

    def step() -> str:
        fleet.keeper.stop()
        return "a problem"

    monkeypatch.setattr(fleet.keeper, "step", step)
    fleet.keeper.run()
    assert fleet.keeper.problem == "a problem"


@pytest.mark.anyio
async def test_the_gateway_is_asked_with_the_key_in_the_file(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("an-admin-key\n")
    hashed = hashlib.sha256(b"an-admin-key").hexdigest()
    config = tmp_path / "headway.toml"
    config.write_text(
        f'[gateway]\nport = 0\nadmin_key_hashes = ["{hashed}"]\n'
        f'[[models]]\nname = "{MODEL}"\n[models.discover]\nregistered = true\n'
    )
    async with running_gateway(load(config)) as here:
        asked = AskedGateway(FleetGatewayTable(url=here.url, admin_key_file=str(key)))
        await run_sync(asked.register, MODEL, ["http://127.0.0.1:1"])
        [replica] = (await run_sync(asked.replicas)).values()
        assert (replica.url, replica.model, replica.is_open, replica.aboard) == ("http://127.0.0.1:1", MODEL, False, 0)
        key.unlink()
        with pytest.raises(SetupError, match="cannot be read on this node"):
            await run_sync(asked.replicas)


def busy(replicas: int, held: int = 0) -> PoolDemand:
    """All seats are taken, and so many calls wait."""
    return PoolDemand(replicas, 8.0, 0.0, 10.0, 0.5, 0, 0, float(replicas), held, 0.0, 0)


def test_a_table_follows_demand_within_its_bounds() -> None:
    scaling = {"min_count": 1, "max_count": 4, "opens_after_s": 10.0}
    fleet = KeptFleet(engines(count=2, scaling=scaling))
    assert fleet.go_on() == ["start engine-0", "start engine-1"]

    def pass_s(seconds: int, demand: PoolDemand | None) -> list[str]:
        ordered = []
        for _ in range(seconds):
            fleet.now += 1.0
            fleet.gateway.demands = {"m": demand} if demand is not None else {}
            ordered += fleet.go_on(1)
        return ordered

    assert pass_s(30, None) == []  # what is not known changes nothing
    assert pass_s(30, busy(2, held=200)) == ["start engine-2", "start engine-3"]
    fleet.keep(engines(count=2, scaling=scaling))  # one that remembers nothing goes on from what runs
    assert pass_s(5, busy(4)) == []
    idle = PoolDemand(4, 8.0, 0.0, 10.0, 0.5, 0, 0, 0.1, 0, 0.0, 0)
    ordered = pass_s(120, idle)
    assert sum(one.startswith("leave") for one in ordered) == 3
    assert len(fleet.cluster.holders) == 1


def test_tables_are_replaced_one_after_the_other() -> None:
    fleet = KeptFleet(relays(count=2), engines(count=2))
    fleet.go_on()
    fleet.keep(relays(count=2, command=["b"]), engines(count=2, command=["b"]))
    ordered = fleet.go_on(40)
    groups = [one.split()[1].partition("-")[0] for one in ordered]
    assert groups == sorted(groups, reverse=True)  # relays, then engines
    assert {one.table.command[0] for one in fleet.cluster.holders.values()} == {"b"}
