"""Which records may fill a cell: finished, trained by the row's recipe alone, judged as the column says."""

from typing import Any

import pytest
from table_records import EPS, column, record, table

from probmargin.reporting.cells import RowRecords, verdicts
from probmargin.reporting.tables import Line, build_table

AA = {"attack": {"name": "aa", "eps": EPS}}


def line_of(*records: dict[str, Any], row: int = 0, **changes: Any) -> Line:
    return build_table(table(**changes), records).lines[row]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_seconds": None}, "training is not finished"),
        ({"checkpoint": {"sha256": "a", "new_head": False}}, "weights of another training (--checkpoint)"),
        ({"forked_from": {"run": "a", "epoch": 1, "checkpoint": {"sha256": "a"}}}, "another training (--checkpoint)"),
        ({"model_settings": {"num_classes": 4, "in_channels": 1, "mean_std": [[0.5], [0.5]]}}, "(--normalize)"),
        ({"processes": 4, "sync_bn": False}, "several processes, each with a batch norm of its own"),
        ({"forked_from": {"run": "a", "epoch": 1, "processes": 4}}, "several processes"),
    ],
)
def test_a_run_that_is_not_its_recipe_alone_is_refused(changes: dict[str, Any], words: str) -> None:
    line = line_of(record("at", **changes))
    assert line.trials == 0
    assert len(line.remarks) == 1
    assert line.remarks[0].startswith("record blobs-net-at-s1 refused: ")
    assert words in line.remarks[0]


def test_a_record_without_a_time_is_of_a_training_that_was_stopped() -> None:
    stopped = record("at")
    del stopped["train_seconds"]
    assert line_of(stopped).remarks == ("record blobs-net-at-s1 refused: training is not finished",)


def test_a_record_whose_id_tells_another_seed_is_refused() -> None:
    line = line_of(record("at", 2, id="blobs-net-at-s1"))
    assert line.trials == 0
    assert line.remarks == ("record blobs-net-at-s1 refused: its seed is 2, but its id says 1",)
    assert line_of(record("at", 2), record("at", 1, id="mine")).trials == 2, "own runs have any name"


def test_processes_that_share_their_batch_norm_count_but_not_beside_one_process() -> None:
    shared = record("at", 1, processes=4, sync_bn=True)
    assert line_of(shared).trials == 1
    line = line_of(shared, record("at", 2, processes=1, sync_bn=True))
    assert line.trials == 1
    assert "differs in more than the seed: processes is 1, not 4" in line.remarks[0]


def test_a_copy_of_a_record_under_another_seed_is_no_second_trial() -> None:
    refused = "record blobs-net-at-s2 refused: its weights are those of blobs-net-at-s1 (both a), "
    trained, judged = {"weights": "a"}, {"evaluation": {"weights": "a"}}
    for first, second in ((trained, trained), (judged, judged), (trained, judged)):
        line = line_of(record("at", 1, **first), record("at", 2, **second))
        assert line.trials == 1
        assert line.remarks == (f"{refused}and one training is one trial",)
    assert line_of(record("at", 1, weights="a"), record("at", 2, weights="b")).trials == 2
    assert line_of(record("at", 1), record("at", 2)).trials == 2, "older records do not tell their weights"


@pytest.mark.parametrize(
    ("evaluation", "words"),
    [
        ({"data": "cifar10"}, "aa refused: data is 'cifar10', not 'blobs'"),
        ({"data_fingerprint": "g"}, "aa refused: data_fingerprint is 'g', not 'f'"),
        ({"test_images": 0}, "does not say how many test images there are"),
        ({"test_images": None}, "does not say how many test images there are"),
        ({"aa": {**AA, "correct": "1000", "is_standard": False}}, "aa refused: not the standard AutoAttack"),
        ({"aa": {**AA, "correct": "10x1"}}, "aa refused: damaged, aa.correct has other characters than 0 and 1"),
        ({"aa": {**AA, "correct": "1011\n"}}, "aa refused: damaged, aa.correct has other characters than 0 and 1"),
        ({"aa": {**AA, "correct": 1011}}, "aa refused: damaged, aa.correct is a number"),
        ({"aa": AA}, "aa refused: damaged, aa.correct is null"),
        ({"weights": "b"}, "weights is 'b', not 'a', so it was judged before its training ended"),
    ],
)
def test_an_evaluation_that_is_not_the_columns_fills_no_cell(evaluation: dict[str, Any], words: str) -> None:
    found = line_of(record("at", weights="a", evaluation=evaluation)).cells[1]
    assert found.mean is None
    assert any(words in reason for reason in found.reasons), found.reasons


def test_a_column_is_of_one_test_set() -> None:
    columns = (column("AA", "aa", first=2),)
    other = record("mail-at", evaluation={"test_images": 9})
    found = line_of(record("at"), other, row=1, columns=columns).cells[0]
    assert found.mean is None
    assert "test_images is 9, not 4 as in blobs-net-at-s1" in found.reasons[0]


def test_an_attack_is_compared_with_its_meaning_and_not_with_the_first_record() -> None:
    weak = record("at", evaluation={"aa": {"correct": "1111", "attack": {"name": "aa", "eps": 0.0}}})
    made = build_table(table(columns=(column("AA", "aa", meaning=AA["attack"]),)), [weak, record("mail-at")])
    assert [line.cells[0].mean for line in made.lines] == [None, 25.0]
    assert made.lines[0].cells[0].reasons[0] == f"blobs-net-at-s1: aa refused: attack.eps is 0.0, not {EPS}"


def test_one_image_is_one() -> None:
    short = record("at", evaluation={"aa": {**AA, "correct": "1"}})
    found = line_of(short, columns=(column("AA", "aa", first=2),)).cells[0]
    assert found.reasons[0] == "blobs-net-at-s1: aa looked at 1 image, not 2"


def searched(row: str, precision: str) -> dict[str, Any]:
    return record(row, evaluation={"aa": {**AA, "correct": "1000", "search_precision": precision}})


def test_searches_of_two_precisions_stand_in_one_column_and_the_table_says_so() -> None:
    made = build_table(table(remark="Small."), [searched("at", "bf16 and tf32"), searched("mail-at", "bf16 and fp16")])
    assert [line.cells[1].mean for line in made.lines] == [25.0, 25.0]
    assert made.spec.remark == (
        "Small. AA was searched in bf16 and tf32 (as in blobs-net-at-s1), bf16 and fp16 (as in blobs-net-mail-at-s1); "
        "every break is confirmed in float32."
    )
    made = build_table(table(), [searched("at", "bf16 and tf32"), searched("mail-at", "bf16 and tf32")])
    assert made.spec.remark == ""


def test_a_later_look_under_other_conditions_does_not_hide_an_earlier_one() -> None:
    whole = record("at")["evaluation"]
    for later in ({"eps": 0.1}, {"seed": 3}, {"search": "float32"}, {"protocol": "custom"}, {"test_images": 9}):
        looked = {**whole, **later, "nat": {"correct": "0000", "attack": {"name": "nat"}}, "aa": {}}
        found = record("at", evaluation=looked, evaluations={"standard": whole})
        assert [verdicts(found, entry)[0] for entry in table().columns] == ["1110", "1000"], later


def test_of_several_records_with_a_seed_the_most_complete_counts() -> None:
    thin = record("at", evaluation={"aa": {}})
    for records in ([thin, record("at")], [record("at"), thin]):
        line = line_of(*records)
        assert [cell.mean for cell in line.cells] == [75.0, 25.0]
        assert line.remarks == ()
    mine = record("at", id="mine", evaluation={"aa": {}})
    for records in ([mine, record("at")], [record("at"), mine]):
        line = line_of(*records)
        assert [cell.mean for cell in line.cells] == [75.0, 25.0]
        assert line.remarks == ("record mine refused: seed 1 is already there as blobs-net-at-s1",)


def test_a_copy_trained_otherwise_does_not_stand_against_the_whole_one() -> None:
    """The run was begun again in bf16 and has no number yet; the kept record of the same name has them all."""
    begun = record("at", precision="bf16")
    del begun["evaluation"]
    rows = RowRecords(table().rows[0])
    for found in (begun, record("at")):
        rows.offer(found, table())
    assert rows.by_seed[1]["precision"] == "fp32"
    assert rows.refused == []
