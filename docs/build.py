"""Build the documentation into site/: the Markdown pages, references made from the code, and a check of every link.

python docs/build.py [--out site]
"""

import argparse
import re
import shutil
import sys
from pathlib import Path

from jinja2 import Template
from pages import ROOT, Page, grouped, highlight_styles, renderer, written_pages
from reference import MADE

import probmargin


class Site:
    """A folder of pages, and the files that they show or lead to."""

    def __init__(self, folder: Path, pages: list[Page]) -> None:
        self.folder = folder
        self.pages = pages
        self.by_source = {page.source.resolve(): page.name for page in pages}
        self.broken: list[str] = []

    def follow(self, page: Page, link: str) -> str:
        """The site's link for a link of a page's source; what it leads to is copied, what leads nowhere is noted."""
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link) or not target:
            return link
        path = (page.source.parent / target).resolve()
        if path in self.by_source:
            return f"{self.by_source[path]}.html" + (f"#{anchor}" if anchor else "")
        if not path.is_relative_to(ROOT) or not path.is_file():
            self.broken.append(f"{page.source.name}: {link}")
            return link
        copy = self.folder / "files" / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        return copy.relative_to(self.folder).as_posix()

    def write(self) -> None:
        """Write every page."""
        layout = Template((ROOT / "docs" / "layout.html").read_text(encoding="utf-8"))
        groups, styles = grouped([page.name for page in self.pages]), highlight_styles()
        for page in self.pages:
            body = renderer(lambda link, page=page: self.follow(page, link))(page.text)
            text = layout.render(
                title=page.title,
                body=body,
                groups=groups,
                current=page.name,
                highlight=styles,
                version=probmargin.__version__,
            )
            (self.folder / f"{page.name}.html").write_text(text, encoding="utf-8")


def broken_links(site: Path) -> list[str]:
    """Links that lead nowhere inside the site; other sites are not asked."""
    texts = {page.name: page.read_text(encoding="utf-8") for page in sorted(site.glob("*.html"))}
    broken = []
    for name, text in texts.items():
        for link in re.findall(r'<(?:a[^>]* href|img src)="([^"]+)"', text):
            target, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            other = target or name
            if not (site / other).exists() or (anchor and f'id="{anchor}"' not in texts.get(other, "")):
                broken.append(f"{name}: {link}")
    return broken


def all_pages() -> list[Page]:
    """Those that are files, and those made from the code."""
    made = [Page(name, ROOT / "docs" / f"{name}.md", make()) for name, make in MADE.items()]
    return [*written_pages(), *made]


def main(arguments: list[str]) -> int:
    """Write the site; 1 where a link is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "site")
    folder: Path = parser.parse_args(arguments).out
    folder.mkdir(parents=True, exist_ok=True)
    site = Site(folder, all_pages())
    site.write()
    broken = site.broken + broken_links(folder)
    sys.stdout.write("".join(f"broken link in {row}\n" for row in broken) + f"{len(site.pages)} pages in {folder}\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
