"""The documentation builds, its links lead somewhere, and its tables are those of the records."""

import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from page_blocks import ROOT
from scipy.stats import binomtest

from probmargin import api
from probmargin.cli import main as main  # its import adds the commands
from probmargin.cli.app import app


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script of docs/ by its name."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))

    def load(name: str) -> Any:
        spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def site(scripts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert scripts("build").main(["--out", str(tmp_path / "site")]) == 0, capsys.readouterr().out
    return tmp_path / "site"


def test_the_site_builds_without_broken_links(site: Path) -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in site.glob("*.html")}
    assert {"index", "quickstart", "method", "robustness", "own-data", "api", "command-line", "reproduction"} <= set(
        pages
    )
    anchors = [f"class-{name}" if inspect.isclass(getattr(api, name)) else name for name in api.__all__]
    assert [anchor for anchor in anchors if pages["api"].count(f'id="{anchor.lower()}"') != 1] == []
    group: Any = typer.main.get_command(app)
    assert [name for name in group.commands if f'id="{name}"' not in pages["command-line"]] == []
    assert [option for option in group.commands["train"].params if option.opts[0] not in pages["command-line"]] == []
    assert pages["method"].count("<svg") >= 6, "a formula is missing"
    assert "<!--" not in pages["index"]


def test_every_page_is_reached_from_every_other(site: Path) -> None:
    names = {path.name for path in site.glob("*.html")}
    for path in site.glob("*.html"):
        assert names <= set(re.findall(r'href="([\w-]+\.html)"', path.read_text(encoding="utf-8"))), path.name


def test_broken_links_anchors_and_pictures_are_found(scripts: Any, tmp_path: Path) -> None:
    build = scripts("build")
    (tmp_path / "a.html").write_text('<a href="b.html">x</a><a href="#c">y</a><img src="d.png">', encoding="utf-8")
    assert build.broken_links(tmp_path) == ["a.html: b.html", "a.html: #c", "a.html: d.png"]
    page = build.Page("p", ROOT / "docs" / "p.md", "# P")
    made = build.Site(tmp_path, [page])
    assert made.follow(page, "https://example.org/") == "https://example.org/"
    made.follow(page, "nowhere.md")
    made.follow(page, "../../outside")
    assert made.broken == ["p.md: nowhere.md", "p.md: ../../outside"]
    assert made.follow(page, "../LICENSE") == "files/LICENSE"


def test_tables_are_those_of_the_records(scripts: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tables = scripts("tables")
    assert tables.main(["--check"]) == 0, f"run python docs/tables.py; {capsys.readouterr().out}"
    marked = [name for page in tables.PAGES for name in re.findall(r"tables\.py: ([\w-]+)", page.read_text())]
    assert sorted(marked) == sorted(tables.TABLES), "a table that no page shows, or one that nobody makes"
    stale = tables.filled("<!-- made by docs/tables.py: speed -->\nold\n<!-- end -->")
    assert "old" not in stale
    assert "images a second" in stale


def test_what_a_second_look_leaves_open_is_said(scripts: Any) -> None:
    said = scripts("tables").second_look()
    found = re.search(r"together (none|\d+) of (\d+) fell, which leaves room for ([\d.]+)%", said)
    assert found
    broken, looked, most = found.groups()
    assert said.startswith("None of 100 still leaves room for 3.7% of the survivors")
    assert int(looked) >= 700
    counts = (0 if broken == "none" else int(broken), int(looked))
    assert float(most) == round(100 * binomtest(*counts).proportion_ci(method="wilson").high, 1)


def test_the_arithmetic_of_large_runs(scripts: Any) -> None:
    tables = scripts("tables")
    # ResNet-18 counted by hand: 0.556 billion multiply-adds at 32 x 32, and four times that at 64 x 64.
    assert tables.forward_operations("resnet18", 32) == pytest.approx(1.11e9, rel=0.01)
    assert tables.forward_operations("resnet18", 64) / tables.forward_operations("resnet18", 32) == pytest.approx(
        4, rel=0.01
    )
    slow, fast = tables.rates()
    assert 788e12 * 0.30 < slow < 788e12 * 0.32, "the record's own share of the limit at batch 128 is 0.307"
    assert 788e12 * 0.41 < fast < 788e12 * 0.43, "and 0.417 at batch 512"


def test_headings_get_the_anchors_that_github_gives_them(scripts: Any) -> None:
    slug = scripts("pages").slug
    assert slug("What <code>audit</code> says, and why") == "what-audit-says-and-why"
    assert slug("2. Margin: how safe is an example?") == "2-margin-how-safe-is-an-example"
