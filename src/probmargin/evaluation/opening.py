"""Opening a model to be judged: its forms, the room there is, and what it says of the clean images."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from probmargin.attacks.balls import Norm, to_unit
from probmargin.core.frozen import frozen
from probmargin.core.types import Classifier, Images, Labels
from probmargin.engine.devices import keep_freed_memory
from probmargin.evaluation.checks import check_images, check_logits
from probmargin.evaluation.network import Ready, SearchPrecision, exact_form, made_ready
from probmargin.evaluation.room import find_room
from probmargin.evaluation.search import Stage, Subject, all_logits, form_for
from probmargin.models.checks import check_channels


@dataclass(frozen=True)
class Threat:
    """What may be done to an image, and the noise that tries it."""

    norm: Norm
    eps: float
    seed: int = 0
    ids: torch.Tensor | None = None
    """Names of the examples for the noise; their positions where left out."""


@contextmanager
def opened(
    model: Classifier,
    x: Images,
    labels: Labels,
    threat: Threat,
    batch_size: int | None,
    stages: Sequence[Stage] = (),
    search: SearchPrecision = "auto",
) -> Iterator[tuple[Subject, Ready]]:
    """The model with its images, frozen in eval mode while the block runs, in the forms that these stages ask."""
    check_images(x, labels)
    if isinstance(model, nn.Module):
        check_channels(model, tuple(x.shape[1:]), type(model).__name__)
    x = to_unit(x)
    if not x.is_cuda:
        keep_freed_memory()
    with frozen(exact_form(model)[0], "eval") as call:
        room = find_room(call, x, batch_size)
    wanted = {form for stage in stages if (form := form_for(stage.attack, search)) is not None}
    ready = made_ready(model, x, room.rows, wanted)
    with frozen(ready.exact, "eval") as judge, frozen(ready.quick, "eval") as call:
        logits = all_logits(judge, x, room)
        check_logits(logits, labels)
        ids = (torch.arange(len(x)) if threat.ids is None else threat.ids).to(x.device)
        shared = (x, labels, ids, threat.norm, threat.eps, threat.seed)
        yield Subject(call, judge, *shared, logits, room, ready.forms, search, ready.rounds), ready
