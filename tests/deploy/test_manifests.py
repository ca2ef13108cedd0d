"""deploy/kubernetes: what the API server would refuse, and what every pod must have."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from tests.deploy.rendered import KUBERNETES, OVERLAYS, PARTS, Manifest, containers, of_kind, pods, rendered, selects

VERSION = "1.37"  # of Kubernetes; what newer versions drop shows here first
CUSTOM = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (KUBERNETES / "schemas").glob("*.json")}


def validate(manifest: Manifest) -> None:
    kubernetes_validate.validate(manifest, VERSION, strict=True)


@pytest.mark.parametrize("part", PARTS)
def test_the_api_server_would_take_it(part: str) -> None:
    for manifest in rendered(part):
        if (schema := CUSTOM.get(manifest["kind"])) is not None:
            jsonschema.validate(manifest, schema)
        else:
            validate(manifest)


def test_what_custom_resources_contain_of_kubernetes_is_valid() -> None:
    """A RayCluster has pod templates, and a ScaledObject the behaviour of an autoscaler."""
    templates = [pod for name, pod in pods("kuberay").items() if name.startswith("fleet-")]
    assert len(templates) == 2
    for template in templates:
        validate({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template})
    (scaled,) = of_kind("many-nodes", "ScaledObject").values()
    spec: dict[str, Any] = {
        "scaleTargetRef": {"kind": "Deployment", "name": "x"},
        "maxReplicas": scaled["spec"]["maxReplicaCount"],
        **scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"],
    }
    kind = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}
    validate({**kind, "metadata": {"name": "x"}, "spec": spec})


def test_a_wrong_manifest_is_noticed() -> None:
    service: Manifest = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"prots": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(service)
    (scaled,) = of_kind("many-nodes", "ScaledObject").values()
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**scaled, "spec": {**scaled["spec"], "maxReplicas": 8}}, CUSTOM["ScaledObject"])


@pytest.mark.parametrize("part", PARTS)
def test_a_pod_has_no_more_rights_than_it_needs(part: str) -> None:
    for name, pod in pods(part).items():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, f"{name}: nothing here calls the API server"
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] > 0, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in containers(pod):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True, name
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name


@pytest.mark.parametrize("part", PARTS)
def test_every_image_has_a_version(part: str) -> None:
    for pod in pods(part).values():
        for container in containers(pod):
            _, _, tag = container["image"].rpartition("/")[2].partition(":")
            assert tag[:1].isalnum(), container["image"]
            assert any(letter.isdigit() for letter in tag), f"{container['image']} is another one tomorrow"


@pytest.mark.parametrize("part", OVERLAYS)
def test_what_a_pod_mounts_is_there(part: str) -> None:
    """Kustomize follows a new name into a Deployment, but not into a custom resource."""
    claims = {"models"}  # models.yaml
    for name, pod in pods(part).items():
        owner = of_kind(part, "StatefulSet").get(name)
        own = owner["spec"].get("volumeClaimTemplates", []) if owner else []
        volumes = {one["name"]: one for one in pod["spec"]["volumes"]} | {one["metadata"]["name"]: {} for one in own}
        for volume in volumes.values():
            if "configMap" in volume:
                assert volume["configMap"]["name"] in of_kind(part, "ConfigMap"), name
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims, name
            assert volume.get("secret", {}).get("secretName", "headway") == "headway", name
        mounted = {mount["name"] for container in containers(pod) for mount in container["volumeMounts"]}
        assert mounted == volumes.keys(), name


@pytest.mark.parametrize("part", OVERLAYS)
def test_every_service_finds_pods_that_have_its_port(part: str) -> None:
    for name, service in of_kind(part, "Service").items():
        selector = {
            key: value.replace("dispatcher-1", "dispatcher-0") for key, value in service["spec"]["selector"].items()
        }
        found = [pod for pod in pods(part).values() if selects(selector, pod)]
        assert len(found) == 1, name
        (container,) = containers(found[0])
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for port in service["spec"]["ports"]:
            assert port.get("targetPort", port["port"]) in (*ports, *ports.values()), name
            assert port["name"] in ports, name


@pytest.mark.parametrize("part", OVERLAYS)
def test_what_must_stay_up_has_a_disruption_budget(part: str) -> None:
    budgets = [one["spec"]["selector"]["matchLabels"] for one in of_kind(part, "PodDisruptionBudget").values()]
    # One gateway cannot be evicted without an interruption: a budget would only keep its node from being drained. And
    # Ray's head is no more than that: engines serve on without it.
    for name, pod in pods(part).items():
        wanted = name not in {"gateway", "fleet-head"}
        assert any(selects(labels, pod) for labels in budgets) == wanted, name
