"""Networks that compute part of a pass again in backward, as torch.utils.checkpoint does, to save memory."""

import re
from pathlib import Path

import pytest
import torch
from strategies import images
from torch import nn
from torch.utils.checkpoint import checkpoint
from training_runs import fit, recipe, same

import probmargin as pm
from probmargin.core.errors import UsageError
from probmargin.core.settings import AWP
from probmargin.models.checks import Again, computed_again


class Saving(nn.Module):
    """A body whose activations are not kept."""

    def __init__(self, saves: bool) -> None:
        super().__init__()
        self.saves = saves
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh())
        self.head = nn.Linear(64, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.body, x, use_reentrant=False) if self.saves and self.training else self.body(x)
        logits: torch.Tensor = self.head(hidden.flatten(1))
        return logits


def test_whether_a_network_computes_again_is_seen_and_leaves_it_as_it_was() -> None:
    for saves in (False, True):
        net = Saving(saves)
        before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        assert computed_again(net, (1, 4, 4)) == Again(saves, saves)
        assert net.training
        assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
        assert not any(layer._forward_pre_hooks for layer in net.modules())


@pytest.mark.parametrize(
    ("method", "setting", "value"), [("mail-awp", "awp", "none"), ("mail-trades", "attack.model_mode", "eval")]
)
def test_what_would_be_computed_at_other_weights_or_buffers_is_refused(
    method: str, setting: str, value: str, tmp_path: Path
) -> None:
    x, labels = images(4, 8, classes=2)
    asked = pm.resolve(method, settings={"attack.model_mode": "train"} if method == "mail-trades" else {})
    net = Saving(saves=True)
    for _ in range(2):
        with pytest.raises(UsageError, match=re.escape(f'use pm.resolve(..., settings={{"{setting}": "{value}"}})')):
            pm.mail_loss(net, x, labels, asked, seed=1)
    assert net.body[1].num_batches_tracked == 0
    changes = {"awp": AWP()} if method == "mail-awp" else {"attack": asked.attack}
    with pytest.raises(UsageError, match=f"leave checkpointing out, or use --set {setting}={value}"):
        fit(tmp_path / "run", recipe(**changes), model=net)
    pm.mail_loss(Saving(saves=False), x, labels, asked, seed=1).backward()
    pm.mail_loss(net, x, labels, pm.resolve(method, settings={setting: value}), seed=1)


class Attention(nn.Module):
    """Without buffers; what is saved for backward depends on which parameters want a gradient."""

    def __init__(self, saves: str) -> None:
        super().__init__()
        self.saves = saves
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1)
        if self.saves == "always" or (self.saves == "training" and self.training):
            logits: torch.Tensor = checkpoint(self.body, flat, use_reentrant=False)
            return logits
        logits = self.body(flat)
        return logits


def test_a_run_moves_weights_for_the_whole_step_so_that_awp_is_right_where_there_are_no_buffers(
    tmp_path: Path,
) -> None:
    ended = [
        fit(tmp_path / saves, recipe(epochs=2, awp=AWP()), model=Attention(saves))[0] for saves in ("never", "training")
    ]
    assert same(*ended)
    assert computed_again(Attention("training"), (1, 4, 4)) == Again(computes=True, moves_buffers=False)
    with pytest.raises(UsageError, match="has its own weights, not those AWP moved there: leave checkpointing out"):
        pm.mail_loss(Attention("training"), *images(4, 8, classes=2), "mail-awp", seed=1)


def test_what_is_computed_again_in_eval_mode_too_is_refused_by_name(tmp_path: Path) -> None:
    words = "in eval mode too, where attacks cannot follow: use it in training mode alone, if self.training"
    with pytest.raises(UsageError, match=words):
        fit(tmp_path / "run", recipe(), model=Attention("always"))
    x, labels = images(4, 8, classes=2)
    with pytest.raises(UsageError, match=words):
        pm.evaluate(Attention("always"), (x, labels), ["nat", "pgd-2"])
    with pytest.raises(UsageError, match=words):
        pm.mail_loss(Attention("always"), x, labels, "mail-trades", seed=1)


@pytest.mark.parametrize("kind", ["expanded", "inference"])
def test_buffers_that_cannot_be_written_to_are_left_alone(kind: str, tmp_path: Path) -> None:
    net = Attention("never")
    with torch.inference_mode(kind == "inference"):
        mean = torch.full((1, 1, 1, 1), 0.3)
    net.register_buffer("mean", mean.expand(1, 1, 4, 4) if kind == "expanded" else mean, persistent=False)
    x, labels = images(4, 8, classes=2)
    if kind == "expanded":
        pm.mail_loss(net, x, labels, "mail-awp", seed=1).backward()
    fit(tmp_path / "run", recipe(epochs=1), model=net)
    pm.evaluate(net, (x, labels), ["nat", "pgd-2"])


def test_a_network_is_looked_at_when_a_recipe_first_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []

    def look(model: object, *_: object) -> Again:
        looks.append(model)
        return Again()

    monkeypatch.setattr("probmargin.training.refusals.computed_again", look)
    (x, labels), net = images(4, 8, classes=2), Saving(saves=False)
    for method, count in (("mail-trades", 0), ("mail-awp", 1), ("mail-awp", 1)):
        pm.mail_loss(net, x, labels, method, num_steps=1, seed=1)
        assert len(looks) == count


def test_a_loss_at_the_networks_own_weights_is_the_same(tmp_path: Path) -> None:
    x, labels = images(4, 8, classes=2)
    gradients = []
    for saves in (False, True):
        net = Saving(saves)
        pm.mail_loss(net, x, labels, "mail-trades", num_steps=2, seed=1).backward()
        gradients.append([parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None])
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(*gradients, strict=True))
