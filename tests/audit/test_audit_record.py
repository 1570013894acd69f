"""What the page says of audited models is what the record holds."""

import json
import re
from collections import Counter
from typing import Any

import pytest
from audit_digits import EPS, MASKS, METHODS, NUM_EXAMPLES, SEEDS
from page_blocks import ROOT

from probmargin.evaluation.audit_rules import RULES

PAGE = ROOT / "docs" / "robustness.md"


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "results" / "audit-digits.json").read_text(encoding="utf-8"))
    return found


def row(name: str, outcomes: list[dict[str, Any]]) -> str:
    """A line of the page's table."""
    verdicts = Counter(outcome["verdict"] for outcome in outcomes)
    shown = ", ".join(f"{verdict} in {count} of {len(outcomes)}" for verdict, count in verdicts.items())
    warned = Counter(check for outcome in outcomes for check in outcome["warned"])
    order = sorted(warned, key=list(RULES).index)
    checks = ", ".join(
        f"`{check}`" if warned[check] == len(outcomes) else f"`{check}` ({warned[check]})" for check in order
    )
    gaps = [100 * outcome["values"]["pgd_aa_gap"] for outcome in outcomes]
    return f"| {name} | {shown} | {checks or 'none'} | {min(gaps):.1f} to {max(gaps):.1f} |"


def test_the_record_is_of_these_models_and_thresholds(record: dict[str, Any]) -> None:
    assert list(record["models"]) == [*METHODS, *MASKS]
    assert (record["eps"], record["num_examples"]) == (EPS, NUM_EXAMPLES)
    assert record["thresholds"] == {name: rule.threshold for name, rule in RULES.items()}, "audit the models again"
    for name, outcomes in record["models"].items():
        assert [outcome["seed"] for outcome in outcomes] == list(SEEDS)
        for outcome in outcomes:
            over = [check for check, value in outcome["values"].items() if (value or 0) > RULES[check].threshold]
            assert sorted(outcome["warned"]) == sorted(over), name
            assert outcome["verdict"] == ("warn" if over else "pass")


def test_honest_models_pass_and_masked_ones_are_warned_about(record: dict[str, Any]) -> None:
    verdicts = {name: {outcome["verdict"] for outcome in outcomes} for name, outcomes in record["models"].items()}
    assert verdicts["at"] == verdicts["trades"] == {"pass"}
    assert [verdicts[name] for name in MASKS] == [{"warn"}] * len(MASKS)


def test_the_page_shows_the_record(record: dict[str, Any]) -> None:
    text = PAGE.read_text(encoding="utf-8").partition("### What it said of models")[2].partition("\n## ")[0]
    table = re.findall(r"^\| .*\|$", text, re.MULTILINE)[1:]
    assert table == [row(name, outcomes) for name, outcomes in record["models"].items()]
    assert f"first {NUM_EXAMPLES} test images" in text
    assert f"ε {EPS}" in text
    gaps = {name: [outcome["values"]["pgd_aa_gap"] for outcome in record["models"][name]] for name in METHODS}
    means = {name: f"{100 * sum(values) / len(values):.1f}" for name, values in gaps.items()}
    assert f"{means['gairat']} against {means['at']} percent on average" in text
