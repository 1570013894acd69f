"""A network's definition as Python files that need torch alone."""

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from probmargin.core.errors import UsageError
from probmargin.export.subject import Exported
from probmargin.models import layers, resnet, small_cnn, wide_resnet
from probmargin.models.build import accepted, factory_of
from probmargin.runs.weights import mean_std_of

_BUILT_IN: dict[str, tuple[ModuleType, str]] = {
    "small-cnn": (small_cnn, "SmallCNN({arguments})"),
    "resnet18": (resnet, "ResNet18({arguments})"),
    "preact-resnet18": (resnet, "PreActResNet18({arguments})"),
}

_HEAD = '''"""{title}

    from model import load_model
    model = load_model()    # images in [0, 1] to logits; normalisation is inside; weights.pt lies beside this file
"""

'''

_LOADER = '''

def load_model(weights: str | None = "weights.pt") -> nn.Module:
    """The network in eval mode; with None, without its trained weights. A relative path begins at this file."""
    network = {call}
    if weights is not None:
        path = Path(__file__).parent / weights
        network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return network.eval()
'''


_ALIASES = "Images = Logits = torch.Tensor\nUsageError = ValueError"

_BESIDE = '''

def _beside() -> ModuleType:
    """network.py in this folder, whatever else is called so."""
    spec = spec_from_file_location("network_of_bundle", Path(__file__).with_name("network.py"))
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    installed = sys.modules.get("probmargin")
    # What network.py may take of the package that it was trained with is here.
    sys.modules["probmargin"] = SimpleNamespace(Normalize=Normalize)
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["probmargin"]
        if installed is not None:
            sys.modules["probmargin"] = installed
    return module
'''

_BESIDE_IMPORTS = {
    "import sys",
    "from importlib.util import module_from_spec, spec_from_file_location",
    "from pathlib import Path",
    "from types import ModuleType, SimpleNamespace",
}


def sources(subject: Exported) -> dict[str, bytes]:
    """The files by name: model.py, and a user's own file unchanged beside it, where no name of ours can meet theirs."""
    files = {"model.py": model_source(subject).encode()}
    name = str(subject.record["model"])
    return files | {"network.py": _own_file(name)} if ":" in name else files


def model_source(subject: Exported) -> str:
    """The text of model.py."""
    if subject.settings is None:
        raise UsageError(
            "a model that was given as an object has no source file; train it as --model package.module:factory"
        )
    name = str(subject.record["model"])
    arguments = {key: subject.settings[key] for key in ("num_classes", "in_channels")}
    if ":" in name:
        body, call = _own(name, arguments)
    else:
        body, call = _built_in(name, arguments)
    if subject.settings.get("mean_std") and (mean_std := mean_std_of(subject.model)) is not None:
        mean, std = (tuple(float(f"{value:.9g}") for value in part) for part in mean_std)
        call = f"nn.Sequential(Normalize({mean}, {std}), {call})"
    return _HEAD.format(title=f"{name}, trained by {subject.recipe.method} with probmargin.") + body + _loader(call)


def _loader(call: str) -> str:
    return _LOADER.replace("{call}", call)


def _spelled(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in arguments.items())


def _built_in(name: str, arguments: dict[str, Any]) -> tuple[str, str]:
    if wide := re.fullmatch(r"wrn-(\d+)-(\d+)", name):
        module, call = wide_resnet, f"WideResNet({wide[1]}, {wide[2]}, {{arguments}})"
    else:
        module, call = _BUILT_IN[name]
    imports, parts = _pieces(layers)
    more, own = _pieces(module)
    return _joined({*imports, *more}, [_ALIASES, *parts, *own]), call.format(arguments=_spelled(arguments))


def _pieces(module: ModuleType) -> tuple[list[str], list[str]]:
    """A module's imports from elsewhere, and its definitions in order."""
    text = inspect.getsource(module)
    imports, parts = [], []
    for node in ast.parse(text).body:
        source = ast.get_source_segment(text, node) or ""
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports += [] if source.startswith("from probmargin") else [source]
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            parts.append(source)
    return imports, parts


def _joined(imports: set[str], parts: list[str]) -> str:
    needed = {*imports, "from pathlib import Path", "import torch", "from torch import nn"}
    ordered = sorted(needed, key=lambda line: (line.startswith("from torch"), line))
    return "\n".join(ordered) + "\n\n" + "\n\n\n".join(parts) + "\n"


def _own(name: str, arguments: dict[str, Any]) -> tuple[str, str]:
    """Our normalisation, and a call of the user's own file."""
    factory = factory_of(name)
    imports, parts = _pieces(layers)
    normalize = next(part for part in parts if part.startswith("class Normalize"))
    head = _joined({*imports, *_BESIDE_IMPORTS}, [_ALIASES, normalize])
    call = f"_beside().{name.partition(':')[2]}({_spelled(accepted(factory, **arguments))})"
    return f"{head}{_BESIDE}", call


def _own_file(name: str) -> bytes:
    """The file a user's own model is imported from, as it is."""
    path = Path(str(importlib.import_module(name.partition(":")[0]).__file__))
    if path.suffix != ".py":
        raise UsageError(f"{path} is no Python source: put the network's definition into one .py file")
    content = path.read_bytes()
    tree = ast.parse(content)
    foreign = sorted(_roots(tree) - {"torch"} - set(sys.stdlib_module_names))
    if foreign and not (foreign == ["probmargin"] and _takes_normalize_alone(tree)):
        raise UsageError(
            f"{path} imports {', '.join(foreign)}, and the bundle's model file may need torch and pm.Normalize alone: "
            "put the network's definition into one file"
        )
    return content


def _takes_normalize_alone(tree: ast.Module) -> bool:
    """Is `Normalize` all that a file uses of this package?"""
    nodes = list(ast.walk(tree))
    named = [(node, alias) for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    parts = [node for node in nodes if isinstance(node, ast.ImportFrom) and _is_ours(str(node.module))]
    imports = [node for node, alias in named if _is_ours(alias.name)] + parts
    # What is imported while the network is built, or from within the package, is not there any more.
    modules = [alias.name for _, alias in named if _is_ours(alias.name)] + [str(node.module) for node in parts]
    if not all(node in tree.body for node in imports) or set(modules) != {"probmargin"}:
        return False
    ours = {alias.asname or alias.name for _, alias in named if alias.name == "probmargin"}
    uses = [node for node in nodes if isinstance(node, ast.Name) and node.id in ours]
    attributes = [node for node in nodes if isinstance(node, ast.Attribute) and node.value in uses]
    taken = [node.attr for node in attributes] + [alias.name for node in parts for alias in node.names]
    return len(attributes) == len(uses) and set(taken) <= {"Normalize"}


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "probmargin"


def _roots(tree: ast.Module) -> set[str]:
    """The top-level packages a file imports; a relative import is its own package's."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(f".{node.module or ''}" if node.level else str(node.module).partition(".")[0])
    return found
