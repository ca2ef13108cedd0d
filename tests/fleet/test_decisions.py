"""What a fleet does next: each rule alone, and a walk through everything that can go wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from headway.fleet.decisions import GatewayReplica, Leave, Order, Start, Stop, located, orders, registered
from headway.fleet.held import Report
from headway.fleet.keeper import ClusterAway, FleetKeeper
from headway.fleet.tables import ProcessTable
from tests.fleet.simulated import BROKEN, HUGE, FakeCluster, FakeGateway, engines, fleet_of, relays

TABLE = engines()


def report(index: int, table: ProcessTable = TABLE, **more: Any) -> Report:
    port = table.port + index
    known = Report(table.name, index, table.version, table.model, port, "ready", f"http://n{index}:{port}")
    return replace(known, **more)


def replica(one: Report, aboard: int = 0, *, is_open: bool = True, is_light: bool = False) -> GatewayReplica:
    assert one.model is not None
    return GatewayReplica(one.url, one.model, is_open, aboard, is_light)


def ordered(
    *reports: Report, table: ProcessTable = TABLE, wanted: int = 2, replicas: list[GatewayReplica] | None = None
) -> list[Order]:
    """By a gateway that has all engines open, unless `replicas` says otherwise."""
    known = [replica(one) for one in reports if one.model is not None] if replicas is None else replicas
    return orders(table, wanted, {one.name: one for one in reports}, {one.url: one for one in known})


# --- one rule each ---


def test_what_is_missing_is_started_with_the_lowest_free_numbers() -> None:
    assert ordered() == [Start("engine", 0), Start("engine", 1)]
    assert ordered(report(1)) == [Start("engine", 0)]
    assert ordered(report(0), report(1)) == []


def test_processes_of_other_tables_do_not_count() -> None:
    assert ordered(report(0, relays())) == [Start("engine", 0), Start("engine", 1)]


def test_one_that_leaves_keeps_its_number() -> None:
    old = report(0, version="old", is_leaving=True)
    assert ordered(old, report(1)) == [Start("engine", 2)]


def test_no_number_is_above_those_that_the_table_has_ports_for() -> None:
    leaving = [report(index, version="old", is_leaving=True) for index in range(3)]
    assert ordered(*leaving) == []


def test_a_process_that_is_no_engine_waits_for_the_number_of_the_one_before() -> None:
    table = relays()
    old = report(0, table, version="old", is_leaving=True)
    assert ordered(old, report(1, table), table=table) == [Stop("relay-0")]
    assert ordered(report(1, table), table=table) == [Start("relay", 0)]


def test_the_emptiest_leave_first_and_of_those_the_last() -> None:
    full, empty, other = report(0), report(1), report(2)
    known = [replica(full, 5), replica(empty), replica(other)]
    assert ordered(full, empty, other, replicas=known) == [Leave("engine-2")]
    assert ordered(full, empty, other, wanted=1, replicas=known) == [Leave("engine-2"), Leave("engine-1")]


def test_a_heavy_replica_leaves_before_an_emptier_one_that_is_light() -> None:
    light, heavy = report(0), report(1)
    known = [replica(light, 1, is_light=True), replica(heavy, 5)]
    assert ordered(light, heavy, wanted=1, replicas=known) == [Leave("engine-1")]


def test_those_that_are_outdated_or_not_ready_leave_before_the_emptiest() -> None:
    assert ordered(report(0, version="old"), report(1), report(2)) == [Leave("engine-0")]
    assert ordered(report(0, phase="unhealthy"), report(1), report(2)) == [Leave("engine-0")]


def test_an_engine_is_stopped_once_the_gateway_has_dropped_it() -> None:
    going = report(0, is_leaving=True)
    assert ordered(going, wanted=0, replicas=[replica(going, 1, is_open=False)]) == []
    assert ordered(going, wanted=0, replicas=[replica(going, is_open=False)]) == []  # a call may be on its way
    assert ordered(going, wanted=0, replicas=[]) == [Stop("engine-0")]


def test_a_process_that_is_no_engine_is_stopped_at_once() -> None:
    table = relays()
    going = report(0, table, is_leaving=True)
    assert ordered(going, table=table, wanted=0) == [Stop("relay-0")]
    assert orders(table, 0, {"relay-0": going}, None) == [Stop("relay-0")]


def test_without_the_gateway_engines_start_and_do_not_leave_or_stop() -> None:
    present = {one.name: one for one in (report(0), report(1, is_leaving=True))}
    assert orders(TABLE, 2, present, None) == [Start("engine", 2)]
    assert orders(TABLE, 0, present, None) == []
    assert orders(engines(model=None), 0, present, None) == []  # they were engines in an earlier file


def test_one_that_leaves_stays_if_it_is_wanted_again() -> None:
    going = report(1, is_leaving=True)
    assert ordered(report(0), going) == [Leave("engine-1", is_undone=True)]
    # But not if it is being stopped, or of an old version.
    assert ordered(report(0), going, replicas=[replica(report(0))]) == [Stop("engine-1"), Start("engine", 2)]
    assert ordered(report(0), replace(going, version="old")) == [Start("engine", 2)]


def test_outdated_processes_are_replaced_one_at_a_time() -> None:
    old = [report(0, version="old"), report(1, version="old")]
    assert ordered(*old) == [Leave("engine-1")]
    assert ordered(old[0], replace(old[1], is_leaving=True), report(2)) == []
    assert ordered(old[0], report(1, phase="starting")) == []
    assert ordered(old[0], report(1), replicas=[replica(old[0])]) == []  # the gateway does not know it yet
    assert ordered(old[0], report(1), replicas=[replica(old[0]), replica(report(1), is_open=False)]) == []
    assert ordered(old[0], report(1)) == [Leave("engine-0")]


def test_a_serving_process_is_not_replaced_while_an_outdated_one_does_not_serve() -> None:
    ill = report(0, version="old", phase="unhealthy")
    assert ordered(ill, report(1, version="old")) == [Leave("engine-0")]


def test_outdated_processes_that_never_got_ready_are_replaced_at_once() -> None:
    """Otherwise each would wait for the other, after a file with a wrong command."""
    old = [report(index, version="old", phase="starting") for index in range(2)]
    assert set(ordered(*old)) == {Leave("engine-0"), Leave("engine-1")}


def test_outdated_processes_whose_holders_do_not_answer_are_replaced_one_at_a_time() -> None:
    old = [report(index, version="old", phase="away", url="") for index in range(2)]
    assert ordered(*old, replicas=[]) == [Leave("engine-1")]
    assert ordered(old[0], report(1, phase="starting"), replicas=[]) == []
    assert ordered(old[0], report(1)) == [Leave("engine-0")]


def test_a_holder_that_does_not_answer_is_found_by_its_port_at_the_gateway() -> None:
    mute = report(0, phase="away", url="")
    other = replace(mute, index=1, port=9001)
    relay = report(0, relays(), phase="away", url="")
    present = {one.name: one for one in (mute, other, relay)}
    known = [
        GatewayReplica("http://old:9000", "m", is_open=False, aboard=3),
        GatewayReplica("http://new:9000", "m", is_open=True, aboard=0),
        GatewayReplica("http://x:9001", "another", is_open=True, aboard=0),
        GatewayReplica("http://x:7000", "m", is_open=True, aboard=0),
    ]
    found = located(present, {one.url: one for one in known})
    assert {name: one.url for name, one in found.items()} == {
        "engine-0": "http://new:9000",
        "engine-1": "",
        "relay-0": "",
    }


def test_what_is_registered() -> None:
    present = [
        report(0),
        report(1, is_leaving=True),
        report(2, phase="away"),
        report(3, phase="away", url=""),
        report(0, relays()),
        report(0, engines("gone", 8000, model="old"), is_leaving=True),
        report(4, model="earlier"),  # its table names another model now
    ]
    assert registered([TABLE, relays()], {one.name + str(n): one for n, one in enumerate(present)}) == {
        "m": ["http://n0:9000", "http://n2:9002"],
        "old": [],
        "earlier": ["http://n4:9004"],
    }
    assert registered([TABLE], {}) == {"m": []}


# --- all of them ---


class FleetWalk(RuleBasedStateMachine):
    """Everything that can happen, in any order. What must never happen is asserted where it would (simulated.py)."""

    @initialize()
    def begin(self) -> None:
        self.gateway = FakeGateway()
        self.cluster = WatchedCluster(self.gateway)
        self.tables = {"engine": engines(), "relay": relays()}
        self.restart_keeper()

    # --- what an owner does ---

    @rule(name=st.sampled_from(["engine", "relay", "second"]), wanted=st.integers(0, 3), command=st.sampled_from("ab"))
    def change(self, name: str, wanted: int, command: str) -> None:
        table = {"engine": engines(), "relay": relays(), "second": engines("second", 8000, model="n")}[name]
        self.tables[name] = table.model_copy(update={"count": wanted, "command": [command]})
        self.restart_keeper()

    @rule(name=st.sampled_from(["engine", "relay"]), command=st.sampled_from([BROKEN, HUGE]))
    def change_to_the_worse(self, name: str, command: str) -> None:
        if name in self.tables:
            self.tables[name] = self.tables[name].model_copy(update={"command": [command]})
            self.restart_keeper()

    @rule(model=st.sampled_from("mn"))
    def serve_another_model(self, model: str) -> None:
        if "engine" in self.tables:
            self.tables["engine"] = self.tables["engine"].model_copy(update={"model": model})
            self.restart_keeper()

    @rule(name=st.sampled_from(["engine", "second", "relay"]))
    def remove(self, name: str) -> None:
        if len(self.tables) > 1 and name in self.tables:
            del self.tables[name]
            self.restart_keeper()

    @rule(name=st.sampled_from(["engine", "relay"]), wanted=st.integers(1, 3))
    def scale(self, name: str, wanted: int) -> None:
        if name in self.tables:
            self.tables[name] = self.tables[name].model_copy(update={"count": wanted})
            self.restart_keeper()

    @rule()
    def restart_keeper(self) -> None:
        self.keeper = FleetKeeper(fleet_of(*self.tables.values()), self.cluster, self.gateway)
        self.cluster.wanted = {table.name: table for table in self.tables.values()}

    # --- what goes on ---

    @rule()
    def step(self) -> None:
        try:
            self.keeper.step()
        except ClusterAway:
            assert self.cluster.is_away

    @rule(times=st.integers(3, 8), is_full=st.booleans())
    def go_well_for_a_while(self, times: int, is_full: bool) -> None:
        self.heal()
        for _ in range(times):
            self.step()
            self.cluster.pass_time()
        self.gateway.aboard = dict.fromkeys(self.gateway.opened, 1) if is_full else {}

    @rule(is_full=st.booleans())
    def go_on(self, is_full: bool) -> None:
        self.step()
        self.cluster.pass_time()
        if is_full:
            self.gateway.aboard = dict.fromkeys(self.gateway.opened, 1)

    # --- what goes wrong ---

    @rule(data=st.data(), is_mute=st.booleans())
    def mute(self, data: st.DataObject, is_mute: bool) -> None:
        if self.cluster.holders:
            name = data.draw(st.sampled_from(sorted(self.cluster.holders)))
            self.cluster.holders[name].is_mute = is_mute

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        if self.cluster.holders:
            self.cluster.die(data.draw(st.sampled_from(sorted(self.cluster.holders))))

    @rule(data=st.data())
    def engine_dies(self, data: st.DataObject) -> None:
        ready = [name for name, holder in self.cluster.holders.items() if holder.phase == "ready"]
        if ready:
            holder = self.cluster.holders[data.draw(st.sampled_from(sorted(ready)))]
            holder.phase = "starting"
            self.gateway.aboard.pop(holder.url, None)

    @rule(is_away=st.booleans())
    def gateway_is_away(self, is_away: bool) -> None:
        self.gateway.is_away = is_away

    @precondition(lambda self: not self.gateway.is_away)
    @rule()
    def gateway_restarts(self) -> None:
        self.gateway.restart()

    @rule(is_away=st.booleans())
    def cluster_is_away(self, is_away: bool) -> None:
        self.cluster.is_away = is_away

    def heal(self) -> None:
        self.cluster.is_away = self.gateway.is_away = False
        for holder in self.cluster.holders.values():
            holder.is_mute = False

    # --- what is true in the end ---

    def teardown(self) -> None:
        if not hasattr(self, "keeper"):
            return
        self.tables = {
            name: table.model_copy(
                update={"command": ["a" if table.command[0] in (BROKEN, HUGE) else table.command[0]]}
            )
            for name, table in self.tables.items()
        }
        self.restart_keeper()
        for _ in range(60):
            self.heal()
            self.step()
            self.cluster.pass_time()
            self.gateway.aboard.clear()
        holders = self.cluster.holders.values()
        assert not any(holder.is_leaving for holder in holders)
        assert all(self.cluster.serves(holder) for holder in holders)
        there = [(holder.table.name, holder.table.version) for holder in holders]
        assert sorted(there) == sorted(
            (one.name, one.version) for one in self.tables.values() for _ in range(one.count)
        )
        assert set(self.gateway.models) == {holder.url for holder in holders if holder.table.model is not None}


class WatchedCluster(FakeCluster):
    """Also asserts that nothing that serves is replaced while others of its table do not serve."""

    wanted: dict[str, ProcessTable]

    def leave(self, name: str, *, is_leaving: bool) -> None:
        holder = self.holders[name]
        table = self.wanted.get(holder.table.name)
        if is_leaving and table is not None and self.serves(holder):
            group = [one for one in self.holders.values() if one.table.name == table.name]
            if len([one for one in group if not one.is_leaving]) <= table.count:
                assert all(self.serves(one) for one in group if one is not holder), "two are away at the same time"
        super().leave(name, is_leaving=is_leaving)


TestFleetWalk = FleetWalk.TestCase
TestFleetWalk.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
