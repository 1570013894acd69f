"""Networks that compute part of a pass again in backward, as torch.utils.checkpoint does, to save memory."""

from pathlib import Path

import pytest
import torch
from strategies import images
from torch import nn
from torch.utils.checkpoint import checkpoint
from training_runs import fit, recipe

import probmargin as pm
from probmargin.core.errors import UsageError
from probmargin.core.settings import AWP
from probmargin.models.checks import computes_again


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
        assert computes_again(net, (1, 4, 4)) is saves
        assert net.training
        assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
        assert not any(layer._forward_pre_hooks for layer in net.modules())


@pytest.mark.parametrize(
    ("method", "fix"), [("mail-awp", "--set awp=none"), ("mail-trades", "--set attack.model_mode=eval")]
)
def test_what_would_be_computed_at_other_weights_or_buffers_is_refused(method: str, fix: str, tmp_path: Path) -> None:
    x, labels = images(4, 8, classes=2)
    asked = pm.resolve(method, settings={"attack.model_mode": "train"} if method == "mail-trades" else {})
    net = Saving(saves=True)
    for _ in range(2):
        with pytest.raises(UsageError, match=fix):
            pm.mail_loss(net, x, labels, asked, seed=1)
    assert net.body[1].num_batches_tracked == 0
    changes = {"awp": AWP()} if method == "mail-awp" else {"attack": asked.attack}
    with pytest.raises(UsageError, match="leave checkpointing out"):
        fit(tmp_path / "run", recipe(**changes), model=net)
    pm.mail_loss(Saving(saves=False), x, labels, asked, seed=1).backward()


def test_a_network_is_looked_at_when_a_recipe_first_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []

    def look(model: object, *_: object) -> bool:
        looks.append(model)
        return False

    monkeypatch.setattr("probmargin.training.refusals.computes_again", look)
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
