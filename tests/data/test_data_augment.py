"""Crops and flips against a slow reference, and the streams that decide them."""

from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st

from probmargin.data.augment import augment, epoch_augmentation, epoch_order

Padding = Literal["zero", "reflect"]


def slow(image: torch.Tensor, draw: list[int], pad: int, padding: Padding) -> torch.Tensor:
    """Do to one image what the definition says: pad, slice, flip."""
    dy, dx, flip = draw
    mode = "constant" if padding == "zero" else "reflect"
    height, width = image.shape[1:]
    # Reflection is not defined for uint8; float64 holds every level exactly.
    padded = F.pad(image[None].double(), (pad,) * 4, mode=mode)[0].to(image.dtype)
    crop = padded[:, dy : dy + height, dx : dx + width]
    return crop.flip(-1) if flip else crop


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 6), st.sampled_from([1, 3]), st.integers(2, 9), st.integers(2, 9)),
    pad=st.integers(0, 12),
    flip=st.booleans(),
    padding=st.sampled_from(["zero", "reflect"]),
    dtype=st.sampled_from([torch.uint8, torch.float32]),
    seed=st.integers(0, 1000),
)
def test_equals_the_slow_reference(
    shape: tuple[int, int, int, int],
    pad: int,
    flip: bool,
    padding: Padding,
    dtype: torch.dtype,
    seed: int,
) -> None:
    if padding == "reflect":
        pad = min(pad, min(shape[2:]) - 1)
    images = torch.randint(1, 256, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    draws = epoch_augmentation(shape[0], pad=pad, flip=flip, seed=seed, epoch=3)
    got = augment(images, draws, pad=pad, padding=padding)
    want = torch.stack([slow(x, d, pad, padding) for x, d in zip(images, draws.tolist(), strict=True)])
    assert got.dtype == dtype
    assert torch.equal(got, want)


@pytest.mark.parametrize("padding", ["zero", "reflect"])
def test_every_corner_and_flip_of_a_usual_crop(padding: Padding) -> None:
    draws = torch.tensor([[dy, dx, f] for dy in (0, 4, 8) for dx in (0, 3, 8) for f in (0, 1)])
    images = torch.randint(1, 256, (len(draws), 3, 32, 32), dtype=torch.uint8)
    got = augment(images, draws, pad=4, padding=padding)
    for image, draw, result in zip(images, draws.tolist(), got, strict=True):
        assert torch.equal(result, slow(image, draw, 4, padding))


def test_without_pad_and_flip_it_is_the_identity() -> None:
    draws = epoch_augmentation(7, pad=0, flip=False, seed=1, epoch=2)
    assert not draws.any()
    images = torch.rand(7, 3, 6, 5)
    before = images.clone()
    assert torch.equal(augment(images, draws, pad=0, padding="zero"), images)
    assert torch.equal(images, before)


def test_channels_last_gives_the_same() -> None:
    images, draws = torch.rand(5, 3, 8, 8), epoch_augmentation(5, pad=2, flip=True, seed=0, epoch=0)
    last = images.to(memory_format=torch.channels_last)
    plain = augment(images, draws, pad=2, padding="reflect")
    assert torch.equal(augment(last, draws, pad=2, padding="reflect"), plain)


def test_reflection_needs_room() -> None:
    with pytest.raises(ValueError, match="reflection by 8 pixels"):
        augment(torch.zeros(1, 1, 8, 8), torch.zeros(1, 3).long(), pad=8, padding="reflect")


def test_batches_of_any_size_give_the_same_epoch() -> None:
    images = torch.randint(0, 256, (50, 3, 8, 8), dtype=torch.uint8)
    draws = epoch_augmentation(50, pad=2, flip=True, seed=0, epoch=1)
    order = epoch_order(50, seed=0, epoch=1)
    whole = augment(images, draws, pad=2, padding="zero")[order]
    for size in (1, 7, 50):
        batches = [augment(images[b], draws[b], pad=2, padding="zero") for b in order.split(size)]
        assert torch.equal(torch.cat(batches), whole)


def test_draws_are_decided_by_seed_and_epoch_alone() -> None:
    def draw(seed: int, epoch: int, flip: bool = True) -> torch.Tensor:
        return epoch_augmentation(500, pad=4, flip=flip, seed=seed, epoch=epoch)

    first = draw(3, 5)
    torch.manual_seed(99)
    torch.rand(10)
    assert torch.equal(draw(3, 5), first)
    for other in (draw(3, 6), draw(4, 5), draw(5, 3)):
        assert (other == first).float().mean() < 0.5
    assert torch.equal(draw(3, 5, flip=False)[:, :2], first[:, :2])
    assert (first.dtype, tuple(first.shape)) == (torch.int64, (500, 3))


def test_draws_are_uniform_in_their_range() -> None:
    draws = epoch_augmentation(9000, pad=4, flip=True, seed=0, epoch=0)
    for column, levels in ((0, 9), (1, 9), (2, 2)):
        counts = torch.bincount(draws[:, column], minlength=levels)
        assert len(counts) == levels
        # Six standard deviations of a binomial count.
        share = 9000 / levels
        assert (counts - share).abs().max() < 6 * (share * (1 - 1 / levels)) ** 0.5


def test_order_is_a_permutation_of_its_own_stream() -> None:
    order = epoch_order(1000, seed=0, epoch=0)
    assert torch.equal(order.sort().values, torch.arange(1000))
    assert torch.equal(order, epoch_order(1000, seed=0, epoch=0))
    for seed, epoch in ((0, 1), (1, 0)):
        assert (epoch_order(1000, seed=seed, epoch=epoch) == order).float().mean() < 0.05


def test_streams_are_the_same_on_every_machine() -> None:
    assert epoch_order(5, seed=1, epoch=2).tolist() == ORDER
    assert epoch_augmentation(2, pad=4, flip=True, seed=1, epoch=2).tolist() == DRAWS


# Written down once: a changed stream would silently change every resumed run.
ORDER = [4, 1, 3, 0, 2]
DRAWS = [[2, 1, 1], [6, 7, 0]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_it_can_be_captured_in_a_cuda_graph() -> None:
    images = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8)
    static, draws = images.cuda(), torch.zeros(64, 3, dtype=torch.int64, device="cuda")
    augment(static, draws, pad=4, padding="reflect")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = augment(static, draws, pad=4, padding="reflect")
    chosen = epoch_augmentation(64, pad=4, flip=True, seed=0, epoch=0)
    draws.copy_(chosen)
    graph.replay()
    assert torch.equal(result.cpu(), augment(images, chosen, pad=4, padding="reflect"))
