"""The manifests of deploy/kubernetes, as `kubectl kustomize` renders them."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from headway.config import Config, DiscoverTable, ModelTable

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = ("one-node", "many-nodes", "kuberay")
CELLS = ("many-nodes", "kuberay")
BY_DNS = ("one-node", "many-nodes")  # how engines are found; with KubeRay they are registered
PARTS = (*OVERLAYS, "models")  # models.yaml is applied as it is

Manifest = dict[str, Any]


@cache
def rendered(part: str) -> list[Manifest]:
    if part == "models":
        return documents((KUBERNETES / "models.yaml").read_text(encoding="utf-8"))
    command = ["kubectl", "kustomize", str(KUBERNETES / part)]
    return documents(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)


def documents(text: str) -> list[Manifest]:
    return [one for one in yaml.safe_load_all(text) if one is not None]


def of_kind(part: str, kind: str) -> dict[str, Manifest]:
    """By name."""
    return {one["metadata"]["name"]: one for one in rendered(part) if one["kind"] == kind}


def pods(part: str) -> dict[str, Manifest]:
    """The pod templates by the name of what makes them, with the labels that their pods have."""
    found = {}
    for one in rendered(part):
        name, spec = one["metadata"]["name"], one.get("spec", {})
        if one["kind"] == "RayCluster":
            for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
                node = "worker" if "groupName" in group else "head"
                labels = {"ray.io/cluster": name, "ray.io/node-type": node}  # the operator sets them
                found[f"{name}-{node}"] = {**group["template"], "metadata": {"labels": labels}}
        elif "template" in spec:
            found[name] = spec["template"]
            if one["kind"] == "StatefulSet":  # the controller of StatefulSets sets this one, for each pod its own
                labels = found[name]["metadata"]["labels"]
                found[name]["metadata"]["labels"] = {**labels, "statefulset.kubernetes.io/pod-name": f"{name}-0"}
    return found


def containers(pod: Manifest) -> Iterator[Manifest]:
    yield from pod["spec"]["containers"]
    yield from pod["spec"].get("initContainers", [])


def config_text(part: str) -> str:
    return str(of_kind(part, "ConfigMap")["headway-config"]["data"]["headway.toml"])


def config(part: str) -> Config:
    return Config.model_validate(tomllib.loads(config_text(part)))


def discovered(part: str) -> tuple[ModelTable, DiscoverTable]:
    """The model of headway.toml, and how its engines are found."""
    (model,) = config(part).models
    assert model.discover is not None
    return model, model.discover


def selects(selector: dict[str, str], pod: Manifest) -> bool:
    labels: dict[str, str] = pod["metadata"]["labels"]
    return selector.items() <= labels.items()
