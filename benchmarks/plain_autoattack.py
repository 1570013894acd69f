"""AutoAttack written plainly: what the fast ensemble is compared with.

Float32, survivors in chunks of 250, one target after another, no example leaves before its attack is over, every
proposal of Square is asked for, gradients are filled for the parameters too, and FAB projects by sorting, as its
authors do. It draws the same keyed noise as the ensemble, so that verdicts can be compared one by one.
"""

import time
from collections.abc import Callable

import torch
from torch import nn

from probmargin.attacks._geometry import ascent, into_ball, length, per_image
from probmargin.attacks._windows import (
    add_tile,
    extremes,
    on_sphere,
    propose_l2,
    propose_linf,
    tile_grid,
    window_share,
    window_side,
)
from probmargin.attacks.apgd import check_windows, start_point
from probmargin.attacks.balls import Norm
from probmargin.attacks.dlr import search_loss, target_classes
from probmargin.core.losses import logit_margin
from probmargin.core.noise import KeyedNoise

CHUNK = 250
NUM_STEPS = 100
NUM_QUERIES = 5000

Tensor = torch.Tensor
Chunk = Callable[[Tensor, Tensor, KeyedNoise], Tensor]


def project(points: Tensor, normal: Tensor, excess: Tensor, norm: Norm) -> Tensor:
    """FAB's shift to a hyperplane within [0, 1]: sort where coordinates meet their walls, add up, search."""
    normal = torch.where(excess[:, None] < 0, -normal, normal)
    excess, size = excess.abs(), normal.abs()
    room = torch.where(normal >= 0, points, 1.0 - points)
    useful = size >= (1e-8 if norm == "L2" else 0.0)
    value = (size.square() if norm == "L2" else size) * useful
    reach = torch.where(useful, room / size.clamp(min=1e-8), 0.0) if norm == "L2" else room
    ends, order = reach.sort(dim=1)
    sorted_value = value.gather(1, order)
    spent = (sorted_value * ends).cumsum(1)
    rate = sorted_value.sum(1, keepdim=True) - sorted_value.cumsum(1)
    heights = spent + rate * ends
    place = torch.searchsorted(heights, excess[:, None])
    before = (place - 1).clamp(min=0)
    done = torch.where(place > 0, spent.gather(1, before), 0.0)
    left = torch.where(place > 0, rate.gather(1, before), sorted_value.sum(1, keepdim=True))
    level = torch.where(place == points.shape[1], torch.inf, (excess[:, None] - done) / left)
    return -normal.sign() * torch.minimum(level, reach) * (size if norm == "L2" else 1.0)


class PlainAutoAttack:
    """The standard ensemble on a model whose parameters take gradients."""

    def __init__(self, model: nn.Module, norm: Norm, eps: float, seed: int = 0) -> None:
        self.model, self.norm, self.eps, self.seed = model.eval().requires_grad_(True), norm, eps, seed

    def run(
        self, x: Tensor, y: Tensor, clock: Callable[[], float] = time.perf_counter
    ) -> dict[str, tuple[Tensor, float]]:
        """Which examples stand after each attack, and the seconds it took."""
        with torch.no_grad():
            standing = torch.cat([self.model(part).argmax(1) for part in x.split(CHUNK)]) == y
        attacks: dict[str, Chunk] = {
            "apgd-ce": self.apgd_ce,
            "apgd-t": self.apgd_t,
            "fab-t": self.fab_t,
            "square": self.square,
        }
        results = {}
        self.x_adv = x.clone()
        for name, attack in attacks.items():
            begun = clock()
            for rows in standing.nonzero()[:, 0].split(CHUNK):
                x_adv = attack(x[rows], y[rows], KeyedNoise(self.seed, rows))
                with torch.no_grad():
                    broken = self.model(x_adv).argmax(1) != y[rows]
                size = length((x_adv - x[rows]).double(), self.norm)
                broken &= size <= self.eps + 1e-6
                standing[rows[broken]] = False
                self.x_adv[rows[broken]] = x_adv[broken]
            results[name] = (standing.clone(), clock() - begun)
        return results

    def gradient(self, x: Tensor, value: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, value and its gradient, by a backward pass through everything."""
        point = x.detach().requires_grad_()
        logits = self.model(point)
        values = value(logits)
        values.sum().backward()
        assert point.grad is not None
        return logits.detach(), values.detach(), point.grad

    def _draw(self, x: Tensor, noise: KeyedNoise, stream: str, target: int) -> Tensor:
        shape = tuple(x.shape[1:])
        if self.norm == "Linf":
            return 2.0 * noise.uniform(shape, stream=stream, target=target) - 1.0
        return noise.normal(shape, stream=stream, target=target)

    def apgd_ce(self, x: Tensor, y: Tensor, noise: KeyedNoise) -> Tensor:
        """Auto-PGD on cross-entropy."""
        start = start_point(x, self.norm, self.eps, self._draw(x, noise, "apgd/ce", 0))
        return self._climb(x, y, start, lambda logits: search_loss("ce", logits, y, y))

    def apgd_t(self, x: Tensor, y: Tensor, noise: KeyedNoise) -> Tensor:
        """Auto-PGD on the targeted DLR loss."""
        with torch.no_grad():
            targets = target_classes(self.model(x), y, 9)
        x_adv, left = x.clone(), torch.arange(len(x), device=x.device)
        for rank, aim in enumerate(targets):
            part, own, wanted = x[left], y[left], aim[left]
            draw = self._draw(part, noise.take(left), "apgd/dlr_targeted", rank)
            start = start_point(part, self.norm, self.eps, draw)

            def loss(logits: Tensor, own: Tensor = own, wanted: Tensor = wanted) -> Tensor:
                return search_loss("dlr_targeted", logits, own, wanted)

            x_adv[left] = self._climb(part, own, start, loss)
            with torch.no_grad():
                left = left[self.model(x_adv[left]).argmax(1) == own]
            if len(left) == 0:
                break
        return x_adv

    def _climb(self, x: Tensor, y: Tensor, start: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
        step = torch.full_like(x[:, :1, :1, :1], 2.0 * self.eps)
        logits, value, gradient = self.gradient(start, loss)
        now, before, best, best_gradient, best_value = start, start, start, gradient, value
        checked, last, rises = value, torch.zeros_like(value), torch.zeros_like(value)
        halved = torch.ones_like(y, dtype=torch.bool)
        broken, x_adv = logits.argmax(1) != y, start
        windows = check_windows(NUM_STEPS)
        for iteration in range(NUM_STEPS):
            share = 1.0 if iteration == 0 else 0.75
            moved = into_ball(now + step * ascent(gradient, self.norm), x, self.norm, self.eps)
            moved = into_ball(now + share * (moved - now) + (1 - share) * (now - before), x, self.norm, self.eps)
            before, now = now, moved
            logits, value, gradient = self.gradient(now, loss)
            wrong = logits.argmax(1) != y
            x_adv, broken = torch.where(per_image(wrong, x), now, x_adv), broken | wrong
            rises, last = rises + (value > last), value
            better = value > best_value
            best = torch.where(per_image(better, x), now, best)
            best_gradient = torch.where(per_image(better, x), gradient, best_gradient)
            best_value = torch.where(better, value, best_value)
            if iteration + 1 in windows:
                stalled = ~halved & (checked >= best_value)
                halved = (rises <= 0.75 * windows[iteration + 1]) | stalled
                checked, rises = best_value, torch.zeros_like(rises)
                step = torch.where(per_image(halved, x), step / 2, step)
                now = torch.where(per_image(halved, x), best, now)
                gradient = torch.where(per_image(halved, x), best_gradient, gradient)
        return torch.where(per_image(broken, x), x_adv, best)

    def fab_t(self, x: Tensor, y: Tensor, noise: KeyedNoise) -> Tensor:
        """FAB, target after target."""
        with torch.no_grad():
            targets = target_classes(self.model(x), y, 9)
        x_adv, left = x.clone(), torch.arange(len(x), device=x.device)
        for aim in targets:
            found, size = self._nearest(x[left], y[left], aim[left])
            inside = size <= self.eps
            x_adv[left[inside]] = found[inside]
            left = left[~inside]
            if len(left) == 0:
                break
        return x_adv

    def _nearest(self, x: Tensor, y: Tensor, aim: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.arange(len(x), device=x.device)
        now, best, best_size = x, x.clone(), torch.full_like(x[:, 0, 0, 0], torch.inf)
        clean = x.flatten(1)
        for _ in range(NUM_STEPS):
            _, gap, slope = self.gradient(now, lambda logits: logits[rows, aim] - logits[rows, y])
            flat, slope = now.flatten(1), slope.flatten(1)
            offset = (slope * flat).sum(1) - gap
            shifts = [project(point, slope, (slope * point).sum(1) - offset, self.norm) for point in (flat, clean)]
            sizes = [length(shift, self.norm).clamp(min=1e-8) for shift in shifts]
            share = (sizes[0] / (sizes[0] + sizes[1])).clamp(0.0, 0.1)[:, None]
            moved = (1 - share) * (flat + 1.05 * shifts[0]) + share * (clean + 1.05 * shifts[1])
            now = moved.clamp(0.0, 1.0).view_as(x)
            with torch.no_grad():
                wrong = self.model(now).argmax(1) != y
            size = length(now - x, self.norm)
            nearer = wrong & (size < best_size)
            best, best_size = torch.where(per_image(nearer, x), now, best), torch.where(nearer, size, best_size)
            now = torch.where(per_image(wrong, x), x + 0.9 * (now - x), now)
        return best, best_size

    @torch.no_grad()
    def square(self, x: Tensor, y: Tensor, noise: KeyedNoise) -> Tensor:
        """Square, a query at a time."""
        channels, height, width = x.shape[1:]
        if self.norm == "Linf":
            best = extremes(x, self.eps, noise.uniform((channels, 1, width), stream="square/stripes") > 0.5)
        else:
            delta = torch.zeros_like(x)
            side, corners = tile_grid(height, width)
            for tile, corner in enumerate(corners):
                turn = noise.uniform((1,), stream="square/shared/tile", step=tile)
                add_tile(delta, corner, turn, noise.uniform((channels,), stream="square/tile", step=tile), side)
            best = on_sphere(x, delta, self.eps)
        margin = logit_margin(self.model(best), y)
        for step in range(NUM_QUERIES):
            active = (margin > 0).nonzero()[:, 0]
            if len(active) == 0:
                break
            part = noise.take(active)
            side = window_side(window_share(step, 0.8), height, width, odd=self.norm == "L2")
            if self.norm == "Linf":
                draws = part.uniform((2 + channels,), stream="square/shared/linf", step=step)
                tried = propose_linf(x[active], best[active], draws, side, self.eps)
            else:
                draws = part.uniform((5,), stream="square/shared/l2", step=step)
                signs = part.uniform((channels,), stream="square/signs", step=step)
                tried = propose_l2(x[active], best[active], torch.cat([draws, signs], dim=1), side, self.eps)
            found = logit_margin(self.model(tried), y[active])
            accepted = (found < margin[active]) | (found <= 0)
            best[active[accepted]] = tried[accepted]
            margin[active[accepted]] = found[accepted]
        return best
