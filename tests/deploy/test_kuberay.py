"""deploy/kubernetes/kuberay: the Ray cluster, the fleet on it, and the gateway at which it is registered."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headway.fleet.tables import FleetTable, ProcessTable, load_fleet
from headway.local.engine_process import LocalEngine
from tests.deploy.rendered import Manifest, config, containers, discovered, of_kind, pods
from tests.deploy.test_kubernetes import names_of, pre_stop, reaches

PART = "kuberay"
NODES = ("fleet-head", "fleet-worker")


@pytest.fixture
def fleet(tmp_path: Path) -> FleetTable:
    path = tmp_path / "fleet.toml"
    path.write_text(of_kind(PART, "ConfigMap")["fleet"]["data"]["fleet.toml"], encoding="utf-8")
    return load_fleet(path)


@pytest.fixture
def engines(fleet: FleetTable) -> ProcessTable:
    (table,) = fleet.processes
    return table


def ports_of(engines: ProcessTable) -> list[int]:
    return [engines.port + index for index in range(engines.count)]


def node(name: str) -> Manifest:
    (container,) = containers(pods(PART)[name])
    return container


def test_the_fleet_registers_engines_of_the_model(fleet: FleetTable, engines: ProcessTable) -> None:
    model, discover = discovered(PART)
    assert discover.registered
    assert engines.model == model.name
    service = urlsplit(fleet.gateway.url)
    assert service.hostname in of_kind(PART, "Service")
    assert [one["port"] for one in of_kind(PART, "Service")[service.hostname]["spec"]["ports"]] == [service.port or 80]


def test_the_engines_on_ray_have_the_flags_that_headway_needs(engines: ProcessTable) -> None:
    model, discover = discovered(PART)
    engine = LocalEngine(("vllm", "serve"), "/models/my-model", model.name, 8000, discover.seats, host="10.0.0.1")
    assert engines.words("10.0.0.1", 0) == engine.arguments()


def test_the_engines_fit_on_the_workers(engines: ProcessTable) -> None:
    (cluster,) = of_kind(PART, "RayCluster").values()
    (group,) = cluster["spec"]["workerGroupSpecs"]
    resources = node("fleet-worker")["resources"]
    assert engines.count <= group["replicas"]
    assert engines.gpus == resources["limits"]["nvidia.com/gpu"]
    assert engines.cpus <= int(resources["requests"]["cpu"])
    assert cluster["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_the_key_of_the_fleet_is_on_all_nodes(fleet: FleetTable) -> None:
    """Ray may start the actor that keeps the fleet on any of them."""
    for name in NODES:
        mounts = {one["name"]: one["mountPath"] for one in node(name)["volumeMounts"]}
        (secret,) = [one["secret"] for one in pods(PART)[name]["spec"]["volumes"] if "secret" in one]
        assert [f"{mounts['secret']}/{one['path']}" for one in secret["items"]] == [fleet.gateway.admin_key_file]


def test_a_worker_is_drained_before_it_ends(fleet: FleetTable, engines: ProcessTable) -> None:
    *_, script = pre_stop(PART, "fleet-worker")
    assert re.findall(r"in ([\d ]+);", script) == [" ".join(map(str, ports_of(engines)))]
    assert f"--gateway {fleet.gateway.url};" in script
    assert f"cat {fleet.gateway.admin_key_file})" in script
    (seconds,) = re.findall(r"timeout (\d+)", script)
    assert int(seconds) >= config(PART).gateway.drain_timeout_s
    assert pods(PART)["fleet-worker"]["spec"]["terminationGracePeriodSeconds"] > int(seconds)


def test_engines_on_ray_are_reached_by_relays_and_ray_only(engines: ProcessTable) -> None:
    found = {port: names_of(PART, peers) for port, peers in reaches(PART, pods(PART)["fleet-worker"]).items()}
    assert found == {"all": set(NODES)} | {port: {"relay"} for port in ports_of(engines)}
    assert [one["containerPort"] for one in node("fleet-worker")["ports"]] == ports_of(engines)


def test_rays_head_takes_orders_from_its_own_nodes_only() -> None:
    """With a token; and the operator reads its dashboard."""
    found = {port: names_of(PART, peers) for port, peers in reaches(PART, pods(PART)["fleet-head"]).items()}
    assert found == {"all": set(NODES), 8265: {"kuberay-operator"}}
    (cluster,) = of_kind(PART, "RayCluster").values()
    assert cluster["spec"]["authOptions"] == {"mode": "token"}
