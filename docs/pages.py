"""The pages of the site: which there are, how they are grouped, and how Markdown becomes HTML."""

import html
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

ROOT = Path(__file__).resolve().parents[1]

GROUPS: dict[str, dict[str, str]] = {
    "Start": {
        "index": "Overview",
        "quickstart": "Quickstart",
        "own-data": "Your own data and model",
        "walkthrough": "Walkthrough",
    },
    "Understand": {
        "method": "How the method works",
        "robustness": "How to read robustness",
        "reproduction": "Reproduction results",
        "tables": "Records and tables",
        "figures": "Figures",
        "reliability": "LPS and PM compared",
        "noise-bench": "Label-noise bench",
    },
    "Use": {
        "training": "Training",
        "recipes": "Recipes and presets",
        "looking": "Looking at a run",
        "label-noise": "Label noise",
        "many-gpus": "Many GPUs and Ray",
        "large-runs": "Planning a large run",
    },
    "Look up": {
        "command-line": "Command line",
        "api": "Python API",
        "components": "Components",
        "errors": "Errors",
        "migration": "Coming from other tools",
    },
    "Project": {"contributing": "Adding a component", "changelog": "Changelog"},
}
"""The navigation; a page that is written but not named here goes to the end of "Use"."""

OUTSIDE = {
    "index": ROOT / "README.md",
    "contributing": ROOT / "CONTRIBUTING.md",
    "changelog": ROOT / "CHANGELOG.md",
    "tables": ROOT / "results" / "README.md",
    "figures": ROOT / "docs" / "figures" / "README.md",
    "reliability": ROOT / "docs" / "figures" / "reliability.md",
    "noise-bench": ROOT / "docs" / "figures" / "label-noise.md",
}
"""Pages whose source lies elsewhere than in docs/."""


@dataclass(frozen=True)
class Page:
    """A page as Markdown, and the file that its links start from."""

    name: str
    source: Path
    text: str

    @property
    def title(self) -> str:
        """Its first heading."""
        found = re.search(r"^# (.+)$", self.text, re.MULTILINE)
        return found[1] if found else self.name


def written_pages() -> list[Page]:
    """The pages that are files."""
    files = {name: path for name, path in OUTSIDE.items() if path.exists()}
    files |= {path.stem: path for path in sorted((ROOT / "docs").glob("*.md"))}
    return [Page(name, path, _headed(name, path.read_text(encoding="utf-8"))) for name, path in files.items()]


def _headed(name: str, text: str) -> str:
    """A page with a heading of its own: a table that a command wrote has none, and gets its name in the navigation."""
    labels = {page: label for entries in GROUPS.values() for page, label in entries.items()}
    has_heading = re.search(r"^# ", text, re.MULTILINE) or name not in labels
    return text if has_heading else f"# {labels[name]}\n\n{text}"


def grouped(names: list[str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The navigation for the pages there are."""
    known = {name for entries in GROUPS.values() for name in entries}
    groups = {
        group: {name: label for name, label in entries.items() if name in names} for group, entries in GROUPS.items()
    }
    groups["Use"] |= {name: name.replace("-", " ").capitalize() for name in names if name not in known}
    return [(group, list(entries.items())) for group, entries in groups.items()]


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub forms it.

    >>> slug("What `audit` says, and why")
    'what-audit-says-and-why'
    """
    plain = re.sub(r"<.*?>", "", html.unescape(heading)).lower()
    return re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")


def formula(text: str) -> str:
    """A formula in TeX as an inline drawing, in the colour of the text around it."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    drawings = []
    with rc_context({"mathtext.fontset": "stix", "svg.fonttype": "path", "svg.hashsalt": "probmargin"}):
        for line in text.strip().splitlines():
            figure, target = Figure(), io.StringIO()
            figure.text(0, 0, f"${line}$", fontsize=14)
            figure.savefig(target, format="svg", bbox_inches="tight", pad_inches=0.04, transparent=True)
            drawing = re.sub(r"^.*?<svg", "<svg", target.getvalue(), flags=re.DOTALL)
            drawing = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", drawing, flags=re.DOTALL)
            drawings.append(drawing.replace("#000000", "currentColor").replace("<svg", '<svg fill="currentColor"', 1))
    return f'<div class="math" role="img" aria-label="{html.escape(text.strip())}">{"<br>".join(drawings)}</div>\n'


def code(text: str, language: str) -> str:
    """A block of code with its words coloured."""
    try:
        shown = highlight(text, get_lexer_by_name(language or "text"), HtmlFormatter(nowrap=True))
    except ClassNotFound:
        shown = html.escape(text)
    kind = "code output" if language in ("", "text") else "code"
    return f'<pre class="{kind}"><code>{shown}</code></pre>\n'


def highlight_styles() -> str:
    """Colours of code, for light and for dark; the ground is the page's own."""

    def rules(style: str) -> str:
        lines = HtmlFormatter(style=style).get_style_defs(".code").splitlines()
        coloured = [line for line in lines if re.match(r"\.code \.\w+ \{", line)]
        return re.sub(r"background(-color)?: #\w+;?|border: [^;}]+;?", "", "\n".join(coloured))

    return f"{rules('default')}\n@media (prefers-color-scheme: dark) {{\n{rules('github-dark')}\n}}"


def renderer(follow: Callable[[str], str]) -> Callable[[str], str]:
    """A function from Markdown to HTML; `follow` turns a link of the source into one of the site."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])

    def fence(_: Any, tokens: Any, index: int, *__: Any) -> str:
        words = tokens[index].info.split()
        language = words[0] if words else ""
        return formula(tokens[index].content) if language == "math" else code(tokens[index].content, language)

    markdown.add_render_rule("fence", fence)
    markdown.add_render_rule("table_open", lambda *_: '<div class="table"><table>\n')
    markdown.add_render_rule("table_close", lambda *_: "</table></div>\n")

    def render(text: str) -> str:
        body = markdown.render(re.sub(r"^<!--.*?-->\n", "", text, flags=re.MULTILINE | re.DOTALL))
        # Short names and numbers stay on one line.
        body = re.sub(r"<td>((?:<code>[^<]{1,28}</code>|[-+±\d.,%() ]{1,24})</td>)", r'<td class="short">\1', body)
        body = re.sub(r"<h(\d)>(.*?)</h\1>", lambda m: f'<h{m[1]} id="{slug(m[2])}">{m[2]}</h{m[1]}>', body)
        return re.sub(r'(<a href|<img src)="([^"]+)"', lambda m: f'{m[1]}="{follow(m[2])}"', body)

    return render
