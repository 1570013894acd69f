"""The file formats: how each is written, and how it is read again."""

import contextlib
import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from probmargin.core.errors import UsageError
from probmargin.core.types import Classifier, Images, Logits
from probmargin.engine.checkpoints import write_tensors
from probmargin.export.subject import Exported
from probmargin.models.build import build_model
from probmargin.runs.weights import EXPORT_KEY, NO_FACTS, exported_facts


def write_safetensors(subject: Exported, path: Path) -> None:
    """Weights, with what is needed to build the network around them."""
    facts = {
        "model": subject.record["model"],
        "settings": subject.settings,
        "classes": list(subject.classes),
        "seed": subject.record["seed"],
        "recipe_hash": subject.recipe.hash(),
    }
    write_network(path, subject.model, facts)


def write_network(path: Path, network: nn.Module, facts: dict[str, Any]) -> None:
    """A network's weights, with the facts that `load_model` reads: name and settings of the model, the run's seed."""
    tensors = {name: tensor.contiguous().clone() for name, tensor in network.state_dict().items()}
    write_tensors(path, tensors, {"format": "pt", EXPORT_KEY: json.dumps(facts)})


def read_safetensors(path: Path, subject: Exported) -> Classifier:
    """The network built from the file alone, or the caller's own object with the file's weights."""
    if subject.settings is not None:
        return load_model(path, subject.record["model"])
    model = copy.deepcopy(subject.model)
    model.load_state_dict(load_file(path))
    return model.eval()


_READERS = {".onnx": "onnxruntime.InferenceSession", ".pt2": "torch.export.load"}
"""What reads the files that are no safetensors, by their ending."""


def load_model(path: Path, model: str | None = None) -> nn.Module:
    """The network of a safetensors file that was exported or imported here, in eval mode.

    A file decides nothing about what is imported: the name of one's own network is given by `model`.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name a file that export wrote, or take open_run({str(path)!r}).model")
    if not path.exists():
        raise UsageError(f"there is no file {path}; check its name")
    if reader := _READERS.get(path.suffix):
        raise UsageError(f"{path} is no safetensors file: use {reader} for it")
    try:
        facts = exported_facts(path)
    except NO_FACTS as error:
        raise UsageError(f"{path} cannot be read as a safetensors file ({error}); export it again") from None
    if not facts or facts.get("settings") is None:
        raise UsageError(f"{path} does not say how its model is built; build it and load the weights yourself")
    named = facts.get("model")
    if model is None and (not isinstance(named, str) or ":" in named):
        raise UsageError(f"{path} asks for the network {named!r}, which is not one of ours: pass model={named!r}")
    try:
        # By the run's seed: what a network draws and its weights do not hold is then as it was in training.
        network = build_model(model or named, **{**facts["settings"], "seed": facts.get("seed") or 0})
        network.load_state_dict(load_file(path))
    except (RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"{path} does not fit the network it names ({reason}); export it again") from None
    return network.eval()


def _example(subject: Exported) -> torch.Tensor:
    """Two images, since a batch of one is taken for a fixed size."""
    return subject.x[:1].repeat(2, 1, 1, 1)


def _program(subject: Exported) -> torch.export.ExportedProgram:
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    try:
        return torch.export.export(subject.model, (_example(subject),), dynamic_shapes=shapes)
    except Exception as error:
        # Reading the code follows some networks that running it does not, such as those that ask for len(x).
        with contextlib.suppress(Exception), _quiet():
            return torch.export.export(subject.model, (_example(subject),), dynamic_shapes=shapes, strict=True)
        reason = " ".join(str(error).split())[:200]
        raise UsageError(
            f"torch.export cannot follow {subject.record['model']} ({type(error).__name__}: {reason}); take Python "
            "branches on tensors out of its forward, write x.shape[0] for len(x), or use --format safetensors"
        ) from None


def write_torch_export(subject: Exported, path: Path) -> None:
    """An exported program for any batch size."""
    torch.export.save(_program(subject), path)


def read_torch_export(path: Path, _: Exported) -> Classifier:
    """The program as a function of images."""
    module = torch.export.load(path).module()

    def call(x: Images) -> Logits:
        logits: Logits = module(x)
        return logits

    return call


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's progress and its hints to developers from the user."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _needs_onnx() -> UsageError:
    return UsageError("ONNX needs more packages: pip install 'probmargin[onnx]'")


def write_onnx(subject: Exported, path: Path) -> None:
    """A graph from `images` to `logits` for any batch size, weights inside."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise _needs_onnx() from None
    program = _program(subject)
    with _quiet():
        named: dict[str, Any] = {
            "input_names": ["images"],
            "output_names": ["logits"],
            "dynamic_shapes": ({0: "batch"},),
        }
        try:
            made = torch.onnx.export(program, **named, verbose=False)
        except Exception as error:
            reason = " ".join(str(error.__cause__ or error).split())[:160]
            raise UsageError(
                f"{subject.record['model']} cannot be written as ONNX ({reason}); use --format torch-export or "
                "safetensors"
            ) from None
        assert made is not None
        made.save(str(path), external_data=False)


def read_onnx(path: Path, _: Exported) -> Classifier:
    """The graph in onnxruntime on the CPU; it has no gradients."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def call(x: Images) -> Logits:
        outputs: Any = session.run(None, {name: x.detach().numpy()})
        return torch.from_numpy(outputs[0])

    return call


Write = Callable[[Exported, Path], None]
Read = Callable[[Path, Exported], Classifier]

FILES: dict[str, tuple[Write, Read, str]] = {
    "safetensors": (write_safetensors, read_safetensors, ".safetensors"),
    "torch-export": (write_torch_export, read_torch_export, ".pt2"),
    "onnx": (write_onnx, read_onnx, ".onnx"),
}
"""Formats of one file: writer, reader and suffix."""
