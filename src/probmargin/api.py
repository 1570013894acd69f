"""The public functions: tensors in, tensors out; each works without the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from probmargin.attacks.attack import ATTACKS, Attack
from probmargin.attacks.balls import Norm
from probmargin.core.batch import AttackResult, BatchView, LossTerms
from probmargin.core.errors import UsageError, unknown_name
from probmargin.core.losses import logit_margin, probabilistic_margin
from probmargin.core.noise import KeyedNoise, fresh_noise
from probmargin.core.types import Images, Labels, Logits, PerExample
from probmargin.data.checks import check_images
from probmargin.data.dataset import DataSet, from_arrays
from probmargin.data.loader import DESCRIPTIONS as DATA_SETS, load as load_data
from probmargin.engine.devices import pick_device
from probmargin.evaluation.evaluate import EvaluationSettings, evaluate as evaluate_model
from probmargin.evaluation.protocol import DESCRIPTIONS as PROTOCOL_ATTACKS, PROTOCOLS
from probmargin.margins.margin import MARGINS
from probmargin.methods.method import Method
from probmargin.methods.plain import with_settings
from probmargin.methods.resolve import METHODS, named, resolve
from probmargin.models.build import DESCRIPTIONS as MODELS
from probmargin.objectives.at import AT
from probmargin.objectives.mart import Mart
from probmargin.objectives.objective import OBJECTIVES
from probmargin.objectives.trades import Trades
from probmargin.runs.run import Run as StoredRun, open_run
from probmargin.training.network import Network
from probmargin.training.progress import Reporter
from probmargin.training.step import Batch, attack_batch, batch_loss, view_of, weigh
from probmargin.training.train import TrainRequest, train as run_training
from probmargin.weights.gairat import GairatTanh
from probmargin.weights.hinge import Hinge, HingeAsPrinted
from probmargin.weights.sigmoid import Sigmoid
from probmargin.weights.step import Step
from probmargin.weights.weight import NORMALIZERS, WEIGHTS

__all__ = [
    "Attack",
    "AttackResult",
    "DataSet",
    "KeyedNoise",
    "LossTerms",
    "Method",
    "Run",
    "UsageError",
    "at_loss",
    "attack",
    "catalogue",
    "evaluate",
    "gairat_weight",
    "hinge_weight",
    "load_data",
    "logit_margin",
    "mail_loss",
    "mart_loss",
    "normalize_weights",
    "open_run",
    "probabilistic_margin",
    "resolve",
    "sigmoid_weight",
    "step_weight",
    "trades_loss",
    "train",
]

Arrays: TypeAlias = tuple[Any, Any]
"""Images and labels, as arrays or tensors."""


def sigmoid_weight(margin: PerExample, slope: float = 10.0, bias: float = -0.5) -> PerExample:
    """1 / (1 + exp(slope * (margin - bias))).

    >>> sigmoid_weight(torch.tensor([-0.5, 0.0])).tolist()
    [0.5, 0.006693]
    """
    return Sigmoid(slope=slope, bias=bias)(margin)


def hinge_weight(margin: PerExample, slope: float = 2.0, bias: float = 0.0, as_printed: bool = False) -> PerExample:
    """max(0, slope * (bias - margin)); with `as_printed` the paper's rising form max(0, slope * (margin - bias)).

    >>> hinge_weight(torch.tensor([-0.5, 0.5])).tolist()
    [1.0, 0.0]
    """
    chosen = HingeAsPrinted(slope=slope, bias=bias) if as_printed else Hinge(slope=slope, bias=bias)
    return chosen(margin)


def step_weight(margin: PerExample, alpha: float = 0.2, bias: float = 0.0) -> PerExample:
    """Alpha where the margin is above the bias, else 1 - alpha.

    >>> step_weight(torch.tensor([-0.5, 0.5])).tolist()
    [0.8, 0.2]
    """
    return Step(alpha=alpha, bias=bias)(margin)


def gairat_weight(steps: PerExample, num_steps: int, lam: float) -> PerExample:
    """GAIRAT's (1 + tanh(lam + 5 (1 - 2 steps / num_steps))) / 2, not normalised.

    >>> gairat_weight(torch.tensor([4.0, 10.0]), num_steps=10, lam=-1.0).tolist()
    [0.5, 0.00000614]
    """
    return GairatTanh(lam=lam, num_steps=num_steps)(steps)


def normalize_weights(weight: PerExample, how: str = "mean_one") -> PerExample:
    """Scale a batch of weights: mean_one, sum_one or fixed.

    >>> normalize_weights(torch.tensor([3.0, 1.0])).tolist()
    [1.5, 0.5]
    """
    return NORMALIZERS.build(how)(weight, reduce=lambda total: total)


def at_loss(logits_adv: Logits, labels: Labels) -> LossTerms:
    """Cross-entropy of the adversarial images, per example; the weight multiplies all of it.

    >>> at_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([0])).weighted.tolist()
    [0.6931]
    """
    return AT()(BatchView(labels=labels, logits_adv=logits_adv))


def trades_loss(logits_nat: Logits, logits_adv: Logits, labels: Labels, beta: float) -> LossTerms:
    """Clean cross-entropy (plain) and beta * KL(p_nat || p_adv) (weighted), per example.

    >>> terms = trades_loss(torch.zeros(1, 2), torch.tensor([[2.0, 0.0]]), torch.tensor([0]), beta=6.0)
    >>> (terms.weighted + terms.plain).mean().item()
    3.2958
    """
    return Trades(beta=beta)(BatchView(labels=labels, logits_nat=logits_nat, logits_adv=logits_adv))


def mart_loss(logits_nat: Logits, logits_adv: Logits, labels: Labels, beta: float) -> LossTerms:
    """Boosted cross-entropy (weighted) and beta times the misclassification-aware divergence (plain), per example.

    >>> terms = mart_loss(torch.zeros(1, 2), torch.zeros(1, 2), torch.tensor([0]), beta=5.0)
    >>> terms.weighted.tolist(), round(terms.plain.item(), 4)
    ([1.3861], 0.0)
    """
    return Mart(beta=beta)(BatchView(labels=labels, logits_nat=logits_nat, logits_adv=logits_adv))


def attack(name: str, **settings: Any) -> Attack:
    """An attack by name; call it with (model, x, labels) to get an AttackResult.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> x, labels = torch.rand(2, 1, 2, 2), torch.tensor([0, 1])
    >>> result = attack("pgd", eps=8 / 255, step_size=2 / 255, num_steps=10)(model, x, labels)
    >>> bool(((result.x_adv - x).abs() <= 8 / 255 + 1e-6).all())
    True
    """
    return ATTACKS.build({"name": name, **settings}, "attack")


def _method(method: str | Method, weighted: bool, **attack_settings: float) -> Method:
    recipe = named(method) if isinstance(method, str) else method
    if recipe.attack is not None and isinstance(method, str):
        recipe = with_settings(recipe, {f"attack.{key}": value for key, value in attack_settings.items()})
    if not weighted:
        return recipe.without_weights()
    num_steps = getattr(recipe.attack, "num_steps", 0)
    weight = recipe.weight.resolve(epoch=recipe.epochs - 1, epochs=recipe.epochs, num_steps=num_steps)
    return replace(recipe, weight=weight)


def mail_loss(
    model: nn.Module,
    x: Images,
    labels: Labels,
    method: str | Method = "mail-trades",
    *,
    weighted: bool = True,
    eps: float = 8 / 255,
    step_size: float = 2 / 255,
    num_steps: int = 10,
    seed: int | None = None,
) -> torch.Tensor:
    """Attack a batch, weigh its examples and return the loss: a drop-in for anyone's own loop.

    `weighted=False` is what burn-in epochs use. Attack sizes go with a method's name; a Method brings its own. Without
    a seed, noise follows torch's global generator.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> loss = mail_loss(model, torch.rand(8, 1, 2, 2), torch.randint(3, (8,)), method="mail-at", seed=0)
    >>> loss.backward(); optimizer.step()
    """
    recipe = _method(method, weighted, eps=eps, step_size=step_size, num_steps=num_steps)
    network = Network(model)
    batch = Batch(x=x, labels=labels, noise=fresh_noise(len(x), x.device, seed))
    view = view_of(network.forward, recipe, batch, attack_batch(network, recipe, batch))
    weight, _ = weigh(view, recipe)
    return batch_loss(view, recipe, weight)


@dataclass(frozen=True)
class Run(StoredRun):
    """A run that has just been trained: its folder, and the model in memory."""

    trained: nn.Module

    @property
    def model(self) -> nn.Module:
        """The trained network in eval mode."""
        return self.trained


def _data(data: "str | DataSet | tuple[Arrays, Arrays]", data_dir: Path | str | None, download: bool) -> DataSet:
    if isinstance(data, DataSet):
        return data
    if isinstance(data, str):
        return load_data(data, Path(data_dir) if data_dir else None, download=download)
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise UsageError("data is a name such as 'cifar10', a DataSet, or ((x, y), (x_test, y_test))")
    return from_arrays("arrays", data[0], data[1])


def train(
    method: str | Method = "mail-trades",
    *,
    model: str | nn.Module = "resnet18",
    data: "str | DataSet | tuple[Arrays, Arrays]" = "cifar10",
    out: str | Path,
    preset: str = "paper",
    data_dir: str | Path | None = None,
    download: bool = False,
    epochs: int | None = None,
    batch_size: int | None = None,
    settings: Mapping[str, Any] | None = None,
    seed: int = 1,
    device: str | None = None,
    precision: str | None = None,
    compile: str = "default",
    resume: bool = False,
    normalize: bool = False,
    checkpoint: str | Path | None = None,
    fork: str | None = None,
    keep_epochs: Sequence[int] = (),
    validation: int | None = None,
    validation_every: int | None = None,
    early_stopping: int | None = None,
    monitor: str | None = None,
    monitor_every: int = 5,
    dynamics: bool = False,
    label_noise: str | None = None,
    sync_bn: bool = False,
    reporter: Reporter | None = None,
) -> Run:
    """Train a model by a method and return the run, with .path, .model, .recipe and .metrics.

    `data` is a name, a DataSet, or ((x, y), (x_test, y_test)) with images in [0, 1] or uint8; `model` a name,
    package.module:factory, or an nn.Module from [0, 1] images to logits. The other arguments are those of
    `probmargin train`.
    """
    dataset = _data(data, data_dir, download)
    model_name = model if isinstance(model, str) else ""
    recipe = resolve(
        method,
        preset=preset,
        data=dataset.name,
        model=model_name,
        epochs=epochs,
        batch_size=batch_size,
        settings=settings or {},
    )
    request = TrainRequest(
        out=Path(out),
        model=model,
        seed=seed,
        device=device,
        precision=precision,
        compile=compile,
        resume=resume,
        normalize=normalize,
        checkpoint=Path(checkpoint) if checkpoint else None,
        fork=fork,
        keep_epochs=tuple(keep_epochs),
        validation=validation,
        validation_every=validation_every,
        early_stopping=early_stopping,
        monitor=monitor,
        monitor_every=monitor_every,
        dynamics=dynamics,
        label_noise=label_noise,
        sync_bn=sync_bn,
    )
    run, trained = run_training(recipe, dataset, request, reporter or Reporter(quiet=True))
    return Run(run.path, trained)


def evaluate(
    model: nn.Module,
    data: tuple[torch.Tensor, torch.Tensor],
    attacks: Sequence[str] = ("nat", "pgd-20"),
    *,
    norm: Norm = "Linf",
    eps: float = 8 / 255,
    device: str = "cpu",
    batch_size: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Judge a model on (x, y): result["nat"]["accuracy"] and result["pgd-20"]["robust_accuracy"], in [0, 1].

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> result = evaluate(model, (torch.rand(6, 1, 2, 2), torch.tensor([0, 1, 2, 0, 1, 2])), ["nat", "pgd-5"])
    >>> 0 <= result["nat"]["accuracy"] <= 1 and len(result["pgd-5"]["interval"]) == 2
    True
    """
    x, labels = data
    check_images(
        x, labels, num_classes=None if len(labels) > 1 and labels.min() < labels.max() else int(labels.max()) + 1
    )
    chosen = pick_device(device)
    images = x.float() / 255.0 if x.dtype == torch.uint8 else x
    settings = EvaluationSettings(norm=norm, eps=eps, seed=seed, batch_size=batch_size)
    on_device = model.to(chosen)
    return evaluate_model(on_device, images.to(chosen), labels.to(chosen), attacks=attacks, settings=settings)


def catalogue(kind: str | None = None) -> list[str]:
    """The names that commands and recipes take, one line each; of one kind or of all.

    >>> [line.split()[0] for line in catalogue("weights")][1:4]
    ['gairat_discrete', 'gairat_sigmoid', 'gairat_tanh']
    """
    kinds: dict[str, dict[str, str]] = {
        "methods": {name: _method_summary(name) for name in METHODS},
        "margins": {name: MARGINS.summary(name) for name in MARGINS.names()},
        "weights": {name: WEIGHTS.summary(name) for name in WEIGHTS.names()},
        "normalizers": {name: NORMALIZERS.summary(name) for name in NORMALIZERS.names()},
        "objectives": {name: OBJECTIVES.summary(name) for name in OBJECTIVES.names()},
        "attacks": PROTOCOL_ATTACKS | {f"{n} (in recipes)": ATTACKS.summary(n) for n in ATTACKS.names()},
        "protocols": {name: protocol.summary for name, protocol in PROTOCOLS.items()},
        "models": dict(MODELS),
        "data": dict(DATA_SETS),
    }
    if kind is not None and kind not in kinds:
        raise unknown_name("kind of name", kind, kinds)
    lines = []
    for title, entries in kinds.items():
        if kind in (None, title):
            lines.append(title)
            width = max(map(len, entries)) + 2
            lines += [f"  {name:<{width}}{summary}" for name, summary in entries.items()]
    return lines


def _method_summary(name: str) -> str:
    presets = METHODS[name]
    return f"{str(presets['paper'].__doc__).splitlines()[0]} [{', '.join(presets)}]"
