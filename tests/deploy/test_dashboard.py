"""deploy/grafana and deploy/prometheus: a real Prometheus scrapes a running gateway and answers the dashboard's queries."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import openai
import pytest
import yaml

from headway.cli.commands import COMMANDS
from headway.engines.scripted import Script, running
from tests.deploy.rendered import DEPLOY
from tests.metric_table import table
from tests.running import MODEL, config_for, running_gateway

DASHBOARD = json.loads((DEPLOY / "grafana" / "headway.json").read_text(encoding="utf-8"))
RULES = DEPLOY / "prometheus" / "headway.rules.yml"
ALERTS = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"][0]["rules"]
UNIT_TESTS = Path(__file__).parent / "headway.rules.test.yml"
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
SAMPLE = re.compile(r"\bheadway_\w+")
QUICK = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.002),))
FAST = {"name": "fast", "floor_tps": 20.0, "price_multiple": 2.0}
CURVE: list[list[float]] = [[1, 500.0], [2, 480.0], [8, 300.0]]
# The scene has no auto model and no ledger, and nothing fails.
EMPTY = {
    "Gate open",
    "Calls by rung",
    "Audits",
    "Audits that wait",
    "Tasks started again",
    "Spool",
    "Set aside and lost",
    "Streams moved",
}


# --- what can be said without Prometheus ---


def test_the_dashboard_and_the_alerts_use_metrics_and_labels_that_exist() -> None:
    rows = table()
    labels = {label for row in rows.values() for label in row.labels} | {"le", "instance"}
    texts = [query for _, query in QUERIES] + [alert["expr"] for alert in ALERTS]
    assert len(texts) > 40
    for text in texts:
        for sample in SAMPLE.findall(text):
            assert sample in rows or rows[sample.removesuffix("_bucket")].kind == "histogram", sample
        grouped = re.findall(r"by \(([^)]*)\)", text)
        assert {label.strip() for group in grouped for label in group.split(",")} <= labels, text


def test_every_metric_is_on_the_dashboard_or_named_here() -> None:
    shown = {sample.removesuffix("_bucket") for _, query in QUERIES for sample in SAMPLE.findall(query)}
    assert set(table()) - shown == {"headway_tasks"}  # only an alert needs it


def test_panels_do_not_overlap_and_say_what_they_show() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        places = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert not places & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= places
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(panel["description"] for panel in PANELS)
    # Whoever imports it chooses the source of its data.
    assert {target["datasource"]["uid"] for panel in PANELS for target in panel["targets"]} == {"${datasource}"}
    assert [one["name"] for one in DASHBOARD["templating"]["list"]] == ["datasource", "model"]


def test_every_alert_says_what_to_do() -> None:
    commands = {command.name for command in COMMANDS}
    for alert in ALERTS:
        assert alert["for"]
        assert alert["labels"]["severity"] in ("critical", "warning")
        summary, description = alert["annotations"]["summary"], alert["annotations"]["description"]
        assert summary.endswith(".")
        assert len(description.split()) > 15
        assert "http" not in description
        assert set(re.findall(r"`headway (\w+)", description)) <= commands


def test_the_alerts_fire_when_they_should() -> None:
    subprocess.run(["promtool", "check", "rules", str(RULES)], check=True, timeout=60)
    subprocess.run(["promtool", "test", "rules", str(UNIT_TESTS)], check=True, timeout=60)
    tested = set(re.findall(r'alertname="(\w+)", alertstate="firing"', UNIT_TESTS.read_text(encoding="utf-8")))
    assert tested == {alert["alert"] for alert in ALERTS}


def test_compose_gives_prometheus_the_rules_and_grafana_the_dashboard() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
    mounted = dict(one.split(":")[:2] for name in ("prometheus", "grafana") for one in compose[name]["volumes"])
    assert all((DEPLOY / source).exists() for source in mounted if source.startswith("./"))
    prometheus = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text(encoding="utf-8"))
    assert mounted["./prometheus/headway.rules.yml"] == f"/etc/prometheus/{prometheus['rule_files'][0]}"
    [provider] = yaml.safe_load((DEPLOY / "compose" / "dashboards.yaml").read_text(encoding="utf-8"))["providers"]
    assert mounted["./grafana"] == provider["options"]["path"]
    assert mounted["./compose/dashboards.yaml"].startswith("/etc/grafana/provisioning/dashboards/")


# --- a real Prometheus ---


class Prometheus:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def ask(self, path: str, **arguments: str) -> Any:
        with urlopen(f"{self._url}/{path}?{urlencode(arguments)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def rules(self) -> list[tuple[str, str, str]]:
        """The name, the health and the state of each."""
        return [(rule["name"], rule["health"], rule["state"]) for rule in self.ask("rules")["groups"][0]["rules"]]

    def values(self, query: str) -> list[float]:
        return [float(one["value"][1]) for one in self.ask("query", query=query)["result"]]


@asynccontextmanager
async def prometheus(folder: Path, target: str) -> AsyncIterator[Prometheus]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = folder / "prometheus.yml"
    config.write_text(
        f"global: {{scrape_interval: 250ms, evaluation_interval: 500ms}}\nrule_files: [{RULES}]\n"
        f"scrape_configs: [{{job_name: headway, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    process = subprocess.Popen(
        [*command, f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"], cwd=folder, stdout=subprocess.DEVNULL
    )
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(30)


def filled_in(query: str) -> str:
    return query.replace("$__rate_interval", "30s").replace("$model", ".*")


@pytest.mark.anyio
async def test_prometheus_answers_every_query_of_the_dashboard(tmp_path: Path) -> None:
    async with (
        running(QUICK) as engine,
        running_gateway(config_for([engine], express=[FAST], curve=CURVE)) as here,
        prometheus(tmp_path, f"127.0.0.1:{here.port}") as asked,
    ):

        async def until(query: str, least: float) -> None:
            async with asyncio.timeout(30):
                while True:
                    try:
                        if sum(await asyncio.to_thread(asked.values, query)) >= least:
                            return
                    except OSError:  # it does not listen yet
                        pass
                    await asyncio.sleep(0.05)

        create = here.openai.chat.completions.create
        messages: Any = [{"role": "user", "content": "hi"}]
        for tier in ("default", "fast"):  # a counter's first sample shows no increase
            await create(model=MODEL, messages=messages, max_tokens=20, service_tier=tier)
        with pytest.raises(openai.NotFoundError):
            await create(model="nothing", messages=messages)
        await until("sum(headway_calls_total)", 2)
        for tier in ("default", "fast"):
            stream = await create(model=MODEL, messages=messages, max_tokens=20, service_tier=tier, stream=True)  # type: ignore[call-overload]
            assert [chunk async for chunk in stream]
        await until("sum(headway_calls_total)", 4)
        found = {title: list[list[float]]() for title, _ in QUERIES}
        for title, query in QUERIES:
            found[title].append(await asyncio.to_thread(asked.values, filled_in(query)))
        async with asyncio.timeout(30):  # rules that were evaluated before the first scrape take Headway for absent
            while "pending" in [state for _, _, state in await asyncio.to_thread(asked.rules)]:
                await asyncio.sleep(0.05)
        rules = await asyncio.to_thread(asked.rules)
    assert {title for title, values in found.items() if not all(values)} == EMPTY
    assert found["Floors kept"] == [[1.0]]
    assert found["Replicas that take calls"] == [[1.0], [1.0]]
    assert sum(found["Tokens from replicas"][0]) > 0
    assert rules == [(alert["alert"], "ok", "inactive") for alert in ALERTS]
