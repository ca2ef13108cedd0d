"""Checks the built site: every link and picture is there, and nothing is loaded from elsewhere.

    python -m tests.docs.site site

`make docs` runs this after Sphinx, which checks the links that it makes from Markdown, and no others.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {
    "script": "src",
    "img": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "object": "data",
}


class SitePage(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if one := given.get("id"):
            self.anchors.add(one)
        if tag == "a" and (link := given.get("href")):
            self.links.append(link)
        elif (name := LOADS.get(tag)) and (load := given.get(name)):
            self.loads.append(load)


def problems(site: Path) -> list[str]:
    pages = {path.resolve(): SitePage(path) for path in site.rglob("*.html")}
    found = [] if pages else [f"{site} has no page"]
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        found += [f"{name} loads {load}" for load in page.loads if urlsplit(load).netloc]
        for link in page.links + page.loads:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if not target.exists():
                found.append(f"{name} leads to {link}, which is not there")
            elif url.fragment and target in pages and unquote(url.fragment) not in pages[target].anchors:
                found.append(f"{name} leads to {link}, which has no such place")
    for path in site.rglob("*.css"):
        outside = re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)", path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(site)} loads {one}" for one in outside]
    return found


def main() -> int:
    site = Path(sys.argv[1])
    found = problems(site)
    for one in found:
        print(one)
    print(f"{site}: {len(list(site.rglob('*.html')))} pages, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
