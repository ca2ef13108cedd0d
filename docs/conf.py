"""The documentation's site: `make docs` builds it with Sphinx, from the same Markdown that code hosts show.

The source folder is the repository, so that links between docs/ and the pages beside the README work here as they do
there. The navigation is below and not in the pages, where it would be noise on a code host.
"""

from pathlib import Path

ROOT = Path(__file__).parent.parent

# In the order of the navigation. A page that is in none of these lists fails the build.
NAVIGATION = {
    "": ["tutorial"],
    "How to": [
        "how-to/in-front-of-your-vllm",
        "how-to/offer-fast-mode",
        "how-to/use-your-client",
        "how-to/measure-a-server",
        "how-to/keys-and-bills",
        "how-to/count-mistakes",
        "how-to/distill-a-student",
        "how-to/offer-auto",
        "how-to/plan-a-fleet",
        "how-to/simulate-a-fleet",
        "how-to/many-processes",
        "how-to/kubernetes",
        "how-to/ray-cluster",
        "how-to/console",
        "how-to/observe",
        "how-to/change-a-running-gateway",
        "how-to/upgrade",
        "how-to/lora-adapters",
        "how-to/other-engines",
        "how-to/overflow",
        "how-to/test-an-agent",
    ],
    "Reference": [
        "reference/commands",
        "reference/configuration",
        "reference/fleet",
        "reference/endpoints",
        "reference/fields",
        "reference/metrics",
        "reference/glossary",
        "reference/dependencies",
    ],
    "Explanation": [
        "explanation/two-tricks",
        "explanation/when-to-use-which",
        "explanation/fast-mode",
        "explanation/express-rule",
        "explanation/the-guarantee",
        "explanation/the-books",
        "explanation/reliability",
        "explanation/many-processes",
        "explanation/internet-scale",
        "/SECURITY",
        "explanation/compared",
        "explanation/architecture",
        "explanation/extend",
    ],
    "Design notes": [
        "design/0001-the-straight-line",
        "design/0002-the-express-rule",
        "design/0003-seat-time-and-fares",
        "design/0004-the-books",
        "design/0005-simulate-and-plan",
        "design/0006-students",
        "design/0007-mistakes",
        "design/0008-the-auto-tier",
        "design/0009-the-second-plan",
        "design/0010-responses",
        "design/0011-many-processes",
        "design/0012-replicas-that-come-and-go",
        "design/0013-scaling",
        "design/0014-a-fleet-on-ray",
        "design/0015-streams-that-move",
        "design/0016-replicas-with-other-curves",
        "design/0017-what-is-in-the-cache",
    ],
    "Project": ["LOG", "/CHANGELOG", "/CONTRIBUTING"],
}

project = "Headway"
copyright = "the authors of Headway, Apache-2.0"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["docs/*.md", "docs/**/*.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md"]
# Sphinx looks into every folder that is not excluded.
exclude_patterns = [path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "docs"]
html_theme = "furo"  # it has its own styles and scripts and the reader's fonts; light and dark
html_title = "Headway"
html_extra_path = ["start"]
html_copy_source = False
html_show_sphinx = False
myst_heading_anchors = 4
# Shortened examples, with `...` in them, are not the language that they are shown in.
suppress_warnings = ["misc.highlighting_failure"]


def add_navigation(_app, name, source):
    if name == root_doc:
        for caption, pages in NAVIGATION.items():
            head = f":caption: {caption}\n" if caption else ""
            listed = "\n".join(pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n{head}\n{listed}\n```\n"


def setup(app):
    app.connect("source-read", add_navigation)
