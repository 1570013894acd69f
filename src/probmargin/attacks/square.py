"""Square attack: random search with square windows, no gradient."""

from dataclasses import dataclass, fields

import torch

from probmargin.attacks._windows import (
    add_tile,
    extremes,
    kind_of_linf,
    num_kinds_linf,
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
_BLOCK = 64
_SMALL_BATCH, _SMALL_BATCH_CUDA = 1024, 2048
"""Looking ahead may fill a forward pass up to this many images, or as many as the batch has."""
_MOST_KINDS = 8192
"""Refused proposals are remembered where there are no more kinds of them: small images see each kind many times."""


@dataclass
class Search:
    """The state of a search, an image each."""

    x: Images
    labels: Labels
    x_best: Images
    margin: PerExample
    queries: torch.Tensor
    """Queries spent, the first point's included."""
    rejected: torch.Tensor
    """Proposals refused since the best point last moved, (B, kinds of proposal); no columns where not kept."""


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
                the first accepted one is kept, and a proposal refused before is not asked for again; neither changes a
                result of a model without randomness. Tiles that overhang are cropped.

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
            raise UsageError(
                f"attack.num_queries and lookahead must be 1 or more, not {self.num_queries} and {self.lookahead}"
            )
        if not 0 < self.p_init <= 1:
            raise UsageError(f"attack.p_init must be in (0, 1], not {self.p_init:g}")

    def run(self, model: Classifier, x: Images, labels: Labels, *, noise: Noise, trace: TraceLevel) -> AttackResult:
        """Attack a model that is already frozen."""
        return AttackResult(x_adv=self.search(model, x, labels, noise).x_best)

    def search(self, model: Classifier, x: Images, labels: Labels, noise: Noise) -> Search:
        """Search until every image has a margin of 0 or less, or its queries are spent."""
        x_best = self._first(x, noise)
        margin = logit_margin(logits_without_gradient(model, x_best), labels)
        whole = Search(x, labels, x_best, margin, torch.ones_like(labels), self._table(x, 0))
        step, active = 0, (margin > 0).nonzero()[:, 0]
        part, theirs = _part(whole, active), noise.take(active)
        while step < self.num_queries and len(active):
            steps = range(step, step + self._block(step))
            if step and self._side(x, step) != self._side(x, step - 1):
                whole.rejected = self._table(x, step)
                part.rejected = whole.rejected[active]
            self._try(model, part, self._draw(theirs, x.shape[1], steps), step, self._ahead(step, len(active), x))
            step = steps.stop
            if bool((part.margin <= 0).any()):
                _store(part, whole, active)
                active = (whole.margin > 0).nonzero()[:, 0]
                part, theirs = _part(whole, active), noise.take(active)
        _store(part, whole, active)
        return whole

    def _block(self, step: int) -> int:
        """Steps that are drawn at once: of one stage; one at a time where nothing is tried ahead."""
        return min(_BLOCK if self.lookahead > 1 else 1, steps_in_stage(step), self.num_queries - step)

    def _ahead(self, step: int, active: int, x: Images) -> int:
        """How many proposals of an image to try in one pass: as many as a forward pass has room for."""
        if step < _EAGER_STEPS:
            return 1
        room = max(len(x), _SMALL_BATCH_CUDA if x.is_cuda else _SMALL_BATCH)
        return min(self.lookahead, max(room // active, 1))

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

    def _draw(self, noise: Noise, channels: int, steps: range) -> torch.Tensor:
        """Random numbers of some steps; the reference shares those of a "shared" stream over the batch."""
        if self.norm == "Linf":
            return noise.uniform_steps((2 + channels,), stream="square/shared/linf", steps=steps)
        windows = noise.uniform_steps((5,), stream="square/shared/l2", steps=steps)
        return torch.cat([windows, noise.uniform_steps((channels,), stream="square/signs", steps=steps)], dim=2)

    def _side(self, x: Images, step: int) -> int:
        return window_side(window_share(step, self.p_init), x.shape[2], x.shape[3], odd=self.norm == "L2")

    def _table(self, x: Images, step: int) -> torch.Tensor:
        """Room to remember refusals while windows have this step's size."""
        kinds = num_kinds_linf(x, self._side(x, step)) if self.norm == "Linf" else 0
        return torch.zeros(len(x), kinds if kinds <= _MOST_KINDS else 0, dtype=torch.bool, device=x.device)

    def _try(self, model: Classifier, part: Search, draws: torch.Tensor, step: int, ahead: int) -> None:
        """Walk a block of steps, each image at its own pace: `ahead` proposals a pass, on from the first accepted."""
        count, side = len(draws), self._side(part.x, step)
        propose = propose_linf if self.norm == "Linf" else propose_l2
        kinds = kind_of_linf(draws.flatten(0, 1), side, part.x).view(count, -1) if part.rejected.shape[1] else None
        images = torch.arange(len(part.x), device=part.x.device)
        begun = torch.zeros_like(images)
        while len(images):
            ranks, rows, end = _choose(part, images, begun, kinds, count, ahead)
            tried = propose(part.x[rows], part.x_best[rows], draws[ranks, rows], side, self.eps)
            margin = self._margins(model, part, rows, tried)
            accepted = (margin < part.margin[rows]) | (margin <= 0)
            first = torch.full_like(begun, count)
            first = first.scatter_reduce(0, rows[accepted], ranks[accepted], "amin")
            won = (accepted & (ranks == first[rows])).nonzero()[:, 0]
            if kinds is not None:
                part.rejected[rows, kinds[ranks, rows]] = True
                part.rejected[rows[won]] = False
            part.x_best[rows[won]] = tried[won]
            part.margin[rows[won]] = margin[won]
            reached = torch.minimum(first[images] + 1, end)
            part.queries[images] += reached - begun[images]
            begun[images] = reached
            images = images[(reached < count) & (part.margin[images] > 0)]

    def _margins(self, model: Classifier, part: Search, rows: torch.Tensor, tried: Images) -> PerExample:
        """Margins of the proposals; one that equals the best point is not worth a query to the model."""
        margin = part.margin[rows]
        new = (tried != part.x_best[rows]).flatten(1).any(dim=1).nonzero()[:, 0]
        if len(new):
            logits = logits_without_gradient(model, tried[new])
            margin[new] = logit_margin(logits, part.labels[rows[new]])
        return margin


def _choose(
    part: Search, images: torch.Tensor, begun: torch.Tensor, kinds: torch.Tensor | None, count: int, ahead: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The next `ahead` proposals of each image as (rank in the block, image), and where each would then be.

    What was refused from the same point before is left out: the model would say the same again.
    """
    all_ranks = torch.arange(count, device=images.device)
    open_ = all_ranks[:, None] >= begun[images]
    if kinds is not None:
        open_ &= ~part.rejected[images, kinds[:, images]]
    place = open_.cumsum(dim=0)
    chosen = open_ & (place <= ahead)
    ranks, columns = chosen.nonzero().unbind(dim=1)
    # Past the last chosen one up to the next open one, all that lies between was refused before.
    beyond = torch.where(open_ & (place == ahead + 1), all_ranks[:, None], count).amin(dim=0)
    return ranks, images[columns], beyond


def _part(whole: Search, active: torch.Tensor) -> Search:
    return Search(*(getattr(whole, field.name)[active] for field in fields(whole)))


def _store(part: Search, whole: Search, active: torch.Tensor) -> None:
    whole.x_best[active] = part.x_best
    whole.margin[active] = part.margin
    whole.queries[active] = part.queries
    whole.rejected[active] = part.rejected
