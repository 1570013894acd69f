"""Audits side by side: a row a check, a verdict a run."""

from collections.abc import Sequence
from dataclasses import dataclass

from probmargin.reporting.page.data import RunReport
from probmargin.reporting.page.words import DASH


@dataclass(frozen=True)
class Verdict:
    """What a check said of one run; "" where the run has no such check."""

    word: str = ""
    value: str = DASH


@dataclass(frozen=True)
class AuditRow:
    """One check."""

    name: str
    measures: str
    limit: str
    verdicts: list[Verdict]
    advice: str
    """What to do, where any run is warned; why it was not run, where none was."""


def audit_rows(reports: Sequence[RunReport]) -> list[AuditRow]:
    """Every check of every run that was audited."""
    audits = [(report.folder.audit or {}).get("checks") or [] for report in reports]
    by_name = [{str(check["name"]): check for check in checks} for checks in audits]
    rows = []
    for name in dict.fromkeys(name for checks in by_name for name in checks):
        found = [checks.get(name) for checks in by_name]
        known = next(check for check in found if check is not None)
        warned = any(check is not None and check["verdict"] == "warn" for check in found)
        reasons = [f"Not run: {check['reason']}." for check in found if check is not None and check.get("reason")]
        rows.append(
            AuditRow(
                name=name.replace("_", " "),
                measures=str(known["measures"]),
                limit=f"{known['threshold']:g}",
                verdicts=[_verdict(check) for check in found],
                advice=str(known["advice"]) if warned else " ".join(dict.fromkeys(reasons)),
            )
        )
    return rows


def _verdict(check: dict[str, object] | None) -> Verdict:
    if check is None:
        return Verdict()
    value = check.get("value")
    return Verdict(str(check["verdict"]), f"{value:.3g}" if isinstance(value, int | float) else DASH)
