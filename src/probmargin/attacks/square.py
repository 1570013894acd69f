"""Square attack: random search with square windows, no gradient."""

from dataclasses import dataclass

import torch

from probmargin.attacks._windows import (
    add_tile,
    extremes,
    on_sphere,
    propose_l2,
    propose_linf,
    steps_in_stage,
    tile_grid,
    window_share,
    window_side,
)
from probmargin.attacks.attack import ATTACKS, Attack, logits_without_gradient
from probmargin.attacks.balls import Norm, check_eps
from probmargin.core.batch import AttackResult, TraceLevel
from probmargin.core.errors import UsageError
from probmargin.core.frozen import ModelMode
from probmargin.core.losses import logit_margin
from probmargin.core.noise import Noise
from probmargin.core.types import Classifier, Images, Labels, PerExample

_EAGER_STEPS = 50
"""Proposals are accepted often before this step, so looking ahead would waste most of the work."""
_SMALL_BATCH = 512
"""Looking ahead may fill a forward pass up to this many images, or as many as the batch has."""


@dataclass
class Search:
    """The state of a search, an image each."""

    x: Images
    labels: Labels
    x_best: Images
    margin: PerExample
    queries: torch.Tensor
    """Queries spent, the first point's included."""


@ATTACKS.register(
    "square", examples=[{"num_queries": 30}, {"num_queries": 80, "norm": "L2", "eps": 0.5, "lookahead": 3}]
)
@dataclass(frozen=True, kw_only=True)
class Square(Attack):
    r"""Square attack: random search with square windows that shrink.

        x_{i+1} = proposal(x_i) if m(proposal) < m(x_i) or m(proposal) <= 0, else x_i;    stop where m(x_i) <= 0

    Symbols:    m = z_y - max_{j != y} z_j; L-inf: a window goes to x + eps or x - eps, a sign a channel; L2: the
                perturbation of one window is moved to a patch at another, |delta| = eps; the window's share of the
                pixels starts at p_init and halves in stages.
    Range:      inside the ball of radius eps around x, inside [0, 1]: the point of least margin found.
    Gradient:   none is used.
    Source:     Andriushchenko et al., arXiv:1912.00049, as released in AutoAttack's repository at a392200.
    Deviation:  as the release, the last row and column are never touched by a window smaller than the image. Each
                image has its own windows (the release shares them); `lookahead` proposals are tried in one pass and
                the first accepted one is kept, which changes no result. Tiles that overhang are cropped.

    >>> def bright(x): return torch.cat([x.flatten(1), 1 - x.flatten(1)], dim=1)
    >>> x = torch.tensor([0.55, 0.9]).view(2, 1, 1, 1)
    >>> attack = Square(eps=0.1, num_queries=50)
    >>> attack(bright, x, torch.tensor([0, 0])).x_adv.flatten().tolist()   # both go down; only the first is broken
    [0.45, 0.80]
    """

    norm: Norm = "Linf"
    eps: float = 8 / 255
    num_queries: int = 5000
    p_init: float = 0.8
    lookahead: int = 8
    model_mode: ModelMode = "eval"

    def __post_init__(self) -> None:
        check_eps(self.norm, self.eps)
        if self.num_queries < 1 or self.lookahead < 1:
            raise UsageError("attack.num_queries and attack.lookahead must be 1 or more")
        if not 0 < self.p_init <= 1:
            raise UsageError(f"attack.p_init must be in (0, 1], not {self.p_init:g}")

    def run(self, model: Classifier, x: Images, labels: Labels, *, noise: Noise, trace: TraceLevel) -> AttackResult:
        """Attack a model that is already frozen."""
        return AttackResult(x_adv=self.search(model, x, labels, noise).x_best)

    def search(self, model: Classifier, x: Images, labels: Labels, noise: Noise) -> Search:
        """Search until every image has a margin of 0 or less, or its queries are spent."""
        x_best = self._first(x, noise)
        margin = logit_margin(logits_without_gradient(model, x_best), labels)
        whole = Search(x, labels, x_best, margin, torch.ones_like(labels))
        step, active = 0, (margin > 0).nonzero()[:, 0]
        part, theirs = _part(whole, active), noise.take(active)
        while step < self.num_queries and len(active):
            count = self._ahead(step, len(active), len(x))
            draws = torch.stack([self._draw(theirs, x.shape[1], step + k) for k in range(count)])
            self._try(model, part, draws, step)
            step += count
            if bool((part.margin <= 0).any()):
                _store(part, whole, active)
                active = (whole.margin > 0).nonzero()[:, 0]
                part, theirs = _part(whole, active), noise.take(active)
        _store(part, whole, active)
        return whole

    def _ahead(self, step: int, active: int, batch: int) -> int:
        """How many steps to try at once: all of one stage, as many as the queries and a forward pass allow."""
        if step < _EAGER_STEPS:
            return 1
        room = max(max(batch, _SMALL_BATCH) // active, 1)
        return min(self.lookahead, room, steps_in_stage(step), self.num_queries - step)

    def _first(self, x: Images, noise: Noise) -> Images:
        channels, height, width = x.shape[1:]
        if self.norm == "Linf":
            return extremes(x, self.eps, noise.uniform((channels, 1, width), stream="square/stripes") > 0.5)
        delta = torch.zeros_like(x)
        side, corners = tile_grid(height, width)
        for tile, corner in enumerate(corners):
            turn = noise.uniform((1,), stream="square/shared/tile", step=tile)
            signs = noise.uniform((channels,), stream="square/tile", step=tile)
            add_tile(delta, corner, turn, signs, side)
        return on_sphere(x, delta, self.eps)

    def _draw(self, noise: Noise, channels: int, step: int) -> torch.Tensor:
        """A step's random numbers; the reference shares those of a "shared" stream over the batch."""
        if self.norm == "Linf":
            return noise.uniform((2 + channels,), stream="square/shared/linf", step=step)
        windows = noise.uniform((5,), stream="square/shared/l2", step=step)
        return torch.cat([windows, noise.uniform((channels,), stream="square/signs", step=step)], dim=1)

    def _propose(self, part: Search, rows: torch.Tensor, draws: torch.Tensor, step: int) -> Images:
        x, x_best = part.x[rows], part.x_best[rows]
        share = window_share(step, self.p_init)
        side = window_side(share, x.shape[2], x.shape[3], odd=self.norm == "L2")
        propose = propose_linf if self.norm == "Linf" else propose_l2
        return propose(x, x_best, draws, side, self.eps)

    def _try(self, model: Classifier, part: Search, draws: torch.Tensor, step: int) -> None:
        """Walk a block of steps: all at once, then again from where an image accepted, until none does."""
        count = len(draws)
        images = torch.arange(len(part.x), device=part.x.device)
        begun = torch.zeros_like(images)
        ranks_of_block = torch.arange(count, device=part.x.device)
        while len(images):
            ranks, places = (ranks_of_block[:, None] >= begun[images]).nonzero().unbind(dim=1)
            rows = images[places]
            tried = self._propose(part, rows, draws[ranks, rows], step)
            margin = self._margins(model, part, rows, tried)
            accepted = (margin < part.margin[rows]) | (margin <= 0)
            first = torch.full_like(begun, count)
            first = first.scatter_reduce(0, rows[accepted], ranks[accepted], "amin")
            part.queries[images] += ((first + 1).clamp(max=count) - begun)[images]
            won = (accepted & (ranks == first[rows])).nonzero()[:, 0]
            part.x_best[rows[won]] = tried[won]
            part.margin[rows[won]] = margin[won]
            begun = first + 1
            images = images[(begun[images] < count) & (part.margin[images] > 0)]

    def _margins(self, model: Classifier, part: Search, rows: torch.Tensor, tried: Images) -> PerExample:
        """Margins of the proposals; one that equals the best point is not worth a query to the model."""
        margin = part.margin[rows]
        new = (tried != part.x_best[rows]).flatten(1).any(dim=1).nonzero()[:, 0]
        if len(new):
            logits = logits_without_gradient(model, tried[new])
            margin[new] = logit_margin(logits, part.labels[rows[new]])
        return margin


def _part(whole: Search, active: torch.Tensor) -> Search:
    return Search(
        whole.x[active], whole.labels[active], whole.x_best[active], whole.margin[active], whole.queries[active]
    )


def _store(part: Search, whole: Search, active: torch.Tensor) -> None:
    whole.x_best[active] = part.x_best
    whole.margin[active] = part.margin
    whole.queries[active] = part.queries
