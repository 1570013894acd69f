"""What a study found, as Markdown: sentences, and a table where it has one."""

from collections.abc import Callable, Mapping
from typing import Any

from probmargin.core.words import counted
from probmargin.reporting.render_words import number

Data = Mapping[str, Any]


def text_of(record: Mapping[str, Any]) -> str:
    """Title, command, table, findings in sentences, and where the numbers come from."""
    data = record["data"]
    where = f"`{record['command']}`; {record['data_set']}, {record['model']}; {record['hardware']}."
    parts = [f"## {record['id']}: {record['title']}", where]
    if record["id"] in TABLES:
        parts.append(TABLES[record["id"]](data))
    parts.append("\n".join(f"- {sentence}" for sentence in data["summary"]))
    return "\n\n".join(parts) + "\n"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table.

    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _percent(entry: Mapping[str, Any]) -> str:
    std = entry["std"]
    return number(None if entry["mean"] is None else 100 * entry["mean"], None if std is None else 100 * std)


def _label_noise(data: Data) -> str:
    columns = {"weight on wrong labels": "weight_on_wrong"}
    for attack, title in (("nat", "NAT"), ("pgd-20", "PGD-20"), ("cw", "CW-20")):
        columns |= {title: attack, f"{title}, clean labels": f"{attack}_clean", f"{title}, cost": f"{attack}_cost"}
    columns |= {"suspects: precision": "suspects_precision", "recall": "suspects_recall"}
    rows = [[f"`{row['method']}`", *(_percent(row[key]) for key in columns.values())] for row in data["rows"]]
    seeds = counted(len(data["rows"][0]["trials"]), "seed")
    note = (
        f"Percent, mean ± standard deviation over {seeds}; labels {data['noise']}; weights after epoch "
        f"{data['burn_in_epochs']} of {data['epochs']}; accuracy on {data['num_test']:,} test images with clean "
        f"labels, eps {data['eps']:g}. MAIL-TRADES weighs the divergence alone, not the clean cross-entropy."
    )
    return table(["method", *columns], rows) + f"\n\n{note}"


def _share(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _reliability(data: Data) -> str:
    rows = []
    for group, measures in data["path_dependence"].items():
        for name, found in measures.items():
            rows.append(
                [
                    group,
                    str(found["paths"]),
                    name,
                    _share(found["path_share"]),
                    _share(found["rank_agreement"]),
                    _share(found["mean_std"]),
                    _share(found["mean_range"]),
                    f"{found['share_changed']:.1%}",
                ]
            )
    header = ["paths", "number", "measure", "variance due to the path", "rank agreement", "std", "range", "changed"]
    note = (
        f"{data['examples']:,} training images. Variance due to the path: 1 - ICC(1). Rank agreement: mean Spearman "
        "correlation of two paths. Std and range within an example as shares of the measure's whole range (LPS 0 to "
        "K, PM -1 to 1); of weights, whose mean is one, as they are. Changed: examples whose value is not the same on "
        "all paths."
    )
    return table(header, rows) + f"\n\n{note}"


TABLES: Mapping[str, Callable[[Data], str]] = {"label-noise": _label_noise, "reliability": _reliability}
