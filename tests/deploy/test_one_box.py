"""deploy/Containerfile and deploy/compose.yaml: what can be said of them without building and starting them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from headway.config import load
from headway.ledger.books import LAST_SHIPPING_S
from headway.local.engine_process import LocalEngine
from tests.deploy.rendered import DEPLOY, KUBERNETES

ROOT = DEPLOY.parent
FILES = ("Containerfile", "ray.Containerfile")
CONFIG = load(DEPLOY / "compose" / "gateway" / "headway.toml")


def steps(file: str) -> list[tuple[str, str]]:
    """The instructions of a Containerfile, with their lines joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / file).read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\s*\\\n\s*", " ", text).strip().splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines if line)]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The services as docker-compose understands them. It reads the files of secrets, so it gets a copy with some."""
    folder = tmp_path_factory.mktemp("deploy")
    shutil.copytree(DEPLOY, folder, dirs_exist_ok=True)
    (folder / "secrets").mkdir(exist_ok=True)
    (folder / "secrets" / "gateway.env").write_text("PGPASSWORD=x\n")
    command = ["docker-compose", "--file", str(folder / "compose.yaml"), "config"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, Any] = yaml.safe_load(shown.stdout)["services"]
    return found


# --- the Containerfiles ---


@pytest.mark.parametrize("file", FILES)
def test_an_image_is_built_from_versions_and_hashes(file: str) -> None:
    for name, rest in steps(file):
        if name == "FROM":
            assert re.search(r":v?\d+\.\d+\.\d+", rest), rest
        for install in re.findall(r"pip install [^&]*", rest):
            assert "--require-hashes" in install or "--no-index" in install, install


@pytest.mark.parametrize("file", FILES)
def test_an_image_is_built_from_files_that_are_there(file: str) -> None:
    for name, rest in steps(file):
        if name == "COPY" and "--from" not in rest:
            *sources, _ = shlex.split(rest)
            assert all((ROOT / source).exists() for source in sources), rest


@pytest.mark.parametrize("file", FILES)
def test_an_image_has_a_user_without_rights(file: str) -> None:
    last = dict(steps(file))  # the last one of each kind
    assert last["USER"] == "10001:10001"


def test_process_1_of_the_gateway_is_an_init() -> None:
    assert dict(steps("Containerfile"))["ENTRYPOINT"] == '["tini", "--", "headway"]'


@pytest.mark.parametrize("file", FILES)
def test_what_builds_the_package_can_be_cut_out_of_the_lock(file: str) -> None:
    [cut] = re.findall(r"sed -n '.*?' requirements/dev.txt", (DEPLOY / file).read_text(encoding="utf-8"))
    shown = subprocess.run(shlex.split(cut), cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"setuptools==[\d.]+ \\\n(    --hash=sha256:\w{64}( \\)?\n)+", shown)


# --- compose.yaml ---


def test_only_the_gateway_is_published(services: dict[str, Any]) -> None:
    written = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    published = {name: service["ports"] for name, service in written["services"].items() if "ports" in service}
    assert published == {"gateway": ["8000:8000"], "grafana": ["127.0.0.1:3000:3000"]}
    for name in ("engine", "postgres", "prometheus"):
        assert services[name]["networks"] == {"inside": None}, name
    assert written["networks"]["inside"]["internal"] is True


def test_no_secret_is_in_the_file(services: dict[str, Any]) -> None:
    for service in services.values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|KEY|SECRET|TOKEN", name):
                assert name.endswith("FILE") or value == "x", name  # x: of the env_file of this test
    for folder in ("secrets", "models"):
        assert f"deploy/{folder}/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_every_image_of_the_box_has_a_version(services: dict[str, Any]) -> None:
    for service in services.values():
        assert re.search(r":v?\d+\.\d+", service["image"]), service["image"]


def test_the_gateway_of_the_box_can_end_its_streams(services: dict[str, Any]) -> None:
    gateway = services["gateway"]
    minutes, seconds = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", gateway["stop_grace_period"]).groups("0")  # type: ignore[union-attr]
    assert int(minutes) * 60 + int(seconds) > CONFIG.gateway.drain_timeout_s + LAST_SHIPPING_S + 5
    assert gateway["read_only"] is True


def test_the_engine_of_the_box_is_the_one_in_the_configuration(services: dict[str, Any]) -> None:
    (model,) = CONFIG.models
    (replica,) = model.replicas
    assert replica.url == "http://engine:8000"
    engine = LocalEngine(("vllm", "serve"), "/models/my-model", model.name, 8000, replica.seats, host="0.0.0.0")
    assert services["engine"]["entrypoint"] + services["engine"]["command"] == engine.arguments()
    kubernetes = re.findall(r"image: (vllm/\S+)", (KUBERNETES / "base/engines/engine.yaml").read_text(encoding="utf-8"))
    assert [services["engine"]["image"]] == kubernetes


def test_prometheus_asks_what_is_there(services: dict[str, Any]) -> None:
    text = (DEPLOY / "compose" / "prometheus.yml").read_text(encoding="utf-8")
    for job in yaml.safe_load(text)["scrape_configs"]:
        for target in job["static_configs"][0]["targets"]:
            assert target.partition(":")[0] in services
    sources = yaml.safe_load((DEPLOY / "compose" / "grafana.yaml").read_text(encoding="utf-8"))["datasources"]
    assert [one["url"] for one in sources] == ["http://prometheus:9090"]
