"""The console's page as it is committed: what the Content-Security-Policy will let it do, and what it is made of."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "console"
PAGE = ROOT / "headway" / "console" / "page"
FILES = {"index.html", "console.js", "console.css", "licences.txt"}
LARGEST_SCRIPT = 100_000  # bytes
LOCK = json.loads((SOURCE / "package-lock.json").read_text())


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text_of: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found:
            tag = self.found[-1][0]
            self.text_of[tag] = self.text_of.get(tag, "") + data.strip()


def elements() -> Elements:
    parser = Elements()
    parser.feed((PAGE / "index.html").read_text())
    return parser


def test_the_page_has_these_files_and_no_others() -> None:
    assert {path.name for path in PAGE.iterdir()} == FILES


def test_nothing_is_inline() -> None:
    """The policy forbids it, and the page would fail in the browser only."""
    page = elements()
    for tag, attributes in page.found:
        assert tag != "style"
        assert "style" not in attributes, tag
        assert not [name for name in attributes if name.startswith("on")], tag
        if tag == "script":
            assert attributes["src"]
    assert not page.text_of.get("script")


def test_the_page_names_only_its_own_files() -> None:
    named = [value for _, attributes in elements().found for name in ("src", "href") if (value := attributes.get(name))]
    own = [name for name in named if not name.startswith("data:image/svg+xml,")]
    assert sorted(own) == ["/console/console.css", "/console/console.js"]
    for name in own:
        assert Path(name).name in FILES
    styles = (PAGE / "console.css").read_text()
    assert "url(" not in styles
    assert "@import" not in styles


def test_the_script_needs_no_eval_and_names_no_other_host() -> None:
    script = (PAGE / "console.js").read_text()
    assert not re.search(r"\beval\(|\bnew Function\b|\bFunction\(", script)
    hosts = set(re.findall(r"https?://([a-z0-9.-]+)", script))
    assert hosts <= {"www.w3.org"}, "the namespaces of SVG and MathML are names, not addresses"
    assert "innerHTML" not in (SOURCE / "src" / "app.tsx").read_text()
    assert len(script.encode()) <= LARGEST_SCRIPT


def test_no_source_makes_html_from_text() -> None:
    for path in sorted((SOURCE / "src").glob("*.ts*")):
        text = path.read_text()
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"):
            assert way not in text, path.name


def test_every_package_in_the_page_has_its_licence_there() -> None:
    licences = (PAGE / "licences.txt").read_text()
    for name, version in json.loads((SOURCE / "package.json").read_text())["dependencies"].items():
        assert f"{name} {version} (" in licences
    assert "Permission is hereby granted, free of charge" in licences


def test_the_lock_has_exact_versions_with_hashes_and_no_registry() -> None:
    asked = json.loads((SOURCE / "package.json").read_text())
    for version in {**asked["dependencies"], **asked["devDependencies"]}.values():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert LOCK["lockfileVersion"] == 3
    for name, package in LOCK["packages"].items():
        assert "resolved" not in package, name
        assert not name or package["integrity"].startswith("sha512-"), name
    assert "https://registry" not in (SOURCE / "package-lock.json").read_text()


def run_npm(folder: Path, *words: str) -> str:
    done = subprocess.run(["npm", *words], cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.clients
def test_the_committed_page_is_what_the_source_builds(tmp_path: Path) -> None:
    here = tmp_path / "console"
    shutil.copytree(SOURCE, here, ignore=shutil.ignore_patterns("node_modules"))
    run_npm(here, "ci")
    run_npm(here, "run", "check")
    run_npm(here, "test")
    run_npm(here, "run", "build")
    built = tmp_path / "headway" / "console" / "page"
    assert {path.name for path in built.iterdir()} == FILES
    for name in sorted(FILES):
        assert (built / name).read_bytes() == (PAGE / name).read_bytes(), f"{name}: run `npm run build` in console/"
