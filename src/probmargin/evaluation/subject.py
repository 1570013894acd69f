"""What is judged: a run of ours or anybody's model, on which images, at which radius."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from probmargin.attacks.balls import Norm
from probmargin.core.errors import UsageError, unknown_name
from probmargin.core.frozen import frozen
from probmargin.core.records import coerce, parse_number
from probmargin.core.speech import Say, silent
from probmargin.data.dataset import DataSet, ImageSet
from probmargin.data.loader import load
from probmargin.engine.devices import pick_device
from probmargin.engine.distributed import World, local_device, process_group
from probmargin.engine.environment import hardware, surroundings
from probmargin.evaluation import run_data
from probmargin.evaluation.checks import SAME_OUTPUT, output_spread
from probmargin.evaluation.evaluate import EvaluationSettings, Keep, judge
from probmargin.evaluation.export import save_adversarial
from probmargin.evaluation.network import SearchPrecision
from probmargin.evaluation.parts import model_code_hash, weights_hash
from probmargin.evaluation.places import Place, Shard, check_adversarial, check_out, merge, parse_shard, place_of
from probmargin.evaluation.protocol import PROTOCOLS, aa_examples_of, make_plan
from probmargin.evaluation.summary import summarize
from probmargin.evaluation.verdicts import Verdicts
from probmargin.models.build import build_model, origin
from probmargin.models.checks import check_gradient, check_logits
from probmargin.models.own_code import settings_of_layers
from probmargin.runs.run import Run, open_run
from probmargin.runs.weights import class_names, classes_of, with_weights

WITHOUT_GRADIENTS = {"nat", "square"}
"""Attacks that a model without gradients can be judged by."""


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """An evaluation as asked for; what is None comes from the run, the protocol or the defaults."""

    run: Path | None = None
    model: str | None = None
    checkpoint: Path | None = None
    """Weights of the model, or another state of the run than its last."""
    data: str | None = None
    data_dir: Path | None = None
    download: bool = False
    image_size: int | None = None
    """Of a folder's pictures; a run has its own."""
    attacks: tuple[str, ...] = ("nat", "pgd-20")
    num_examples: int | None = None
    aa_examples: int | None = None
    """AutoAttack's ensembles look at the first so many images; None is what the protocol says."""
    norm: str | None = None
    eps: str | None = None
    protocol: str | None = None
    seed: int = 0
    device: str | None = None
    batch_size: int | None = None
    search_precision: str | None = None
    """Of searches on CUDA, which confirm every break in float32 whatever it is."""
    shard: str | None = None
    save_adversarial: Path | None = None
    out: Path | None = None
    fresh: bool = False
    """Do not use what an earlier evaluation has stored."""


def evaluate_subject(request: EvaluationRequest, log: Say) -> tuple[dict[str, Any], Path | None]:
    """Judge what the request names; results go to `out`, or into the run's folder. A shard leaves its part there."""
    if request.out is not None:
        check_out(request.out, request.run)
    if request.save_adversarial is not None:
        check_adversarial(request.save_adversarial, request.out)
    subject = open_subject(request, log)
    run, model, data = subject.run, subject.model, subject.data
    if run is None:
        _check_outputs(model, data, request)
    if not set(request.attacks) <= WITHOUT_GRADIENTS:
        check_gradient(model, (data.channels, *data.image_size), str(request.run or request.model))
    settings = settings_of(request, run, len(data.test))
    run_data.say_radius(run, request.eps or request.protocol, settings.eps, log)
    for name in request.attacks:
        make_plan(name, settings.norm, settings.eps)
    owner = run if run is not None and request.checkpoint is None and run_data.is_own(run, data) else None
    with process_group(pick_device(request.device)) as world:
        place = place_of(owner, request.out, apart=request.fresh or request.shard is not None or world.size > 1)
        place.check()
        if place.results is None and world.is_writer:
            log("no --out is given: results are printed and not kept, and what is stopped begins anew")
        shard = _shard(request, world, place)
        work = _Work(request, settings, place, shard, local_device(pick_device(request.device), world))
        with place.saying_what_is_kept(fresh=request.fresh):
            results, path = work.run(subject, log if world.is_writer else silent)
        if world.size == 1:
            return results, path
        world.any(False)  # all shards are written
        whole = place.run.path if place.run else Path(str(request.out))
        return world.from_writer(lambda: merge(whole, log, world.size))


@dataclass(frozen=True)
class Opened:
    """What is to be judged, and on what."""

    run: Run | None
    """None for a model that was not trained here."""
    name: str
    """The model's, as it is asked for."""
    model: nn.Module
    data: DataSet
    code: str | None
    """What identifies the code of a model of the user's own."""


@dataclass(frozen=True)
class _Work:
    """One process's share of an evaluation."""

    request: EvaluationRequest
    settings: EvaluationSettings
    place: Place
    shard: Shard
    device: torch.device

    def run(self, subject: Opened, log: Say) -> tuple[dict[str, Any], Path | None]:
        """Judge the examples of this share and write down what was found."""
        model, data = subject.model, subject.data
        test = first_images(data.test, self.request.num_examples)
        positions = torch.tensor(self.shard.positions(len(test)))
        if (first := self.request.aa_examples) is not None:
            self.shard.positions(min(first, len(test)))
            if first > len(test):
                log(f"--aa-examples {first} is more than there are: AutoAttack looks at all {len(test)} images")
        test = test.take(positions).to(self.device)
        if self.device.type == "cpu" and self.settings.search in ("bf16", "tf32"):
            log(f"on a CPU searches compute in float32, not in {self.settings.search}")
        identity = {"weights": weights_hash(model), "data_fingerprint": data.fingerprint}
        if subject.code:
            identity["model_code"] = subject.code
        exports = self.request.save_adversarial is not None
        verdicts, images = judge(
            model.to(self.device),
            test.floats(),
            test.labels,
            attacks=self.request.attacks,
            settings=self.settings,
            log=log,
            keep=Keep(self.place.parts, identity, positions, exports, self.request.fresh, hardware(self.device)),
        )
        facts = {
            **verdicts.facts,
            "model": subject.name,
            "data": data.name,
            "classes": list(data.classes),
            "test_images": len(data.test),
        }
        facts |= {"data_as_read": data.as_read} if data.as_read else {}
        facts |= identity | surroundings(self.device)
        verdicts = replace(verdicts, facts=facts, index=test.index.cpu().numpy())
        exported = {}
        if self.request.save_adversarial is not None and images is not None:
            to = self.request.save_adversarial
            exported = save_adversarial(to, model, test.floats(), images, verdicts)
            log(export_line(exported))
        return self._write(verdicts, exported, log)

    def _write(self, verdicts: Verdicts, exported: dict[str, Any], log: Say) -> tuple[dict[str, Any], Path | None]:
        if self.shard.count > 1:
            verdicts.facts["shard"] = str(self.shard)
            verdicts, path = self.place.write_shard(self.shard, verdicts, log, fresh=self.request.fresh)
            return summarize(verdicts), path
        verdicts = self.place.joined(verdicts, log, fresh=self.request.fresh)
        results = summarize(verdicts)
        if exported:
            results["adversarial"] = exported
        self.place.write(results, verdicts)
        return results, self.place.results


def export_line(exported: dict[str, Any]) -> str:
    """What the images of a file do when it is read again, in one line."""
    floats, pixels = exported["float32"], exported["uint8"]
    return (
        f"{exported['file']}, read again: robust accuracy {floats['robust_accuracy']:.2%} as float32, "
        f"{pixels['robust_accuracy']:.2%} as uint8; outside the ball: {pixels['outside_the_ball']} of the latter"
    )


def first_images(test: ImageSet, count: int | None) -> ImageSet:
    """The first `count` test images as stored; all where it is None."""
    if count is None:
        return test
    if not 1 <= count <= len(test):
        raise UsageError(f"--num-examples must be from 1 to {len(test)}, not {count}")
    return test.take(range(count))


def _shard(request: EvaluationRequest, world: World, place: Place) -> Shard:
    """This process's part; whether a shard can be kept is asked before anything is computed."""
    if world.size == 1:
        shard = parse_shard(request.shard)
        if shard.count > 1:
            place.shard_path(shard)
        return shard
    if request.shard is not None or request.save_adversarial is not None:
        raise UsageError("under torchrun the processes are the shards: leave out --shard and --save-adversarial")
    if request.run is None and request.out is None:
        raise UsageError("shards of the processes need a place under torchrun: give a run's folder, or --out FILE")
    return Shard(world.rank, world.size)


def open_subject(request: EvaluationRequest, log: Say) -> Opened:
    """What is to be judged; says which file of the user's a model comes from, and how other data was read."""
    if request.run is None:
        return _open_model(request, log)
    if request.model:
        raise UsageError("a run has its own model: give a run's folder, or --model with --checkpoint, not both")
    if request.image_size is not None:
        raise UsageError("a run takes pictures in the size it was trained on: leave out --image-size")
    run = open_run(request.run)
    _say_origin(run.record["model"] if run.record.get("model_settings") else "", log)
    run_data.check_state(run, request.checkpoint, request.out)
    model, notes = run.load_model(request.checkpoint)
    for note in notes:
        log(note)
    found = run_data.data_of(run, request.data, request.data_dir, download=request.download, needs_train=False)
    if not run_data.is_own(run, found):
        _say_notes(found, log)
    opened = _opened(run, run.record["model"], model, found, str(request.run))
    run_data.check_data(run, opened.data, is_named=request.data is not None, has_out=request.out is not None)
    return opened


def _opened(run: Run | None, name: str, model: nn.Module, data: DataSet, shown: str) -> Opened:
    """All of it: the data with as many classes as the model has, and the model's code after its first pass."""
    built = settings_of_layers(model)
    data = run_data.with_classes_of(model, data, shown)
    return Opened(run, name, model, data, model_code_hash(model, name, built))


def _open_model(request: EvaluationRequest, log: Say) -> Opened:
    """A model that was not trained here."""
    if request.model is None or request.data is None:
        raise UsageError("nothing is named to judge: give a run's folder, or --model, --checkpoint and --data")
    data = load(
        request.data, request.data_dir, download=request.download, image_size=request.image_size, needs_train=False
    )
    if request.checkpoint is not None and (names := class_names(request.checkpoint)):
        data = run_data.with_names(names, str(request.checkpoint), data)
    _say_notes(data, log)
    _say_origin(request.model, log)
    model = build_model(request.model, num_classes=data.num_classes, in_channels=data.channels)
    shape = (data.channels, *data.image_size)
    if request.checkpoint is not None:
        width = classes_of(request.checkpoint, model, shape) if data.open_ended else None
        if width is not None and width > data.num_classes:
            model = build_model(request.model, num_classes=width, in_channels=data.channels)
        model = with_weights(model, request.checkpoint, request.model, image_shape=shape, log=log)
    else:
        whose = "the weights it is built with" if ":" in request.model else "random weights"
        log(f"no --checkpoint is given: {request.model} is judged with {whose}")
    return _opened(None, request.model, model, data, request.model)


def _say_notes(data: DataSet, log: Say) -> None:
    """What a user should know of how other data than a run's own was read."""
    for line in filter(None, (*data.notes, run_data.lowest_label(data))):
        log(line)


def _say_origin(name: str, log: Say) -> None:
    if line := origin(name):
        log(line)


def _check_outputs(model: nn.Module, data: DataSet, request: EvaluationRequest) -> None:
    """Refuse probabilities, and a random model under attacks that expect none: its accuracy would be luck."""
    name = str(request.model)
    x = data.test.take(range(min(8, len(data.test)))).floats()
    with frozen(model, "eval") as call, torch.no_grad():
        logits = call(x)
        is_random = output_spread(call, x) > SAME_OUTPUT
    check_logits(logits, name)
    if is_random and not set(request.attacks) <= {"nat", "aa-rand"}:
        raise UsageError(
            f"model {name} is random in eval mode: turn its dropout or noise off, or judge it by --attacks nat,aa-rand"
        )


def settings_of(request: EvaluationRequest, run: Run | None, total: int) -> EvaluationSettings:
    """Norm and radius: as typed, else the protocol's, else those the run was trained with, else the standard's."""
    if request.protocol is not None and request.protocol not in PROTOCOLS:
        raise unknown_name("protocol", request.protocol, PROTOCOLS)
    standard = PROTOCOLS["standard"]
    chosen = PROTOCOLS[request.protocol] if request.protocol else None
    if chosen and any(asked is not None for asked in (request.eps, request.norm, request.num_examples)):
        raise UsageError(
            f"protocol {chosen.name} fixes norm, eps and images: leave out --norm, --eps and --num-examples"
        )
    trained = run.recipe.final_attack if run else None
    own = chosen or trained
    own_norm, own_eps = getattr(own, "norm", standard.norm), float(getattr(own, "eps", standard.eps))
    norm = own_norm if request.norm is None else coerce(request.norm, Norm, "--norm")
    eps = own_eps if request.eps is None else parse_number(request.eps)
    if norm != own_norm and request.eps is None:
        raise UsageError(f"eps {eps:.4g} is a radius in {own_norm}: give --eps as well as --norm {norm}")
    is_standard = (norm, eps) == (standard.norm, standard.eps) and (request.num_examples or total) == total
    return EvaluationSettings(
        norm=norm,
        eps=eps,
        seed=request.seed,
        batch_size=request.batch_size,
        protocol=chosen.name if chosen else "standard" if is_standard else "custom",
        step_size=chosen.step_size if chosen else None,
        aa_examples=aa_examples_of(request.aa_examples, chosen, request.attacks),
        search=coerce(request.search_precision or "auto", SearchPrecision, "--search-precision"),
    )
