"""Networks that are called at few sizes, and the forms of a model that searches on CUDA ask."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, cast, get_args

import pytest
import torch
from autoattack_helpers import linear_task, run_ensemble, small_budget
from strategies import images, tiny_net
from torch import nn

from probmargin.attacks.apgd import APGD
from probmargin.attacks.fab import FAB
from probmargin.attacks.pgd import PGD
from probmargin.attacks.square import Square
from probmargin.core.noise import KeyedNoise
from probmargin.core.types import Classifier, Images, Logits
from probmargin.engine.captured import CapturedNetwork, Slot
from probmargin.engine.compile import compiled
from probmargin.engine.folding import CannotFold
from probmargin.engine.graphs import chosen_kernels
from probmargin.evaluation import network as network_module, opening as opening_module
from probmargin.evaluation.evaluate import EvaluationSettings, Keep, evaluate, judge
from probmargin.evaluation.network import (
    Form,
    Ready,
    SearchPrecision,
    Watched,
    captured_float32,
    captured_form,
    captured_or_finer,
    check_alike,
    check_slopes,
    folded_form,
    made_ready,
    ready_on_cuda,
)
from probmargin.evaluation.opening import Threat, opened
from probmargin.evaluation.recheck import recheck
from probmargin.evaluation.room import find_room
from probmargin.evaluation.search import Stage, attempt, confirm, form_for, full_float32, run_stage
from probmargin.models.build import build_model


class FixedSlot:
    """Behaves as graphs do: each pass overwrites what any slot left, and a backward uses it up."""

    shared: dict[str, torch.Tensor | None]

    def __init__(self, network: Callable[[Images], Logits], x: Images, shared: dict[str, torch.Tensor | None]) -> None:
        self.network, self.size, self.shared = network, len(x), shared

    def forward(self, x: Images) -> Logits:
        assert len(x) == self.size
        self.shared["x"] = x.detach().clone()
        return self.network(x.detach()).detach()

    def backward(self, slope: Logits) -> Images:
        x = self.shared["x"]
        assert x is not None, "what the backward needs was overwritten or used up"
        self.shared["x"] = None
        point = x.requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(self.network(point), point, slope)
        return gradient


def at_few_sizes(network: nn.Module, most: int) -> tuple[CapturedNetwork, list[tuple[int, bool]]]:
    made: list[tuple[int, bool]] = []
    shared: dict[str, torch.Tensor | None] = {"x": None}

    def make_slot(x: Images, with_gradient: bool) -> Slot:
        made.append((len(x), with_gradient))
        return FixedSlot(network, x, shared)

    return CapturedNetwork(make_slot, most), made


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200, 513])
def test_logits_and_gradients_are_the_networks_at_any_size(count: int) -> None:
    network = tiny_net().eval()
    call, made = at_few_sizes(network, most=128)
    x, _ = images(2, count, size=8)
    torch.testing.assert_close(call(x), network(x).detach(), rtol=1e-5, atol=1e-6)
    points = [x.clone().requires_grad_() for _ in range(2)]
    slope = torch.randn(count, network(x[:1]).shape[1], generator=torch.Generator().manual_seed(0))
    found, expected = (
        torch.autograd.grad(logits, point, slope)[0]
        for logits, point in zip((call(points[0]), network(points[1])), points, strict=True)
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert {size for size, _ in made} <= {64, 128}
    assert len(made) == len(set(made))


def test_a_pass_that_comes_between_does_not_change_a_gradient() -> None:
    network = tiny_net().eval()
    call, _ = at_few_sizes(network, most=128)
    x, _ = images(2, 70, size=8)
    first, second = x.clone().requires_grad_(), (1 - x).requires_grad_()
    expected = torch.autograd.grad(network(first).square().sum(), first)[0]
    logits = call(first)
    call(second)
    call(x[:5])
    found = torch.autograd.grad(logits.square().sum(), first, retain_graph=True)[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    again = torch.autograd.grad(logits.square().sum(), first)[0]
    torch.testing.assert_close(again, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_attacks_find_the_same_through_few_sizes(norm: str) -> None:
    model, x, labels = linear_task(count=30)
    call, _ = at_few_sizes(model, most=64)
    for attack in small_budget(norm, 0.1).values():  # type: ignore[arg-type]
        noise = KeyedNoise(seed=0, ids=torch.arange(len(x)))
        plain, through = (attack(f, x, labels, noise=noise).x_adv for f in (model, call))
        off = (plain - through).abs().flatten(1).amax(dim=1) > 1e-4
        assert off.float().mean() <= 0.1


@pytest.mark.parametrize("name", ["small-cnn", "resnet18", "preact-resnet18", "wrn-10-1"])
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_one_compilation_serves_all_sizes(name: str) -> None:
    """With gradient and without; a model that ties its batch size down would raise."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        size, channels = (8, 1) if name == "small-cnn" else (32, 3)
        model = build_model(name, in_channels=channels, num_classes=10).eval()
    network = folded_form(model, torch.float32)
    call = compiled(network, "default", dynamic=True)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for count in (4, 6):
            x = torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(count)).requires_grad_()
            torch._dynamo.mark_dynamic(x, 0)
            expected = torch.autograd.grad(model(x).sum(), x)[0]
            off = torch.autograd.grad(call(x).sum(), x)[0] - expected
            # By the whole gradient: rounding turns a few ReLUs that are all but zero: about a thousandth.
            assert off.norm() < 0.02 * expected.norm()
    torch._dynamo.reset()


def test_a_form_with_other_logits_is_refused() -> None:
    logits = torch.tensor([[1.0, -2.0]])
    check_alike(logits, logits + 0.03, "tf32")
    check_alike(logits, logits + 0.3, "bf16")
    with pytest.raises(CannotFold, match=r"off by 5"):
        check_alike(logits, logits + 0.1, "tf32")
    with pytest.raises(CannotFold, match="off by nan"):
        check_alike(logits, logits * torch.nan, "bf16")


def test_ascents_and_fab_in_linf_ask_bf16_square_fp16_and_others_tf32() -> None:
    model, x, labels = linear_task(count=4)
    with opened(model, x, labels, Threat("Linf", 0.1), None) as (subject, ready):
        assert subject.asked_by(APGD()) is subject.call
        some = replace(subject, forms={"bf16": lambda images: model(images), "tf32": lambda images: model(images)})
        fine = replace(some, forms={**some.forms, "fp16": lambda images: model(images)})
    assert ready.precision == "float32"
    assert all(some.asked_by(attack) is some.forms["bf16"] for attack in (APGD(), APGD(norm="L2"), FAB()))
    assert all(some.asked_by(attack) is some.forms["tf32"] for attack in (FAB(norm="L2"), Square(), PGD()))
    assert fine.asked_by(Square()) is fine.forms["fp16"]
    assert fine.asked_by(Square(norm="L2")) is fine.forms["tf32"]
    assert fine.asked_by(APGD()) is fine.forms["bf16"]


def test_searches_ask_the_precision_that_was_chosen() -> None:
    model, x, labels = linear_task(count=4)
    attacks = (APGD(), FAB(), Square(), PGD())
    assert {form_for(attack, "bf16") for attack in attacks} == {"bf16"}
    assert {form_for(attack, "tf32") for attack in attacks} == {"tf32"}
    assert {form_for(attack, "float32") for attack in attacks} == {None}
    stages = [Stage("square", Square())]
    with opened(model, x, labels, Threat("Linf", 0.1), None, stages, "float32") as (subject, ready):
        exact = replace(subject, forms={"bf16": lambda images: model(images)})
        assert all(exact.asked_by(attack) is exact.call for attack in attacks)
    assert ready.precision == "float32"


def test_another_precision_does_not_go_on_from_stored_results(tmp_path: Path) -> None:
    model, x, labels = linear_task(count=4)
    for search in ("auto", "float32", "float32"):
        settings = EvaluationSettings(eps=0.02, search=search)
        judge(model, x, labels, attacks=["pgd-20"], settings=settings, keep=Keep(tmp_path))
    assert len(list(tmp_path.glob("pgd-20-*"))) == 2


def test_a_second_look_finds_what_a_blind_search_missed() -> None:
    """A search whose network tells it nothing breaks nothing; looked at again, its survivors fall."""
    model, x, labels = linear_task(count=40)
    stages = [Stage(name, attack) for name, attack in small_budget("Linf", 0.2).items()]
    with opened(model, x, labels, Threat("Linf", 0.2), None) as (subject, _):
        blind = replace(subject, call=lambda images: model(images.detach() * 0 + x[0]))
        standing = torch.ones(len(x), dtype=torch.bool)
        standing[:10] = False
        look = recheck(blind, stages, standing, count=20)
        every = recheck(blind, stages, standing, count=1000)
    assert look.examples == 20
    assert every.examples == 30
    assert every.broken >= look.broken >= 15
    assert bool(standing[10:].all())
    assert look.line().startswith(f"{look.broken} of 20 survivors")
    assert look.line().endswith("of all, 95% interval"), "20 of 30 are a sample"
    assert every.line().endswith("these are all")


def test_float16_keeps_the_digits_of_tf32() -> None:
    """Folded, with a float32 head: what a search without gradients may ask."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_model("resnet18", in_channels=3, num_classes=10).eval()
    x, _ = images(2, 8, size=32)
    x = x[:, :1].expand(-1, 3, -1, -1)
    with torch.no_grad():
        expected, found = model(x), folded_form(model, torch.float16)(x)
    assert found.dtype == torch.float32
    off = (found - expected).abs().max() / expected.abs().max()
    assert 0 < off < 2e-3


def test_a_second_look_asks_the_network_it_is_given() -> None:
    model, x, labels = linear_task(count=12)
    stages = [Stage("apgd-ce", small_budget("Linf", 0.2)["apgd-ce"])]
    asked: list[int] = []

    def counted(images: Images) -> Logits:
        asked.append(len(images))
        logits: Logits = model(images)
        return logits

    with opened(model, x, labels, Threat("Linf", 0.2), None) as (subject, _):
        look = recheck(subject, stages, torch.ones(len(x), dtype=torch.bool), 5, counted)
    assert asked
    assert look.examples == 5


def test_an_ensemble_says_what_it_computed_in_and_what_a_second_look_found() -> None:
    model, x, labels = linear_task(count=12)
    said: list[str] = []
    asked = EvaluationSettings(eps=0.02, recheck=5)
    result = evaluate(model, x, labels, attacks=["nat", "aa"], settings=asked, log=said.append)
    assert result["aa"]["search_precision"] == "float32"
    assert result["aa"]["recheck"]["broken"] == 0
    assert 0 < result["aa"]["recheck"]["examples"] <= 5
    assert any("second look in float32" in line for line in said)
    assert "recheck" not in evaluate(model, x, labels, attacks=["aa"], settings=replace(asked, recheck=None))["aa"]


class Rounded(nn.Module):
    """Claims a wrong class where the model is nearly in doubt, as a form of few digits may."""

    def __init__(self, model: nn.Module, doubt: float) -> None:
        super().__init__()
        self.model, self.doubt = model, doubt

    def forward(self, x: Images) -> Logits:
        logits: Logits = self.model(x)
        best = logits.topk(2, dim=1)
        close = (best.values[:, 0] - best.values[:, 1] < self.doubt)[:, None]
        return torch.where(close, logits - 2 * self.doubt * (logits == best.values[:, :1]), logits)


@pytest.mark.parametrize("name", ["apgd-t", "fab-t", "square"])
def test_a_claim_that_does_not_hold_is_searched_again_in_float32(name: str) -> None:
    model, x, labels = linear_task(count=60)
    stage = Stage(name, small_budget("Linf", 0.1)[name])
    rows = torch.arange(len(x))
    with opened(model, x, labels, Threat("Linf", 0.1), None) as (subject, _):
        (exact,) = run_stage(subject, stage, rows)
        form, _ = at_few_sizes(Rounded(model, 0.05), most=1024)
        rounded = replace(subject, forms={"bf16": form, "tf32": form}, rounds=True)
        trusted = confirm(rounded, rows, attempt(rounded, stage, rows, form))
        (found,) = run_stage(rounded, stage, rows)
    counts = [int(each.broken.sum()) for each in (trusted, found, exact)]
    assert counts[0] < counts[1], counts
    assert counts[2] <= counts[1] + 1, counts


@pytest.mark.parametrize("name", ["apgd-t", "square"])
def test_a_model_without_forms_that_rounds_is_searched_again_too(name: str) -> None:
    model, x, labels = linear_task(count=60)
    stage, rows = Stage(name, small_budget("Linf", 0.1)[name]), torch.arange(60)
    with opened(model, x, labels, Threat("Linf", 0.1), None) as (subject, ready):
        assert not ready.rounds
        assert not subject.rounds
        quick = replace(subject, call=Rounded(model, 0.05))
        (trusted,) = run_stage(quick, stage, rows)
        (found,) = run_stage(replace(quick, rounds=True), stage, rows)
    assert int(trusted.broken.sum()) < int(found.broken.sum())
    assert Ready(model, model, is_exact=False).rounds
    assert Ready(model, model, {"bf16": model}).rounds


def test_a_form_that_overflows_is_not_believed() -> None:
    model, x, labels = linear_task(count=60, seed=26)
    stage, rows = Stage("square", small_budget("Linf", 0.1)["square"]), torch.arange(60)
    calls: list[int] = []

    def later(images: Images) -> Logits:
        """Overflows on proposals alone."""
        calls.append(len(images))
        logits: Logits = model(images)
        return logits if len(calls) == 1 else logits * torch.nan

    with opened(model, x, labels, Threat("Linf", 0.1), None) as (subject, _):
        (exact,) = run_stage(subject, stage, rows)
        watched = Watched(later)
        rounded = replace(subject, forms={"fp16": watched}, rounds=True)
        (found,) = run_stage(rounded, stage, rows)
        nothing = Watched(lambda images: model(images) * torch.nan)
        (unseen,) = run_stage(replace(rounded, forms={"bf16": nothing.form, "fp16": nothing.form}), stage, rows)
    assert not watched.overflowed()
    assert torch.equal(found.broken, exact.broken)
    # Without a watch, what is not a number at the end is searched again at least.
    assert torch.equal(unseen.broken, exact.broken)
    # NaN looks like class 0, whose images would seem to hold.
    assert int(exact.broken[labels == 0].sum()) > 0
    good = Watched(model)
    good(x)
    assert not good.overflowed()


class Noisy(nn.Module):
    """Draws anew in each pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Images) -> Logits:
        logits: Logits = self.model(x + 0.1 * torch.randn_like(x))
        return logits


def test_a_random_model_gets_no_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, _ = linear_task(count=8)
    monkeypatch.setattr(network_module, "captured_form", lambda *_: model)
    fixed = ready_on_cuda(model, x, (8, {"bf16"}), ())
    assert list(fixed.forms) == ["bf16"]
    noisy = ready_on_cuda(Noisy(model), x, (8, {"bf16"}), ())
    assert (noisy.forms, noisy.precision, noisy.rounds) == ({}, "tf32", True)
    assert noisy.notes == ("searches run operation by operation: its output is random",)


def test_a_function_on_cuda_rounds_unless_float32_is_asked_for() -> None:
    model, _, _ = linear_task(count=4)
    on_cuda = cast(Images, SimpleNamespace(is_cuda=True))
    on_cpu = cast(Images, SimpleNamespace(is_cuda=False))
    ask = lambda images: model(images)  # noqa: E731
    assert made_ready(ask, on_cuda, 4, {"bf16"}).rounds
    assert not made_ready(ask, on_cuda, 4, ()).rounds
    assert not made_ready(ask, on_cpu, 4, {"bf16"}).rounds


def test_what_rounds_without_forms_gets_a_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, labels = linear_task(count=12)
    monkeypatch.setattr(opening_module, "made_ready", lambda *_: Ready(model, model, is_exact=False))
    result = evaluate(model, x, labels, attacks=["aa"], settings=EvaluationSettings(eps=0.02))
    assert result["aa"]["search_precision"] == "tf32"
    assert result["aa"]["recheck"]["examples"] > 0


def test_a_form_with_other_gradients_is_refused() -> None:
    network = tiny_net().eval()
    x, _ = images(2, 20, size=8)
    check_slopes(network, at_few_sizes(network, most=64)[0], x)
    with pytest.raises(CannotFold, match="gradients are not the model's"):
        check_slopes(network, lambda images: network(1 - images), x)
    flat = lambda images: 0 * network(images)  # noqa: E731
    check_slopes(flat, flat, x)


def test_only_the_forms_that_are_asked_are_wanted() -> None:
    assert {form_for(attack) for attack in (APGD(loss="dlr_targeted"), FAB())} == {"bf16"}
    assert {form_for(attack) for attack in (FAB(norm="L2"), Square(norm="L2"), PGD())} == {"tf32"}
    assert form_for(Square()) == "fp16"
    mine = type("Mine", (APGD,), {"__module__": "lab"})()
    assert {form_for(mine, search) for search in get_args(SearchPrecision)} == {None}, "how it asks is not known"


def test_tf32_takes_the_place_of_a_float16_form_that_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, _ = linear_task(count=4)
    made: list[str] = []

    def make(_model: nn.Module, _x: torch.Tensor, _most: int, form: Form) -> Classifier:
        made.append(form)
        if form == "fp16":
            raise CannotFold("its logits are off by nan%")
        return model

    monkeypatch.setattr(network_module, "captured_form", make)
    assert network_module.captured_or_finer(model, x, 4, "bf16")[0] == "bf16"
    assert network_module.captured_or_finer(model, x, 4, "fp16")[0] == "tf32"
    assert made == ["bf16", "fp16", "tf32"]
    monkeypatch.setattr(network_module, "captured_form", lambda *_: model)
    assert isinstance(network_module.captured_or_finer(model, x, 4, "fp16")[1], Watched)
    assert network_module.captured_or_finer(model, x, 4, "tf32")[1] is model


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["bf16", "fp16", "tf32", "float32"])
def test_a_captured_network_gives_the_models_logits_and_gradients(form: Form | Literal["float32"]) -> None:
    model = build_model("resnet18", in_channels=3, num_classes=10).eval().cuda()
    x = torch.rand(300, 3, 32, 32, device="cuda")
    call = captured_float32(model, x, 256) if form == "float32" else captured_form(model, x, 256, form)
    for count in (1, 70, 256, 300):
        points = [x[:count].clone().requires_grad_() for _ in range(2)]
        with full_float32(x):
            logits = [model(points[0]), call(points[1])]
            if form == "fp16":
                check_alike(logits[0].detach(), logits[1].detach(), form)
                continue
            slopes = [torch.autograd.grad(z.logsumexp(1).sum(), p)[0] for z, p in zip(logits, points, strict=True)]
        if form == "float32":
            torch.testing.assert_close(logits[1], logits[0], rtol=1e-3, atol=1e-4)
        else:
            check_alike(logits[0].detach(), logits[1].detach(), form)
        alike = torch.nn.functional.cosine_similarity(slopes[0].flatten(1), slopes[1].flatten(1))
        assert float(alike.min()) > 0.9


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
def test_room_is_what_the_network_needs_not_what_choosing_kernels_takes() -> None:
    model = build_model("resnet18", in_channels=3, num_classes=10).eval().cuda()
    x = torch.rand(64, 3, 32, 32, device="cuda")
    with chosen_kernels():
        assert find_room(model, x, None).rows >= 2048


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
def test_a_watch_over_a_captured_network_sees_what_overflows() -> None:
    model = build_model("resnet18", in_channels=3, num_classes=10).eval().cuda()
    x = torch.rand(100, 3, 32, 32, device="cuda")
    form, call = captured_or_finer(model, x, 64, "fp16")
    assert form == "fp16"
    assert isinstance(call, Watched)
    with torch.no_grad():
        call(x)
        assert not call.overflowed()
        call(1e7 * x)
        assert call.overflowed()
        call(x)
    assert not call.overflowed()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
def test_a_random_model_gets_no_captured_forms() -> None:
    model = Noisy(build_model("resnet18", in_channels=3, num_classes=10)).eval().cuda()
    ready = ready_on_cuda(model, torch.rand(16, 3, 32, 32, device="cuda"), (16, {"bf16", "fp16"}), ())
    assert (ready.forms, ready.rounds) == ({}, True)
    assert "its output is random" in ready.notes[0]


class Undefined(nn.Module):
    """Has gradients that are not numbers for a part of each image."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Images) -> Logits:
        flat = (x[..., :1, :] - 2.0).clamp(min=0.0).sqrt().flatten(1).sum(dim=1, keepdim=True)
        logits: Logits = self.model(x) + 0.0 * flat
        return logits


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
def test_an_ensemble_leaves_as_many_on_a_gpu_as_on_a_cpu() -> None:
    model, x, labels = linear_task(count=200)
    for each in (model, Undefined(model)):
        left = []
        for device in ("cpu", "cuda"):
            attacks = small_budget("Linf", 0.1)
            task = (each.to(device), x.to(device), labels.to(device))
            robust = run_ensemble(*task, norm="Linf", eps=0.1, attacks=attacks).robust
            left.append({name: int(standing.sum()) for name, standing in robust.items()})
        assert set(left[0]) == set(left[1])
        assert all(abs(left[0][name] - left[1][name]) <= 1 for name in left[0]), left
        assert left[0]["square"] < left[0]["clean"]
