"""Adam by torch's functional form, `torch.optim.adam.adam`: the bits of its optimiser without what that loads.

The first optimiser of `torch.optim` in a process imports the compiler (`torch._dynamo`), two seconds that every member
would spend at its start and none of them needs.
"""

from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8  # torch.optim's, and the paper's


class Adam:
    """The few verbs of an optimiser that a learner needs.

    Groups are dicts with `params`, a list, and `lr`, which may change between steps; `weight_decay` is added to the
    gradients (L2), as in torch's Adam.
    """

    # A GradScaler then hands over `grad_scale` and `found_inf`: an overflow leaves a step out on the device, unread.
    _step_supports_amp_scaling = True

    def __init__(self, param_groups: list[dict[str, Any]], weight_decay: float) -> None:
        self.param_groups, self._weight_decay = param_groups, weight_decay
        self._params: list[Tensor] = [p for group in param_groups for p in group["params"]]
        self._state: dict[Tensor, dict[str, Tensor]] = {}

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for param in self._params:
            param.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            states = [self._state_of(p) for p in params]
            adam(
                params,
                [p.grad for p in params],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=True,
                amsgrad=False,
                maximize=False,
                lr=group["lr"],
                weight_decay=self._weight_decay,
                beta1=_BETA_1,
                beta2=_BETA_2,
                eps=_EPSILON,
                grad_scale=getattr(self, "grad_scale", None),
                found_inf=getattr(self, "found_inf", None),
            )

    def _state_of(self, param: Tensor) -> dict[str, Tensor]:
        if param not in self._state:
            zeros = torch.zeros_like(param, memory_format=torch.preserve_format)
            step = torch.zeros((), dtype=torch.float32, device=param.device)
            self._state[param] = {"step": step, "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
        return self._state[param]

    def state_dict(self) -> dict[str, Any]:
        """The moments by a parameter's position, as torch's Adam lays them out."""
        return {"state": {i: self._state[p] for i, p in enumerate(self._params) if p in self._state}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from copies of such moments."""
        self._state = {self._params[i]: _moved(moments, self._params[i]) for i, moments in state["state"].items()}


def _moved(moments: dict[str, Tensor], param: Tensor) -> dict[str, Tensor]:
    """Copies on the parameter's device, the averages in its memory format."""
    copies = {}
    for name, value in moments.items():
        like = value if name == "step" else param
        copies[name] = torch.empty_like(like, device=param.device).copy_(value)
    return copies
