"""What turns gradients into steps, and what it remembers from one step to the next."""

from collections.abc import Mapping

import torch
from torch import nn

from probmargin.methods.method import Method
from probmargin.models.checks import trained_parameters

SECOND_BETA = 0.999
"""AdamW's, as torch has it; its first is the recipe's momentum."""

_MEMORY = {"sgd": {"momentum_buffer": ""}, "adamw": {"exp_avg": "", "exp_avg_sq": "squares/", "step": "steps/"}}
"""By optimizer: what torch calls each tensor that it keeps of a parameter, and how its name begins in a saved state."""


def make_optimizer(model: nn.Module, method: Method) -> torch.optim.Optimizer:
    """The recipe's optimizer over the parameters that are trained; decay on all of them."""
    trained = trained_parameters(model)
    on_cuda = trained[0].is_cuda
    # A tensor, so that a captured step sees every change of the rate.
    lr = torch.tensor(method.lr, device=trained[0].device) if on_cuda else method.lr
    decay = method.weight_decay
    if method.optimizer == "adamw":
        betas = (method.momentum, SECOND_BETA)
        return torch.optim.AdamW(trained, lr, betas, weight_decay=decay, fused=on_cuda, capturable=on_cuda)
    return torch.optim.SGD(trained, lr, method.momentum, weight_decay=decay, nesterov=method.nesterov, fused=on_cuda)


class Memory:
    """What an optimizer remembers of each parameter, under names for a saved state."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._parameters, self._optimizer = dict(model.named_parameters()), optimizer
        self._keys = _MEMORY["adamw" if isinstance(optimizer, torch.optim.AdamW) else "sgd"]

    def named(self) -> dict[str, torch.Tensor]:
        """Each tensor there is by its name; SGD without momentum, and before its first step, has none."""
        found = {}
        for name, parameter in self._parameters.items():
            entry = self._optimizer.state.get(parameter, {})
            for key, start in self._keys.items():
                if entry.get(key) is not None:
                    found[f"{start}{name}"] = entry[key]
        return found

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Become what was saved."""
        self._optimizer.state.clear()
        for name, parameter in self._parameters.items():
            for key, start in self._keys.items():
                if (value := tensors.get(f"{start}{name}")) is not None:
                    self._optimizer.state[parameter][key] = self._fitting(name, key).copy_(value)

    def fill(self) -> None:
        """Have every tensor there, laid out as its parameter is, zero where there was none: no step changes by it."""
        trained = {id(parameter) for parameter in self._optimizer.param_groups[0]["params"]}
        for name, parameter in self._parameters.items():
            if id(parameter) not in trained:
                continue
            entry = self._optimizer.state[parameter]
            for key in self._keys:
                known, fitting = entry.get(key), self._fitting(name, key)
                entry[key] = fitting if known is None else fitting.copy_(known)

    def forget(self) -> None:
        """Be as before the first step; in place, where a captured step looks for it."""
        for tensor in self.named().values():
            tensor.zero_()

    def _fitting(self, name: str, key: str) -> torch.Tensor:
        parameter = self._parameters[name]
        # A count, which torch keeps beside what it counts the steps of.
        return torch.zeros((), device=parameter.device) if key == "step" else torch.zeros_like(parameter)
