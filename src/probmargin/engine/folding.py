"""A network for attacks: batch norm folded into convolutions, weights cast once a training step."""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.utils.parametrize import is_parametrized

from probmargin.core.frozen import model_mode
from probmargin.core.types import Images, Logits


class CannotFold(Exception):
    """The model is not made of parts that fold; the message says which."""


@dataclass(frozen=True)
class Kind:
    """How a folded network keeps its weights."""

    dtype: torch.dtype
    order: torch.memory_format = torch.channels_last
    """In memory; models that reshape by `view` need torch.contiguous_format."""


class FoldedConv(nn.Module):
    """A convolution with the batch norm that follows it folded in, in the precision of the attack."""

    weight: torch.Tensor
    bias: torch.Tensor

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d | None, kind: "Kind") -> None:
        super().__init__()
        if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
            raise CannotFold("a convolution pads with something else than zeros")
        # Plain lists hide the sources from torch: they belong to the trained model.
        self._source = [conv]
        self._norm = [norm] if norm is not None else []
        if norm is not None:
            scale_and_shift(norm)
        # Tensor cores take 16-bit channels in groups of eight; a stem of three is padded here once, not at every call.
        is_short = kind.dtype in (torch.bfloat16, torch.float16)
        self._padding = -conv.weight.shape[1] % 8 if is_short and conv.groups == 1 else 0
        shape = (conv.out_channels, conv.weight.shape[1] + self._padding, *conv.kernel_size)
        weight = torch.zeros(shape, dtype=kind.dtype, device=conv.weight.device)
        self.register_buffer("weight", weight.contiguous(memory_format=kind.order))
        self.register_buffer("bias", torch.zeros(conv.out_channels, dtype=kind.dtype, device=conv.weight.device))
        self._geometry = (conv.stride, conv.padding, conv.dilation, conv.groups)

    def folded(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight and bias at the trained model's present parameters."""
        conv = self._source[0]
        weight = conv.weight
        bias = torch.zeros_like(weight[:, 0, 0, 0]) if conv.bias is None else conv.bias
        for norm in self._norm:
            scale, shift = scale_and_shift(norm)
            weight, bias = weight * scale[:, None, None, None], bias * scale + shift
        return weight, bias

    def fill(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        """Take in a weight and bias, the weight twice where there is room for what rounding leaves of an image."""
        channels = weight.shape[1]
        self.weight[:, :channels].copy_(weight)
        if self._padding >= channels:
            self.weight[:, channels : 2 * channels].copy_(weight)
        self.bias.copy_(bias)

    def taken_in(self, x: torch.Tensor) -> torch.Tensor:
        """The input in this layer's precision, its spare channels filled.

        bfloat16 has steps of 1/256 near 1, which swallow the small noise that attacks start from. An image that comes
        in float32 therefore brings what its rounding leaves in spare channels, for which the weight is there twice.
        """
        spare = self._padding
        if x.dtype != torch.float32 or spare < x.shape[1]:
            high = x.to(self.weight.dtype)
        else:
            rest = x.detach() - leading_half(x.detach())
            high = torch.cat([(x - rest).to(self.weight.dtype), rest.to(self.weight.dtype)], dim=1)
            spare -= x.shape[1]
        return F.pad(high, (0, 0, 0, 0, 0, spare)) if spare else high

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stride, padding, dilation, groups = self._geometry
        return F.conv2d(self.taken_in(x), self.weight, self.bias, stride, padding, dilation, groups)


def leading_half(x: torch.Tensor) -> torch.Tensor:
    """What bfloat16 keeps of float32, without rounding: the upper 16 of 32 bits.

    Made of bits, since a compiler leaves out a cast to bfloat16 and back.

    >>> leading_half(torch.tensor([0.5, 0.7501])).tolist()
    [0.5, 0.75]
    """
    return (x.view(torch.int32) & -65536).view(torch.float32)


class FoldedNorm(nn.Module):
    """A batch norm in eval mode as one multiplication and one addition."""

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self, norm: nn.BatchNorm2d, dtype: torch.dtype) -> None:
        super().__init__()
        self._norm = [norm]
        scale, shift = self.folded()
        self.register_buffer("scale", torch.zeros_like(scale, dtype=dtype))
        self.register_buffer("shift", torch.zeros_like(shift, dtype=dtype))

    def folded(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and shift at the trained model's present parameters."""
        scale, shift = scale_and_shift(self._norm[0])
        return scale[:, None, None], shift[:, None, None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.shift


class FloatLinear(nn.Module):
    """A linear layer in float32, whatever comes in: the logits keep their digits."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._source = [linear]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        linear = self._source[0]
        bias = None if linear.bias is None else linear.bias.detach()
        return F.linear(x.float(), linear.weight.detach(), bias)


def scale_and_shift(norm: nn.BatchNorm2d) -> tuple[torch.Tensor, torch.Tensor]:
    """What a batch norm does in eval mode: x * scale + shift."""
    if norm.running_mean is None or norm.running_var is None:
        raise CannotFold("a batch norm keeps no running statistics")
    scale = (norm.running_var + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight
    shift = -norm.running_mean * scale
    return scale, shift if norm.bias is None else shift + norm.bias


class FoldedNetwork(nn.Module):
    """The eval-mode network over a trained model's parameters, refreshed when they have moved."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, order: torch.memory_format = torch.channels_last) -> None:
        super().__init__()
        with model_mode(model, "eval"):
            self.body = _fold(model, Kind(dtype, order))
        self._parts = [m for m in self.body.modules() if isinstance(m, FoldedConv | FoldedNorm)]

    @torch.no_grad()
    def refresh(self) -> None:
        """Fold the trained model's present parameters and statistics."""
        for part in self._parts:
            first, second = part.folded()
            if isinstance(part, FoldedConv):
                part.fill(first, second)
            else:
                part.scale.copy_(first)
                part.shift.copy_(second)

    def forward(self, x: Images) -> Logits:
        logits: Logits = self.body(x)
        return logits.float()


def _fold(model: nn.Module, kind: Kind) -> fx.GraphModule:
    """Rewrite the model's graph: convolutions take in the batch norm behind them, linear layers stay in float32."""
    for name, module in model.named_modules():
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
        if any(hooks) or is_parametrized(module):
            raise CannotFold(f"{name or 'the model'} has hooks or parametrizations, which a folded copy leaves out")
    try:
        traced = fx.symbolic_trace(model)
    except Exception as error:
        raise CannotFold(f"the model's forward depends on its data ({type(error).__name__})") from None
    modules = dict(traced.named_modules())
    folded: set[fx.Node] = set()
    for node in list(traced.graph.nodes):
        if node.op == "get_attr" and isinstance(_attribute(traced, str(node.target)), nn.Parameter):
            raise CannotFold(f"the model uses the parameter {node.target} outside a layer")
        if node.op == "call_module" and node not in folded:
            _replace(traced, node, _part(node, modules, folded, kind))
    traced.graph.eliminate_dead_code()
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced


def _part(node: fx.Node, modules: dict[str, nn.Module], folded: set[fx.Node], kind: Kind) -> nn.Module:
    """What takes the place of a layer."""
    module = modules[str(node.target)]
    if isinstance(module, nn.Conv2d):
        return FoldedConv(module, _norm_behind(node, modules, folded), kind)
    if isinstance(module, nn.Linear):
        return FloatLinear(module)
    if isinstance(module, nn.BatchNorm2d):
        return FoldedNorm(module, kind.dtype)
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return nn.Identity()
    if any(True for _ in (*module.parameters(), *module.buffers())):
        raise CannotFold(f"the model has a {type(module).__name__}")
    # A copy, since the trained model's own layer is in training mode while it is attacked.
    try:
        return copy.deepcopy(module).eval()
    except Exception as error:
        raise CannotFold(f"a {type(module).__name__} cannot be copied ({type(error).__name__})") from None


def _attribute(root: nn.Module, path: str) -> object:
    found: object = root
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _norm_behind(node: fx.Node, modules: dict[str, nn.Module], folded: set[fx.Node]) -> nn.BatchNorm2d | None:
    """The batch norm that alone uses a convolution's result; its node then hands the convolution's on."""
    users = list(node.users)
    if len(users) != 1 or users[0].op != "call_module":
        return None
    norm = modules[str(users[0].target)]
    if not isinstance(norm, nn.BatchNorm2d):
        return None
    users[0].replace_all_uses_with(node)
    users[0].graph.erase_node(users[0])
    folded.add(users[0])
    return norm


def _replace(traced: fx.GraphModule, node: fx.Node, module: nn.Module) -> None:
    """Put another module in a node's place; a module called twice gets one copy a call."""
    name = f"folded_{node.name}"
    traced.add_module(name, module)
    node.target = name
