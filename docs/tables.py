"""Fill the tables of README and docs/ from records, and from the code that they describe.

A page marks a place with `<!-- made by docs/tables.py: NAME -->` and `<!-- end -->`; what lies between is replaced.

python docs/tables.py [--check]
"""

import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PLACE = re.compile(r"(<!-- made by docs/tables\.py: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

IMAGENET = 1_281_167
"""Training images of ImageNet's 1,000 classes."""
DEVICE_BYTES = 141e9
"""Memory of the GPU that was measured, as its maker states it."""


def record(name: str) -> dict[str, Any]:
    """A committed record."""
    found: dict[str, Any] = json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def markdown_table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Rows as a Markdown table."""
    names = list(head)
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    return "\n".join([*lines, *(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows)]) + "\n"


def speed() -> str:
    """Images a second of the plain loop and of the fast path."""
    places = {
        "ResNet-18": "128-methods",
        "ResNet-18, batch 512": "512",
        "WRN-34-10": "128-wrn-34-10",
        "digits, one CPU core": "digits",
    }
    columns: list[dict[str, str]] = []
    for name in places.values():
        cells = {}
        for row in record(f"bench-training-{name}")["rows"]:
            plain, fast = row["plain_images_per_second"], row["fast_images_per_second"]
            cells[row["method"]] = f"{plain:,.0f} → {fast:,.0f}, {fast / plain:.1f}x"
        columns.append(cells)
    rows = [(method.upper(), *(cells.get(method, "") for cells in columns)) for method in columns[0]]
    return markdown_table(("images a second", *places), rows)


def autoattack() -> str:
    """Seconds of AutoAttack's attacks on one GPU, and what they leave standing."""
    whole = record("cifar10-resnet18-mail-trades-official-kl-s2")["evaluation"]["aa"]
    parts = ", ".join(f"{part} {seconds:.0f}" for part, seconds in whole["seconds_by_step"].items())
    left = f"{whole['robust_accuracy']:.2%} robust after 101 epochs of MAIL-TRADES"
    look = whole["recheck"]
    second = f"A second look at {look['examples']} survivors in float32 took another {look['seconds']:.0f} seconds"
    return f"**{whole['seconds']:.0f} seconds** ({parts}), {left}. {second}.\n"


def second_look() -> str:
    """What float32 made of AutoAttack's survivors, and what that leaves open."""
    from probmargin.core.stats import wilson_interval

    evaluations = [
        record(path.stem).get("evaluation", {}) for path in sorted((ROOT / "results").glob("cifar10-*.json"))
    ]
    looks = [found["aa"]["recheck"] for found in evaluations if found.get("aa", {}).get("recheck")]
    broken, looked = (sum(look[key] for look in looks) for key in ("broken", "examples"))
    one, all_ = (100 * wilson_interval(*counts)[1] for counts in ((0, 100), (broken, looked)))
    return (
        f"None of 100 still leaves room for {one:.1f}% of the survivors (95% interval). Of {len(looks)} networks on "
        f"CIFAR-10 together {broken or 'none'} of {looked} fell, which leaves room for {all_:.1f}%.\n"
    )


def published() -> str:
    """PGD and AutoAttack as the paper prints them, and as a record of ours has them."""
    source = ROOT / "src" / "probmargin" / "experiments" / "published.json"
    table = json.loads(source.read_text(encoding="utf-8"))["tables"]["table2"]["rows"]
    rows = []
    for method in ("at", "trades", "mail-trades", "mail-at", "gairat"):
        judged = record(f"cifar10-resnet18-{method}-s1")["evaluation"]
        ours = [100 * judged[name]["robust_accuracy"] for name in ("pgd-100", "aa")]
        theirs = [table[method][name][0] for name in ("PGD", "AA")]
        cells = [f"{value:.2f}" for pgd, aa in (ours, theirs) for value in (pgd, aa, pgd - aa)]
        rows.append((f"`{method}`", *cells))
    head = ("PGD-100", "AutoAttack", "gap")
    return markdown_table(("method", *head, *(f"paper: {name}" for name in head)), rows)


def checks() -> str:
    """What an audit looks at."""
    from probmargin.evaluation.audit_rules import RULES

    rows = [(f"`{name}`", rule.measures, f"{rule.threshold:g}", rule.advice) for name, rule in RULES.items()]
    return markdown_table(("check", "measures", "warns above", "then"), rows)


def command_list() -> str:
    """Every command in a line."""
    import typer
    from reference import command_names

    from probmargin.cli.main import app

    group: Any = typer.main.get_command(app)
    rows = [(f"`{name}`", _summary(group.commands[name].help)) for name in command_names(group)]
    return markdown_table(("command", "what it does"), rows)


def _summary(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


def forward_operations(model: str, side: int) -> float:
    """Floating-point operations of one image's pass through one of our networks."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from probmargin.models.build import build_model

    with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
        build_model(model, num_classes=1000, in_channels=3).eval()(torch.zeros(1, 3, side, side))
    return float(counter.get_total_flops())


PASSES = 27
"""MAIL-TRADES in forward passes: 10 attack steps, there and back to the image; a reference; two loss passes at 3."""


def rates() -> tuple[float, float]:
    """Operations a second that training reached at batch 128 and at batch 512."""
    small, large = (record(f"bench-training-{size}")["rows"][0]["fast_images_per_second"] for size in (128, 512))
    passes = PASSES * forward_operations("resnet18", 32)
    return small * passes, large * passes


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def large_runs() -> str:
    """ImageNet-size runs by arithmetic from the measured rates."""
    slow, fast = rates()
    cases = [
        ("`resnet18`, 64 x 64", forward_operations("resnet18", 64), 64),
        ("`wrn-34-10`, 64 x 64", forward_operations("wrn-34-10", 64), 64),
        ("a network of 8.2 GFLOP, 224 x 224", 8.2e9, 224),
    ]
    rows = []
    for label, operations, side in cases:
        low, high = (rate / (PASSES * operations) for rate in (slow, fast))
        epoch = [_duration(IMAGENET / rate) for rate in (high, low)]
        hours = [100 * IMAGENET / rate / 3600 for rate in (high, low)]
        size = IMAGENET * 3 * side * side
        fits = "fits" if size < DEVICE_BYTES else "does not fit"
        rows.append(
            (
                label,
                f"{operations / 1e9:.1f}",
                f"{low:,.0f} to {high:,.0f}",
                f"{epoch[0]} to {epoch[1]}",
                f"{hours[0]:,.0f} to {hours[1]:,.0f}",
                f"{size / 1e9:,.0f} GB: {fits}",
            )
        )
    head = ("network, images", "GFLOP a pass", "img/s", "an epoch", "GPU hours for 100 epochs", "data as bytes")
    return markdown_table(head, rows)


def rate_lines() -> str:
    """The two rates, from the records."""
    slow, fast = rates()
    small, large = record("bench-training-128")["rows"][0], record("bench-training-512")["rows"][0]
    forward = forward_operations("resnet18", 32)
    memory = (large["peak_memory_gib"] - small["peak_memory_gib"]) / (512 - 128) * 1024
    return markdown_table(
        ("measured on one H200", "batch 128", "batch 512"),
        [
            ("images a second", *(f"{row['fast_images_per_second']:,.0f}" for row in (small, large))),
            (
                f"times {PASSES} passes of {forward / 1e9:.2f} GFLOP",
                f"{slow / 1e12:.0f} TFLOP/s",
                f"{fast / 1e12:.0f} TFLOP/s",
            ),
            ("peak memory", *(f"{row['peak_memory_gib']:.2f} GiB" for row in (small, large))),
            ("memory for one more image of a batch", "", f"{memory:.1f} MiB"),
        ],
    )


def label_noise() -> str:
    """What wrong labels get and cost."""
    found = record("figures/label-noise")["data"]

    def shown(entry: dict[str, float]) -> str:
        return f"{100 * entry['mean']:.1f} ± {100 * entry['std']:.1f}"

    keys = ("weight_on_wrong", "pgd-20_cost", "cw_cost", "suspects_precision", "suspects_recall")
    rows = [(f"`{row['method']}`", *(shown(row[key]) for key in keys)) for row in found["rows"]]
    head = (
        "method",
        "weight on wrong labels",
        "cost, PGD-20",
        "cost, CW",
        "suspects that are wrong",
        "wrong ones found",
    )
    return markdown_table(head, rows)


def findings(name: str, last: int = 0) -> Callable[[], str]:
    """What a figure's record says in words, or the last lines of it."""

    def make() -> str:
        lines: list[str] = record(f"figures/{name}")["data"]["summary"][-last:]
        return f"{lines[0]}\n" if len(lines) == 1 else "".join(f"- {line}\n" for line in lines)

    return make


def by_name(name: str) -> Callable[[], str]:
    """What `reproduced.py` makes of the records of runs."""

    def make() -> str:
        import reproduced

        text: str = reproduced.PARTS[name](ROOT / "results")
        return text

    return make


def table3_forecast() -> str:
    """What an epoch of table 3 took, and what its rows would."""
    found = record("forecast-table3")
    training, judging = (sum(row[f"hours_{kind}"] for row in found["rows"]) for kind in ("training", "judging"))
    return (
        f"Table 3 is not run: one epoch of {found['model'].upper()} under {found['method'].upper()} took "
        f"{found['epoch_seconds']:.0f} s on an {found['hardware'].removeprefix('NVIDIA ')}, "
        f"{found['images_per_second']:,.0f} images a second ([record](../results/forecast-table3.json)). Its "
        f"{len(found['rows'])} rows, one seed each, would take {training:.1f} hours to train and {judging:.1f} to "
        "judge.\n"
    )


TABLES: dict[str, Callable[[], str]] = {
    "speed": speed,
    "autoattack": autoattack,
    "second-look": second_look,
    "published": published,
    "checks": checks,
    "commands": command_list,
    "rates": rate_lines,
    "large-runs": large_runs,
    "table3-forecast": table3_forecast,
    **{name: by_name(name) for name in ("reproduced", "verdicts", "reweighting", "open-question")},
    **{name: by_name(name) for name in ("reproduction", "claims", "smoke", "before-square", "within-burn-in")},
    "label-noise": label_noise,
    "figure1c": findings("full/figure1c"),
    **{name: findings(name) for name in ("figure2", "figure4")},
    "reliability": findings("reliability", last=2),
}


def filled(text: str) -> str:
    """A page with its tables made anew."""
    return PLACE.sub(lambda place: f"{place[1]}\n{TABLES[place[2]]()}\n{place[3]}", text)


def main(arguments: list[str]) -> int:
    """Write the pages, or with --check say which are not up to date."""
    stale = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            stale.append(page.name)
            if "--check" not in arguments:
                page.write_text(new, encoding="utf-8")
    word = "not up to date" if "--check" in arguments else "written"
    sys.stdout.write("".join(f"{word}: {name}\n" for name in stale))
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
