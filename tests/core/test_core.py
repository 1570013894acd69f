"""Keyed noise, registries, frozen models, statistics."""

import hashlib
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, strategies as st
from strategies import tiny_net
from torch import nn

from probmargin.core.errors import UsageError
from probmargin.core.frozen import frozen, unwrapped
from probmargin.core.noise import KeyedNoise, fresh_noise
from probmargin.core.records import coerce, parse_number
from probmargin.core.registry import Registry
from probmargin.core.stats import effective_sample_size, wilson_interval


def draw(seed: int = 1, ids: int = 2000, **key: int) -> torch.Tensor:
    return KeyedNoise(seed=seed, ids=torch.arange(ids)).uniform((50,), stream="start", **key)


def test_uniform_noise_is_uniform() -> None:
    values = draw().double()
    assert float(values.min()) >= 0
    assert float(values.max()) < 1
    assert float(values.mean()) == pytest.approx(0.5, abs=0.003)
    assert float(values.var()) == pytest.approx(1 / 12, rel=0.01)
    counts = torch.histc(values, bins=64, min=0, max=1)
    chi_square = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    assert chi_square < 120  # 63 degrees of freedom: the 99.999th percentile


def test_normal_noise_is_normal() -> None:
    values = KeyedNoise(seed=1, ids=torch.arange(2000)).normal((50,), stream="start").double()
    assert float(values.mean()) == pytest.approx(0, abs=0.01)
    assert float(values.std()) == pytest.approx(1, rel=0.01)
    assert float((values.abs() < 1).double().mean()) == pytest.approx(0.6827, abs=0.005)
    assert float((values**4).mean()) == pytest.approx(3, rel=0.05)


def test_neighbours_are_independent() -> None:
    """No correlation between rows, columns, seeds, steps, targets or streams."""
    base = draw() - 0.5
    others = [
        draw(seed=2) - 0.5,
        draw(step=1) - 0.5,
        draw(target=1) - 0.5,
        base.roll(1, 0),
        base.roll(1, 1),
        KeyedNoise(seed=1, ids=torch.arange(2000)).uniform((50,), stream="other") - 0.5,
        KeyedNoise(seed=1, ids=torch.arange(2000), round=1).uniform((50,), stream="start") - 0.5,
    ]
    for other in others:
        correlation = float((base * other).mean() / (base.std() * other.std()))
        assert abs(correlation) < 0.012  # 100,000 pairs: about four standard errors


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=8, unique=True), st.integers(0, 2**62))
def test_noise_belongs_to_the_example_and_not_to_the_batch(ids: list[int], seed: int) -> None:
    whole = KeyedNoise(seed=seed, ids=torch.tensor(ids))
    for row in range(len(ids)):
        alone = KeyedNoise(seed=seed, ids=torch.tensor(ids[row : row + 1]))
        assert torch.equal(alone.normal((3,), stream="a"), whole.normal((3,), stream="a")[row : row + 1])
        assert torch.equal(whole.take(torch.tensor([row])).uniform((3,), stream="a"), alone.uniform((3,), stream="a"))


def mixed(value: int) -> int:
    """The 32-bit mixer in Python's own integers."""
    value = ((value ^ (value >> 16)) * 0x21F0AAAD) % 2**32
    value = ((value ^ (value >> 15)) * 0x735A2D97) % 2**32
    return value ^ (value >> 15)


def by_hand(seed: int, example: int, stream: str, column: int) -> float:
    """One uniform draw, written down again without tensors."""
    golden = 0x9E3779B9
    low = seed % 2**32
    row = mixed((example % 2**32) ^ low)
    row = mixed(row ^ mixed((example >> 32) ^ (seed >> 32 or mixed(low)) ^ golden))
    key = int.from_bytes(hashlib.sha256(stream.encode()).digest()[:4], "little")
    for part in (key, 0, 0, 0):
        row = mixed(((row * 3 + part) % 2**32) ^ golden)
    inner = mixed(row ^ mixed(column * golden % 2**32))
    return (mixed((inner + mixed(row ^ 0x85EBCA6B)) % 2**32) >> 8) / 2**24


@pytest.mark.parametrize("seed", [0, 1, 2**40 + 17])
def test_noise_never_changes(seed: int) -> None:
    """Resumed runs and stored results depend on the draws of a seed."""
    ids = [0, 50_000, 2**33 + 5]
    values = KeyedNoise(seed=seed, ids=torch.tensor(ids)).uniform((3,), stream="start")
    assert values.tolist() == [[by_hand(seed, example, "start", column) for column in range(3)] for example in ids]


@pytest.mark.parametrize("shift", [0, 32])
def test_another_seed_is_other_noise_and_not_that_of_another_example(shift: int) -> None:
    rows = torch.cat(
        [KeyedNoise(seed=s << shift, ids=torch.arange(128)).uniform((4,), stream="start") for s in range(128)]
    )
    assert len(rows) - len(rows.unique(dim=0)) < 5, "chance meetings of 32 bits"


def test_processes_that_share_a_seed_draw_apart() -> None:
    one, other = (fresh_noise(64, torch.device("cpu"), 3, rank).uniform((4,), stream="a") for rank in (0, 1))
    assert len(torch.cat([one, other]).unique(dim=0)) == 128


def test_a_round_may_be_a_tensor() -> None:
    ids = torch.arange(3)
    plain = KeyedNoise(seed=1, ids=ids, round=7).uniform((2,), stream="a")
    captured = KeyedNoise(seed=1, ids=ids, round=torch.tensor(7)).uniform((2,), stream="a")
    assert torch.equal(plain, captured)


def test_fresh_noise_follows_torchs_generator() -> None:
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        draws.append(fresh_noise(2, torch.device("cpu")).uniform((4,), stream="a"))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], fresh_noise(2, torch.device("cpu")).uniform((4,), stream="a"))


def test_a_registry_refuses_a_second_use_of_a_name() -> None:
    registry: Registry[object] = Registry("thing", "probmargin.margins")

    @registry.register("one")
    @dataclass(frozen=True)
    class One:
        size: int = 1

    with pytest.raises(ValueError, match="already taken by One"):
        registry.register("one")(One)
    assert registry.build({"name": "one", "size": "3"}) == One(3)
    with pytest.raises(UsageError, match="takes an object with a name"):
        registry.build(["one"])


def test_frozen_gives_no_gradient_to_parameters_but_to_images() -> None:
    model = tiny_net()
    x = torch.rand(2, 1, 4, 4, requires_grad=True)
    with frozen(model, "train") as call:
        call(x).sum().backward()
    assert x.grad is not None
    assert all(parameter.grad is None for parameter in model.parameters())
    assert int(model.bn.num_batches_tracked) == 0  # type: ignore[arg-type]


def test_a_network_is_found_inside_wrappers_in_any_order() -> None:
    net = nn.Linear(2, 2)

    def around(model: nn.Module, name: str) -> nn.Module:
        outer = nn.Module()
        outer.add_module(name, model)
        return outer

    for outer, inner in (("_orig_mod", "_forward_module"), ("_forward_module", "_orig_mod")):
        compiled = around(net, inner)
        assert unwrapped(around(around(nn.DataParallel(net), inner), outer)) is net
        assert unwrapped(around(nn.DataParallel(compiled), outer)) is compiled
        assert unwrapped(compiled) is compiled, "nothing around it is for several devices"
    assert unwrapped(nn.DataParallel(nn.DataParallel(net))) is net


def test_frozen_puts_modes_back_where_they_cannot_be_switched() -> None:
    class Stubborn(nn.Module):
        def train(self, mode: bool = True) -> "Stubborn":
            raise ValueError("leave me be")

    model = nn.Sequential(nn.Dropout(0.5), Stubborn(), nn.Dropout(0.5))
    with pytest.raises(ValueError, match="leave me be"), frozen(model) as call:
        call(torch.rand(1, 1))
    assert [module.training for module in model] == [True] * 3


def test_frozen_puts_modes_back_after_an_error() -> None:
    model = tiny_net()
    model.bn.eval()
    with pytest.raises(RuntimeError), frozen(model, "eval") as call:
        call(torch.rand(1, 5, 4, 4))
    assert model.training
    assert not model.bn.training


@pytest.mark.parametrize("text", ["8/0", "", "1/2/3", "nan", "eval('1')"])
def test_numbers_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="not a number"):
        parse_number(text)


def test_coerce_reads_optionals_and_unions() -> None:
    assert coerce("none", float | None, "x") is None
    assert coerce("1/4", float | None, "x") == 0.25
    assert coerce("0.1,0.5", float | tuple[float, ...], "x") == (0.1, 0.5)


def test_wilson_interval_at_the_ends() -> None:
    assert wilson_interval(0, 10)[0] == 0
    assert wilson_interval(10, 10)[1] == pytest.approx(1)
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert effective_sample_size([0, 0]) == 0
