"""Adversarial images in a file: inside the ball after rounding, and judged as they lie on disk."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from probmargin.attacks.balls import Norm, project
from probmargin.core.errors import UsageError
from probmargin.data.digits import load_digits
from probmargin.evaluation.export import rescore, round_inside
from probmargin.evaluation.places import merge
from probmargin.evaluation.search import inside_threat_model
from probmargin.evaluation.subject import EvaluationRequest, evaluate_subject
from probmargin.runs.run import open_run


@given(
    norm=st.sampled_from(["Linf", "L2"]),
    eps=st.floats(0.5 / 255, 0.9),
    seed=st.integers(0, 999),
    channels=st.sampled_from([1, 3]),
)
def test_rounded_images_are_inside_the_ball(norm: Norm, eps: float, seed: int, channels: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (4, channels, 5, 5), generator=draw).float() / 255
    x_adv = project(x + torch.randn(x.shape, generator=draw), x, norm, eps)
    pixels = round_inside(x_adv, x, norm, eps)
    assert pixels.dtype == torch.uint8
    assert bool(inside_threat_model(pixels.float() / 255, x, norm, eps).all())
    assert float((pixels.double() - x_adv.double() * 255).abs().max()) <= 1.0 + 1e-6


@pytest.mark.parametrize(("norm", "eps"), [("Linf", "0.1"), ("L2", "0.6")])
def test_the_file_says_what_the_results_say(trained: Path, tmp_path: Path, norm: str, eps: str) -> None:
    folder, file = shutil.copytree(trained, tmp_path / "run"), tmp_path / "adversarial.npz"
    lines: list[str] = []
    request = EvaluationRequest(
        run=folder,
        attacks=("nat", "pgd-5", "apgd-ce"),
        num_examples=40,
        norm=norm,
        eps=eps,
        save_adversarial=file,
        device="cpu",
    )
    results, _ = evaluate_subject(request, lines.append)
    exported = results["adversarial"]
    assert exported["float32"]["robust_accuracy"] == pytest.approx(results["worst_case"]["robust_accuracy"])
    assert exported["float32"]["outside_the_ball"] == exported["uint8"]["outside_the_ball"] == 0
    assert 0 < results["worst_case"]["robust_accuracy"] < results["nat"]["accuracy"]
    assert any("read again" in line for line in lines)
    stored = np.load(file)
    assert stored["x_adv"].dtype == np.float32
    assert stored["x_adv_uint8"].dtype == np.uint8
    assert stored["x_adv"].shape == (40, 1, 8, 8)
    clean = load_digits().test.floats()[:40].numpy()
    moved = (stored["x_adv"].astype(np.float64) - clean).reshape(40, -1)
    size = np.abs(moved).max(axis=1) if norm == "Linf" else np.sqrt((moved**2).sum(axis=1))
    np.testing.assert_allclose(stored["size"], size, atol=1e-9)
    assert size.max() > 0
    right = [name == "" for name in stored["broken_by"]]
    assert right == [digit == "1" for digit in results["worst_case"]["correct"]]


def test_a_file_that_was_changed_is_judged_as_it_is(trained: Path, tmp_path: Path) -> None:
    folder, file = shutil.copytree(trained, tmp_path / "run"), tmp_path / "adversarial.npz"
    request = EvaluationRequest(run=folder, attacks=("pgd-5",), num_examples=20, save_adversarial=file, device="cpu")
    evaluate_subject(request, lambda _: None)
    content = dict(np.load(file))
    content["x_adv"] = np.zeros_like(content["x_adv"])
    np.savez(file, **content)
    x = load_digits().test.floats()[:20]
    again = rescore(file, open_run(folder).model, x)
    assert again["float32"]["outside_the_ball"] == 20
    assert again["uint8"]["outside_the_ball"] == 0
    file.write_bytes(b"nothing")
    with pytest.raises(UsageError, match="adversarial images"):
        rescore(file, open_run(folder).model, x)


class Silent(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full((len(x), 10), torch.nan)


def test_no_answer_to_a_stored_image_is_a_break(trained: Path, tmp_path: Path) -> None:
    folder, file = shutil.copytree(trained, tmp_path / "run"), tmp_path / "adversarial.npz"
    request = EvaluationRequest(run=folder, attacks=("pgd-1",), num_examples=20, save_adversarial=file, device="cpu")
    evaluate_subject(request, lambda _: None)
    assert 0 in np.load(file)["labels"], "of which the largest of ten NaN would be right"
    again = rescore(file, Silent(), load_digits().test.floats()[:20])
    assert (again["float32"]["robust_accuracy"], again["uint8"]["broken"]) == (0.0, 20)


def test_half_a_file_that_a_killed_evaluation_left_goes(trained: Path, tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    folder, file = shutil.copytree(trained, tmp_path / "run"), tmp_path / "adversarial.npz"
    for process in (dead.pid, os.getppid()):
        (tmp_path / f".{file.name}.{process}.part").write_bytes(b"half")
    request = EvaluationRequest(run=folder, attacks=("pgd-1",), num_examples=4, save_adversarial=file, device="cpu")
    evaluate_subject(request, lambda _: None)
    assert [path.name for path in tmp_path.glob(".*")] == [f".{file.name}.{os.getppid()}.part"]
    assert len(np.load(file)["x_adv"]) == 4


def test_rows_tell_their_place_in_the_data(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(10).repeat_interleave(3).numpy()
    x = torch.randint(256, (30, 1, 8, 8), generator=draw, dtype=torch.uint8).numpy()
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=labels, x_test=x, y_test=labels)
    file = tmp_path / "adversarial.npz"
    asked = {"model": "small-cnn", "data": f"npz:{tmp_path / 'mine.npz'}", "attacks": ("nat", "fgsm"), "device": "cpu"}
    out = tmp_path / "result.json"
    evaluate_subject(EvaluationRequest(**asked, save_adversarial=file, out=out), lambda _: None)  # type: ignore[arg-type]
    stored = np.load(file)
    assert not np.array_equal(stored["labels"], labels)
    assert np.array_equal(stored["labels"], labels[stored["index"]])
    assert float(np.abs(stored["x_adv"] - x[stored["index"]] / 255).max()) <= 8 / 255 + 1e-6
    whole = np.load(out.with_suffix(".npz"))["index"]
    assert np.array_equal(whole, stored["index"])
    for options in ({"num_examples": 7}, {"num_examples": 7, "shard": "1/2"}, {"num_examples": 7, "shard": "2/2"}):
        torch.manual_seed(0)  # the network is built at random
        evaluate_subject(EvaluationRequest(**asked, **options, out=out), lambda _: None)  # type: ignore[arg-type]
        if "shard" not in options:
            assert np.array_equal(np.load(out.with_suffix(".npz"))["index"], whole[:7])
            out.with_suffix(".npz").unlink()
    merge(out)
    joined = np.load(out.with_suffix(".npz"))
    assert np.array_equal(joined["index"], whole[:7])
    assert np.array_equal(joined["labels"], labels[joined["index"]])
