"""The page: every section, the words and numbers in it, what is missing, nothing from outside, nothing unescaped."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from blobs import blobs
from report_runs import AUDIT, EVALUATION, RECIPE, evaluation, metrics, picture, report, sample, write_run
from torch import nn
from training_runs import recipe

from probmargin.core.errors import UsageError
from probmargin.core.stats import mcnemar
from probmargin.experiments.gallery import Choice, _attack, make_gallery
from probmargin.reporting.folder import read_folder
from probmargin.reporting.page import render
from probmargin.reporting.page.classes import class_tables, confusion
from probmargin.reporting.page.curves import charts
from probmargin.reporting.page.data import Gallery, Published
from probmargin.reporting.page.missing import evaluate_command, gaps
from probmargin.reporting.page.recipe import fact_rows
from probmargin.reporting.page.render import SECTIONS
from probmargin.reporting.page.results import attack_gap, differences
from probmargin.reporting.page.summary import account, compared

HARMFUL = "<script>alert(1)</script>"


class Page(HTMLParser):
    """Tags, texts and scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.within: list[str] = []
        self.text = ""
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.within.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self.within.pop()

    def handle_data(self, data: str) -> None:
        if not self.within:
            self.text += data
        elif self.within[-1] == "script":
            self.scripts.append(data)
        else:
            self.styles.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


def page_of(*folders: Path, **changes: Any) -> Page:
    return Page(render([report(folder, **changes) for folder in folders]))


def test_every_section_is_there(tmp_path: Path) -> None:
    one = page_of(write_run(tmp_path / "a"))
    ids = [section["id"] for section in one.all("section")]
    assert ids == [name for name, _ in SECTIONS if name != "comparison"]
    assert [link["href"] for link in one.all("a")][1:] == [f"#{name}" for name in ids]
    two = page_of(write_run(tmp_path / "b"), write_run(tmp_path / "c"))
    assert [section["id"] for section in two.all("section")] == [name for name, _ in SECTIONS]


def test_the_summary_says_it_in_counts(tmp_path: Path) -> None:
    found = account(report(write_run(tmp_path / "a")))
    assert found.training == "small-cnn trained on digits with mail-trades for 6 epochs in 12 s."
    assert found.worth == (
        "Of 100 test images, 86 (86.0%) are classified correctly, and 54 (54.0%) still are after the strongest attack "
        "tried (the worst of PGD-20 and AutoAttack; Linf eps 0.1), 95% interval 44.3% to 63.4%."
    )
    assert found.remarks[0].startswith("Such an attack may change every pixel by up to 10.0%")
    assert "audit warns (zero_gradients)" in found.remarks[1]


def test_radii_that_differ_and_labels_made_wrong_are_said(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    assert not [line for line in account(report(path)).remarks if "judged at" in line or "audit is at" in line]
    found = json.loads((path / "evaluation.json").read_text()) | {"eps": 0.05}
    found["aa"] |= {"is_standard": False, "label": "not AutoAttack's standard: 3 classes"}
    found["warnings"] = ["gradients may be masked"]
    (path / "evaluation.json").write_text(json.dumps(found))
    record = json.loads((path / "record.json").read_text()) | {"label_noise": "symmetric:0.2"}
    (path / "record.json").write_text(json.dumps({**record, "checkpoint_file": "given.safetensors"}))
    said = account(report(path))
    began = "with mail-trades, beginning with the weights in given.safetensors, some labels made wrong on purpose"
    assert f"{began} (symmetric:0.2), for 6 epochs" in said.training
    assert "It was judged at Linf eps 0.05 and trained for Linf eps 0.1." in said.remarks
    assert "The audit is at Linf eps 0.1, the numbers are at Linf eps 0.05." in said.remarks
    (path / "audit.json").rename(path / "kept.json")
    assert not [line for line in account(report(path)).remarks if "audit is at" in line]
    (path / "kept.json").rename(path / "audit.json")
    words = page_of(path).words
    assert "not the standard one" in words
    assert "AutoAttack: not AutoAttack's standard: 3 classes." in words
    assert "gradients may be masked." in words


def test_images_that_only_some_attacks_saw_are_counted_apart(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    result = evaluation("1" * 80 + "0" * 20, "1" * 50 + "0" * 50)
    result["worst_case"] = evaluation("1" * 40, "1" * 30 + "0" * 10)["worst_case"]
    (path / "evaluation.json").write_text(json.dumps(result))
    worth = account(report(path)).worth
    assert "Of 100 test images, 80 (80.0%)" in worth
    assert "Of the 40 images every attack saw, 30 (75.0%) are classified correctly after" in worth
    assert "AutoAttack, the usual yardstick, has not been run" in " ".join(account(report(path)).remarks)


def test_nothing_comes_from_outside(tmp_path: Path) -> None:
    text = render([report(write_run(tmp_path / "a"))])
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    page = Page(text)
    for _, attributes in page.tags:
        for name in ("src", "href"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#"))
        assert "style" not in attributes, "the policy allows no style attribute"
        assert not [name for name in attributes if name.startswith("on")]
    policy = next(meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for piece in (page.styles[0], page.scripts[0]):
        digest = base64.b64encode(hashlib.sha256(piece.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_what_users_write_is_escaped(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", id=HARMFUL, hardware=HARMFUL, data=HARMFUL)
    other = write_run(tmp_path / "b", id=HARMFUL)
    classes = ("</script><b>cat", HARMFUL)
    gallery = Gallery(samples=(sample(HARMFUL, HARMFUL),), attack=HARMFUL, scale=HARMFUL)
    labels = {path: HARMFUL, other: "</script><img src=x onerror=alert(2)>"}
    told = [replace(report(run, classes=classes, gallery=gallery), label=label) for run, label in labels.items()]
    text = render(told, title=HARMFUL)
    page = Page(text)
    assert len(page.scripts) == 2, "our own script and the data, nothing else"
    assert page.words.count(HARMFUL) > 5
    assert not [tag for tag, attributes in page.tags if "onerror" in attributes or tag == "b"]
    names = [line["name"] for line in json.loads(page.scripts[1])["loss"]["series"]]
    assert names[0] == HARMFUL, "the data reads back as it was"
    assert "<" not in page.scripts[1]


def test_every_picture_has_a_text(tmp_path: Path) -> None:
    one = report(write_run(tmp_path / "a"))
    page = Page(render([one]))
    assert one.dynamics is not None
    suspects = one.dynamics.summary["suspects"]["examples"]
    assert len(page.all("img")) == 6 + 16 + len(suspects)
    assert all(image.get("alt") for image in page.all("img"))
    plots = [div for div in page.all("div") if "plot" in (div.get("class") or "")]
    assert len(plots) == 10
    assert all(plot.get("role") == "img" and plot.get("tabindex") == "0" for plot in plots)
    assert any("loss goes from 2 in epoch 1 to 0.3333 in epoch 6" in (plot.get("aria-label") or "") for plot in plots)
    assert all("scope" in cell for cell in page.all("th"))
    assert page.all("html")[0]["lang"] == "en"


def test_a_run_with_nothing_but_its_start_says_what_makes_the_rest(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", epochs=0, parts="")
    found = report(path, gallery=Gallery(reason="the data is away", command="probmargin report a --data-dir DIR"))
    told = {gap.section: gap for gap in gaps(found)}
    assert set(told) == {"curves", "results", "audit", "weights", "gallery"}
    assert "before its first epoch ended" in told["curves"].text
    assert told["curves"].command.endswith(f"--seed 1 --out {path} --resume")
    assert told["results"].command == f"probmargin evaluate {path}"
    assert told["audit"].command == f"probmargin audit {path}"
    assert told["weights"].command.endswith(f"--out {path}-dynamics --dynamics")
    page = Page(render([found]))
    assert len(page.all("section")) == len(SECTIONS) - 1
    for gap in told.values():
        assert gap.text in page.words
        assert gap.command in page.words


def test_a_run_that_stands_half_way(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", epochs=2, parts="evaluation")
    result = evaluation("1" * 10, "1" * 6 + "0" * 4, test_images=50)
    (path / "evaluation.json").write_text(json.dumps(result))
    told = {gap.section: gap for gap in gaps(report(path))}
    assert "after epoch 2 of 6" in told["curves"].text
    assert told["gap"].command == f"probmargin evaluate {path} --attacks nat,pgd-20,aa --num-examples 10"
    assert "not finished, 2 of 6 epochs" in account(report(path)).training
    assert "After" not in page_of(path).words


def test_a_command_trains_a_fork_of_a_fine_tuned_run_as_that_was_trained(tmp_path: Path) -> None:
    """From scratch it would be another network."""
    origin = {"run": "tuned", "epoch": 2, "recipe_hash": "a", "checkpoint": {"sha256": "b", "new_head": True}}
    path = write_run(tmp_path / "a", parts="finished", forked_from=origin, compile="off")
    (gap,) = (gap for gap in gaps(report(path)) if gap.section == "weights")
    assert " --compile off --checkpoint FILE --new-head --out " in gap.command
    stopped = write_run(tmp_path / "c", epochs=3, parts="", forked_from=origin)
    (gap,) = (gap for gap in gaps(report(stopped)) if gap.section == "curves")
    assert "--checkpoint" not in gap.command, "its own state has what it needs"
    plain = write_run(tmp_path / "b", parts="finished", compile="default")
    (gap,) = (gap for gap in gaps(report(plain)) if gap.section == "weights")
    assert not {"--checkpoint", "--compile"} & set(gap.command.split())


def test_margins_of_a_run_without_an_attack_are_said_to_be_of_clean_images(tmp_path: Path) -> None:
    line = "It was trained without an attack, so its margins are those of clean images."
    clean = write_run(tmp_path / "clean", recipe={**RECIPE, "method": "standard", "attack": None})
    assert line in page_of(clean).words
    assert line not in page_of(write_run(tmp_path / "attacked")).words


def test_commands_carry_what_the_run_was_made_with(tmp_path: Path) -> None:
    settings = {"num_classes": 2, "in_channels": 1, "mean_std": [[0.5], [0.2]]}
    monitors = {"counts": {"pgd-20": 100}}
    more: dict[str, Any] = {"validation": 10, "label_noise": "symmetric:0.2", "monitors": monitors}
    more["model_settings"] = settings
    path = write_run(tmp_path / "a b", parts="", data="cifar10", **more)
    command = next(gap.command for gap in gaps(report(path)) if gap.section == "weights")
    wanted = f"--recipe '{path}/recipe.json' --data cifar10 --model small-cnn --seed 1 --data-dir DIR --validation 10"
    assert wanted in command
    there = gaps(report(path, data_dir="/my data"))
    assert f"probmargin audit '{path}' --data-dir '/my data'" in [gap.command for gap in there]
    known = gaps(report(path, data_dir=""))
    assert f"probmargin audit '{path}'" in [gap.command for gap in known]
    assert "--label-noise symmetric:0.2 --normalize --monitor pgd-20:100 --out" in command
    own = write_run(tmp_path / "own", epochs=2, parts="", model_settings=None)
    found = gaps(report(own))
    (training,) = (gap for gap in found if gap.section == "curves")
    assert training.text.endswith(
        "it stands after epoch 2 of 6. If nobody is training it, go on with pm.train(..., resume=True)."
    )
    assert {gap.command for gap in found} == {""}, "no command can build a model that was an object"
    assert not any(gap.text.endswith(":") for gap in found)
    arrays = gaps(report(write_run(tmp_path / "arrays", parts="", data="arrays")))
    assert f"probmargin audit {tmp_path}/arrays --data npz:FILE" in [gap.command for gap in arrays]


def test_a_damaged_file_is_left_out_and_named(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "audit.json").write_text("{", encoding="utf-8")
    (path / "dynamics.npz").write_bytes(b"PK")
    with (path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"epoch": 6, "lo')
    page = page_of(path)
    assert "audit.json cannot be read and is left out" in page.words
    assert "No audit has asked" in page.words
    assert "Margins and weights of single images were not kept" in page.words
    assert read_folder(path).trained == 6


def test_results_of_an_earlier_state_are_not_shown_as_the_runs(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", weights="end")
    for name, plain in (("evaluation", EVALUATION), ("audit", AUDIT)):
        (path / f"{name}.json").write_text(json.dumps({**plain, "weights": "half way"}), encoding="utf-8")
    told = {gap.section: gap for gap in gaps(report(path))}
    assert set(told) == {"results", "audit"}
    assert all("earlier state" in gap.text for gap in told.values())
    assert told["results"].command == f"probmargin evaluate {path}"
    page = page_of(path)
    assert "are classified correctly" not in page.words
    assert "The audit warns" not in page.words
    for name, plain in (("evaluation", EVALUATION), ("audit", AUDIT)):
        (path / f"{name}.json").write_text(json.dumps({**plain, "weights": "end"}), encoding="utf-8")
    assert gaps(report(path)) == []
    assert "The audit warns" in page_of(path).words


@pytest.mark.parametrize("missing", ["folder", "record"])
def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "a"
    if missing == "record":
        path.mkdir()
    with pytest.raises(UsageError, match=r"there is no run|is not a run's folder"):
        read_folder(path)


def test_two_runs_are_compared_over_the_same_images(tmp_path: Path) -> None:
    first, second = (report(write_run(tmp_path / name)) for name in "ab")
    better = evaluation("1" * 86 + "0" * 14, "1" * 60 + "0" * 40, "1" * 70 + "0" * 30)
    second = replace(second, folder=replace(second.folder, evaluation=better))
    found = {difference.attack: difference for difference in differences(first, second, ["nat", "pgd-20", "aa"])}
    assert found["clean"].points == 0
    assert found["AutoAttack"].points == pytest.approx(16.0)
    assert (found["AutoAttack"].only_first, found["AutoAttack"].only_second) == (0, 16)
    assert mcnemar(16, 0) < 0.0001
    assert found["AutoAttack"].p == "< 0.0001"
    assert found["AutoAttack"].words == "clearly better"
    assert found["PGD-20"].words == "no clear difference"
    sentence = compared(first, second, list(found.values()))
    assert sentence == (
        "b is right on 16.0 points more of the images than a (AutoAttack), more than the choice of images explains "
        "(p < 0.0001)."
    )
    page = Page(render([first, second]))
    # p12 = 17/102, p21 = 1/102: 15.69 ± 1.96 * 3.86
    assert "+16.00 +8.12 to +23.25" in page.words


def test_runs_measured_in_another_way_are_not_compared(tmp_path: Path) -> None:
    first, second = (report(write_run(tmp_path / name)) for name in "ab")
    wider = replace(second, folder=replace(second.folder, evaluation={**EVALUATION, "eps": 0.2}))
    found = differences(first, wider, ["nat", "pgd-20"])
    assert [bool(difference.reason) for difference in found] == [False, True]
    assert "eps is 0.2, not 0.1" in found[1].reason
    usual = replace(second, folder=replace(second.folder, evaluation={**EVALUATION, "eps": 8 / 255}))
    assert differences(first, usual, ["pgd-20"])[0].reason == "cannot be compared: eps is 8/255, not 0.1"
    other = replace(second, folder=replace(second.folder, record={**second.folder.record, "data_fingerprint": "g"}))
    (changed,) = differences(first, other, ["nat"])
    assert changed.reason == "cannot be compared: digits has changed between the two"
    judged = {**EVALUATION, "weights": "w"}
    again = [replace(one, folder=replace(one.folder, evaluation=judged)) for one in (first, second)]
    twice = differences(again[0], again[1], ["nat"])
    assert [found.reason for found in twice] == ["cannot be compared: b and a are one network"]
    assert compared(again[0], again[1], twice) == "b and a are one network that was judged twice."
    ten = {**EVALUATION, "nat": {**EVALUATION["nat"], "correct": "1" * 10}, "num_examples": 10}
    (part,) = differences(first, replace(second, folder=replace(second.folder, evaluation=ten)), ["nat"])
    assert (part.num_examples, part.is_part) == (10, True)
    assert "of the first 10 images" in compared(first, second, [replace(part, points=5.0)])
    assert not differences(first, second, ["nat"])[0].is_part
    mine = replace(other, label="mine", folder=replace(other.folder, record={**other.folder.record, "data": "npz:a"}))
    told = differences(first, mine, ["nat", "pgd-20", "worst_case"])
    assert {found.reason for found in told} == {
        f"cannot be compared: mine was judged on npz:a, {first.label} on digits"
    }
    evaluations = [
        {**EVALUATION, "worst_case": {"attacks": names, "correct": "10"}} for names in (["pgd-20"], ["pgd-20", "cw"])
    ]
    few, more = (
        replace(first, label=name, folder=replace(first.folder, evaluation=found))
        for name, found in zip("ab", evaluations, strict=True)
    )
    assert "b was tried by PGD-20 and CW-20, a by PGD-20" in differences(few, more, ["worst_case"])[0].reason
    assert "cannot be compared yet" in compared(first, other, differences(first, other, ["nat"]))
    bare = replace(other, label="bare", folder=replace(other.folder, evaluation=None))
    assert compared(first, bare, differences(first, bare, ["nat"])).startswith("bare is not judged yet")


def test_the_gap_counts_images_that_withstand_pgd_and_fall_to_autoattack() -> None:
    result = evaluation("1" * 10, "1111111100", "1111100011")
    found = attack_gap(result)
    assert found is not None
    assert (found.standing, found.fallen, found.num_examples) == (8, 3, 10)
    assert found.points == pytest.approx(10.0)
    # Wilson's of 3 of 8: (3/8 + z^2/16 ± z sqrt(3/8 * 5/8 / 8 + z^2/256)) / (1 + z^2/8)
    assert found.interval == pytest.approx((0.136844, 0.694258), abs=1e-6)
    assert attack_gap(evaluation("11", "10")) is None
    longer = {**result, "pgd-100": {**result["pgd-20"], "correct": "1111100000"}}
    strongest = attack_gap(longer)
    assert strongest is not None
    assert strongest.pgd == "PGD-100"


def test_classes_and_confusion(tmp_path: Path) -> None:
    one = report(write_run(tmp_path / "a"))
    rows = class_tables([one])[0].rows
    assert [row.name for row in rows] == ["cat", "dog"]
    assert rows[0].shares[0] == (EVALUATION["nat"]["per_class"][0], EVALUATION["worst_case"]["per_class"][0])
    found = confusion(one)
    assert found is not None
    assert [[count for count, _ in row] for row in found.rows] == EVALUATION["worst_case"]["confusion"]
    assert found.mistakes[0] == ("cat", "dog", 23, "46.0%")
    many = [[0] * 30 for _ in range(30)]
    many[7][11] = 5
    worst = {**EVALUATION["worst_case"], "confusion": many}
    wide = replace(one, folder=replace(one.folder, evaluation={**EVALUATION, "worst_case": worst}))
    table = confusion(wide)
    assert table is not None
    assert table.rows == []
    assert table.mistakes == [("7", "11", 5, "100.0%")]


def test_runs_on_other_classes_have_their_own_table(tmp_path: Path) -> None:
    reports = [report(write_run(tmp_path / name)) for name in "abc"]
    reports[1] = replace(reports[1], classes=("ship", "truck"))
    none = report(write_run(tmp_path / "d", parts=""))
    tables = class_tables([*reports, none])
    assert [table.places for table in tables] == [[0, 2], [1]]
    assert [row.name for row in tables[1].rows] == ["ship", "truck"]
    assert Page(render([*reports, none])).words.count("as a bar") == 3


def test_the_papers_numbers_stand_below_the_run(tmp_path: Path) -> None:
    row = Published(place="table2/at", numbers={"nat": (84.86, 0.17)}, source="the paper", differences=("epochs is 6",))
    page = page_of(write_run(tmp_path / "a"), published=row)
    assert "84.86% ± 0.17 over 5 trials" in page.words
    assert "The run's recipe is not the row's: epochs is 6." in page.words


def test_charts_tell_runs_apart_by_colour_and_dashes(tmp_path: Path) -> None:
    reports = [report(write_run(tmp_path / name)) for name in "ab"]
    found = {chart["id"]: chart for chart in charts(reports)}
    assert list(found) == ["loss", "accuracy", "validation", "monitors", "sample-size", "weight-mean", "lr"]
    assert [(line["name"], line["color"], line["dash"]) for line in found["loss"]["series"]] == [
        ("a", 0, 0),
        ("b", 1, 1),
    ]
    assert [line["name"] for line in found["monitors"]["series"]] == ["a: PGD-20", "a: CW-20", "b: PGD-20", "b: CW-20"]
    assert found["monitors"]["series"][0]["x"] == [2, 4, 6]
    assert found["loss"]["marks"] == [{"x": 3.5, "text": "weights begin, rate drops"}, {"x": 5.5, "text": "rate drops"}]
    single = {chart["id"]: chart for chart in charts(reports[:1])}
    assert [line["name"] for line in single["accuracy"]["series"]] == ["attacked"], "no clean pass, no curve"


def test_a_chart_marks_what_the_runs_on_it_did(tmp_path: Path) -> None:
    unwatched = [json.dumps({key: row[key] for key in row if key != "monitors"}) for row in metrics(6)]
    recipe = {**RECIPE, "lr_milestones": [4], "weight": {"name": "uniform"}, "objective": {"name": "at"}}
    paths = [write_run(tmp_path / "a"), write_run(tmp_path / "b", recipe=recipe)]
    (paths[1] / "metrics.jsonl").write_text("\n".join(unwatched), encoding="utf-8")
    found = {chart["id"]: chart for chart in charts([report(path) for path in paths])}
    own = [{"x": 3.5, "text": "weights begin, rate drops"}, {"x": 5.5, "text": "rate drops"}]
    assert found["monitors"]["marks"] == own, "the other run has no monitors"
    assert [mark["text"] for mark in found["loss"]["marks"]] == [
        "weights begin (a), rate drops (a)",
        "rate drops (b)",
        "rate drops (a)",
    ]
    assert "not to be compared" in found["loss"]["note"]
    assert "not to be compared" not in found["accuracy"]["note"]
    assert "not to be compared" not in charts([report(paths[0])])[0]["note"]


def test_the_ends_of_a_run_without_weights_are_those_of_the_mean_margin(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", recipe={**RECIPE, "weight": {"name": "uniform"}})
    margin = np.array([[0.5, 0.1], [0.5, 0.1], [0.5, 0.1], [0.5, 0.1], [0.5, 0.1], [-0.4, 0.3]])
    arrays = {"margin": margin, "weight": np.ones_like(margin), "correct": margin > 0}
    np.savez(path / "dynamics.npz", index=np.arange(2), epochs=np.arange(6), **arrays)  # type: ignore[arg-type]
    found = report(path).dynamics
    assert found is not None
    # Over epochs 4 to 6, after burn-in: 0.2 and 0.167; the last epoch alone has them the other way round.
    assert [entry["index"] for entry in found.largest] == [0, 1]
    assert found.largest[0]["margin"] == pytest.approx(0.2)
    assert "Largest margin, epochs 4 to 6" in page_of(path).words


def test_a_part_of_the_test_set_is_called_one(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    part = {**EVALUATION, "test_images": 360, "hardware": "a machine"}
    (path / "evaluation.json").write_text(json.dumps(part), encoding="utf-8")
    page = page_of(path)
    assert "Of the first 100 of 360 test images, 86 (86.0%) are classified correctly" in page.words
    assert "judged on images 100 of 360" in page.words
    assert "judged by protocol custom, Linf eps 0.1, seed 0" in page.words
    assert "judged: hardware a machine" in page.words
    assert "1 of 2 checks pass, 1 not run" in page.words
    phases = [{"from_epoch": 2, "set": {"attack.eps": "0.3"}}]
    ended = write_run(tmp_path / "b", recipe={**RECIPE, "attack": {**RECIPE["attack"], "eps": 0.05}, "phases": phases})
    judged = evaluation("1" * 10, "1" * 10, eps=0.3)
    assert "--eps" not in evaluate_command(report(ended), judged, ["nat"])
    assert "--eps 0.1" in evaluate_command(report(ended), EVALUATION, ["nat"])


def test_autoattack_is_shown_attack_by_attack(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    assert "attack of AutoAttack" not in page_of(path).words
    steps = {"apgd-ce": 0.6, "apgd-t": 0.54, "fab-t": 0.54, "square": 0.54}
    judged = {**EVALUATION, "aa": {**EVALUATION["aa"], "steps": steps}}
    (path / "evaluation.json").write_text(json.dumps(judged), encoding="utf-8")
    told = page_of(path).words
    for row in ("APGD-CE26 of 8660.0%", "APGD-T6 of 6054.0%", "FAB-T0 of 5454.0%", "Square0 of 5454.0%"):
        assert row in told


def test_many_large_runs_stay_under_three_megabytes(tmp_path: Path) -> None:
    reports = []
    for number in range(12):
        path = write_run(tmp_path / f"run-{number}", epochs=300, recipe={**RECIPE, "epochs": 300})
        correct = "10" * 5000
        hundred = {**entry_of(correct), "confusion": [[1] * 100 for _ in range(100)], "attacks": ["pgd-20"]}
        (path / "evaluation.json").write_text(json.dumps({**EVALUATION, "worst_case": hundred}))
        pictures = {place: picture(f"training image {place}", 32) for place in range(40)}
        gallery = Gallery(samples=tuple(sample(side=64) for _ in range(8)), attack="PGD-20")
        reports.append(report(path, pictures=pictures, gallery=gallery))
    text = render(reports)
    assert len(text.encode()) < 3_000_000
    lines = json.loads(Page(text).scripts[1])["loss"]["series"]
    assert [(line["x"][0], line["x"][-1]) for line in lines] == [(1, 300)] * 12
    assert "of 8 are shown, to keep the page small" in text


def entry_of(correct: str) -> dict[str, Any]:
    share = correct.count("1") / len(correct)
    return {"robust_accuracy": share, "interval": [share, share], "per_class": [share] * 100, "correct": correct}


def test_the_page_says_where_a_run_was_resumed_and_what_a_fork_spent(tmp_path: Path) -> None:
    places = [{"epoch": 3, "batch": 0}, {"epoch": 4, "batch": 12}]
    path = write_run(tmp_path / "run", resumes=places, train_seconds=70.0, train_seconds_after_fork=20.0)
    rows = {row.name: row.values for row in fact_rows([report(path)])}
    assert rows["training time"] == ["70 s"]
    assert rows["training time after the fork"] == ["20 s"]
    assert rows["gone on from"] == ["epoch 3; epoch 4, batch 12"]
    plain = {row.name for row in fact_rows([report(write_run(tmp_path / "plain", resumes=[]))])}
    assert not {"gone on from", "training time after the fork"} & plain


def undecided() -> nn.Module:
    """A network without a slope: an attack on it stays where its noise begins."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def test_a_picture_is_attacked_alike_whichever_others_are_shown() -> None:
    data = blobs()
    several, alone = (_attack(undecided(), data, "Linf", 0.1, places, "cpu") for places in ((3, 5), (5,)))
    assert not torch.equal(alone.x_adv, alone.x)
    torch.testing.assert_close(several.x_adv[1:], alone.x_adv, rtol=0, atol=0)


def test_a_difference_is_amplified_until_the_radius_is_black_or_white() -> None:
    run: Any = SimpleNamespace(recipe=recipe("at"), model=undecided())
    gallery = make_gallery(run, blobs(), {"norm": "Linf", "eps": 0.1}, Choice(2), "cpu")
    assert gallery.scale == "The difference is amplified 5 times: grey is no change, black is -0.1, white +0.1."
