"""Margins, weights, losses and gradients against golden vectors."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from golden_values import DTYPES, GOLDEN, LABELS, close, kappa, logits

from probmargin.core.batch import AttackTrace, BatchView
from probmargin.core.losses import cross_entropy, cw_loss, directed_kl, kl_divergence
from probmargin.margins.margin import MARGINS
from probmargin.methods.method import Method
from probmargin.methods.plain import with_settings
from probmargin.methods.resolve import named
from probmargin.objectives.mart import Mart, boosted_cross_entropy, weighted_divergence
from probmargin.objectives.objective import Objective
from probmargin.objectives.trades import Trades
from probmargin.training.step import batch_loss, weigh
from probmargin.weights.gairat import GairatDiscrete, GairatSigmoid, GairatTanh
from probmargin.weights.normalizers import Fixed, MeanOne, SumOne
from probmargin.weights.weight import WEIGHTS, Normalizer, Weight

pytestmark = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def alone(total: torch.Tensor) -> torch.Tensor:
    return total


def trace(dtype: torch.dtype) -> AttackTrace:
    """Ten steps after which kappa is the golden one, and p_y at the first wrong iterate that of logits_adv_at_lps."""
    steps = torch.arange(10)[:, None]
    correct = steps < kappa(torch.float64)[None, :]
    at_lps = logits("adv_at_lps", dtype).softmax(1).gather(1, LABELS[:, None])[:, 0]
    prob = at_lps.expand(11, -1)
    prob_nat = logits("nat", dtype).softmax(1).gather(1, LABELS[:, None])[:, 0]
    correct = torch.cat([correct, correct[-1:]])
    return AttackTrace(10, prob, correct, prob, prob_label_nat=prob_nat)


def view(dtype: torch.dtype, *, grad: bool = False) -> BatchView:
    names = ("nat", "adv", "cw")
    nat, adv, second = (logits(name, dtype).requires_grad_(grad) for name in names)
    return BatchView(labels=LABELS, logits_nat=nat, logits_adv=adv, logits_second=second, trace=trace(dtype))


def test_probabilities(dtype: torch.dtype) -> None:
    for name in ("nat", "adv"):
        close(logits(name, dtype).softmax(1), GOLDEN["probs"][name])


@pytest.mark.parametrize("name", GOLDEN["margins"])
def test_margins(name: str, dtype: torch.dtype) -> None:
    close(MARGINS.build(name)(view(dtype)), GOLDEN["margins"][name])


def weight_of(key: str) -> tuple[str, Weight]:
    """Parse 'margin|function|slope=2|bias=0'."""
    margin, function, *settings = key.split("|")
    name = {"hinge_decreasing": "hinge"}.get(function, function)
    values = dict(setting.split("=") for setting in settings)
    return margin, WEIGHTS.build({"name": name, **values})


NORMALISERS: dict[str, Normalizer] = {"mean_one": MeanOne(), "sum_one": SumOne(), "fixed3": Fixed(factor=3.0)}


@pytest.mark.parametrize("key", GOLDEN["mail_weights"])
def test_mail_weights(key: str, dtype: torch.dtype) -> None:
    margin, weight = weight_of(key)
    raw = weight(MARGINS.build(margin)(view(dtype)))
    close(raw, GOLDEN["mail_weights"][key]["raw"])
    for name, normalise in NORMALISERS.items():
        close(normalise(raw, reduce=alone), GOLDEN["mail_weights"][key][name])


def gairat_of(key: str) -> Weight:
    kind, *settings = key.split("|")
    values = dict(setting.split("=") for setting in settings if "=" in setting)
    steps = int(values["K"])
    if kind == "discrete":
        return GairatDiscrete(num_steps=steps)
    half = "int" if "code_int_half" in key else "real"
    chosen = GairatTanh if kind == "tanh" else GairatSigmoid
    return chosen(lam=float(values["lambda"]), num_steps=steps, half=half)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", GOLDEN["gair_weights"])
def test_gairat_weights(key: str, dtype: torch.dtype) -> None:
    expected = GOLDEN["gair_weights"][key]
    raw = gairat_of(key)(torch.arange(len(expected["raw"]), dtype=dtype))
    close(raw, expected["raw"])
    if "mean_one_over_0_to_10" in expected:
        close(MeanOne()(raw, reduce=alone), expected["mean_one_over_0_to_10"])


@pytest.mark.parametrize("key", GOLDEN["gair_batch"])
def test_gairat_on_the_batch(key: str, dtype: torch.dtype) -> None:
    weight = GairatTanh(lam=float(key.split("=")[1]), num_steps=10)(kappa(dtype))
    close(weight, GOLDEN["gair_batch"][key]["raw"])
    close(MeanOne()(weight, reduce=alone), GOLDEN["gair_batch"][key]["mean_one"])


def test_per_example_losses(dtype: torch.dtype) -> None:
    golden = GOLDEN["per_example"]
    nat, adv = logits("nat", dtype), logits("adv", dtype)
    close(cross_entropy(nat, LABELS), golden["ce_nat"])
    close(cross_entropy(adv, LABELS), golden["ce_adv"])
    close(directed_kl(nat, adv, "nat_adv"), golden["trades_kl_nat_adv"])
    close(directed_kl(nat, adv, "adv_nat"), golden["trades_kl_adv_nat_paper_direction"])
    close(boosted_cross_entropy(adv, LABELS), golden["mart_bce"])
    close(boosted_cross_entropy(adv, LABELS) - cross_entropy(adv, LABELS), golden["mart_margin_term"])
    close(weighted_divergence(nat, adv, LABELS, "nat_adv"), golden["mart_mkl"])
    close(cw_loss(adv, LABELS), golden["cw50"])


def test_mart_picks_the_most_probable_wrong_class(dtype: torch.dtype) -> None:
    adv = logits("adv", dtype).requires_grad_()
    (gradient,) = torch.autograd.grad((boosted_cross_entropy(adv, LABELS) - cross_entropy(adv, LABELS)).sum(), adv)
    assert gradient.argmax(1).tolist() == GOLDEN["per_example"]["mart_runner_up_class"]


def test_mart_without_its_guards_is_the_printed_formula(dtype: torch.dtype) -> None:
    dtype = torch.float64  # the printed formula cancels in float32
    golden = GOLDEN["per_example"]
    nat, adv = logits("nat", dtype), logits("adv", dtype)
    runner_up = torch.tensor(golden["mart_runner_up_class"])
    margin = -(1 - adv.softmax(1).gather(1, runner_up[:, None])[:, 0]).log()
    close(margin, golden["mart_margin_term_no_eps"])
    close(cross_entropy(adv, LABELS) + margin, golden["mart_bce_no_eps"])
    missing = 1 - nat.softmax(1).gather(1, LABELS[:, None])[:, 0]
    close(kl_divergence(nat, adv) * missing, golden["mart_mkl_no_eps"])
    close(kl_divergence(adv, nat) * missing, golden["mart_mkl_no_eps_paper_direction"])
    close(weighted_divergence(nat, adv, LABELS, "nat_adv") / (missing + 1e-7), golden["mart_kl_eps"])


def loss(recipe: Method, dtype: torch.dtype, *, grad: bool = False) -> tuple[torch.Tensor, BatchView]:
    """Through the step's own weighing and reduction."""
    batch = view(dtype, grad=grad)
    weight, _ = weigh(batch, recipe)
    return batch_loss(batch, recipe, weight), batch


def recipe(name: str, **settings: Any) -> Method:
    method = with_settings(named(name), {path.replace("__", "."): value for path, value in settings.items()})
    weight = method.weight.resolve(epoch=99, epochs=100, num_steps=10)
    return replace(method, weight=weight)


def three(name: str, **settings: Any) -> Method:
    return recipe(name, normalizer="fixed", normalizer__factor=3.0, **settings)


SCALARS: dict[str, Method] = {
    "at_mean": recipe("at"),
    "at_sum": recipe("at", reduction="sum"),
    "trades_beta1": recipe("trades", objective__beta=1),
    "trades_beta5": recipe("trades", objective__beta=5),
    "trades_beta6": recipe("trades"),
    "trades_beta6_paper_direction": recipe("trades", objective__kl_direction="adv_nat"),
    "mart_beta5": recipe("mart"),
    "mart_beta6": recipe("mart", objective__beta=6),
    "mail_at_fixed3_mean": three("mail-at"),
    "mail_at_mean_one_mean": recipe("mail-at"),
    "mail_at_mean_one_sum": recipe("mail-at", reduction="sum"),
    "mail_trades_beta5_fixed3": three("mail-trades"),
    "mail_trades_beta5_mean_one": recipe("mail-trades"),
    "mail_trades_beta5_mean_one_paper_direction": recipe("mail-trades", objective__kl_direction="adv_nat"),
    "mail_mart_beta5_fixed3": three("mail-mart", objective__beta=5),
    "mail_mart_beta5_mean_one": recipe("mail-mart", objective__beta=5),
    "mail_mart_beta6_fixed3": three("mail-mart"),
    "mail_mart_beta6_mean_one": recipe("mail-mart"),
    "gairat_lambda-1": recipe("gairat"),
    "gairat_lambda0": recipe("gairat", weight__lam=0),
    **{
        f"gair_{base}_weighted_beta6_lambda{lam}": recipe(f"gair-{family}", weight__lam=lam, objective__beta=6, **extra)
        for lam in (-1, 0)
        for base, family, extra in (
            ("trades_kl", "trades", {}),
            ("trades_nat_ce", "trades", {"objective__weighted_part": "nat_ce"}),
            ("mart_bce", "mart", {}),
        )
    },
}
ELSEWHERE = {
    "trades_beta6_elementwise_mean_TRAP",
    "mail_at_mean_one_ddp_2x3_local_norm",
    "gairat_lambda-1_ddp_2x3_local_norm",
    "gair_rst_mixture_beta6_lambda3",
    "cw50_sum",
}


def test_every_scalar_is_covered(dtype: torch.dtype) -> None:
    assert set(GOLDEN["scalars"]) == set(SCALARS) | ELSEWHERE


@pytest.mark.parametrize("key", SCALARS)
def test_scalars(key: str, dtype: torch.dtype) -> None:
    close(loss(SCALARS[key], dtype)[0], GOLDEN["scalars"][key])


def test_gair_rst_mixture(dtype: torch.dtype) -> None:
    method = named("gair-trades", "official")
    method = replace(method, weight=method.weight.resolve(epoch=199, epochs=200, num_steps=10))
    close(loss(method, dtype)[0], GOLDEN["scalars"]["gair_rst_mixture_beta6_lambda3"])


def test_the_element_wise_mean_is_not_what_we_compute(dtype: torch.dtype) -> None:
    trap = GOLDEN["scalars"]["trades_beta6_elementwise_mean_TRAP"]
    terms = Trades(beta=6.0)(view(dtype))
    close(terms.plain.mean() + terms.weighted.mean() / 4, trap)
    assert not math.isclose(float(loss(SCALARS["trades_beta6"], dtype)[0]), trap, rel_tol=0.1)


def test_cw_sum(dtype: torch.dtype) -> None:
    close(cw_loss(logits("adv", dtype), LABELS).sum(), GOLDEN["scalars"]["cw50_sum"])


@pytest.mark.parametrize("name", ["mail_at_mean_one_ddp_2x3_local_norm", "gairat_lambda-1_ddp_2x3_local_norm"])
def test_local_normalisation_of_two_processes(name: str, dtype: torch.dtype) -> None:
    method = recipe("mail-at" if name.startswith("mail") else "gairat", normalizer__scope="local")
    whole = view(dtype)
    raw = method.weight(method.margin(whole))
    total = torch.zeros((), dtype=dtype)
    for part in (slice(0, 3), slice(3, 6)):
        weight = method.normalizer(raw[part], reduce=lambda total: total * 2)
        total = total + (weight * cross_entropy(whole.adv()[part], LABELS[part])).mean() / 2
    close(total, GOLDEN["scalars"][name])


GRADIENTS: dict[str, Method] = {
    "trades_beta6": recipe("trades"),
    "mart_beta5": recipe("mart"),
    "mail_at_fixed3": three("mail-at"),
    "mail_at_mean_one": recipe("mail-at"),
    "mail_trades_beta5_fixed3": three("mail-trades"),
    "mail_mart_beta6_mean_one": recipe("mail-mart"),
}


@pytest.mark.parametrize("key", GOLDEN["gradients"])
def test_gradients(key: str, dtype: torch.dtype) -> None:
    golden = GOLDEN["gradients"][key]
    batch = view(dtype, grad=True)
    nat, adv = batch.nat(), batch.adv()
    if key == "trades_beta6_nat_detached_in_kl":
        value = (cross_entropy(nat, LABELS) + 6 * kl_divergence(nat.detach(), adv)).mean()
    else:
        method = GRADIENTS[key]
        weight, _ = weigh(batch, method)
        value = batch_loss(batch, method, weight)
    value.backward()
    close(value.detach(), golden["loss"])
    close(torch.zeros_like(nat) if nat.grad is None else nat.grad, golden["d_logits_nat"])
    assert adv.grad is not None
    close(adv.grad, golden["d_logits_adv"])


@pytest.mark.parametrize("objective", [Trades(), Trades(kl_direction="adv_nat"), Mart()], ids=repr)
def test_gradients_stay_finite_where_a_probability_underflows(objective: Objective, dtype: torch.dtype) -> None:
    far = torch.tensor([[0.0, 900.0, -900.0], [900.0, 0.0, 5.0]], dtype=dtype, requires_grad=True)
    near = torch.tensor([[900.0, 0.0, 3.0], [1.0, 2.0, 900.0]], dtype=dtype, requires_grad=True)
    terms = objective(BatchView(labels=torch.tensor([0, 2]), logits_nat=far, logits_adv=near))
    (terms.weighted + terms.plain).sum().backward()
    assert far.grad is not None
    assert near.grad is not None
    assert far.grad.isfinite().all()
    assert near.grad.isfinite().all()
