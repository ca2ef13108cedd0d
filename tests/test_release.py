"""What is released: the distributions hold the package and nothing else, install without an engine, and every step of the
checklist can fail."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import zipfile
from datetime import date
from email.message import Message
from pathlib import Path

import pytest

from headway import __version__
from release import checklist
from release.checklist import CannotJudge, Outcome, StepFailed, exit_code, judge_figures, run_step
from release.contents import ROOT, SOURCE_ROOT, metadata_of, names_in, problems, tracked_files
from release.versions import date_of, disagreements
from runs.publish import Figure

TRACKED = {
    "headway/__init__.py",
    "headway/core/fare.py",
    "headway/local/engine.txt",
    "tests/test_release.py",
    "setup.py",
}
GOOD_WHEEL = [
    "headway/__init__.py", "headway/core/fare.py", "headway/local/engine.txt", "headway-1.dist-info/METADATA",
    "headway-1.dist-info/licenses/LICENSE",
]  # fmt: skip
COMPILED = ["headway/core/fare.cpython-311-x86_64-linux-gnu.so", "0a1b__mypyc.cpython-311-x86_64-linux-gnu.so"]
GOOD_SOURCE = [
    *GOOD_WHEEL[:3], *sorted(SOURCE_ROOT), "PKG-INFO", "setup.cfg", "headway.egg-info/SOURCES.txt",
]  # fmt: skip
MAX_CPU_S = 2.0  # of `headway --version`: 0.2 s here


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution and the pure wheel of this checkout, as it is now."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([str(ROOT / "release" / "build.sh"), "--pure", str(folder)], check=True, capture_output=True)
    [source], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return source, wheel


def test_the_distributions_hold_the_package_and_nothing_else(distributions: tuple[Path, Path]) -> None:
    """In one test, so that they are built by one worker."""
    source, wheel = distributions
    tracked = tracked_files()
    assert [problem for archive in distributions for problem in problems(archive, tracked)] == []
    assert wheel.name == f"headway-{__version__}-py3-none-any.whl"
    assert_metadata(metadata_of(wheel))
    assert_nothing_of_this_machine(source)


def assert_metadata(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("headway", __version__)
    assert (metadata["License-Expression"], metadata["Author"]) == ("Apache-2.0", "Headway maintainers")
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert all(metadata[name] for name in ("Summary", "Keywords", "Requires-Python"))
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])


def assert_nothing_of_this_machine(source: Path) -> None:
    with tarfile.open(source) as archive:
        members = archive.getmembers()
    assert len({member.mtime for member in members}) == 1
    assert {(member.uid, member.gid, member.uname, member.gname) for member in members} == {(0, 0, "", "")}
    assert {member.mode for member in members} <= {0o644, 0o755}


@pytest.mark.clients
def test_a_fresh_environment_has_a_working_command_and_no_engine(
    distributions: tuple[Path, Path], tmp_path: Path
) -> None:
    """The locked packages, then the wheel without an index: pip fails if the wheel needs anything else."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", "venv")
    locked = ("--only-binary", ":all:", "--require-hashes", "-r", str(ROOT / "requirements" / "base.txt"))
    run("venv/bin/pip", "install", "--quiet", *locked)
    run("venv/bin/pip", "install", "--quiet", "--no-index", str(distributions[1]))
    before_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    assert run("venv/bin/headway", "--version") == f"{__version__}\n"
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before_s < MAX_CPU_S
    assert "headway demo" in run("venv/bin/headway", "--help")
    Path(tmp_path / "headway.toml").write_text(checklist.CONFIG)
    assert "headway.toml" in run("venv/bin/headway", "check")
    installed = set(re.findall(r"^([\w.-]+)==", run("venv/bin/pip", "freeze"), re.MULTILINE))
    assert installed & checklist.ENGINES == set()


def wheel_of(names: list[str], folder: Path) -> Path:
    path = folder / "headway-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return path


def source_of(names: list[str], folder: Path) -> Path:
    path = folder / "headway-1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"headway-1/{name}"))
    return path


def test_complete_distributions_have_no_problem(tmp_path: Path) -> None:
    assert problems(wheel_of([*GOOD_WHEEL, *COMPILED], tmp_path), TRACKED) == []
    assert problems(source_of(GOOD_SOURCE, tmp_path), TRACKED) == []


@pytest.mark.parametrize("missing", ["headway/local/engine.txt", "headway/core/fare.py"])
def test_what_is_missing_in_a_distribution_is_a_problem(missing: str, tmp_path: Path) -> None:
    assert problems(wheel_of([name for name in GOOD_WHEEL if name != missing], tmp_path), TRACKED) == [
        f"headway-1-py3-none-any.whl lacks {missing}"
    ]
    assert problems(source_of([name for name in GOOD_SOURCE if name != missing], tmp_path), TRACKED) == [
        f"headway-1.tar.gz lacks {missing}"
    ]


@pytest.mark.parametrize(
    "more",
    ["tests/test_release.py", "runs/tax.sh", "headway/secret.txt", "headway/core/other.cpython-311.so", "setup.py"],
)
def test_what_does_not_belong_in_a_wheel_is_a_problem(more: str, tmp_path: Path) -> None:
    assert problems(wheel_of([*GOOD_WHEEL, more], tmp_path), TRACKED) == [
        f"headway-1-py3-none-any.whl should not hold {more}"
    ]


def test_tests_do_not_belong_in_a_source_distribution(tmp_path: Path) -> None:
    archive = source_of([*GOOD_SOURCE, "tests/test_release.py"], tmp_path)
    assert "tests/test_release.py" in names_in(archive)
    assert problems(archive, TRACKED) == ["headway-1.tar.gz should not hold tests/test_release.py"]


# --- versions ---


def test_everything_says_the_same_version() -> None:
    assert list(disagreements(ROOT)) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("requirements/sbom.cdx.json", f'"version": "{__version__}"', '"version": "0.0.1"', "make sbom"),
        ("pyproject.toml", "headway.__version__", "headway.version", "pyproject.toml"),
        ("deploy/compose.yaml", f"headway:{__version__}", "headway:0.0.1", "compose.yaml names headway 0.0.1"),
        ("deploy/kustomization.yaml", __version__, "0.0.1", "kustomization.yaml names headway 0.0.1"),
        ("docs/how-to/kubernetes.md", f"headway:{__version__}", "headway:0.0.1", "kubernetes.md names headway 0.0.1"),
    ],
)
def test_a_version_that_was_forgotten_is_named(file: str, old: str, new: str, said: str, tmp_path: Path) -> None:
    for name in ("requirements/sbom.cdx.json", "pyproject.toml", "deploy/compose.yaml", "docs/how-to/kubernetes.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "deploy/kubernetes/one-node/kustomization.yaml", tmp_path / "deploy")
    assert list(disagreements(tmp_path)) == []
    text = (tmp_path / file).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    [found] = disagreements(tmp_path)
    assert said in found


def test_the_date_is_that_of_the_newest_section() -> None:
    changelog = "# Changelog\n\n## 0.2.0rc1 (2026-11-18)\n\nNew.\n\n## 0.1.0 (2026-11-15)\n"
    assert date_of("0.2.0rc1", changelog) == "2026-11-18"
    assert date_of("0.1.0", changelog) is None
    assert date_of("0.2.0rc1", changelog.replace("0.2.0rc1 (2026-11-18)", "Unreleased")) is None


# --- the checklist ---


def figure(is_stale: bool) -> Figure:
    return Figure("speed", "README.md", "7.5 times", "runs/tax.sh", date(2026, 11, 15), "abc1234", "0", is_stale)


def test_stale_figures_are_listed_and_only_a_release_candidate_may_have_any() -> None:
    figures = [figure(is_stale=True), figure(is_stale=True), figure(is_stale=False)]
    said = judge_figures(figures, "0.2.0rc1")
    assert said.startswith("2 of 3 figures were measured on an earlier version")
    assert "\nREADME.md: 2 of runs/tax.sh, 2026-11-15" in said
    with pytest.raises(StepFailed, match="measure them again"):
        judge_figures(figures, "0.2.0")
    assert judge_figures([figure(is_stale=False)], "0.2.0") == "0 of 1 figures were measured on an earlier version"


def raising(error: Exception) -> Outcome:
    def step() -> str:
        raise error

    return run_step("step", step)


def test_the_exit_code_tells_a_failure_from_what_nobody_could_judge() -> None:
    passed, failed, unknown = run_step("step", lambda: ""), raising(StepFailed("no")), raising(CannotJudge("away"))
    assert [one.verdict for one in (passed, failed, unknown)] == ["pass", "FAIL", "not judged"]
    assert exit_code([passed, passed]) == 0
    assert exit_code([passed, unknown]) == 3
    assert exit_code([unknown, failed, passed]) == 1


@pytest.mark.parametrize(
    ("script", "error", "said"),
    [
        ("echo 'Found 2 known vulnerabilities in 1 package'; exit 1", StepFailed, "Found 2 known vulnerabilities"),
        ("echo 'no route to host' >&2; exit 1", CannotJudge, "no route to host"),
    ],
)
def test_an_audit_that_could_not_ask_is_not_a_vulnerability(
    script: str, error: type[Exception], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "make").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "make").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(error, match=said):
        checklist.audit()


def test_the_steps_after_the_build_say_that_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checklist, "DIST", tmp_path / "dist")
    for step in (checklist.contents, checklist.install):
        with pytest.raises(StepFailed, match="make dist"):
            step()
