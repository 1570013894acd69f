"""Build the documentation into site/: the Markdown pages, an API reference from docstrings, and a check of all links.

python docs/build.py [--out site]
"""

import argparse
import html
import inspect
import re
import sys
from pathlib import Path

from jinja2 import Template
from markdown_it import MarkdownIt

import probmargin
from probmargin import api

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"index": ROOT / "README.md", "contributing": ROOT / "CONTRIBUTING.md", "changelog": ROOT / "CHANGELOG.md"}

LAYOUT = Template(
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }} - probmargin</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 52rem; margin: 0 auto; padding: 1rem; }
nav a { margin-right: 1rem; } pre { overflow-x: auto; padding: .8rem; border: 1px solid #8886; border-radius: 6px; }
code { font-family: ui-monospace, monospace; font-size: .92em; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { border: 1px solid #8886; padding: .3rem .6rem; }
</style></head><body><nav>{% for name, label in links %}<a href="{{ name }}.html">{{ label }}</a>{% endfor %}</nav>
<main>{{ body }}</main><footer><hr><small>probmargin {{ version }}</small></footer></body></html>
"""
)


def sources() -> dict[str, str]:
    """All pages as Markdown, by name; links to Markdown files lead to their pages."""
    pages = {name: path.read_text(encoding="utf-8") for name, path in PAGES.items()}
    pages |= {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
    pages["api"] = reference()
    return {name: re.sub(r"\]\((?:docs/)?([\w-]+)\.md", _to_page, text) for name, text in pages.items()}


def _to_page(found: re.Match[str]) -> str:
    return f"]({found[1].lower()}.html"


def reference() -> str:
    """The public names with signatures and docstrings, as Markdown."""
    parts = ["# API reference\n", "`import probmargin as pm`; every name is `pm.NAME`.\n"]
    for name in api.__all__:
        thing = getattr(api, name)
        signature = str(inspect.signature(thing)) if inspect.isroutine(thing) else ""
        doc = inspect.getdoc(thing) or ""
        parts.append(f"## {name}\n\n```\n{name}{signature}\n```\n\n```\n{doc}\n```\n")
    return "\n".join(parts)


def slug(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"<.*?>", "", html.unescape(heading)).lower()).strip("-")


def with_anchors(body: str) -> str:
    """Give every heading an id."""
    return re.sub(r"<h(\d)>(.*?)</h\1>", lambda m: f'<h{m[1]} id="{slug(m[2])}">{m[2]}</h{m[1]}>', body)


def broken_links(site: Path) -> list[str]:
    """Links that lead nowhere inside the site; other sites are not asked."""
    broken = []
    for page in sorted(site.glob("*.html")):
        for link in re.findall(r'(?:href|src)="([^"]+)"', page.read_text(encoding="utf-8")):
            target, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            other = site / target if target else page
            if not other.exists() or (anchor and f'id="{anchor}"' not in other.read_text(encoding="utf-8")):
                broken.append(f"{page.name}: {link}")
    return broken


def main(arguments: list[str]) -> int:
    """Write the site; 1 where a link is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "site")
    site: Path = parser.parse_args(arguments).out
    site.mkdir(parents=True, exist_ok=True)
    pages = sources()
    titles = {name: (re.search(r"^# (.+)$", text, re.MULTILINE) or ["", name])[1] for name, text in pages.items()}
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    for name, text in pages.items():
        body = with_anchors(markdown.render(re.sub(r"^```python file=.*$", "```python", text, flags=re.MULTILINE)))
        page = LAYOUT.render(title=titles[name], body=body, links=titles.items(), version=probmargin.__version__)
        (site / f"{name}.html").write_text(page, encoding="utf-8")
    broken = broken_links(site)
    sys.stdout.write("".join(f"broken link in {row}\n" for row in broken) + f"{len(pages)} pages in {site}\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
