"""Findings on disk as they come, so that a killed evaluation goes on where it was."""

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import probmargin.attacks
from probmargin.core.arrays import UNREADABLE, read_arrays
from probmargin.core.records import canonical_hash
from probmargin.engine.files import write_json
from probmargin.evaluation.search import Finding, Parts, Score
from probmargin.evaluation.verdicts import write_arrays
from probmargin.models.own_code import modules_of, own_files, settings_of_layers

_JUDGING = ("attacks", "core", "evaluation", "models")
"""Folders whose code a verdict hangs on."""


@functools.cache
def attack_code_hash() -> str:
    """Sixteen hex digits that change with any line of the attacks, of what calls them or they call, or of our networks.

    Partial results of other code are not reused.
    """
    package = Path(str(probmargin.attacks.__file__)).parents[1]
    paths = (path for name in _JUDGING for path in (package / name).glob("*.py"))
    return _files_hash({path.relative_to(package).as_posix(): path for path in paths})


def _files_hash(files: Mapping[str, Path], *words: str) -> str:
    """Of files by a name that is the same wherever they lie."""
    contents = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    return hashlib.sha256(repr((sorted(contents.items()), words)).encode()).hexdigest()[:16]


def model_code_hash(model: nn.Module, name: str, built: Mapping[str, str] | None = None) -> str | None:
    """Sixteen hex digits that change with the files a user's model is written in, with those of the user's that they
    import, and with what its layers are set to; None for networks of ours.

    The same weights under another forward pass are another model. `built` is what the layers were set to before the
    first pass: what a pass has changed, as a kept activation or a count, is no setting.
    """
    modules = modules_of(model, name)
    if not modules:
        return None
    now = settings_of_layers(model)
    settings = sorted(now.items() if built is None else now.items() & built.items())
    return _files_hash(own_files(modules), name, repr(model), repr(settings))


def weights_hash(model: nn.Module) -> str:
    """Sixteen hex digits that identify a model's weights and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def entry_folder(root: Path, name: str, identity: Mapping[str, Any]) -> Path:
    """The folder of a named attack; `identity` is what a stored finding must agree in to be used."""
    plain = {**identity, "attack_code": attack_code_hash()}
    folder = root / f"{name}-{canonical_hash(plain)}"
    if not (folder / "identity.json").exists():
        write_json(folder / "identity.json", plain)
    return folder


@dataclass(frozen=True)
class Maker:
    """What findings were computed on, and what the searches computed in."""

    hardware: str = ""
    precision: str = ""


def made_by(parts: Parts, here: Maker) -> Maker:
    """The machines and precisions of all findings of a plan; those of this process where nothing else is stored."""
    makers = list(dict.fromkeys(parts.makers)) if isinstance(parts, StoredParts) else []
    hardware = list(dict.fromkeys(maker.hardware for maker in makers)) or [here.hardware]
    precisions = list(dict.fromkeys(maker.precision for maker in makers)) or [here.precision]
    collected = "" if here.hardware in hardware else f" (collected on {here.hardware})"
    return Maker(", ".join(hardware) + collected, ", ".join(precisions))


@dataclass(frozen=True)
class StoredParts(Parts):
    """One folder an attack; its name holds a hash of all that the findings depend on."""

    folder: Path
    ids: torch.Tensor
    """Places in the test set of the examples at hand, rising."""
    with_images: bool = False
    fresh: bool = False
    """Write alone: what is already there is not used."""
    here: Maker = Maker()
    """What this process computes on and in."""
    makers: list[Maker] = field(default_factory=list)
    """Of the findings that were used or written; one that does not tell counts as this process's."""

    def known(self, stage: str) -> list[Finding]:
        """Stored findings about the examples at hand; a file that cannot be read is as good as none."""
        if self.fresh:
            return []
        findings = []
        taken = torch.zeros(len(self.ids), dtype=torch.bool)
        for path in sorted(self.folder.glob(f"{stage}@*.npz")):
            finding, maker = self._read(path)
            # A run with another batch size may have left pieces that overlap; the first one counts.
            if finding is not None and not bool(taken[finding.rows].any()):
                taken[finding.rows] = True
                findings.append(finding)
                self.makers.append(maker)
        return findings

    def keep(self, stage: str, finding: Finding) -> None:
        """Write a finding, whole or not at all."""
        ids = self.ids[finding.rows]
        seconds = torch.tensor(finding.seconds, dtype=torch.float64)
        arrays = {"ids": ids, "broken": finding.broken, "size": finding.size}
        arrays |= {**vars(finding.score), "outside": finding.outside, "seconds": seconds}
        if self.with_images and finding.x_adv is not None:
            arrays["x_adv"] = finding.x_adv.cpu()
        path = self.folder / f"{stage}@{int(ids[0]):07d}-{len(ids)}.npz"
        words = {name: np.array(text) for name, text in vars(self.here).items()}
        write_arrays(path, {name: values.numpy() for name, values in arrays.items()} | words)
        self.makers.append(self.here)

    def _read(self, path: Path) -> tuple[Finding | None, Maker]:
        nothing = None, self.here
        try:
            stored = read_arrays(path)
            words = {name: str(stored[name]) for name in vars(self.here) if name in stored}
            arrays = {name: torch.from_numpy(stored[name]) for name in stored if name not in ("seconds", *words)}
            seconds = float(stored["seconds"])
        except UNREADABLE:
            return nothing
        if self.with_images and "x_adv" not in arrays:
            return nothing
        here = torch.isin(arrays["ids"], self.ids)
        if not bool(here.all()):
            # Another shard's examples: the rest of this file, if any, is cheaper to take than to compute.
            arrays = {name: values[here] for name, values in arrays.items()}
        if len(arrays["ids"]) == 0:
            return nothing
        finding = Finding(
            rows=torch.searchsorted(self.ids, arrays["ids"]),
            broken=arrays["broken"],
            score=Score(arrays["margin"], arrays["pm"], arrays["predicted"]),
            size=arrays["size"],
            outside=arrays["outside"],
            seconds=seconds,
            x_adv=arrays.get("x_adv"),
        )
        return finding, replace(self.here, **words)
