"""The public functions as a stranger's script would use them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from blobs import blobs
from strategies import images, tiny_net

import probmargin
from probmargin import api as pm
from probmargin.methods.plain import with_settings
from probmargin.methods.resolve import METHODS, named

CONTRACT = (
    "probabilistic_margin logit_margin sigmoid_weight hinge_weight step_weight gairat_weight normalize_weights at_loss "
    "trades_loss mart_loss attack mail_loss train evaluate"
).split()


def test_every_name_of_the_contract_is_there() -> None:
    for name in CONTRACT:
        assert getattr(probmargin, name) is getattr(pm, name)
        assert name in dir(probmargin)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        probmargin.nothing  # noqa: B018


def test_the_pieces_make_mail_by_hand() -> None:
    """attack, margin, weight, normalise, loss: the same number as mail_loss."""
    x, labels = images(1, 8, size=8)
    model = tiny_net(1).eval()
    loss = pm.mail_loss(model, x, labels, method="mail-trades", eps=0.1, step_size=0.02, num_steps=3, seed=5)
    noise = pm.KeyedNoise(seed=5, ids=torch.arange(8))
    attack = pm.attack("pgd", loss="kl", eps=0.1, step_size=0.02, num_steps=3)
    logits_nat, logits_adv = model(x), model(attack(model, x, labels, noise=noise).x_adv)
    weight = pm.normalize_weights(pm.sigmoid_weight(pm.probabilistic_margin(logits_adv.detach(), labels), 2.0, 0.0))
    terms = pm.trades_loss(logits_nat, logits_adv, labels, beta=5.0)
    by_hand = (weight * terms.weighted + terms.plain).mean()
    torch.testing.assert_close(loss, by_hand)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("weighted", [True, False])
def test_mail_loss_is_a_drop_in_for_every_method(method: str, weighted: bool) -> None:
    x, labels = images(2, 8, size=8)
    model = tiny_net(2)
    loss = pm.mail_loss(model, x, labels, method, weighted=weighted, num_steps=2, seed=1)
    loss.backward()
    assert loss.ndim == 0
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.training


def test_mail_loss_takes_a_method_and_its_own_attack() -> None:
    x, labels = images(3, 8, size=8)
    strong = with_settings(named("mail-at"), {"attack.eps": 0.3, "attack.step_size": 0.1})
    losses = [float(pm.mail_loss(tiny_net(3), x, labels, m, seed=1).detach()) for m in ("mail-at", strong)]
    assert losses[1] > losses[0]


def test_mail_loss_without_a_seed_follows_torch() -> None:
    x, labels = images(4, 8, size=8)
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(float(pm.mail_loss(tiny_net(4), x, labels, eps=0.3).detach()))
    assert losses[0] == losses[1] != losses[2]


def test_weighted_differs_from_burn_in() -> None:
    x, labels = images(5, 8, size=8)
    losses = [
        float(pm.mail_loss(tiny_net(5), x, labels, "mail-at", weighted=w, seed=1).detach()) for w in (True, False)
    ]
    assert losses[0] != losses[1]


def test_training_from_arrays_and_a_module(tmp_path: Path) -> None:
    data = blobs()
    train = (data.train.floats().numpy(), data.train.labels.numpy())
    test = (data.test.floats().numpy(), data.test.labels.numpy())
    run = pm.train("at", model=tiny_net(classes=2), data=(train, test), out=tmp_path / "run", epochs=1)
    assert run.path == tmp_path / "run"
    assert run.recipe.method == "at"
    assert len(run.metrics) == 1
    assert not run.model.training
    with pytest.raises(pm.UsageError, match="given as an object"):
        pm.open_run(tmp_path / "run").model  # noqa: B018
    with pytest.raises(pm.UsageError, match="pass a name"):
        pm.train("at", data=np.zeros(3), out=tmp_path / "other")  # type: ignore[arg-type]


def test_evaluate_takes_bytes_too() -> None:
    data = blobs()
    model = tiny_net(classes=2)
    shares = [
        pm.evaluate(model, (x, data.test.labels), ["nat"])["nat"]["accuracy"]
        for x in (data.test.images, data.test.floats())
    ]
    assert shares[0] == shares[1]


def test_docstrings_of_public_functions() -> None:
    for name in pm.__all__:
        assert getattr(pm, name).__doc__, name
