"""No link in the documentation leads nowhere. Addresses on the web are checked for their form only: tests have no network."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.docs.pages import ROOT, Page, all_pages

PAGES = all_pages()


@cache
def page_at(path: Path) -> Page:
    return Page(path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Page) -> None:
    for link in page.links:
        if "://" in link:
            check_address(link)
            continue
        target, _, anchor = link.partition("#")
        path = (page.path.parent / target).resolve() if target else page.path
        assert path.exists(), f"{page.name} links to {target}, which is not there"
        assert path.is_relative_to(ROOT), f"{page.name} links to {target}, which is not in this repository"
        if anchor and path.suffix == ".md":
            anchors = page_at(path).anchors
            assert anchor in anchors, f"{page.name} links to {link}; {path.name} has {', '.join(sorted(anchors))}"


def check_address(link: str) -> None:
    url = urlsplit(link)
    assert url.scheme == "https", link
    assert re.fullmatch(r"[\w-]+(\.[\w-]+)+", url.netloc), link
    assert link.isascii(), link


def test_anchors_are_those_of_code_hosts(tmp_path: Path) -> None:
    page = Page.__new__(Page)
    page.text = "# A title\n\n## `[[models.tiers]]`\n\n## What *is* it, really?\n\n## Twice\n\n```text\n## not this\n```\n\n## Twice\n"
    assert page.anchors == {"a-title", "modelstiers", "what-is-it-really", "twice", "twice-1"}


def test_every_explanation_and_how_to_is_in_the_site() -> None:
    """The site's navigation is a list, so that its order is meant."""
    listed = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    for folder in ("explanation", "how-to", "reference", "design"):
        for path in (ROOT / "docs" / folder).glob("*.md"):
            assert f'"{folder}/{path.stem}"' in listed, f"docs/conf.py does not list {folder}/{path.name}"
