"""Checkpoints: tensors in safetensors, the rest in JSON with a checksum; no pickle."""

import copy
import errno
import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from probmargin.core.errors import UsageError
from probmargin.core.shapes import misfit
from probmargin.core.shell import typed
from probmargin.core.speech import Say, silent
from probmargin.engine.files import write_json, written_aside


@dataclass(frozen=True)
class Checkpoint:
    """Named tensors and plain facts about them."""

    tensors: dict[str, torch.Tensor]
    facts: dict[str, Any] = field(default_factory=dict)

    def part(self, prefix: str) -> dict[str, torch.Tensor]:
        """The tensors under a prefix, without it."""
        start = f"{prefix}/"
        return {name[len(start) :]: tensor for name, tensor in self.tensors.items() if name.startswith(start)}

    def copied(self) -> "Checkpoint":
        """The same in the host's memory, which nothing that is trained on changes."""
        own = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.tensors.items()}
        return Checkpoint(own, copy.deepcopy(self.facts))


def joined(**parts: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of several dictionaries under their names as prefixes."""
    return {f"{prefix}/{name}": tensor for prefix, group in parts.items() for name, tensor in group.items()}


def in_order(states: Iterable[Path]) -> list[Path]:
    """Files of states in the order of training: by epoch and batch, since numbers of more digits sort badly as text.

    >>> [path.name for path in in_order([Path("state-10000"), Path("state-9999-00004"), Path("state-9999")])]
    ['state-9999', 'state-9999-00004', 'state-10000']
    """
    return sorted(states, key=lambda path: ([int(number) for number in re.findall(r"\d+", path.name)], path.name))


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_hash(path: Path) -> str:
    """Sixteen hex digits that identify a file's content."""
    _check_is_file(path)
    return _checksum(path)[:16]


def write_tensors(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file; what goes wrong on the way to the disk is an OSError, as with any other file."""
    try:
        save_file(tensors, path, metadata=metadata)
        # The library makes files that only their owner can read.
        path.chmod(0o644)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]) if number else errno.EIO, _reason(error, number), str(path)) from None


def _reason(error: Exception, number: "re.Match[str] | None") -> str:
    return os.strerror(int(number[1])) if number else " ".join(str(error).split())


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint whose tensors may lie on a device and share their memory."""
    write(path, checkpoint.copied())


def write(path: Path, copied: Checkpoint) -> None:
    """Write PATH.safetensors, then PATH.json, which vouches for it: a checkpoint counts once its JSON is there."""
    own = {name: tensor.contiguous() for name, tensor in copied.tensors.items()}
    target = path.with_suffix(".safetensors")
    with written_aside(target) as aside:
        write_tensors(aside, own)
        checksum = _checksum(aside)
    write_json(path.with_suffix(".json"), {**copied.facts, "sha256": checksum})


def load(path: Path, shape: Callable[[Any], str] | None = None) -> Checkpoint:
    """Read a checkpoint and check it; a damaged one is an error that says so. `shape` says what its facts lack."""
    tensors_path, facts_path = path.with_suffix(".safetensors"), path.with_suffix(".json")
    try:
        facts = json.loads(facts_path.read_text(encoding="utf-8"))
        if why := misfit(facts, dict[str, Any]) or (shape(facts) if shape else ""):
            raise UsageError(f"checkpoint {facts_path} is damaged: {why}; choose another state")
        if _checksum(tensors_path) != facts.pop("sha256", None):
            raise UsageError(f"checkpoint {tensors_path} is damaged: its checksum differs; choose another state")
        return Checkpoint(load_file(tensors_path), facts)
    except FileNotFoundError as error:
        raise UsageError(
            f"checkpoint {path} is not complete: {error.filename} is missing; choose another state"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError, SafetensorError) as error:
        raise UsageError(f"checkpoint {path} is damaged: {error}; choose another state") from None


def is_whole(path: Path) -> bool:
    """Is a checkpoint there, as it was written?"""
    try:
        facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        return isinstance(facts, dict) and facts.get("sha256") == _checksum(path.with_suffix(".safetensors"))
    except (OSError, ValueError):
        return False


def remove(path: Path) -> None:
    """Delete a checkpoint, its JSON first, so that a half-deleted one does not count."""
    path.with_suffix(".json").unlink(missing_ok=True)
    path.with_suffix(".safetensors").unlink(missing_ok=True)


_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
"""Names under which others' files keep the weights beside other things."""


def load_weights(path: Path, log: Say = silent) -> dict[str, torch.Tensor]:
    """A state dict from safetensors, or from a PyTorch file read without running code; of several, say which one."""
    _check_is_file(path)
    content: Any
    try:
        if path.suffix == ".safetensors":
            content = load_file(path)
        else:
            content = _load_torch(path)
    except Exception as error:
        reason = _first_sentence(error)
        raise UsageError(
            f"{path} cannot be read as weights ({reason}; pickled code is refused): give safetensors, or "
            "torch.save(model.state_dict(), ...)"
        ) from None
    if line := _beside(content, path):
        log(line)
    content = _inside(content)
    tensors = {name: tensor for name, tensor in _items(content) if isinstance(tensor, torch.Tensor)}
    if not tensors:
        raise UsageError(f"{path} holds no weights; save them with torch.save(model.state_dict(), ...)")
    # A state of a run: the moving average is what the run is judged by.
    for prefix in ("ema/", "model/"):
        if own := {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}:
            return own
    return {_bare(name): tensor for name, tensor in tensors.items()}


def _bare(name: str) -> str:
    """Without what torch.compile and DataParallel put before the names of what they wrap."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


def _wrapper(content: Any) -> str | None:
    """The name under which the weights lie, where they lie deeper."""
    found = (key for key in _WRAPPERS if isinstance(content, dict) and isinstance(content.get(key), dict))
    return next(found, None)


def _inside(content: Any) -> Any:
    while key := _wrapper(content):
        content = content[key]
    return content


def _beside(content: Any, path: Path) -> str | None:
    """A line on other weights of the same network in a file, such as a moving average."""
    key = _wrapper(content)
    if key is None:
        return None
    taken = _tensor_names(content[key])
    others = [str(name) for name, value in content.items() if name != key and taken & _tensor_names(value)]
    if not others:
        return None
    return (
        f"{path} holds weights under {', '.join([key, *others])}, and {key} is taken: for others save them alone, "
        f"torch.save(torch.load({str(path)!r})[{others[0]!r}], 'other.pt')"
    )


def _tensor_names(content: Any) -> set[str]:
    items = _items(_inside(content))
    return {_bare(name) for name, value in items if isinstance(value, torch.Tensor)}


def _check_is_file(path: Path) -> None:
    if path.is_dir() and (states := in_order(path.glob("checkpoints/state-*.safetensors"))):
        raise UsageError(f"{path} is a run's folder; give a file of its weights, --checkpoint {typed(states[-1])}")
    if not path.is_file():
        raise UsageError(f"there is no checkpoint file {path}; give a .safetensors, .pt or .pth file")


def _load_torch(path: Path) -> Any:
    with warnings.catch_warnings():
        # Of a bare pickle torch warns that it might not be able to read it; we say whether it is.
        warnings.simplefilter("ignore", UserWarning)
        return torch.load(path, map_location="cpu", weights_only=True)


def _first_sentence(error: Exception) -> str:
    """Why a file is refused, in plain text; what torch adds to that is how to run the code in it."""
    text = re.sub(r"\x1b\[[\d;]*m", "", str(error)).strip()
    first = re.split(r"\.\s|\n", text)[0].rstrip(".") or type(error).__name__
    if isinstance(error, KeyError):
        return "it is no file of torch.save"
    return "there is more than tensors in it" if first.startswith("Weights only load failed") else first


def _items(content: Any) -> list[tuple[str, Any]]:
    return [(str(name), value) for name, value in content.items()] if isinstance(content, dict) else []
