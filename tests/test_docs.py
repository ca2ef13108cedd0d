"""Documentation that cannot drift: what is written is compared with what is there."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from headway import __version__
from headway.cli.reference import EXAMPLE, FLEET_EXAMPLE, PAGES
from headway.config import Config
from headway.fleet.tables import FleetTable

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
GLOSSARY = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_reference_pages_are_what_the_code_says(name: str) -> None:
    written = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert written == PAGES[name](), f"docs/reference/{name} is behind the code: run `make docs`"


def test_the_example_configurations_are_valid() -> None:
    Config.model_validate(tomllib.loads(EXAMPLE))
    FleetTable.model_validate(tomllib.loads(FLEET_EXAMPLE))


def test_the_architectures_tree_is_the_tree() -> None:
    """Every folder of the package is in the tree of architecture.md, and everything in the tree is there."""
    tree = re.search(r"```text\n(headway/.*?)```", ARCHITECTURE, re.DOTALL)
    assert tree, "docs/explanation/architecture.md has no tree"
    named = set(re.findall(r"^\s*(?:headway/)?([a-z0-9_]+(?:/|\.py))", tree[1], re.MULTILINE))
    there = {f"{path.name}/" for path in (ROOT / "headway").iterdir() if (path / "__init__.py").exists()}
    there |= {path.name for path in (ROOT / "headway").glob("*.py") if not path.name.startswith("__")}
    assert named - {"headway/"} == there


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150, "details belong in docs/"


def test_every_row_of_the_readmes_table_says_where_it_was_measured() -> None:
    """A figure without its script, its engine or its limit claims more than was shown."""
    header, *rows = re.findall(r"^\|(.*)\|$", README, re.MULTILINE)
    assert [cell.strip() for cell in header.split("|")] == ["what", "figure", "measured on", "limit"]
    for row in rows[1:]:
        _, figure, measured_on, limit = (cell.strip() for cell in row.split("|"))
        for script in re.findall(r"`([a-z-]+\.sh)`", figure) or [f"none in: {figure}"]:
            assert (ROOT / "runs" / script).exists(), script
        assert re.match(r"vLLM, |scripted|simulated, |public figures ", measured_on), measured_on
        assert limit


def test_the_picture_is_well_formed() -> None:
    picture = ElementTree.parse(ROOT / "docs" / "demo.svg")
    assert "scripted" in "".join(picture.getroot().itertext())


# What the product calls its own things (CONTRIBUTING.md): a word that names something new is defined once.
VOCABULARY = """
    aboard audit board budget call cell context curve doors downgrade drafter entry escalate excess-mistake express-tier fare floor
    frontier gate grant heavy hold ledger light mistake mistake-budget move offer overflow pool preempt price-multiple profile proof receipt refund
    refuse replica reserve retiring ride rung scripted-engine seat seat-time slack spool standard-share stream student teacher tenant tier
"""


def test_the_glossary_defines_each_of_our_words_in_one_sentence() -> None:
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", GLOSSARY, re.MULTILINE)
    words = [word.replace(" ", "-") for word, _ in rows]
    assert words == sorted(words)
    assert words == sorted(VOCABULARY.split())
    for word, meaning in rows:
        assert re.fullmatch(r"[A-Z`][^.]*(\.\d[^.]*)*\.", meaning), f"{word}: one sentence, please"


ONLY_IN_A_CLONE = re.compile(
    r"\b(?:docs|runs|deploy|tests|requirements)/\w|\b(?:README|CONTRIBUTING|CHANGELOG|SECURITY)\b|\.md\)"
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def texts_in(module: Path) -> set[str]:
    """The strings of a module, but for its docstrings: what its messages, its help and its pages are made of."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) and isinstance(node.body[0], ast.Expr)
    }
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings)
    return {text.value for text in texts if isinstance(text.value, str)}


def test_no_message_points_to_a_file_that_only_a_clone_has() -> None:
    """Who installs a wheel has the package and `headway --help`. reference.py writes pages of docs/ and may link them."""
    pages = {ROOT / "headway" / "cli" / "reference.py"}
    found = {text for module in set((ROOT / "headway").rglob("*.py")) - pages for text in texts_in(module)}
    found.add(PAGES["commands.md"]())  # help texts, some of which are docstrings
    assert {text for text in found if ONLY_IN_A_CLONE.search(text)} == set()


def test_every_run_is_in_the_log() -> None:
    log = (ROOT / "docs" / "LOG.md").read_text(encoding="utf-8")
    for script in (ROOT / "runs").glob("*.sh"):
        assert f"runs/{script.name}" in log, f"docs/LOG.md has no figure of {script.name}"


def test_scripts_parse() -> None:
    for script in [*(ROOT / "runs").glob("*.sh"), ROOT / ".ci" / "run"]:
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_the_changelog_knows_this_version() -> None:
    assert __version__ in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
