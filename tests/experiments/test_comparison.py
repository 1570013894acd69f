"""Runs of one's own as a table: rows by recipe, seeds averaged, differences over the same images."""

import json
from pathlib import Path
from typing import Any

import pytest
from table_records import record

from probmargin.core.errors import UsageError
from probmargin.experiments.comparison import CompareRequest, compare_runs, table_of
from probmargin.methods.resolve import resolve

PLACE: dict[str, Any] = {
    "data": "digits",
    "model": "small-cnn",
    "model_settings": {"num_classes": 10, "in_channels": 1},
}


def run(
    folder: Path, method: str = "at", seed: int = 1, settings: dict[str, Any] | None = None, **changes: Any
) -> Path:
    """A run's folder that holds what a comparison reads."""
    recipe = resolve(method, data="digits", settings=settings).plain()
    made = record("at", seed=seed, **{**PLACE, "recipe": recipe, **changes})
    made["id"] = folder.name
    folder.mkdir(parents=True)
    for name, content in (("record.json", made), ("recipe.json", recipe)):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def aa(eps: float, text: str, total: int = 4, seed: int = 0) -> dict[str, Any]:
    entry = {"robust_accuracy": 0.5, "correct": text, "attack": {"name": "aa", "eps": eps}}
    return {"eps": eps, "aa": entry, "test_images": total, "seed": seed}


def test_seeds_of_a_recipe_are_a_row_and_each_row_is_compared_with_the_first(tmp_path: Path) -> None:
    runs = [
        *(run(tmp_path / f"a{seed}", seed=seed, aa=text) for seed, text in ((1, "1000"), (2, "1100"), (3, "1000"))),
        *(run(tmp_path / f"b{seed}", "mail-at", seed, aa=text) for seed, text in ((3, "1111"), (1, "1110"))),
    ]
    table = table_of(runs, "probmargin compare ...")
    assert [line.row.id for line in table.lines] == ["at", "mail-at"]
    first, second = table.lines
    assert (first.trials, second.trials) == (3, 2)
    cell = first.cell("AutoAttack")
    assert cell is not None
    assert cell.mean == pytest.approx(100 / 3)
    assert cell.std == pytest.approx(14.434, abs=1e-3)
    (found,) = (one for one in table.comparisons if one.column.title == "AutoAttack")
    assert found.contrast.title == "mail-at - at"
    assert found.seeds == (1, 3), "those that both have"
    assert found.seed_differences == (50.0, 75.0)
    assert table.missing == ["`mail-at`: 2 of 3 trials"]
    assert not table.remarks


def test_what_else_a_training_was_makes_another_row(tmp_path: Path) -> None:
    runs = [
        run(tmp_path / "clean"),
        run(tmp_path / "noisy", label_noise="symmetric:0.2"),
        run(tmp_path / "wide", model="resnet18"),
        run(tmp_path / "own", settings={"weight": "sigmoid", "margin": "mm_adv"}, method="mail-at"),
    ]
    normalised = {**PLACE["model_settings"], "mean_std": [[0.5], [0.5]]}
    runs += [
        run(tmp_path / "normal", model_settings=normalised),
        run(tmp_path / "tuned", checkpoint="abc"),
        run(
            tmp_path / "fork", forked_from={"run": "x", "id": "x", "epoch": 1, "recipe_hash": "y", "checkpoint": "abc"}
        ),
        run(tmp_path / "edited", evaluation={"model_code": "another file"}),
    ]
    table = table_of(runs, "")
    others = ["at (normal)", "at (tuned)", "at (fork)", "at (edited)"]
    assert [line.row.id for line in table.lines] == ["at (clean)", "at (noisy)", "at (wide)", "mail-at", *others]
    assert all(line.trials == 1 for line in table.lines)
    assert table.spec.model == "small-cnn and resnet18"
    assert len(table.comparisons) == 14


def test_other_content_of_the_users_own_files_makes_another_row_and_is_said(tmp_path: Path) -> None:
    def file(sha256: str) -> list[dict[str, Any]]:
        return [{"file": "lab.py", "sha256": sha256, "registers": {"attack": ["pgd"]}}]

    runs = [
        run(tmp_path / "first", plugins=file("a")),
        run(tmp_path / "second", seed=2, plugins=file("a")),
        run(tmp_path / "third", seed=3, plugins=file("b")),
        run(tmp_path / "network", seed=4, plugins=file("a"), model_files=file("c")),
        run(tmp_path / "resumed", seed=5, plugins=file("a"), resumes=[{"epoch": 1, "batch": 0, "plugins": file("d")}]),
    ]
    forked = {"run": "x", "id": "x", "epoch": 1, "recipe_hash": "y", "plugins": file("e")}
    runs.append(run(tmp_path / "forked", seed=6, plugins=file("a"), forked_from=forked))
    again = run(tmp_path / "again", seed=7, plugins=file("b"))
    table = table_of([*runs, again], "")
    assert [line.trials for line in table.lines] == [2, 2, 1, 1, 1]
    like = f"is trained like {runs[0]}, but by other content of your own files: it counts in a row of its own."
    assert table.spec.remark == " ".join(f"{other} {like}" for other in runs[2:]), "a second seed needs no word"
    assert table_of(runs[:2], "").spec.remark == ""
    untold = table_of([runs[0], run(tmp_path / "older", seed=8)], "")
    assert "but the record of one of them tells of no files of yours" in untold.spec.remark


def test_files_that_only_watched_a_run_are_no_part_of_its_training(tmp_path: Path) -> None:
    watch = [
        {"file": "watch.py", "sha256": "w", "registers": {"attack": ["mine"]}},
        {"file": "helper.py", "sha256": "h", "registers": {}},
    ]
    table = table_of([run(tmp_path / "plain"), run(tmp_path / "watched", seed=2, plugins=watch)], "")
    assert [line.trials for line in table.lines] == [2]
    assert table.spec.remark == ""


def test_rows_of_one_name_keep_their_own_numbers(tmp_path: Path) -> None:
    one, other = (
        run(tmp_path / "x" / "mail", aa="1111"),
        run(tmp_path / "y" / "mail", label_noise="pair:0.2", aa="0000"),
    )
    table = table_of([one, other], "")
    assert [line.row.id for line in table.lines] == [f"at ({one})", f"at ({other})"]
    cells = [line.cell("AutoAttack") for line in table.lines]
    assert [cell.mean if cell else None for cell in cells] == [100.0, 0.0]
    twin = run(tmp_path / "z" / "mail-s7")
    assert table_of([one, twin], "").remarks == [f"`at`: record {twin} refused: seed 1 is already there as {one}"]
    assert table_of([twin], "").lines[0].trials == 1, "a folder is called what its owner likes"


def test_older_looks_at_fewer_images_or_by_another_seed_cut_nothing(tmp_path: Path) -> None:
    first, second = (
        run(tmp_path / "a", evaluation=aa(0.1, "1100")),
        run(tmp_path / "b", "mail-at", evaluation=aa(0.1, "1110")),
    )
    record_file = first / "record.json"
    known = json.loads(record_file.read_text(encoding="utf-8"))
    known["evaluations"] = {
        "earlier": {**known["evaluation"], **aa(0.1, "11")},
        "other seed": {**known["evaluation"], **aa(0.1, "1", seed=5)},
    }
    record_file.write_text(json.dumps(known), encoding="utf-8")
    assert [column.label for column in table_of([first, second], "").spec.columns] == ["clean", "AutoAttack"]


def test_what_does_not_count_is_said(tmp_path: Path) -> None:
    runs = [
        run(tmp_path / "a", seed=1),
        run(tmp_path / "again", seed=1, evaluation={"weights": "other"}),
        run(tmp_path / "half", seed=2),
        run(tmp_path / "other", "mail-at", evaluation={"aa": {}}),
    ]
    (tmp_path / "half" / "record.json").write_text(
        (tmp_path / "half" / "record.json").read_text(encoding="utf-8").replace('"train_seconds": 1.0, ', ""),
        encoding="utf-8",
    )
    said: list[str] = []
    table = compare_runs(CompareRequest(runs=tuple(runs), out=tmp_path / "t.md"), said.append)
    assert [line.trials for line in table.lines] == [1, 1]
    assert f"`at`: record {tmp_path / 'again'} refused: seed 1 is already there as {tmp_path / 'a'}" in said
    assert any(line.startswith(f"`at`: record {tmp_path / 'half'} refused: ") and "finished" in line for line in said)
    assert f"`mail-at` AutoAttack: {tmp_path / 'other'}: aa was not evaluated under protocol standard" in said
    assert said[-1] == f"2 recipes, 4 runs: {tmp_path / 't.md'}"
    assert "| `at` | 1 | 75.00" in (tmp_path / "t.md").read_text(encoding="utf-8")


def test_numbers_at_other_radii_and_of_fewer_images_are_no_one_column(tmp_path: Path) -> None:
    runs = [
        run(tmp_path / "a", evaluation=aa(0.1, "10")),
        run(tmp_path / "b", "mail-at", evaluation=aa(0.1, "1100")),
        run(tmp_path / "c", "trades", evaluation=aa(0.2, "1000")),
    ]
    table = table_of(runs, "")
    labels = [column.label for column in table.spec.columns]
    assert labels == ["clean", "AutoAttack Linf 0.1 (first 2)", "AutoAttack Linf 0.2"]
    cell = table.lines[1].cell("AutoAttack Linf 0.1")
    assert cell is not None
    assert (cell.mean, cell.num_examples) == (100.0, 2), "the images that all of them looked at"
    assert [one.column.title for one in table.comparisons if one.contrast.rows == ("mail-at", "at")] == [
        "clean",
        "AutoAttack Linf 0.1",
    ]


def results(path: Path, weights: str = "before", **changes: Any) -> Path:
    """A file that `evaluate --out` left."""
    found = record("at", evaluation={"data": "digits", "weights": weights, "data_fingerprint": "f", **changes})
    path.write_text(json.dumps(found["evaluation"]), encoding="utf-8")
    return path


def test_a_model_that_was_not_trained_here_stands_beside_every_seed(tmp_path: Path) -> None:
    before = results(tmp_path / "before.json", model="mynet:build", **aa(8 / 255, "1000"))
    runs = [run(tmp_path / f"a{seed}", seed=seed, aa=text) for seed, text in ((4, "1100"), (5, "1110"), (6, "1111"))]
    table = table_of([before, *runs], "")
    assert table.spec.title == "1 recipe, 3 runs, 1 given model"
    assert table.spec.model == "mynet:build and small-cnn"
    assert [(line.row.id, line.trials) for line in table.lines] == [("before", 1), ("at", 3)]
    (found,) = (one for one in table.comparisons if one.column.title == "AutoAttack")
    assert found.contrast.title == "at - before"
    assert (found.seeds, found.seed_differences) == ((4, 5, 6), (25.0, 50.0, 75.0))
    assert not table.missing
    assert not table.remarks


def test_two_models_that_were_not_trained_here_are_compared_without_a_seed(tmp_path: Path) -> None:
    files = [
        results(tmp_path / "one.json", "1", **aa(8 / 255, "1100")),
        results(tmp_path / "two.json", "2", **aa(8 / 255, "0001")),
    ]
    said: list[str] = []
    table = compare_runs(CompareRequest(runs=tuple(files)), said.append)
    assert table.spec.title == "2 given models"
    assert "| two - one | AutoAttack | -25.00 " in said[0]
    assert " 1/2, p 1.0000 | - |" in said[0]
    assert "s-1" not in said[0]
    compare_runs(CompareRequest(runs=tuple(files), format="comparisons.csv"), said.append)
    assert ",AutoAttack,aa,standard,4,,-25.0000," in said[1], "no seed"


def test_results_of_a_runs_weights_are_the_runs(tmp_path: Path) -> None:
    first = run(tmp_path / "a", weights="w", evaluation={"weights": "w"})
    wide = results(tmp_path / "wide.json", "w", **aa(0.2, "1100"))
    table = table_of([first, wide], "")
    assert [line.row.id for line in table.lines] == ["at"]
    assert [column.title for column in table.spec.columns] == [
        "clean",
        "AutoAttack Linf 8/255",
        "AutoAttack Linf 0.2",
    ]
    other_code = results(tmp_path / "code.json", "w", model_code="edited", **aa(0.2, "1100"))
    assert [line.row.id for line in table_of([first, other_code], "").lines] == ["at", "code"]
    halves = [results(tmp_path / "half.json", "x"), results(tmp_path / "rest.json", "x", **aa(0.2, "1111"))]
    assert [line.row.id for line in table_of(halves, "").lines] == ["half"]


def test_files_that_share_a_row_are_named_and_so_is_a_seed_that_does_not_count(tmp_path: Path) -> None:
    other_seed = results(tmp_path / "one.json", "x", seed=1, nat={"correct": "1000"})
    usual = results(tmp_path / "zero.json", "x", **aa(8 / 255, "1100"))
    table = table_of([other_seed, usual, usual], "")
    assert [line.row.id for line in table.lines] == ["one"]
    assert table.spec.remark == (
        f"{other_seed} was made by the noise of --seed 1: of it the clean images alone count. "
        f"{usual} is of the model of {other_seed}, and counts in its row."
    )
    said: list[str] = []
    compare_runs(CompareRequest(runs=(other_seed, usual), out=tmp_path / "t.md"), said.append)
    assert said == [table.spec.remark, f"1 given model: {tmp_path / 't.md'}"]
    odd: dict[str, Any] = {"nat": {}, "pgd-20": {"correct": "1000"}}
    lonely = results(tmp_path / "lonely.json", "y", seed=2, **odd)
    with pytest.raises(UsageError, match=r"lonely\.json has no number that counts: run evaluate on its model without"):
        table_of([lonely], "")


def test_one_data_set_has_many_names(tmp_path: Path) -> None:
    first = run(tmp_path / "a", data="npz:mine.npz", aa="1100")
    whole = results(tmp_path / "whole.json", data="npz:/home/me/mine.npz", **aa(8 / 255, "1111"))
    for order in ([first, whole], [whole, first]):
        table = table_of(order, "")
        assert {line.row.id for line in table.lines} == {"at", "whole"}
        assert all(line.trials == 1 for line in table.lines)
        assert table.spec.data == ("npz:mine.npz" if order[0] == first else "npz:/home/me/mine.npz")
    others = results(tmp_path / "others.json", "w", data_fingerprint="g")
    weighed = run(tmp_path / "b", weights="w", data="npz:mine.npz")
    with pytest.raises(UsageError, match=r"b is on npz:mine\.npz and .*others\.json is on digits: give those on one"):
        table_of([weighed, others], "")


def test_data_of_one_name_and_other_content_is_other_data(tmp_path: Path) -> None:
    files = [results(tmp_path / f"{name}.json", "x", data_fingerprint=name) for name in ("f", "g")]
    with pytest.raises(
        UsageError, match=r"f\.json is on digits and .*g\.json is on other images or labels of that name"
    ):
        table_of(files, "")
    ordered = results(tmp_path / "ordered.json", "y", data_fingerprint="h", data_as_read="f", **aa(8 / 255, "1111"))
    first = run(tmp_path / "a", aa="1100")
    for named in ([first, ordered], [ordered, first]):
        (found,) = (one for one in table_of(named, "").comparisons if one.column.title == "AutoAttack")
        assert abs(found.difference) == 50.0, "labels that were numbered in a model's order are the same labels"


def test_fewer_images_in_the_standard_ball_are_a_part_of_it(tmp_path: Path) -> None:
    few = {"protocol": "custom", **aa(8 / 255, "10")}
    runs = [run(tmp_path / "a", evaluation=aa(8 / 255, "1100")), run(tmp_path / "b", "mail-at", evaluation=few)]
    table = table_of(runs, "")
    assert [column.label for column in table.spec.columns] == ["clean", "AutoAttack (first 2)"]
    assert not table.missing
    for path, text in zip(runs, ("1100", "1111"), strict=True):
        both = json.loads((path / "record.json").read_text(encoding="utf-8"))
        both["evaluations"] = {"few": {**both["evaluation"], **few}}
        both["evaluation"] |= {"protocol": "standard", **aa(8 / 255, text)}
        (path / "record.json").write_text(json.dumps(both), encoding="utf-8")
    (found,) = (one for one in table_of(runs, "").comparisons if one.column.title == "AutoAttack")
    assert (found.num_examples, found.difference) == (4, 50.0), "on all that both looked at"


def test_a_run_may_be_called_as_a_file_and_old_results_have_no_protocol(tmp_path: Path) -> None:
    first = run(tmp_path / "a.json", aa="1111")
    file = first / "record.json"
    old = json.loads(file.read_text(encoding="utf-8"))
    old["evaluations"] = {"old": {key: value for key, value in old["evaluation"].items() if key != "protocol"}}
    file.write_text(json.dumps(old), encoding="utf-8")
    assert [line.row.id for line in table_of([first, first], "").lines] == ["at"]
    unjudged = run(tmp_path / "b", weights="w", evaluation={})
    known = json.loads((unjudged / "record.json").read_text(encoding="utf-8"))
    del known["evaluation"]
    (unjudged / "record.json").write_text(json.dumps(known), encoding="utf-8")
    later = results(tmp_path / "later.json", "w", **aa(8 / 255, "1100"))
    table = table_of([unjudged, later], "")
    assert [line.row.id for line in table.lines] == ["at"], "results of a run that has none else"
    codes = [results(tmp_path / f"{code}.json", "v", model_code=code) for code in ("old", "new")]
    assert [line.row.id for line in table_of(codes, "").lines] == ["old", "new"], "weights in two networks"
    assert table_of([later], "").spec.model == ""


def test_clean_images_are_the_same_in_every_ball_and_by_any_seed(tmp_path: Path) -> None:
    runs = [
        run(tmp_path / "a", nat="1100", evaluation={"eps": 0.1, "protocol": "custom"}),
        run(tmp_path / "b", "mail-at", nat="1110", evaluation={"norm": "L2", "eps": 0.5, "seed": 3}),
        run(tmp_path / "c", "trades", nat="1111"),
    ]
    table = table_of(runs, "")
    cells = [line.cell("clean") for line in table.lines]
    assert [cell.mean if cell else None for cell in cells] == [50.0, 75.0, 100.0]
    assert [one.difference for one in table.comparisons if one.column.title == "clean"] == [25.0, 50.0]


def test_files_that_hold_no_results_are_named(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text('{"norm": "Linf"}', encoding="utf-8")
    (tmp_path / "net.py").write_text("import torch", encoding="utf-8")
    for name in ("notes.json", "net.py"):
        with pytest.raises(UsageError, match=f"{name} holds no results: name a run's folder, or FILE.json of"):
            table_of([tmp_path / name], "")
    with pytest.raises(UsageError, match=r"there is no file .*nix\.json; check its name"):
        table_of([tmp_path / "nix.json"], "")
    bad = results(tmp_path / "bad.json", nat={"correct": "10x"})
    with pytest.raises(UsageError, match=r"bad\.json is damaged \(nat\.correct has other characters"):
        table_of([bad], "")


def test_what_cannot_be_compared_gets_one_line(tmp_path: Path) -> None:
    first = run(tmp_path / "a")
    other = run(tmp_path / "b", data="cifar10", data_fingerprint="other")
    with pytest.raises(UsageError, match=r"a is on digits and .*b is on cifar10: give those on one data set"):
        table_of([first, other], "")
    bare = run(tmp_path / "c", evaluation={"nat": {}, "aa": {}})
    with pytest.raises(UsageError, match=f"none of these runs has been judged: run probmargin evaluate {bare}"):
        table_of([bare], "")
    with pytest.raises(UsageError, match=r"unknown format 'doc': choose md, tex, csv or comparisons\.csv"):
        CompareRequest(runs=(first,), format="doc")
    with pytest.raises(UsageError, match=r"does not say a format: give \.md, "):
        compare_runs(CompareRequest(runs=(first,), out=tmp_path / "t.doc"), print)
    with pytest.raises(UsageError, match="ask for two formats: give one of them"):
        CompareRequest(runs=(first,), out=tmp_path / "t.tex", format="csv")
    (tmp_path / "thesis.md").write_text("# Mine\n", encoding="utf-8")
    with pytest.raises(UsageError, match="is there already and is no such table"):
        CompareRequest(runs=(first,), out=tmp_path / "thesis.md")
    given = run(tmp_path / "d", evaluation={"nat": {}, "aa": {}}, model_settings=None)
    with pytest.raises(UsageError, match="give some whose model has a name"):
        table_of([given], "")


def test_a_file_is_of_the_format_its_name_says(tmp_path: Path) -> None:
    runs = (run(tmp_path / "a"), run(tmp_path / "b", "mail-at"))
    for name, start in (("t.tex", "% needs"), ("t.csv", "table,row,"), ("t.comparisons.csv", "table,difference,")):
        for _ in range(2):  # a table of ours may be made anew
            compare_runs(CompareRequest(runs=runs, out=tmp_path / name), lambda _: None)
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)
