"""Adam by torch's fused kernel: the bits of `torch.optim.Adam(fused=True)` without what that loads.

The first optimiser of `torch.optim` in a process imports the compiler (`torch._dynamo`), two seconds that every member
would spend at its start and none of them needs.
"""

from typing import Any

import torch
from torch import Tensor

_BETAS, _EPSILON = (0.9, 0.999), 1e-8  # torch.optim's defaults, and the paper's


class Adam:
    """The few verbs of an optimiser that a learner needs.

    Args:
        param_groups: dicts with `params`, a list, and `lr`, which may change between steps.
        weight_decay: added to the gradients (L2), as in torch's Adam.
    """

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
            steps = [state["step"] for state in states]
            torch._foreach_add_(steps, 1)
            torch._fused_adam_(
                params, [p.grad for p in params], [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states], [],
                steps, lr=group["lr"], beta1=_BETAS[0], beta2=_BETAS[1], weight_decay=self._weight_decay, eps=_EPSILON,
                amsgrad=False, maximize=False,
            )  # fmt: skip

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
        self._state = {
            self._params[i]: {
                name: torch.empty_like(self._params[i] if name != "step" else value, device=self._params[i].device)
                .copy_(value)
                for name, value in moments.items()
            }
            for i, moments in state["state"].items()
        }  # fmt: skip
