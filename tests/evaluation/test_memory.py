"""Memory: chunks are halved where it ends, and no more than the images is kept."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from autoattack_helpers import linear_task, run_ensemble, small_budget
from strategies import images, tiny_net
from torch import nn

from probmargin.attacks.square import Square
from probmargin.core.errors import UsageError
from probmargin.evaluation import opening
from probmargin.evaluation.evaluate import EvaluationSettings, evaluate
from probmargin.evaluation.network import Ready
from probmargin.evaluation.quick import _StemGradient, quick_copy
from probmargin.evaluation.room import Room, find_room

LIMIT = 11


class Small(nn.Module):
    """Has memory for a few images at once."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.sizes: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(x))
        if len(x) > LIMIT:
            raise torch.OutOfMemoryError("no memory for so many")
        logits: torch.Tensor = self.inner(x)
        return logits


def test_a_chunk_that_does_not_fit_is_halved_for_good() -> None:
    room = Room(64, 64)
    sizes: list[int] = []

    def work(rows: torch.Tensor) -> list[int]:
        sizes.append(len(rows))
        if len(rows) > LIMIT:
            raise torch.OutOfMemoryError
        return rows.tolist()

    found = list(room.in_chunks(torch.arange(50), work))
    assert [row for rows in found for row in rows] == list(range(50))
    assert sizes[:4] == [50, 25, 12, 6]
    assert room.rows == 6
    assert list(room.in_chunks(torch.arange(3), work, share=9)) == [[0], [1], [2]]


class OnCuda(torch.Tensor):
    """Images of the host that say they lie on a GPU."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


@pytest.mark.parametrize(("free", "rows"), [(10**12, 4096), (10**8, 3547)])
def test_a_thousand_examples_are_attacked_at_once_on_cuda(
    monkeypatch: pytest.MonkeyPatch, free: int, rows: int
) -> None:
    """An image needs 10,000 bytes of the network and 16 times its own 256 beside; half of what is free is taken."""
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 0)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 32 * 10_000)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, free))
    x = torch.rand(40, 1, 8, 8).as_subclass(OnCuda)
    room = find_room(lambda images: images.flatten(1), x, None)
    assert (room.rows, room.at_once(), room.at_once(9)) == (rows, 1000, rows // 9)


@pytest.mark.parametrize(("batch", "is_cuda", "ahead"), [(1000, True, 2), (500, True, 4), (512, False, 2)])
def test_square_looks_ahead_as_far_as_a_pass_has_room(batch: int, is_cuda: bool, ahead: int) -> None:
    x = torch.zeros(batch, 1, 1, 1)
    given = x.as_subclass(OnCuda) if is_cuda else x
    assert Square()._ahead(60, batch, given) == ahead
    assert Square()._ahead(60, 8, given) == 8
    assert Square()._ahead(10, 8, given) == 1


def test_one_image_that_does_not_fit_is_the_end() -> None:
    def work(rows: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("not even one")

    with pytest.raises(torch.OutOfMemoryError):
        list(Room(8, 8).in_chunks(torch.arange(4), work))
    with pytest.raises(UsageError, match="batch_size"):
        Room(0, 1)


def test_an_ensemble_on_little_memory_finds_the_same() -> None:
    model, x, labels = linear_task(count=30)
    attacks = small_budget("Linf", 0.05)
    expected = run_ensemble(model, x, labels, norm="Linf", eps=0.05, attacks=attacks)
    small = Small(model)
    found = run_ensemble(small, x, labels, norm="Linf", eps=0.05, attacks=attacks)
    assert found.broken_by == expected.broken_by
    assert sum(size > LIMIT for size in small.sizes) < 20


def test_an_evaluation_on_little_memory_finds_the_same() -> None:
    x, labels = images(1, 25, size=8)
    settings = EvaluationSettings(eps=0.1)
    expected = evaluate(tiny_net(1), x, labels, attacks=["nat", "pgd-3x2", "cw-3"], settings=settings)
    found = evaluate(Small(tiny_net(1)), x, labels, attacks=["nat", "pgd-3x2", "cw-3"], settings=settings)
    for name in ("nat", "pgd-3x2", "cw-3"):
        assert found[name]["correct"] == expected[name]["correct"]


def test_on_a_cpu_the_room_goes_by_the_images_size_and_a_user_may_cap_it() -> None:
    for shape, rows in (((1, 8, 8), 4096), ((3, 32, 32), 341), ((3, 300, 300), 16)):
        assert find_room(tiny_net(), torch.empty(1, *shape), None).rows == rows
    asked = find_room(tiny_net(), torch.rand(4, 1, 8, 8), 7)
    assert (asked.rows, asked.at_once(), asked.at_once(9)) == (7, 7, 1)


def test_small_images_are_not_attacked_by_the_thousand_on_a_cpu() -> None:
    """Else ten times the images would take ten times the memory, up to where the most rows are reached."""
    room = find_room(tiny_net(), torch.rand(4, 1, 8, 8), None)
    assert (room.rows, room.at_once(), room.at_once(9)) == (4096, 512, 455)
    taken = list(room.in_chunks(torch.arange(1100), len))
    assert taken == [512, 512, 76]
    sizes: list[int] = []
    model, (x, labels) = tiny_net(1), images(1, 1100, size=8)

    class Counting(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            sizes.append(len(images))
            logits: torch.Tensor = model(images)
            return logits

    evaluate(Counting(), x, labels, attacks=["nat", "pgd-1"])
    assert max(sizes) == 512


class Viewing(nn.Module):
    """Reshapes in a way that only one memory layout allows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.linear = nn.Linear(4 * 64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.linear(self.conv(x).view(len(x), -1))
        return logits


def test_batch_norm_is_folded_where_it_follows_a_convolution() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3)
        )
        model(torch.rand(9, 1, 8, 8))
    x = torch.rand(5, 1, 8, 8)
    quick = quick_copy(model.eval(), x)
    kinds = [type(module).__name__ for module in quick]  # type: ignore[attr-defined]
    assert kinds == ["_Stem", "Identity", "ReLU", "BatchNorm2d", "_FlattenLast", "Linear"]
    torch.testing.assert_close(quick(x), model(x))
    assert isinstance(model[1], nn.BatchNorm2d)


@pytest.mark.parametrize("stem", [{"stride": 1, "padding": 1}, {"stride": 2, "padding": (1, 0)}, {"dilation": 2}])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_quick_copy_has_the_models_gradient(stem: dict[str, int], channels: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Conv2d(channels, 5, (3, 2), **stem), nn.BatchNorm2d(5), nn.ReLU()]  # type: ignore[arg-type]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d((3, 2)), nn.Flatten(), nn.Linear(30, 4)).double()
        x = torch.rand(6, channels, 9, 8, dtype=torch.float64)
        model(x)
    model.eval()
    quick = quick_copy(model, x)
    assert quick is not model
    slopes = []
    for network in (model, quick):
        point = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(network(point).square().sum(), point)
        slopes.append(slope)
    torch.testing.assert_close(slopes[0], slopes[1])
    kinds = [type(module).__name__ for module in quick]  # type: ignore[attr-defined]
    assert kinds[0] == ("Conv2d" if channels == 4 else "_Stem")
    assert kinds[4] == "_FlattenLast"


def test_a_copy_with_another_gradient_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).eval()
    x = torch.rand(2, 1, 6, 6)
    assert quick_copy(model, x) is not model
    backward = _StemGradient.backward
    monkeypatch.setattr(_StemGradient, "backward", staticmethod(lambda ctx, slope: (2 * backward(ctx, slope)[0], None)))
    assert quick_copy(model, x) is model


def test_a_layer_that_was_lazy_has_a_quick_copy_too() -> None:
    made = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    made(torch.rand(2, 1, 6, 6))
    again = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    again.load_state_dict(made.state_dict())
    again.eval()(torch.rand(2, 1, 6, 6))
    x = torch.rand(2, 1, 6, 6, requires_grad=True)
    quick = quick_copy(again, x)
    assert type(quick[0]).__name__ == "_Stem"  # type: ignore[index]
    (slope,), (expected,) = (torch.autograd.grad(network(x).sum(), x) for network in (quick, made))
    torch.testing.assert_close(slope, expected)


def test_pooling_that_does_nothing_is_dropped() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(6), nn.AdaptiveAvgPool2d(2), nn.Flatten()).eval()
    x = torch.rand(5, 1, 8, 8)
    quick = quick_copy(model, x)
    assert [type(module).__name__ for module in quick][1:3] == ["Identity", "AdaptiveAvgPool2d"]  # type: ignore[attr-defined]
    torch.testing.assert_close(quick(x), model(x))


class Lucky(nn.Module):
    """Right in its own layout alone: a copy would say something else."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        usual = self.conv.weight.is_contiguous()
        logits: torch.Tensor = self.conv(x.repeat(1, 2, 1, 1)).flatten(1)
        return logits if usual else -logits


def test_a_copy_that_differs_is_not_used() -> None:
    model, x = Lucky(), torch.rand(4, 1, 8, 8)
    assert quick_copy(model, x) is model


def test_a_break_must_hold_in_the_exact_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches may be told anything: what counts is the model as it was given."""
    model, x, labels = linear_task(count=10)
    broken = Ready(model, lambda images: -model(images))
    monkeypatch.setattr(opening, "made_ready", lambda *_: broken)
    result = run_ensemble(model, x, labels, norm="Linf", eps=1e-4, attacks=small_budget("Linf", 1e-4))
    assert result.accuracy() == 1.0


def test_a_model_that_does_not_stand_another_layout_is_judged_as_it_is() -> None:
    x, labels = images(2, 6, size=8)
    viewing, usual = Viewing(), tiny_net()
    assert quick_copy(viewing, x) is viewing
    other = quick_copy(usual, x)
    assert other is not usual
    torch.testing.assert_close(other(x), usual.eval()(x))
    assert usual.conv.weight.is_contiguous()
    assert "worst_case" in evaluate(viewing, x, labels, attacks=["nat", "pgd-2"])


IMAGE_BYTES = 3 * 64 * 64 * 4


def peak(count: int, kind: str) -> int:
    script = Path(__file__).with_name("peak_memory.py")
    result = subprocess.run([sys.executable, str(script), str(count), kind], capture_output=True, text=True, check=True)
    return int(result.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "copies", "few"), [("evaluation", 1, 150), ("ensemble", 2, 80)])
def test_ten_times_the_images_take_no_more_memory_than_they_fill(kind: str, copies: int, few: int) -> None:
    """An ensemble also returns its adversarial images; some is left for verdicts and for how memory is handed out."""
    growth = peak(10 * few, kind) - peak(few, kind)
    assert growth <= 1.15 * copies * 9 * few * IMAGE_BYTES
