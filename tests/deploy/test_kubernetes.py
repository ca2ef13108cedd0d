"""deploy/kubernetes: does it agree with what Headway does? Times, names, ports, and who may reach whom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headway.cli import app
from headway.config.to_core import replica_of
from headway.discovery import MISSED
from headway.ledger.books import LAST_SHIPPING_S
from headway.local.engine_process import LocalEngine
from tests.deploy.rendered import (
    BY_DNS,
    CELLS,
    OVERLAYS,
    Manifest,
    config,
    config_text,
    containers,
    discovered,
    of_kind,
    pods,
    rendered,
    selects,
)

DNS_CACHE_S = 30  # what CoreDNS keeps an answer for, as Kubernetes sets it up
CARRIES = {"one-node": "gateway", "many-nodes": "relay", "kuberay": "relay"}  # what takes calls
DOCS = Path(__file__).parents[2] / "docs"
METRICS = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
HOW_TO = (DOCS / "how-to" / "kubernetes.md").read_text(encoding="utf-8")
# Whoever decides exposes them; they are listed here until the page of metrics has them.
SCALED_BY = {"headway_seats_wanted", "headway_seats_ready"}


def container_of(part: str, name: str) -> Manifest:
    (container,) = containers(pods(part)[name])
    return container


def pre_stop(part: str, name: str) -> list[str]:
    command: list[str] = container_of(part, name)["lifecycle"]["preStop"]["exec"]["command"]
    return command


def patience_s(probe: dict[str, Any]) -> int:
    """How long a probe may fail before something happens."""
    return int(probe["periodSeconds"]) * int(probe["failureThreshold"])


def options(part: str, name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for option in container_of(part, name)["args"][1:]:
        key, _, value = option.partition("=")
        found.setdefault(key, []).append(value)
    return found


# --- the configuration ---


@pytest.mark.parametrize("part", OVERLAYS)
def test_headway_takes_the_configuration(part: str, tmp_path: Path) -> None:
    path = tmp_path / "headway.toml"
    path.write_text(config_text(part), encoding="utf-8")
    result = CliRunner().invoke(app, ["check", "--config", str(path)])
    assert result.exit_code == 0, result.output
    assert config(part).gateway.port == container_of(part, CARRIES[part])["ports"][0]["containerPort"]


@pytest.mark.parametrize("part", OVERLAYS)
def test_headway_has_the_commands_and_options(part: str) -> None:
    for name, pod in pods(part).items():
        if "headway:" not in container_of(part, name)["image"]:
            continue
        command = next(containers(pod))["args"][0]
        shown = CliRunner().invoke(app, [command, "--help"]).output
        for option in options(part, name):
            assert re.search(rf"{option}\b", shown), f"{name}: {command} has no {option}"


@pytest.mark.parametrize("part", BY_DNS)
def test_the_engines_are_found_where_they_listen(part: str) -> None:
    name, _, port = str(discovered(part)[1].dns).partition(":")
    service = of_kind(part, "Service")[name]["spec"]
    assert service["clusterIP"] == "None"
    assert not service.get("publishNotReadyAddresses"), "a pod that ends would stay in DNS"
    assert int(port) in [one["port"] for one in service["ports"]]
    assert selects(service["selector"], pods(part)["engine"])


@pytest.mark.parametrize("part", BY_DNS)
def test_the_engines_have_the_flags_that_headway_needs(part: str) -> None:
    model, discover = discovered(part)
    engine = LocalEngine(("vllm", "serve"), "/models/my-model", model.name, 8000, discover.seats, host="0.0.0.0")
    assert container_of(part, "engine")["command"] == engine.arguments()


@pytest.mark.parametrize("part", CELLS)
def test_the_names_of_a_cell_agree(part: str) -> None:
    cell = config(part).cell
    sets = of_kind(part, "StatefulSet")
    assert cell is not None
    assert cell.relays == [f"relay-{number}" for number in range(sets["relay"]["spec"]["replicas"])]
    dispatchers = [f"dispatcher-{number}" for number in range(sets["dispatcher"]["spec"]["replicas"])]
    listens = options(part, "dispatcher")["--listen"][0].rpartition(":")[2]
    assert options(part, "relay")["--dispatcher"] == [f"tcp://{name}:{listens}" for name in dispatchers]
    for name in dispatchers:
        service = of_kind(part, "Service")[name]["spec"]
        assert service["selector"] == {"statefulset.kubernetes.io/pod-name": name}
        assert [one["port"] for one in service["ports"]] == [int(listens)]


@pytest.mark.parametrize("part", CELLS)
def test_the_files_of_a_cell_are_mounted(part: str) -> None:
    ledger = config(part).ledger
    assert ledger is not None
    wanted = [*options(part, "relay")["--secret-file"], str(ledger.secret), ledger.spool]
    mounts = {one["name"]: one["mountPath"] for one in container_of(part, "relay")["volumeMounts"]}
    for path in wanted:
        assert any(path.startswith(f"{where}/") for where in mounts.values()), path
    (secret,) = [one["secret"] for one in pods(part)["relay"]["spec"]["volumes"] if "secret" in one]
    assert {f"{mounts['secret']}/{one['path']}" for one in secret["items"]} == set(wanted[:2])
    assert options(part, "dispatcher")["--secret-file"] == wanted[:1]


def keys_used(manifest: Any) -> set[str]:
    """The keys of the Secret `headway` that a manifest names, wherever."""
    if isinstance(manifest, list):
        return {key for one in manifest for key in keys_used(one)}
    if not isinstance(manifest, dict):
        return set()
    mine = {manifest["key"]} if manifest.get("name") == "headway" and "key" in manifest else set()
    if manifest.get("secretName") == "headway":
        mine |= {item["key"] for item in manifest["items"]}
    return mine | keys_used(list(manifest.values()))


def test_the_how_to_makes_the_secret_that_is_used() -> None:
    made = set(re.findall(r"--from-(?:literal|file)=(\w+)=", HOW_TO))
    assert keys_used(rendered("many-nodes")) == made
    (more,) = re.findall(r"The Secret `headway` has two more parts: `(\w+)`, .*?, and `(\w+)`", HOW_TO)
    assert keys_used(rendered("kuberay")) == made - {"scrape"} | set(more)
    assert not keys_used(rendered("one-node"))


# --- the end of a pod ---


@pytest.mark.parametrize("part", OVERLAYS)
def test_what_takes_calls_has_the_time_to_end_its_streams(part: str) -> None:
    pod, container = pods(part)[CARRIES[part]], container_of(part, CARRIES[part])
    sleep, seconds = pre_stop(part, CARRIES[part])
    assert sleep == "sleep"
    needs_s = float(seconds) + config(part).gateway.drain_timeout_s + LAST_SHIPPING_S + 5
    assert pod["spec"]["terminationGracePeriodSeconds"] > needs_s
    assert float(seconds) > patience_s(container["readinessProbe"])


@pytest.mark.parametrize("part", CELLS)
def test_a_relay_that_starts_again_by_itself_is_not_killed(part: str) -> None:
    """It closes its port while its streams end, for up to `drain_timeout_s`, and a second SIGTERM would cut them."""
    assert patience_s(container_of(part, "relay")["livenessProbe"]) > config(part).gateway.drain_timeout_s


@pytest.mark.parametrize("part", BY_DNS)
def test_an_engine_is_not_stopped_before_headway_has_left_it(part: str) -> None:
    _, discover = discovered(part)
    *_, url, leave_s, drain_s = pre_stop(part, "engine")
    assert url == f"http://127.0.0.1:{str(discover.dns).rpartition(':')[2]}"
    assert float(leave_s) > DNS_CACHE_S + (MISSED + 1) * discover.every_s
    assert float(drain_s) >= config(part).gateway.drain_timeout_s
    grace_s = pods(part)["engine"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s > float(leave_s) + float(drain_s)


@pytest.mark.parametrize("part", BY_DNS)
def test_a_new_engine_is_open_before_an_old_one_goes(part: str) -> None:
    """Otherwise nothing that DNS names is open, and Headway does not drain the old one."""
    engine = of_kind(part, "Deployment")["engine"]["spec"]
    assert engine["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert engine["minReadySeconds"] > DNS_CACHE_S + discovered(part)[1].every_s
    startup = container_of(part, "engine")["startupProbe"]
    assert engine["progressDeadlineSeconds"] > patience_s(startup) + engine["minReadySeconds"]


# --- who may reach whom ---


def reaches(part: str, pod: Manifest) -> dict[int | str, list[dict[str, Any]]]:
    """Who may connect to a pod: peers by port, "all" for every port. Fails if no policy is about it."""
    policies = [
        one["spec"]
        for one in of_kind(part, "NetworkPolicy").values()
        if selects(one["spec"]["podSelector"]["matchLabels"], pod)
    ]
    assert policies
    found: dict[int | str, list[dict[str, Any]]] = {}
    for policy in policies:
        assert policy["policyTypes"] == ["Ingress"]
        for rule in policy["ingress"]:
            assert rule["from"], "a rule without `from` lets everybody in"
            for port in rule.get("ports", [{"port": "all"}]):
                found.setdefault(port["port"], []).extend(rule["from"])
    return found


def names_of(part: str, peers: list[dict[str, Any]]) -> set[str]:
    """The pods of the overlay that are among these peers; other namespaces by their name."""
    names = set()
    for peer in peers:
        if "namespaceSelector" in peer:
            names |= set(peer["namespaceSelector"]["matchLabels"].values())
        else:
            labels = peer["podSelector"]["matchLabels"]
            names |= {name for name, pod in pods(part).items() if selects(labels, pod)}
    return names


@pytest.mark.parametrize("part", BY_DNS)
def test_engines_are_reached_by_what_takes_calls_only(part: str) -> None:
    found = reaches(part, pods(part)["engine"])
    assert {port: names_of(part, peers) for port, peers in found.items()} == {8000: {CARRIES[part]}}


@pytest.mark.parametrize("part", CELLS)
def test_the_link_is_for_relays_and_metrics_are_for_prometheus(part: str) -> None:
    found = reaches(part, pods(part)["dispatcher"])
    assert {port: names_of(part, peers) for port, peers in found.items()} == {7400: {"relay"}, 9400: {"monitoring"}}


# --- metrics and scaling ---


def test_monitors_name_ports_of_services() -> None:
    services = of_kind("many-nodes", "Service").values()
    for name, monitor in of_kind("many-nodes", "ServiceMonitor").items():
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        found = [one for one in services if wanted <= one["metadata"].get("labels", {}).items()]
        assert [one["metadata"]["name"] for one in found] == [name], "a pod in two Services is scraped twice"
        ports = {port["name"] for port in found[0]["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports
        # The relays' page shows all tenants, so it needs a key; the dispatcher's has none.
        assert all(("authorization" in endpoint) == (name == "relay") for endpoint in monitor["spec"]["endpoints"])


def test_engines_are_scaled_by_seats() -> None:
    (scaled,) = of_kind("many-nodes", "ScaledObject").values()
    assert scaled["spec"]["scaleTargetRef"]["name"] in of_kind("many-nodes", "Deployment")
    assert "replicas" not in of_kind("many-nodes", "Deployment")["engine"]["spec"], "`kubectl apply` would scale too"
    (trigger,) = scaled["spec"]["triggers"]
    metrics = set(re.findall(r"headway_\w+", trigger["metadata"]["query"]))
    assert metrics
    assert all(f"`{name}`" in METRICS or name in SCALED_BY for name in metrics)
    model, discover = discovered("many-nodes")
    curve = replica_of(model, discover, name="").curve
    assert curve is not None
    seats = {
        tier.name: curve.largest_batch(tier.floor_tps, discover.seats) if tier.floor_tps else discover.seats
        for tier in model.tiers
    }
    divided = re.findall(
        r'max\(headway_seats_wanted\{model="(.+?)", tier="(.+?)"\}\) / (\d+)', trigger["metadata"]["query"]
    )
    assert divided == [(model.name, tier, str(number)) for tier, number in seats.items()]


def test_engines_go_more_slowly_than_they_drain() -> None:
    (scaled,) = of_kind("many-nodes", "ScaledObject").values()
    behavior = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    (policy,) = behavior["policies"]
    assert (policy["type"], policy["value"]) == ("Pods", 1)
    assert policy["periodSeconds"] >= pods("many-nodes")["engine"]["spec"]["terminationGracePeriodSeconds"]
