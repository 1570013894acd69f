"""Shards: each sees its part, joined they are the whole, and what does not fit is refused; requests are checked."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from probmargin.core.errors import UsageError
from probmargin.evaluation import subject
from probmargin.evaluation.places import Shard, merge, parse_shard
from probmargin.evaluation.subject import EvaluationRequest, evaluate_subject
from probmargin.evaluation.verdicts import SCORES, EntryVerdicts, Verdicts, _join_entries, join

CHANGES = ("seconds", "seconds_by_step", "warnings")


def request(folder: Path, **changes: Any) -> EvaluationRequest:
    asked = EvaluationRequest(run=folder, attacks=("nat", "pgd-5", "apgd-ce"), num_examples=33, device="cpu")
    return replace(asked, **changes)


def silent(_: str) -> None:
    pass


def timeless(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: timeless(value) for key, value in plain.items() if key not in CHANGES}
    return plain


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


@pytest.mark.parametrize("count", [1, 2, 5])
def test_joined_shards_are_the_whole(run: Path, tmp_path: Path, count: int) -> None:
    expected, _ = evaluate_subject(request(run), silent)
    arrays = dict(np.load(run / "evaluation.npz"))
    shutil.rmtree(run / "evaluation")
    (run / "evaluation.json").unlink()
    for index in range(count):
        evaluate_subject(request(run, shard=f"{index + 1}/{count}"), silent)
        assert (run / "evaluation.json").exists() == (count == 1)
    if count > 1:
        results, path = merge(run)
        assert path == run / "evaluation.json"
        assert json.loads(path.read_text(encoding="utf-8")) == results
    stored = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))
    # Margins come from batches of other shapes: clean ones differ by rounding, and where a gradient is zero but for
    # rounding an attack takes another step.
    for group, close in (("clean", 1e-4), ("worst_case", 1e-3)):
        for name, values in expected["margins"].pop(group).items():
            assert stored["margins"][group].pop(name) == pytest.approx(values, abs=close)
        assert stored["margins"].pop(group) == {}
    assert timeless(stored) == timeless(expected)
    joined = np.load(run / "evaluation.npz")
    for name, values in arrays.items():
        np.testing.assert_allclose(joined[name], values, atol=1e-3 if name.endswith("_adv") else 1e-4, err_msg=name)


def test_a_shard_that_another_machine_searched_says_so(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, shard in (("H200", "1/2"), ("CPU", "1/2"), ("CPU", "2/2")):
        for module in ("evaluation.subject", "engine.environment"):
            monkeypatch.setattr(f"probmargin.{module}.hardware", lambda _, name=machine: name)
        evaluate_subject(request(run, attacks=("nat", "pgd-1"), shard=shard), silent)
    results, _ = merge(run)
    assert results["hardware"] == "CPU"
    assert results["pgd-1"]["hardware"] == "H200 (collected on CPU), CPU"
    assert "hardware" not in results["nat"]


def test_missing_and_foreign_shards_are_refused(run: Path) -> None:
    with pytest.raises(UsageError, match="holds no shards"):
        merge(run)
    evaluate_subject(request(run, shard="1/3"), silent)
    evaluate_subject(request(run, shard="3/3"), silent)
    with pytest.raises(UsageError, match="missing: shard 2/3"):
        merge(run)
    evaluate_subject(request(run, shard="2/3", eps="0.2"), silent)
    with pytest.raises(UsageError, match=r"eps is 0\.05 and 0\.2"):
        merge(run)
    evaluate_subject(request(run, shard="2/3", attacks=("nat", "pgd-6", "apgd-ce")), silent)
    with pytest.raises(UsageError, match="list of attacks"):
        merge(run)
    path = run / "evaluation" / "shard-2-of-3.npz"
    evaluate_subject(request(run, shard="2/3"), silent)
    stranger = Verdicts.load(path)
    stranger.facts["weights"] = "those of another model"
    stranger.save(path)
    with pytest.raises(UsageError, match="weights is"):
        merge(run)
    path.write_bytes(b"cut")
    with pytest.raises(UsageError, match="cannot be read"):
        merge(run)
    evaluate_subject(request(run, shard="1/2"), silent)
    with pytest.raises(UsageError, match="delete all but one kind"):
        merge(run)


def test_shards_of_the_same_attacks_in_another_order_belong_together(run: Path) -> None:
    evaluate_subject(request(run, attacks=("nat", "pgd-1", "pgd-2"), shard="1/2"), silent)
    evaluate_subject(request(run, attacks=("pgd-2", "nat", "pgd-1"), shard="2/2"), silent)
    said: list[str] = []
    results, _ = merge(run, said.append)
    assert results["worst_case"]["attacks"] == ["pgd-1", "pgd-2"]
    assert not any("left out" in line for line in said)


@pytest.mark.parametrize("knows_more", ["1/2", "2/2"])
def test_an_attack_that_one_shard_alone_knows_is_left_out(run: Path, knows_more: str) -> None:
    attacks, more = ("nat", "pgd-1"), ("nat", "apgd-ce")
    for shard in ("1/2", "2/2"):
        evaluate_subject(request(run, attacks=attacks, shard=shard), silent)
    expected, path = merge(run)
    evaluate_subject(request(run, attacks=more, shard=knows_more), silent)
    said: list[str] = []
    results, _ = merge(run, said.append)
    assert [line for line in said if "left out, since only some shards know them: apgd-ce" in line]
    assert "apgd-ce" not in results
    for name in attacks:
        assert results[name]["correct"] == expected[name]["correct"]
    assert results["worst_case"]["correct"] == expected["worst_case"]["correct"]
    # Least margins are over all attacks that looked at an image: by the common ones alone they are not known.
    assert "confusion" not in results["worst_case"]
    assert set(results["margins"]) == {"quantiles", "clean"}
    assert not any(name.endswith("_adv") for name in np.load(path.with_suffix(".npz")))
    for shard in ("1/2", "2/2"):
        evaluate_subject(request(run, attacks=more, shard=shard), silent)
    results, _ = merge(run, said.append)
    assert results["worst_case"]["attacks"] == ["pgd-1", "apgd-ce"]
    assert "confusion" in results["worst_case"]


def test_shards_of_fewer_images_are_refused(run: Path) -> None:
    attacks = ("nat", "pgd-1")
    evaluate_subject(request(run, attacks=attacks, shard="1/2", num_examples=10), silent)
    evaluate_subject(request(run, attacks=attacks, shard="2/2", num_examples=14), silent)
    with pytest.raises(UsageError, match="leave images out: evaluate each with the same --num-examples"):
        merge(run)
    evaluate_subject(request(run, attacks=attacks, shard="1/2", num_examples=14), silent)
    assert merge(run)[0]["num_examples"] == 14


def test_a_shard_without_a_place_is_refused_before_it_is_judged(tmp_path: Path) -> None:
    said: list[str] = []
    asked = EvaluationRequest(model="small-cnn", data="digits", attacks=("nat",), num_examples=9, device="cpu")
    with pytest.raises(UsageError, match="need a place"):
        evaluate_subject(replace(asked, shard="1/2"), said.append)
    assert not any(line.startswith("nat:") for line in said)
    with pytest.raises(UsageError, match=r"probmargin evaluate --out .*none\.json --shard 1/2"):
        merge(tmp_path / "none.json")


def test_shards_of_another_model_lie_beside_its_file(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    asked = EvaluationRequest(model="small-cnn", data="digits", attacks=("nat",), num_examples=9, out=out, device="cpu")
    # The network is built at random, so both shards must come from one start of the generator to belong together.
    evaluate_subject(asked, silent)
    assert json.loads(out.read_text(encoding="utf-8"))["num_examples"] == 9
    evaluate_subject(replace(asked, shard="1/1"), silent)
    evaluate_subject(replace(asked, shard="1/2"), silent)
    evaluate_subject(replace(asked, shard="2/2"), silent)
    with pytest.raises(UsageError, match="weights is"):
        merge(out)


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "a/b", "1/0"])
def test_a_shard_is_written_i_of_n(text: str) -> None:
    with pytest.raises(UsageError, match="such as 2/5"):
        parse_shard(text)


def test_what_was_warned_of_in_any_shard_stays() -> None:
    facts = ({"attack": {}, "warnings": ["a"]}, {"attack": {}, "warnings": ["b", "a"]})
    right = np.array([True])
    parts = [EntryVerdicts(np.array([place]), {"pgd": right}, {"pgd": 1.0}, fact) for place, fact in enumerate(facts)]
    assert _join_entries("pgd-20", parts).facts["warnings"] == ["a", "b"]


def test_what_shards_count_and_the_seconds_they_took_add_up() -> None:
    looks = [{"precision": "float32", "examples": 10 * n, "broken": n, "seconds": 1.5 * n} for n in (1, 2)]
    facts = [{"attack": {}, "thin_breaks": 4 + n, "recheck": look} for n, look in enumerate(looks)]
    parts = [
        EntryVerdicts(np.array([n]), {"apgd-ce": np.array([True])}, {"apgd-ce": 3.0 + n}, fact)
        for n, fact in enumerate(facts)
    ]
    joined = _join_entries("aa", parts)
    assert joined.seconds == {"apgd-ce": 7.0}
    assert joined.facts["thin_breaks"] == 9
    assert joined.facts["recheck"] == {"precision": "float32", "examples": 30, "broken": 3, "seconds": 4.5}


def test_what_broke_an_image_stays_with_it_when_shards_are_joined() -> None:
    def part(ids: list[int], broken_by: tuple[str, ...]) -> Verdicts:
        zeros = np.zeros(len(ids))
        scores = {name: zeros for name in (*SCORES, "size")}
        return Verdicts(np.array(ids), zeros, 2, scores, scores, broken_by, {}, {})

    joined = join([part([0, 2, 4], ("clean", "", "fgsm")), part([1, 3], ("square", "fab-t"))])
    assert joined.ids.tolist() == [0, 1, 2, 3, 4]
    assert joined.broken_by == ("clean", "square", "", "fab-t", "fgsm")


def test_shards_cover_the_set_once() -> None:
    for count in (1, 2, 5):
        places = [place for index in range(count) for place in Shard(index, count).positions(13)]
        assert sorted(places) == list(range(13))
    with pytest.raises(UsageError, match="fewer"):
        Shard(0, 20).positions(13)


def test_processes_join_their_own_shards_whatever_else_lies_there(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attacks = ("nat", "pgd-1")
    evaluate_subject(request(run, attacks=attacks, shard="1/3"), silent)
    evaluate_subject(request(run, attacks=attacks, shard="2/2"), silent)
    world = SimpleNamespace(rank=0, size=2, is_writer=True, any=bool, from_writer=lambda make: make())
    monkeypatch.setattr(subject, "process_group", lambda _: nullcontext(world))
    results, path = evaluate_subject(request(run, attacks=attacks), silent)
    assert (results["num_examples"], path) == (33, run / "evaluation.json")


@pytest.mark.slow
def test_torchrun_splits_the_test_set(run: Path) -> None:
    expected, _ = evaluate_subject(request(run), silent)
    shutil.rmtree(run / "evaluation")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "probmargin", "evaluate"]
    options = ["--attacks", "nat,pgd-5,apgd-ce", "--num-examples", "33", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(run), *options], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    stored = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))
    assert timeless(stored) | {"hardware": ""} == timeless(expected) | {"hardware": ""}
    assert done.stdout.count("written to") == 1


def test_the_precision_of_searches_is_checked_and_said(run: Path) -> None:
    said: list[str] = []
    evaluate_subject(request(run, attacks=("pgd-5",), search_precision="bf16"), said.append)
    assert any("on a CPU searches compute in float32, not in bf16" in line for line in said)
    with pytest.raises(UsageError, match="--search-precision"):
        evaluate_subject(request(run, search_precision="half"), silent)
