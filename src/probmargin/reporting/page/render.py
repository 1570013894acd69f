"""The page: views of each run put into templates, with style and script inside and nothing outside."""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from probmargin._version import __version__
from probmargin.core.words import radius
from probmargin.reporting.page import audits, classes, curves, missing, recipe, results, summary, words
from probmargin.reporting.page.budget import within_budget
from probmargin.reporting.page.data import RunReport

SECTIONS = (
    ("summary", "Summary"),
    ("results", "Results"),
    ("comparison", "Comparison"),
    ("gap", "PGD and AutoAttack"),
    ("audit", "Audit"),
    ("curves", "Curves"),
    ("classes", "Classes"),
    ("confusion", "Confusion"),
    ("gallery", "Gallery"),
    ("weights", "Weights and margins"),
    ("examples", "Examples"),
    ("recipe", "Recipe"),
    ("about", "About"),
)

OF_TRAINING = frozenset({"audit", "curves", "gallery", "weights", "examples", "recipe"})
"""Sections that a file of results alone has nothing for."""

SCRIPTS = ("chart.js", "histogram.js", "page.js")


def _static(*names: str) -> Markup:
    """Our own style or script; it is not escaped, and it holds nothing a user wrote."""
    folder = resources.files("probmargin.reporting.page") / "static"
    return Markup("\n".join((folder / name).read_text(encoding="utf-8") for name in names))


def _hash(text: str) -> str:
    """What a content security policy calls a piece of inline code."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


def policy(style: str, script: str) -> str:
    """Nothing is fetched; only this style and this script count."""
    parts = {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": _hash(style),
        "script-src": _hash(script),
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())


def render(reports: Sequence[RunReport], *, title: str = "", made: str = "", command: str = "") -> str:
    """The page about these runs; `made` says when, `command` what made it."""
    environment = Environment(
        loader=PackageLoader("probmargin.reporting.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    reports = within_budget(reports)
    style, script = _static("style.css"), _static(*SCRIPTS)
    left_out = set() if len(reports) > 1 else {"comparison"}
    left_out |= set() if any(report.folder.is_run for report in reports) else OF_TRAINING
    shown = [section for section in SECTIONS if section[0] not in left_out]
    return environment.get_template("page.html").render(
        title=title or _title([report.label for report in reports]),
        policy=Markup(policy(style, script)),
        style=style,
        script=script,
        sections=shown,
        made=made,
        command=command,
        version=__version__,
        words=words,
        radius=radius,
        **view(reports),
    )


def _title(labels: Sequence[str]) -> str:
    """What a page is called.

    >>> _title(["a", "b"]), _title(["a", "b", "c", "d", "e"])
    ('a and b', '5 runs: a, b, c and 2 others')
    """
    if len(labels) < 5:
        return words.joined(labels)
    return f"{len(labels)} runs: {', '.join(labels[:3])} and {len(labels) - 3} others"


def view(reports: Sequence[RunReport]) -> dict[str, Any]:
    """Everything the templates show."""
    names = results.columns(reports)
    charts = curves.charts(reports)
    comparisons = [(report, results.differences(reports[0], report, names)) for report in reports[1:]]
    figures = {chart["id"]: chart for chart in charts}
    for place, report in enumerate(reports):
        figures |= {f"{kind}-{place}": chart for kind, chart in _fans(report, place).items()}
    published = [report for report in reports if report.published is not None]
    runs = [_run(report, place) for place, report in enumerate(reports)]
    trained = [report for report in reports if report.folder.is_run]
    return {
        "runs": runs,
        "trained": [run for run in runs if run["report"].folder.is_run],
        "columns": [(name, words.attack_name(name)) for name in names],
        "rows": results.result_rows(reports, names),
        "published": published,
        "comparisons": comparisons,
        "verdicts": [summary.compared(reports[0], report, found) for report, found in comparisons],
        "charts": charts,
        "figures": figures,
        "audit_rows": audits.audit_rows(trained),
        "class_tables": classes.class_tables(reports),
        "recipe_rows": recipe.recipe_rows(trained),
        "fact_rows": recipe.fact_rows(reports),
    }


def _run(report: RunReport, place: int) -> dict[str, Any]:
    found = missing.gaps(report)
    return {
        "report": report,
        "label": report.label,
        "place": place,
        "account": summary.account(report),
        "numbers": summary.numbers(report),
        "gaps": found,
        "gaps_of": {section: [gap for gap in found if gap.section == section] for section, _ in SECTIONS},
        "confusion": classes.confusion(report),
        "gap": results.attack_gap(report.folder.evaluation),
        "stages": results.stage_rows(report.folder.evaluation),
        "remarks": results.remarks(report.folder.evaluation),
        "audit": report.folder.audit,
        "gallery": report.gallery,
        "dynamics": report.dynamics,
        "recipe": recipe.in_words(report.folder.recipe),
        "fans": _fans(report, place),
    }


def _fans(report: RunReport, place: int) -> dict[str, dict[str, Any]]:
    """Charts of how margins and weights are spread."""
    found = report.dynamics
    if found is None:
        return {}
    fans = {"margin": curves.fan(found.margin, "Margin", report.label, place)}
    if found.recipe_margin is not None:
        name = found.summary["recipe_margin"]["name"]
        fans["recipe-margin"] = curves.fan(
            found.recipe_margin, f"The recipe's own margin ({name})", report.label, place
        )
    if not found.is_uniform:
        fans["weight"] = curves.fan(found.weight, "Weight", report.label, place)
    return fans | {"areas": curves.areas(found.summary["epochs"], report.label)}
