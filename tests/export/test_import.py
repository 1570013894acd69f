"""Others' weights in our networks give others' logits, or nothing is written."""

import re
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from foreign_networks import Eighteen, Normalizer, Wide, lively
from safetensors.torch import load_file, save_file
from torch import nn

from probmargin import api as pm
from probmargin.core.errors import UsageError
from probmargin.evaluation.subject import EvaluationRequest, evaluate_subject

X = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def foreign(kind: str) -> nn.Module:
    made: dict[str, nn.Module] = {
        "resnet18": Eighteen(pre=False),
        "preact-resnet18": Eighteen(pre=True),
        "wrn-16-1": Wide(),
        "dead": Wide(dead=True),
        "mu": Wide(normalised=True),
        "wrapped": nn.Sequential(OrderedDict(normalize=Normalizer(), model=Wide(width=2))),
    }
    return lively(made[kind])


@pytest.mark.parametrize(
    ("kind", "layout", "model"),
    [
        ("resnet18", "trades", "resnet18"),
        ("resnet18", "gairat", "resnet18"),
        ("resnet18", "robustbench", "resnet18"),
        ("preact-resnet18", "awp", "preact-resnet18"),
        ("preact-resnet18", "robustbench", "preact-resnet18"),
        ("wrn-16-1", "awp", "wrn-16-1"),
        ("dead", "trades", "wrn-16-1"),
        ("dead", "gairat", "wrn-16-1"),
        ("mu", "robustbench", "wrn-16-1"),
        ("wrapped", "robustbench", "wrn-16-2"),
    ],
)
def test_imported_weights_give_the_same_logits(tmp_path: Path, kind: str, layout: str, model: str) -> None:
    theirs = foreign(kind)
    torch.save(theirs.state_dict(), tmp_path / "theirs.pt")
    out = tmp_path / "ours.safetensors"
    said: list[str] = []
    ours = pm.import_weights(tmp_path / "theirs.pt", out, layout=layout, model=model, log=said.append)
    with torch.no_grad():
        torch.testing.assert_close(ours(X), theirs(X), rtol=1e-5, atol=1e-5)
    before = torch.get_rng_state()
    again = pm.load_model(out)
    assert torch.equal(before, torch.get_rng_state())
    assert not again.training
    with torch.no_grad():
        assert torch.equal(again(X), ours(X))
    assert any("tensors matched" in line for line in said)
    assert not any(line.startswith(("missing", "unexpected")) for line in said)


@pytest.mark.parametrize("wrapper", ["state_dict", "model", "net", None])
def test_wrappers_and_prefixes_of_data_parallel(tmp_path: Path, wrapper: str | None) -> None:
    theirs = foreign("wrn-16-1")
    state: Any = {f"module.{name}": tensor for name, tensor in theirs.state_dict().items()}
    torch.save({wrapper: state, "epoch": 3, "acc": 0.5} if wrapper else state, tmp_path / "theirs.pth")
    ours = pm.import_weights(tmp_path / "theirs.pth", tmp_path / "w.safetensors", layout="trades", model="wrn-16-1")
    with torch.no_grad():
        torch.testing.assert_close(ours(X), theirs(X), rtol=1e-5, atol=1e-5)


def test_old_files_without_counters_and_safetensors(tmp_path: Path) -> None:
    theirs = foreign("resnet18")
    old = {name: tensor for name, tensor in theirs.state_dict().items() if "num_batches" not in name}
    save_file({name: tensor.clone() for name, tensor in old.items()}, tmp_path / "old.safetensors")
    said: list[str] = []
    ours = pm.import_weights(
        tmp_path / "old.safetensors", tmp_path / "w.safetensors", layout="trades", model="resnet18", log=said.append
    )
    assert f"{len(old)} tensors matched; normalisation none" in said
    with torch.no_grad():
        torch.testing.assert_close(ours(X), theirs(X), rtol=1e-5, atol=1e-5)


def test_normalisation_outside_is_given_by_hand(tmp_path: Path) -> None:
    theirs = foreign("wrn-16-1")
    torch.save(theirs.state_dict(), tmp_path / "w.pt")
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.2)
    ours = pm.import_weights(
        tmp_path / "w.pt", tmp_path / "w.safetensors", layout="awp", model="wrn-16-1", mean=mean, std=std
    )
    with torch.no_grad():
        torch.testing.assert_close(ours(X), theirs(Normalizer()(X)), rtol=1e-5, atol=1e-5)
    with pytest.raises(UsageError, match="give both"):
        pm.import_weights(tmp_path / "w.pt", tmp_path / "v.safetensors", layout="awp", model="wrn-16-1", mean=mean)


@pytest.mark.parametrize(
    ("mean", "std", "words"),
    [
        ((0.5, 0.4, 0.3), (0.0, 0.0, 0.0), "--std must be"),
        ((0.5, 0.4, 0.3), (0.2, -0.1, 0.2), "--std must be"),
        ((0.5, 0.4, 0.3), (0.2, float("inf"), 0.2), "std takes a finite number"),
        ((float("inf"), 0.4, 0.3), (0.2, 0.2, 0.2), "mean takes a finite number"),
        ((0.5,), (0.2, 0.2, 0.2), "--mean has 1 of 3"),
        ((0.5, 0.4, 0.3), (0.2, 0.2, 0.2, 0.2), "--std has 4 of 3"),
    ],
)
def test_normalisation_that_cannot_be_is_refused(
    tmp_path: Path, mean: tuple[float, ...], std: tuple[float, ...], words: str
) -> None:
    torch.save(foreign("wrn-16-1").state_dict(), tmp_path / "w.pt")
    out = tmp_path / "w.safetensors"
    with pytest.raises(UsageError, match=words):
        pm.import_weights(tmp_path / "w.pt", out, layout="awp", model="wrn-16-1", mean=mean, std=std)
    assert not out.exists()


def test_an_imported_file_can_be_judged_with_its_normalisation(tmp_path: Path) -> None:
    """The file's mean and deviation come along: --model names the bare network."""
    theirs = foreign("mu")
    torch.save(theirs.state_dict(), tmp_path / "w.pt")
    out = tmp_path / "w.safetensors"
    pm.import_weights(tmp_path / "w.pt", out, layout="robustbench", model="wrn-16-1")
    x = (X * 255).round().to(torch.uint8)
    right = theirs(x.float() / 255).argmax(1).numpy()
    arrays = {"x_train": x.numpy(), "y_train": np.arange(3), "x_test": x.numpy(), "y_test": right}
    np.savez(tmp_path / "d.npz", **arrays, classes=np.arange(10).astype(str))
    request = EvaluationRequest(
        model="wrn-16-1", checkpoint=out, data=f"npz:{tmp_path / 'd.npz'}", attacks=("nat",), device="cpu"
    )
    results, _ = evaluate_subject(request, log=lambda line: None)
    assert results["nat"]["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("make", "layout", "model", "words"),
    [
        (lambda: Eighteen(pre=True, last_norm=False), "trades", "preact-resnet18", "4 missing (bn.weight, ...)"),
        (lambda: Wide(width=2), "trades", "wrn-16-1", "of another shape (blocks.0.conv1.weight"),
        (lambda: Wide(count=2), "trades", "wrn-10-1", "unexpected"),
        (lambda: Wide(), "trades", "resnet18", "try another --layout"),
        (lambda: Eighteen(pre=False), "awp", "preact-resnet18", "--partial"),
        (lambda: nn.Linear(3, 2), "trades", "resnet18", "no conv1"),
    ],
)
def test_what_does_not_match_is_refused_and_named(
    tmp_path: Path, make: Any, layout: str, model: str, words: str
) -> None:
    torch.save(make().state_dict(), tmp_path / "w.pt")
    said: list[str] = []
    with pytest.raises(UsageError) as caught:
        pm.import_weights(tmp_path / "w.pt", tmp_path / "out.safetensors", layout=layout, model=model, log=said.append)
    assert words in str(caught.value)
    for kind in ("missing", "unexpected", "of another shape"):
        lines = [line for line in said if line.startswith(kind)]
        assert len(lines) <= 11
        assert len(lines) < 11 or re.fullmatch(rf"{kind}: \d+ more", lines[-1])
    assert [path.name for path in tmp_path.iterdir()] == ["w.pt"]


def test_partial_takes_what_fits_and_says_what_does_not(tmp_path: Path) -> None:
    theirs = lively(Eighteen(pre=True, last_norm=False))
    torch.save(theirs.state_dict(), tmp_path / "w.pt")
    said: list[str] = []
    out = tmp_path / "out.safetensors"
    pm.import_weights(tmp_path / "w.pt", out, layout="trades", model="preact-resnet18", partial=True, log=said.append)
    assert [line for line in said if line.startswith("missing")] == [
        f"missing: bn.{name}" for name in ("weight", "bias", "running_mean", "running_var")
    ]
    assert f"{len(theirs.state_dict())} tensors matched; normalisation none" in said
    assert torch.equal(load_file(out)["blocks.3.conv2.weight"], theirs.state_dict()["layer2.1.conv2.weight"])


def test_pickled_code_names_and_files_are_refused(tmp_path: Path) -> None:
    torch.save({"a": threading.Event}, tmp_path / "evil.pt")
    (tmp_path / "text.pt").write_text("nonsense", encoding="utf-8")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save(foreign("wrn-16-1").state_dict(), tmp_path / "w.pt")
    (tmp_path / "there.safetensors").write_text("mine", encoding="utf-8")

    def wrong(
        file: str, words: str, layout: str = "trades", model: str = "wrn-16-1", out: str = "o.safetensors"
    ) -> None:
        with pytest.raises(UsageError, match=words):
            pm.import_weights(tmp_path / file, tmp_path / out, layout=layout, model=model)

    wrong("evil.pt", "pickled code is refused")
    wrong("text.pt", "cannot be read as weights")
    wrong("list.pt", "holds no weights")
    wrong("none.pt", "there is no checkpoint file")
    wrong("w.pt", "did you mean trades", layout="trade")
    wrong("w.pt", "there is no layout for small-cnn", model="small-cnn")
    wrong("w.pt", "give -o", out="o.pt")
    wrong("w.pt", "is there already", out="there.safetensors")
    assert (tmp_path / "there.safetensors").read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "o.safetensors").exists()
