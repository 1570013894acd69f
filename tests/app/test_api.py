"""The public functions as a stranger's script would use them."""

import inspect
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blobs import blobs
from strategies import images, tiny_net
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import probmargin
from probmargin import api as pm
from probmargin.cli.train import train as typed_train
from probmargin.core.errors import UsageError
from probmargin.core.noise import fresh_noise
from probmargin.core.types import Classifier
from probmargin.data.dataset import from_torch_datasets
from probmargin.methods.plain import with_settings
from probmargin.methods.resolve import METHODS, named, resolve
from probmargin.runs.run import Run as StoredRun
from probmargin.training.drop_in import _sharing, loss_recipe
from probmargin.training.network import Network
from probmargin.training.perturbation import perturbed_weights
from probmargin.training.request import TrainRequest
from probmargin.training.step import Batch, attack_batch, batch_loss, view_of, weigh
from probmargin.weights.hinge import Hinge
from probmargin.weights.sigmoid import Sigmoid

CONTRACT = (
    "probabilistic_margin logit_margin sigmoid_weight hinge_weight step_weight gairat_weight normalize_weights at_loss "
    "trades_loss mart_loss attack mail_loss train evaluate"
).split()


def test_python_and_the_command_line_ask_for_a_run_alike() -> None:
    """A setting forgotten on one side would have its default there, whatever is asked for."""
    asked, typed = (inspect.signature(function).parameters for function in (pm.train, typed_train))
    for field in fields(TrainRequest):
        if field.name == "save_seconds":
            continue
        own, option = asked[field.name], typed["compile_mode" if field.name == "compile" else field.name]
        if field.default is MISSING:
            assert own.default is option.default is inspect.Parameter.empty
        else:
            assert own.default == field.default, field.name
            assert option.default == ("" if field.default == () else field.default), field.name


TRAIN = {
    "out": Path("run"),
    "model": "small-cnn",
    "seed": 7,
    "device": "cpu",
    "precision": "tf32",
    "compile": "off",
    "resume": True,
    "normalize": True,
    "checkpoint": Path("w.pt"),
    "new_head": True,
    "keep_epochs": (2, 3),
    "validation": 20,
    "validation_every": 3,
    "early_stopping": 2,
    "monitor": "nat:9",
    "monitor_every": 4,
    "dynamics": True,
    "label_noise": "pair:0.2",
    "sync_bn": True,
    "placement": "host",
}
EXPORT = {
    "format": "onnx",
    "out": Path("m.onnx"),
    "checkpoint": Path("w.pt"),
    "results": Path("b.json"),
    "data_dir": Path("there"),
    "licence": "MIT",
    "num_examples": 8,
}
IMPORT = {
    "weights": Path("w.pt"),
    "layout": "awp",
    "model": "resnet18",
    "out": Path("w.safetensors"),
    "mean": (0.5, 0.25),
    "std": (0.75, 0.125),
    "partial": True,
}
EVALUATE = {"aa_examples": 8, "norm": "L2", "eps": 0.25, "batch_size": 5, "seed": 6}
ASKED: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any]]] = {
    "train": ("run_training", [TRAIN, {"out": Path("run"), "fork": "other@2"}], {"method": "at", "data": blobs()}),
    "evaluate": ("evaluate_given", [EVALUATE], {"model": nn.Identity(), "data": (), "attacks": "aa"}),
    "export": ("export_run", [EXPORT], {"run": StoredRun(Path("run"))}),
    "import_weights": ("take_over", [IMPORT], {}),
}
"""What a function hands its request to, its fields with other values than their defaults, and what else it needs."""
ELSEWHERE = {
    "train": "preset data_dir download epochs batch_size settings verbose reporter",
    "evaluate": "device",
    "export": "data log",
    "import_weights": "log",
}
"""Arguments that are no field of a request."""


@pytest.mark.parametrize("name", ASKED)
def test_what_a_function_is_given_is_what_it_asks_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument forgotten on the way would have its default, whatever is given."""
    given: list[Any] = []

    def note(*arguments: Any) -> None:
        given[:] = arguments
        raise UsageError("noted")

    hands_to, calls, other = ASKED[name]
    monkeypatch.setattr(pm, hands_to, note)
    monkeypatch.setattr(pm, "is_tuned", lambda fork: False)  # it would read that run
    known = inspect.signature(getattr(pm, name)).parameters
    for call in calls:
        with pytest.raises(UsageError, match="noted"):
            getattr(pm, name)(**call, **other)
        (request,) = (one for one in given if type(one).__name__.endswith(("Request", "Settings")))
        for field, value in call.items():
            assert getattr(request, field) == value != known[field].default, field
    assert known.keys() == {*other, *ELSEWHERE[name].split()}.union(*calls)


def test_normalisation_is_not_forgotten_for_a_network_given_as_an_object(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="put them into its forward, or give its factory"):
        pm.train("at", model=tiny_net(), data="digits", out=tmp_path / "run", epochs=1, normalize=True)
    assert not (tmp_path / "run").exists()


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_pieces_compute_in_float32_at_least(dtype: torch.dtype) -> None:
    """MART's floor of 1e-12 is nothing in half precision, and its logarithm no number."""
    labels = torch.tensor([0, 1, 2])
    nat, adv = (30 * torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(0))).to(dtype)
    calls: list[Any] = [
        lambda a, b: pm.at_loss(b, labels).weighted,
        lambda a, b: pm.trades_loss(a, b, labels, 6.0).weighted,
        lambda a, b: pm.mart_loss(a, b, labels, 5.0).plain,
        lambda a, b: pm.probabilistic_margin(b, labels),
        lambda a, b: pm.logit_margin(b, labels),
        lambda a, b: pm.sigmoid_weight(b[:, 0]),
        lambda a, b: pm.normalize_weights(b[:, 0]),
    ]
    for call in calls:
        found = call(nat, adv)
        assert found.dtype == torch.float32
        assert torch.equal(found, call(nat.float(), adv.float()))
        assert call(nat.double(), adv.double()).dtype == torch.float64


def test_whole_numbers_as_labels_and_margins_and_no_example() -> None:
    labels, none = torch.tensor([0, 1]), torch.zeros(0, dtype=torch.int64)
    logits = torch.tensor([[1.0, 2.0], [3.0, 1.0]])
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        assert torch.equal(pm.at_loss(logits, labels.to(dtype)).weighted, pm.at_loss(logits, labels).weighted)
        assert torch.equal(pm.logit_margin(logits, labels.to(dtype)), pm.logit_margin(logits, labels))
    for weigh_by in (pm.step_weight, pm.sigmoid_weight, pm.hinge_weight):
        assert torch.equal(weigh_by(torch.tensor([-1, 1])), weigh_by(torch.tensor([-1.0, 1.0])))
    assert pm.at_loss(logits[:0], none).weighted.shape == (0,)
    assert pm.mart_loss(logits[:0], logits[:0], none, 5.0).plain.shape == (0,)
    assert pm.probabilistic_margin(logits[:0], none).shape == (0,)


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


def test_mail_loss_takes_images_that_want_gradients_without_a_warning() -> None:
    x, labels = images(2, 8, size=8)
    found = pm.mail_loss(tiny_net(2), x.clone().requires_grad_(), labels, num_steps=2, seed=1)
    assert torch.equal(found, pm.mail_loss(tiny_net(2), x, labels, num_steps=2, seed=1))


def loss_and_gradients(model: nn.Module, method: Any, **options: Any) -> tuple[float, list[torch.Tensor]]:
    x, labels = images(2, 8, size=8)
    loss = pm.mail_loss(model, x, labels, method=method, seed=3, **options)
    return float(loss.detach()), list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_mail_loss_without_gradients_is_the_same_number(method: str, mode: Any) -> None:
    """As in a validation loop; images that were made there serve outside of it as well."""
    x, labels = images(2, 8, size=8)
    first, second, third = (tiny_net(2) for _ in range(3))
    wanted = pm.mail_loss(first, x, labels, method, num_steps=2, seed=1)
    with mode():
        x, labels = x.clone(), labels.clone()
        found = pm.mail_loss(second, x, labels, method, num_steps=2, seed=1)
    assert not found.requires_grad
    assert torch.equal(found, wanted.detach())
    again = pm.mail_loss(third, x, labels, method, num_steps=2, seed=1)
    again.backward()
    assert torch.equal(again.detach(), found)


def test_inference_mode_around_losses_evaluations_and_models() -> None:
    x, labels = images(2, 8, size=8)
    model, logits = tiny_net(2), torch.randn(8, 3)
    outside = pm.evaluate(model, (x, labels), ["nat", "pgd-2"])
    with torch.inference_mode():
        inside = pm.evaluate(model, (x.clone(), labels.clone()), ["nat", "pgd-2"])
        made = tiny_net(2)
        for terms in (pm.at_loss(logits, labels), pm.trades_loss(logits, logits, labels, 5.0)):
            assert bool((terms.weighted + terms.plain).isfinite().all())
        assert bool(pm.mart_loss(logits, logits, labels, 5.0).weighted.isfinite().all())
    assert inside["pgd-2"]["correct"] == outside["pgd-2"]["correct"]
    with pytest.raises(
        pm.UsageError, match=r"TinyNet was made under torch\.inference_mode, .*: build or load it outside"
    ):
        pm.mail_loss(made, x, labels)


def test_mail_loss_perturbs_weights_as_training_does() -> None:
    """Loss and gradient are those at the moved weights; the model's own stay."""
    recipe = named("mail-awp").at(99)
    model, other = tiny_net(1).train(), tiny_net(1).train()
    before = [parameter.clone() for parameter in model.parameters()]
    loss, gradients = loss_and_gradients(model, recipe)
    x, labels = images(2, 8, size=8)
    network = Network(other)
    batch = Batch(x=x, labels=labels, noise=fresh_noise(len(x), x.device, 3))
    attacked = attack_batch(network, recipe, batch)

    def loss_at(forward: Classifier) -> torch.Tensor:
        view = view_of(forward, recipe, batch, attacked)
        return batch_loss(view, recipe, weigh(view, recipe)[0])

    with perturbed_weights(network, recipe.awp, loss_at):
        expected = loss_at(network.forward)
        wanted = torch.autograd.grad(expected, list(other.parameters()))
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    for found, slope in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(found, slope, rtol=1e-3, atol=1e-6)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert loss != loss_and_gradients(tiny_net(1).train(), "mail-at")[0]


def test_mail_loss_is_of_the_last_epoch_or_of_the_first() -> None:
    last, first = (loss_recipe(named("mail-trades", "official-2021"), weighted) for weighted in (True, False))
    assert (last.attack.loss, first.attack.loss) == ("ce", "kl")  # type: ignore[union-attr]
    assert loss_recipe(named("fat"), True).attack.tau > 0  # type: ignore[union-attr]
    assert not first.is_reweighted


def test_mail_loss_takes_a_method_and_its_own_attack() -> None:
    x, labels = images(3, 8, size=8)
    strong = with_settings(named("mail-at"), {"attack.eps": 0.3, "attack.step_size": 0.1})
    losses = [float(pm.mail_loss(tiny_net(3), x, labels, m, seed=1).detach()) for m in ("mail-at", strong)]
    assert losses[1] > losses[0]
    for size in ({"eps": 0.3}, {"eps": 8 / 255}, {"step_size": 0.1}, {"num_steps": 3}):
        with pytest.raises(UsageError, match=rf"give attack\.{next(iter(size))} in pm\.resolve"):
            pm.mail_loss(tiny_net(3), x, labels, strong, **size)


def test_mail_loss_by_name_has_the_papers_attack() -> None:
    x, labels = images(3, 8, size=8)
    paper = {"eps": 8 / 255, "step_size": 2 / 255, "num_steps": 10}
    for name in ("mail-at", "mail-trades", "fat"):
        losses = [float(pm.mail_loss(tiny_net(3), x, labels, name, seed=1, **sizes).detach()) for sizes in ({}, paper)]  # type: ignore[arg-type]
        assert losses[0] == losses[1]


@pytest.mark.parametrize("method", ["mail-at", "mail-trades", "gairat"])
def test_a_wrapper_for_several_devices_changes_nothing(method: str) -> None:
    x, labels = images(3, 8, size=8)
    losses = [
        float(pm.mail_loss(model, x, labels, method, seed=1).detach())
        for model in (tiny_net(3), nn.DataParallel(tiny_net(3)))
    ]
    assert losses[0] == losses[1]
    attack, noise = pm.attack("pgd"), pm.KeyedNoise(seed=1, ids=torch.arange(8))
    plain, wrapped = (
        attack(model, x, labels, noise=noise).x_adv for model in (tiny_net(3), nn.DataParallel(tiny_net(3)))
    )
    assert torch.equal(plain, wrapped)
    found = [pm.evaluate(model, (x, labels), ["nat", "pgd-5"]) for model in (tiny_net(3), nn.DataParallel(tiny_net(3)))]
    assert found[0]["pgd-5"]["robust_accuracy"] == found[1]["pgd-5"]["robust_accuracy"]


def test_what_several_processes_need_is_named() -> None:
    x, labels = images(3, 8, size=8)
    with pytest.raises(UsageError, match=r"pass model\.module"):
        pm.mail_loss(nn.DataParallel(tiny_net(3)), x, labels, "mail-awp")
    with pytest.raises(UsageError, match="init_process_group"):
        pm.mail_loss(tiny_net(3), x, labels, all_processes=True)


def test_mail_loss_without_a_seed_follows_torch() -> None:
    x, labels = images(4, 8, size=8)
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(float(pm.mail_loss(tiny_net(4), x, labels, eps=0.3, step_size=0.075).detach()))
    assert losses[0] == losses[1] != losses[2]


def test_a_radius_that_the_usual_steps_do_not_reach_is_said() -> None:
    x, labels = images(4, 8, size=8)
    said = r"10 steps of 0.007843 go to 0.07843 and not to eps 0.3: pass step_size as well, such as step_size=0.075"
    with pytest.warns(UserWarning, match=said) as found:
        pm.mail_loss(tiny_net(4), x, labels, eps=0.3)
    with pytest.warns(UserWarning, match=said) as other:
        pm.attack("pgd", eps=0.3)
    assert [Path(one.filename).name for one in (*found, *other)] == [Path(__file__).name] * 2
    pm.mail_loss(tiny_net(4), x, labels, eps=0.07)
    pm.mail_loss(tiny_net(4), x, labels, eps=0.3, step_size=0.01)
    pm.attack("pgd", eps=0.3, step_size=0.01)
    pm.attack("pgd", eps=0.3, start="uniform_eps")
    pm.attack("pgd", num_steps=2)


def test_processes_that_share_a_batch_know_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("is_initialized", True), ("get_world_size", 2), ("get_rank", 1)):
        monkeypatch.setattr(torch.distributed, name, lambda *_, found=value: found)
    assert _sharing(tiny_net(4), True)[1:] == (2, 1)
    assert _sharing(tiny_net(4), None)[1:] == (1, 0)


def test_a_judged_network_stays_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, labels) = tiny_net(4), images(4, 8, size=8)
    places: list[torch.device] = []

    def to(place: torch.device) -> nn.Module:
        places.append(place)
        return model

    monkeypatch.setattr(model, "to", to)
    pm.evaluate(model, (x, labels), ["nat"])
    assert places == [torch.device("cpu")] * 2


def test_the_flag_takes_weights_away_and_nothing_else() -> None:
    for name in ("at", "trades", "trades-awp", "awp", "fat", "fat-trades"):
        assert loss_recipe(name, False) == loss_recipe(name, True), f"{name} has no weights"
    bare = loss_recipe("mail-awp", False)
    assert bare.awp == loss_recipe("mail-awp", True).awp is not None
    assert not bare.is_reweighted
    phases: list[dict[str, object]] = [{"from_epoch": 2, "set": {"attack.num_steps": 7}}]
    late = {"from_epoch": 4, "set": {"margin": "pm_adv", "weight": "sigmoid"}}
    changing = resolve("mail-at", epochs=6, settings={"phases": phases, "burn_in_epochs": 4})
    assert getattr(loss_recipe(changing, False).attack, "num_steps", 0) == 7, "of the last epoch of burn-in"
    later = resolve("at", epochs=6, settings={"phases": [late], "burn_in_epochs": 0})
    assert loss_recipe(later, True).is_reweighted
    assert not loss_recipe(later, False).is_reweighted
    whole = loss_recipe("mail-trades", True)
    assert loss_recipe("mail-trades", False) == whole.without_weights()


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
def test_evaluate_takes_arrays_too(dtype: type) -> None:
    test = blobs().test
    x = test.images.numpy() if dtype is np.uint8 else test.floats().numpy().astype(dtype)
    found = pm.evaluate(tiny_net(classes=2), (x, test.labels.numpy().astype(np.int32)), ["nat", "pgd-2"])
    wanted = pm.evaluate(tiny_net(classes=2), (test.floats(), test.labels), ["nat", "pgd-2"])
    assert found["nat"]["accuracy"] == wanted["nat"]["accuracy"]
    assert found["pgd-2"]["robust_accuracy"] == wanted["pgd-2"]["robust_accuracy"]


@pytest.mark.parametrize("norm", ["linf", "inf", "l2", 2])
def test_norms_are_spelled_one_way(norm: Any) -> None:
    x, labels = images(2, 4, size=8)
    with pytest.raises(pm.UsageError, match=r"unknown norm .*known: L2, Linf"):
        pm.evaluate(tiny_net().eval(), (x, labels), ["pgd-5"], norm=norm)


def test_a_radius_belongs_to_its_norm() -> None:
    data = images(2, 4, size=8)
    with pytest.raises(pm.UsageError, match=r"eps 8/255 is a radius in Linf: pass eps as well as norm='L2'"):
        pm.evaluate(tiny_net().eval(), data, ["pgd-5"], norm="L2")
    assert pm.evaluate(tiny_net().eval(), data, "nat, pgd-5", norm="L2", eps=0.5)["pgd-5"]["attack"]["eps"] == 0.5
    assert pm.evaluate(tiny_net().eval(), data, ["pgd-5"])["eps"] == 8 / 255


def test_autoattack_on_the_first_images_is_labelled_so() -> None:
    data = images(1, 9, size=8)
    result = pm.evaluate(tiny_net(1), data, "nat,pgd-2,aa", aa_examples=4, eps=0.05)
    counts = {name: (result[name]["num_examples"], result[name].get("first")) for name in ("nat", "pgd-2", "aa")}
    assert counts == {"nat": (9, None), "pgd-2": (9, None), "aa": (4, 4)}
    assert result["worst_case"]["num_examples"] == 4
    whole = pm.evaluate(tiny_net(1), data, ["aa"], aa_examples=10, eps=0.05)["aa"]
    assert (whole["num_examples"], "first" in whole) == (9, False), "more than there are is all"
    assert whole["correct"][:4] == result["aa"]["correct"]


def test_evaluate_refuses_a_number_of_images_that_autoattack_cannot_take() -> None:
    data = images(1, 4, size=8)
    with pytest.raises(pm.UsageError, match="--aa-examples must be 1 or more, not 0"):
        pm.evaluate(tiny_net(1), data, ["aa"], aa_examples=0)
    with pytest.raises(pm.UsageError, match="--aa-examples is for aa, aa-plus, aa-rand: leave it out"):
        pm.evaluate(tiny_net(1), data, ["nat", "apgd-ce"], aa_examples=2)


def test_evaluate_refuses_what_it_cannot_judge() -> None:
    test = blobs().test
    data = (test.floats(), test.labels)
    with pytest.raises(pm.UsageError, match=r"model is the class Flatten: pass an instance, Flatten\(\.\.\.\)"):
        pm.evaluate(nn.Flatten, data)  # type: ignore[arg-type]
    with pytest.raises(pm.UsageError, match="model is given as str: pass the network itself"):
        pm.evaluate("small-cnn", data)  # type: ignore[arg-type]
    with pytest.raises(pm.UsageError, match="model is the class Flatten"):
        pm.mail_loss(nn.Flatten, *data)  # type: ignore[arg-type]
    with pytest.raises(pm.UsageError, match="no pixels"):
        pm.evaluate(nn.Flatten(), (np.zeros((0, 1, 4, 4)), np.zeros(0, dtype=np.int64)))
    zeros = (test.floats()[test.labels == 0], test.labels[test.labels == 0])
    assert pm.evaluate(tiny_net(classes=2), zeros, ["nat"])["nat"]["num_examples"] == len(zeros[1])

    class Blind(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.detach().flatten(1)

    with pytest.raises(pm.UsageError, match="no gradient reaches the images"):
        pm.evaluate(Blind(), data, ["nat", "pgd-2"])
    assert pm.evaluate(Blind(), data, ["nat"])["nat"]["num_examples"] == len(test)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("label", [-100, -1, 3, 10])
def test_mail_loss_refuses_labels_out_of_range(method: str, label: int) -> None:
    x, labels = images(2, 8, size=8)
    labels[5] = label
    with pytest.raises(pm.UsageError, match="labels run from"):
        pm.mail_loss(tiny_net(2), x, labels, method, num_steps=2)


def test_mail_loss_refuses_other_batches() -> None:
    x, labels = images(2, 8, size=8)
    model = tiny_net(2)

    def refused(words: str, x: torch.Tensor, labels: torch.Tensor, method: object = "mail-at") -> None:
        with pytest.raises(pm.UsageError, match=words):
            pm.mail_loss(model, x, labels, method, num_steps=2)  # type: ignore[arg-type]

    refused("divide by 255", x * 255, labels)
    refused("they look normalised", (x - 0.5) / 0.2, labels)
    refused("NaN", x / 0, labels)
    refused("pass integer class numbers", x, labels.float())
    refused("use labels.reshape", x, labels[:, None])
    refused("method is given as int: pass a name", x, labels, 5)
    # What rounding leaves outside is fine, and so are other integers.
    pm.mail_loss(model, x.clamp(max=1) + 1e-7, labels.int(), "mail-at", num_steps=1)


def test_errors_of_the_model_itself_are_passed_on() -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise IndexError("mine")

    with pytest.raises(IndexError, match="mine"):
        pm.mail_loss(Failing(), *images(2, 8, size=8))


def test_train_refuses_other_models_and_methods(tmp_path: Path) -> None:
    def refused(words: str, **arguments: Any) -> None:
        with pytest.raises(pm.UsageError, match=words):
            pm.train(data=blobs(), out=tmp_path / "run", **arguments)
        assert not (tmp_path / "run").exists()

    refused(r"model is the class Flatten: pass an instance, Flatten\(\.\.\.\)", model=nn.Flatten)
    refused("model is given as function: pass", model=tiny_net)
    refused("method is given as int: pass a name", method=5, model=tiny_net(classes=2))
    refused("method is given as type: pass a name", method=pm.Method, model=tiny_net(classes=2))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"seed": -1}, "from 0 to 2147483647"),
        ({"seed": 2**31}, "from 0 to 2147483647"),
        ({"epochs": 3, "keep_epochs": [4]}, "from 1 to 3"),
        ({"epochs": 3, "keep_epochs": ["7"]}, "from 1 to 3"),
        ({"placement": "files"}, "can stay in their files"),
        ({"placement": "disk"}, "placement"),
    ],
)
def test_train_refuses_what_the_command_line_refuses(wrong: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(pm.UsageError, match=words):
        pm.train("at", model="small-cnn", data=blobs(), out=tmp_path / "run", **wrong)


def test_docstrings_of_public_functions() -> None:
    for name in pm.__all__:
        assert getattr(pm, name).__doc__, name


def test_a_loader_is_judged_as_its_images_are() -> None:
    data = pm.load_data("digits").test
    x, labels = data.floats()[:50], data.labels[:50]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    plain = pm.evaluate(model, (x, labels), ["nat", "pgd-5"], eps=0.1)
    loader = DataLoader(TensorDataset(x, labels), batch_size=16)
    found = pm.evaluate(model, loader, ["nat", "pgd-5"], eps=0.1)
    assert [found[name]["correct"] for name in ("nat", "pgd-5")] == [
        plain[name]["correct"] for name in ("nat", "pgd-5")
    ]
    with pytest.raises(pm.UsageError, match="make it yield"):
        pm.evaluate(model, DataLoader(TensorDataset(x), batch_size=16))
    with pytest.raises(pm.UsageError, match="leave out drop_last"):
        pm.evaluate(model, DataLoader(TensorDataset(x, labels), batch_size=64, drop_last=True))
    with pytest.raises(pm.UsageError, match=r"images of \(1, 8, 8\) and of \(1, 4, 8\): bring all to one shape"):
        pm.evaluate(model, DataLoader([(x[0], 1), (x[1, :, :4], 2)], batch_size=1))  # type: ignore[arg-type]
    with pytest.raises(pm.UsageError, match="or a DataLoader of both, not TensorDataset"):
        pm.evaluate(model, TensorDataset(x, labels))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_that_would_pass_for_another_is_refused(seed: int) -> None:
    model, x, labels = tiny_net(), torch.rand(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(UsageError, match="a seed must be from 0 to 2147483647"):
        pm.evaluate(model, (x, labels), seed=seed)
    with pytest.raises(UsageError, match="a seed must be from 0 to 2147483647"):
        pm.mail_loss(model, x, labels, seed=seed)


def test_bytes_of_zero_and_one_are_not_taken_for_black_pictures() -> None:
    x = np.indices((4, 1, 8, 8)).sum(axis=0).astype(np.uint8) % 2
    with pytest.raises(UsageError, match="hold 0 and 1 alone: pass 255 times as much, or floats"):
        pm.evaluate(tiny_net(), (x, np.zeros(4, dtype=np.int64)))
    assert pm.evaluate(tiny_net(), (0 * x, np.zeros(4, dtype=np.int64)), ["nat"])["num_examples"] == 4
    bright = np.full((1025, 1, 8, 8), 200, dtype=np.uint8)
    bright[-1] = 1
    pictures = [(torch.from_numpy(image), number % 2) for number, image in enumerate(bright)]
    assert len(from_torch_datasets("mine", pictures, pictures).train) == 1025, "one dark picture among others"  # type: ignore[arg-type]


def test_one_name_gives_one_weighting() -> None:
    margin = torch.linspace(-1, 1, 5)
    assert torch.equal(pm.sigmoid_weight(margin), Sigmoid()(margin))
    assert torch.equal(pm.hinge_weight(margin), Hinge()(margin))


def test_no_gradient_flows_through_weights() -> None:
    """In a loop of one's own they multiply losses; a gradient through them would teach other margins."""
    logits = torch.tensor([[2.0, 0.5, 0.0], [0.1, 1.0, 0.0]], requires_grad=True)
    labels = torch.tensor([0, 0])
    margin = pm.probabilistic_margin(logits, labels)
    assert margin.requires_grad, "a margin may be attacked"
    given = (
        pm.sigmoid_weight(margin),
        pm.hinge_weight(margin),
        pm.step_weight(margin),
        pm.gairat_weight(margin.clamp(min=0), 10, 0.0),
        pm.normalize_weights(margin.abs()),
    )
    assert not any(weight.requires_grad for weight in given)
    weight = pm.normalize_weights(pm.sigmoid_weight(margin))
    (weight * pm.at_loss(logits, labels).weighted).mean().backward()
    # d CE / d z = p - onehot, times the weight and 1 / 2.
    p = logits.detach().softmax(1)
    expected = weight[:, None] * (p - torch.eye(3)[labels]) / 2
    torch.testing.assert_close(logits.grad, expected)
