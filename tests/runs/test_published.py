"""Published figures: each stands on its page, and a page says so where the code has changed since it was measured."""

from __future__ import annotations

import re
import subprocess
from datetime import date
from pathlib import Path

import pytest

from runs.measure import sources
from runs.measure.sources import COMMANDS, ROOT
from runs.publish import Code, Figure, mark, problems, read_figures, renew, sections_of

FILES = {
    "runs/speed.sh": '#!/usr/bin/env bash\n# Measures.\nexec "$PY" -m runs.engine.speed "$@"\n',
    "runs/engine/speed.py": (
        '"""Measures."""\nimport sys\nfrom headway.plan import step\nfrom runs import table\n'
        'COMMAND = [sys.executable, "-m", "headway", "serve", "--config", "x"]\n'
    ),
    "runs/table.py": 'TABLE = "points.csv"\n',
    "headway/__init__.py": '__version__ = "0.1.0"\n',
    "headway/plan/step.py": "from headway.errors import SetupError\n\nA = 1\n",
    "headway/errors.py": "class SetupError(Exception):\n    pass\n",
    "headway/run.py": "import headway.gateway\n",
    "headway/gateway/__init__.py": "SEATS = 4\n",
    "headway/ledger.py": "ENTRIES = 0\n",
    "data/points.csv": "1,2\n",
    "data/others.csv": "3,4\n",
    "README.md": "# Speed\n\nIt is\nfast: 7.5 times.\n\n## Later\n\nNothing.\n",
}
CODE_CHANGES = [
    ("runs/speed.sh", '"$@"', "--rounds 3"),
    ("runs/engine/speed.py", '"--config", "x"', '"--config", "y"'),
    ("runs/table.py", "TABLE", "NAME"),
    ("headway/plan/step.py", "A = 1", "A = 2"),
    ("headway/errors.py", "pass", "code = 1"),
    ("headway/run.py", "import headway.gateway", "import headway.gateway, headway.ledger"),
    ("headway/gateway/__init__.py", "4", "5"),
    ("data/points.csv", "1,2", "1,3"),
]
OTHER_CHANGES = [
    ("runs/speed.sh", "# Measures.", "# Measures the speed."),
    ("runs/engine/speed.py", '"""Measures."""', '"""Measures the speed."""'),
    ("headway/plan/step.py", "A = 1", "A  =  1  # one"),
    ("headway/errors.py", "class SetupError(Exception):\n", 'class SetupError(Exception):\n    """Wrong."""\n\n'),
    ("headway/__init__.py", "0.1.0", "0.2.0"),
    ("headway/ledger.py", "0", "1"),
    ("data/others.csv", "3", "4"),
    ("README.md", "Nothing", "Something"),
]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    publish(tmp_path, Code(tmp_path).hash("runs/speed.sh"))
    return tmp_path


def publish(root: Path, code: str, text: str = "fast: 7.5 times") -> None:
    (root / "runs" / "published.toml").write_text(
        f'# Figures.\n[[figures]]\nid = "speed"\npage = "README.md"\ntext = "{text}"\nscript = "runs/speed.sh"\n'
        f'date = 2026-11-15\ncommit = "abc1234"\ncode = "{code}"\n'
    )


def change(root: Path, name: str, old: str, new: str) -> None:
    text = (root / name).read_text()
    assert old in text
    (root / name).write_text(text.replace(old, new, 1))


def test_what_a_figure_depends_on(repository: Path) -> None:
    found = {path.relative_to(repository).as_posix() for path in Code(repository).files("runs/speed.sh")}
    assert found == {
        "runs/speed.sh", "runs/engine/speed.py", "runs/table.py", "headway/plan/step.py", "headway/errors.py",
        "headway/run.py", "headway/gateway/__init__.py", "data/points.csv",
    }  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new"), CODE_CHANGES)
def test_a_change_in_a_dependency_changes_the_hash(repository: Path, name: str, old: str, new: str) -> None:
    change(repository, name, old, new)
    [problem] = problems(repository)
    assert "its code has changed since it was measured" in problem
    assert "run runs/speed.sh and then `python -m runs.publish speed`" in problem


@pytest.mark.parametrize(("name", "old", "new"), OTHER_CHANGES)
def test_a_change_elsewhere_does_not(repository: Path, name: str, old: str, new: str) -> None:
    change(repository, name, old, new)
    assert list(problems(repository)) == []


def test_a_script_that_is_started_by_its_name_counts(repository: Path) -> None:
    change(repository, "runs/table.py", "TABLE", 'DONE = run_script("python", "train", {})\nTABLE')
    for name in ("train", "packing", "cut"):
        (repository / "headway" / "distill").mkdir(exist_ok=True)
        (repository / "headway" / "distill" / f"{name}.py").write_text("SIZE = 1\n")
    change(repository, "headway/distill/train.py", "SIZE", 'packing = load_sibling("packing")\nSIZE')
    publish(repository, Code(repository).hash("runs/speed.sh"))
    change(repository, "headway/distill/cut.py", "1", "2")
    assert list(problems(repository)) == []
    change(repository, "headway/distill/packing.py", "1", "2")
    [problem] = problems(repository)
    assert "its code has changed since it was measured" in problem


def test_the_versions_of_installed_packages_do_not_count(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are checked on other machines than the one that they were measured on."""
    change(repository, "headway/run.py", "import", "import msgspec\nimport")
    publish(repository, Code(repository).hash("runs/speed.sh"))
    monkeypatch.setattr(sources, "_package", lambda name: f"{name}==0")
    assert list(problems(repository)) == []


def test_a_stale_figure_is_marked_and_its_page_says_so(repository: Path) -> None:
    change(repository, *CODE_CHANGES[3])
    mark(repository)
    assert (repository / "runs" / "published.toml").read_text().startswith("# Figures.\n")
    [problem] = problems(repository)
    assert 'README.md must say "measured 2026-11-15 on an earlier version"' in problem
    change(repository, "README.md", "times.", "times (measured\n2026-11-15 on an earlier version).")
    assert list(problems(repository)) == []
    change(repository, "headway/plan/step.py", "A = 2", "A = 1")
    [problem] = problems(repository)
    assert "Unmark it" in problem
    mark(repository)
    assert list(problems(repository)) == []


def test_a_page_may_list_the_scripts_of_its_stale_figures(repository: Path) -> None:
    change(repository, *CODE_CHANGES[3])
    mark(repository)
    change(repository, "README.md", "Nothing", "These were measured 2026-11-15 on an earlier version: `other.sh`")
    missing, extra = problems(repository)
    assert 'README.md must say "measured 2026-11-15 on an earlier version"' in missing
    assert "README.md lists runs/other.sh" in extra
    change(repository, "README.md", "`other.sh`", "`speed.sh`")
    assert list(problems(repository)) == []
    change(repository, "headway/plan/step.py", "A = 2", "A = 1")
    mark(repository)
    [problem] = problems(repository)
    assert "README.md lists runs/speed.sh" in problem
    assert "it is not stale" in problem


def test_a_list_says_nothing_about_other_scripts(repository: Path) -> None:
    change(repository, *CODE_CHANGES[3])
    mark(repository)
    change(repository, "README.md", "times.", "times. Also measured 2026-11-15 on an earlier version: `other.sh`.")
    assert any("README.md must say" in problem for problem in problems(repository))


def test_a_figure_that_is_not_on_its_page_is_named(repository: Path) -> None:
    publish(repository, Code(repository).hash("runs/speed.sh"), "fast: 9 times")
    [problem] = problems(repository)
    assert "README.md does not say 'fast: 9 times'" in problem


def test_a_run_renews_its_figures_once_its_code_is_committed(repository: Path) -> None:
    change(repository, *CODE_CHANGES[3])
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "All"]):
        subprocess.run([*git, *command], cwd=repository, check=True)
    assert renew(repository, "speed", date(2026, 12, 1)) == 1
    [figure] = read_figures(repository)
    assert (figure.date, figure.stale) == (date(2026, 12, 1), False)
    assert figure.commit != "abc1234"
    assert list(problems(repository)) == []
    change(repository, "headway/plan/step.py", "A = 2", "A = 3")
    with pytest.raises(SystemExit, match="Commit the code"):
        renew(repository, "speed", date(2026, 12, 2))


def test_sections_go_from_heading_to_heading(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nFirst\nwords\n\n## Next\n\n```bash\n## no heading\n```\n\nSecond\n")
    assert sections_of(page) == ["# Title First words", "## Next ```bash ## no heading ``` Second"]


def test_every_published_figure_is_of_its_code_or_says_that_it_is_not() -> None:
    found = list(problems(ROOT))
    assert found == [], "\n".join(found)


def test_figures_are_named_once_and_have_a_script() -> None:
    figures: list[Figure] = read_figures(ROOT)
    assert len({figure.id for figure in figures}) == len(figures)
    for figure in figures:
        assert (ROOT / figure.script).is_file(), f"{figure.id}: there is no {figure.script}"


# Runs without a figure.
DRAW_ONLY = {"runs/demo-picture.sh"}  # records the picture of a scripted race: its speeds are programmed, not measured


def test_every_run_that_the_readme_names_has_a_figure() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = {f"runs/{name}" for name in re.findall(r"[\w-]+\.sh", text)}
    published = {figure.script for figure in read_figures(ROOT) if figure.page == "README.md"}
    missing = named - published - DRAW_ONLY
    assert not missing, f"Enter what {missing} measured in runs/published.toml."
    assert not DRAW_ONLY & published


def test_commands_that_runs_start_begin_where_it_is_said() -> None:
    for module in COMMANDS.values():
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), f"COMMANDS in sources.py: there is no {module}"
