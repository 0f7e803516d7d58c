"""One network, its optimiser and its place in the schedule: trains an epoch and returns that epoch's logits.

The same learner runs inside a Ray member, in process, in a Tune trial and as the target model's trainer; it knows
nothing of any of them. All its randomness is counter-based (`draws`), so its whole state is weights + optimiser.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ray_adaplr.core import devices, draws
from ray_adaplr.core.adam import Adam
from ray_adaplr.core.augment import NUM_UNIFORMS, AugmentSettings, apply_plan, plan, to_float
from ray_adaplr.core.feed import Read, batches, even_slices
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.predict import batchnorm_layers, is_frozen, predict_logits
from ray_adaplr.core.ranks import ALONE, Ranks
from ray_adaplr.errors import InputError

log = logging.getLogger(__name__)
Objective = Callable[[Tensor, slice], Tensor]  # (logits [b, C], their rows in the epoch's order) -> loss
MakeObjective = Callable[[np.ndarray, torch.device], Objective]  # of an epoch's order, [n]


@dataclass(frozen=True)
class TrainSettings:
    """How a learner trains. `augment=None` trains on the clean images."""

    seed: int
    epochs: int
    batch_size: int
    lr: float
    lr_head: float
    weight_decay: float
    schedule: Literal["cosine", "constant"]
    augment: AugmentSettings | None
    compile: bool = False
    # Not in repr, by which `pretrain` knows a model of earlier versions again.
    precision: str | None = field(default=None, repr=False)  # one of `devices.PRECISIONS`; None: the device's usual one
    keeps_batchnorm: bool = field(default=False, repr=False)  # BatchNorm's statistics stay as they are


@dataclass(frozen=True)
class Workplace:
    """Where a learner trains, and which part of the work is its own."""

    device: torch.device | str = "cpu"
    threads: int = 1  # torch threads on a CPU; part of what fixes the bits
    ranks: Ranks = ALONE  # who trains the network together with this process, each on its slice of every batch
    cache: Tensor | None = None  # all images on the device, uint8 [N, h, w, c] by sample number; None: they are read


class Learner:
    """Trains one network, in place, on the images of some sample numbers.

    These numbers, [n], must ascend, since logits are put back by a sorted search. The number of the member enters the
    augmentation, not the order of batches, which all members share.
    """

    def __init__(
        self,
        model: Classifier,
        read: Read,
        samples: np.ndarray,
        settings: TrainSettings,
        *,
        member: int = 0,
        place: Workplace | None = None,
    ) -> None:
        check_trainable(model)
        place = place or Workplace()
        self.device = torch.device(place.device)
        if self.device.type == "cpu":
            _keep_freed_memory()
        self.model = model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.net: nn.Module = self.model  # what is called; wrappers take its place
        if settings.compile and place.ranks.world > 1:
            log.warning("compile is left out: several ranks train the network together")
        elif settings.compile:
            torch._dynamo.config.suppress_errors = True  # what cannot be compiled runs as it is, with a warning
            self.net = torch.compile(self.model)  # type: ignore[assignment]
        self.read, self.samples, self.settings = read, samples, settings
        self.member, self.threads, self.ranks, self.cache = member, place.threads, place.ranks, place.cache
        self.optimizer = Adam(model.parameter_groups(settings.lr, settings.lr_head), settings.weight_decay)
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=settings.precision == "fp16")
        self._base_lrs = [group["lr"] for group in self.optimizer.param_groups]

    def train_epoch(self, epoch: int, make_objective: MakeObjective) -> np.ndarray:
        """Train once over the samples; returns the training pass's logits, float32 [n, C], rows as in `samples`.

        The number of the epoch fixes order, augmentation and learning rate. Every rank returns all rows.
        """
        stream = draws.key(self.settings.seed, "order", epoch)
        order = self.samples[draws.permutation(stream, len(self.samples))]  # the same for every member
        objective = make_objective(order, self.device)
        augmentation = self._plan_augmentation(epoch, order)
        kept = torch.zeros(len(order), self.model.spec.num_classes, device=self.device)
        self.net.train()
        for layer in batchnorm_layers(self.model):
            if self.settings.keeps_batchnorm or is_frozen(layer):
                layer.eval()
        with self._own_randomness(epoch):
            whole = list(even_slices(len(order), self.settings.batch_size))
            parts = [self.ranks.part(rows) for rows in whole]
            feed = zip(whole, parts, self._images(order, parts), strict=True)  # to its end, or a stop is lost there
            for step, (rows, own, images) in enumerate(feed):
                if augmentation is None or self.settings.augment is None:
                    images = to_float(images)
                else:
                    images = apply_plan(images, augmentation[own], self.settings.augment)
                with devices.autocast(self.device), self.ranks.synchronised():
                    logits = self.net(images)
                logits = self.ranks.whole(logits.float(), rows)
                loss = objective(logits, rows)
                self._set_learning_rate((epoch + step / len(whole)) / self.settings.epochs)
                self.optimizer.zero_grad()
                self._scaler.scale(loss).backward()
                self.ranks.add_gradients(self.model.parameters())
                self._scaler.step(self.optimizer)  # type: ignore[arg-type]
                self._scaler.update()
                kept[rows] = logits.detach()
        logits = kept.cpu().numpy()
        if not np.isfinite(logits).all():
            first = int(np.argmin(np.isfinite(logits).all(1)))
            batch = next(i for i, rows in enumerate(whole) if first < rows.stop)
            too_large = " or precision=bf16" if self.settings.precision == "fp16" else ""  # than 65,504
            raise FloatingPointError(
                f"NaN or infinite logits in epoch {epoch + 1}, batch {batch + 1}; use a lower learning rate{too_large}"
            )
        in_place = np.empty_like(logits)
        in_place[np.searchsorted(self.samples, order)] = logits
        return in_place

    def predict(self, batch_size: int | None = None) -> np.ndarray:
        """Logits of the clean images, float32 [n, C], rows as in `samples`."""
        everything = slice(0, len(self.samples))
        own = self.samples[self.ranks.part(everything)]
        with devices.torch_threads(self.threads), devices.computing_in(self.settings.precision):
            images = self.read if self.cache is None else self.cache
            logits = predict_logits(self.model, images, own, self.device, batch_size)
        return self.ranks.whole(torch.from_numpy(logits).to(self.device), everything).cpu().numpy()

    def state(self) -> dict[str, Any]:
        """A snapshot of weights and optimiser on the CPU, safe to write while training goes on."""
        state = {"model": _to_cpu(self.model.state_dict()), "optimizer": _to_cpu(self.optimizer.state_dict())}
        return state | ({"scaler": scaler} if (scaler := self._scaler.state_dict()) else {})

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if "scaler" in state:
            self._scaler.load_state_dict(state["scaler"])

    def _plan_augmentation(self, epoch: int, order: np.ndarray) -> Tensor | None:
        """What happens to each image of the epoch, [n, ...] in the epoch's order: made at once, a tenth of the cost."""
        if self.settings.augment is None:
            return None
        stream = draws.key(self.settings.seed, "augment", epoch, self.member)
        uniforms = torch.from_numpy(draws.uniforms(stream, order, NUM_UNIFORMS)).to(self.device)
        height, width, channels = self.read(order[:1]).shape[1:]
        return plan(uniforms, self.settings.augment, (height, width, channels))

    def _images(self, order: np.ndarray, parts: list[slice]) -> Iterator[Tensor]:
        """The uint8 images of each part of the epoch's order, on the device."""
        if (cache := self.cache) is None:
            return batches(self.read, (order[rows] for rows in parts), self.device)
        index = torch.from_numpy(order).to(self.device)
        return (cache[index[rows]] for rows in parts)

    def _set_learning_rate(self, progress: float) -> None:
        factor = 0.5 * (1 + math.cos(math.pi * progress)) if self.settings.schedule == "cosine" else 1.0
        for group, base in zip(self.optimizer.param_groups, self._base_lrs):
            group["lr"] = base * factor

    @contextlib.contextmanager
    def _own_randomness(self, epoch: int) -> Iterator[None]:
        """Fixed threads and precision, a fixed torch generator for layers such as dropout; all put back afterwards."""
        counters = [epoch, self.member] + ([self.ranks.rank] if self.ranks.rank else [])
        seed = draws.torch_seed(draws.key(self.settings.seed, "layers", *counters))
        precision = devices.computing_in(self.settings.precision)
        with devices.torch_threads(self.threads), devices.seeded(self.device, seed), precision:
            yield


def check_trainable(model: Classifier) -> None:
    """InputError for a model whose weights are all frozen."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(
            f"all weights of the model {model.spec.name} are frozen; call requires_grad_(True) on what may train"
        )


def _keep_freed_memory() -> None:
    """Let the C library keep what a step frees for the next one, instead of giving it back to the system.

    glibc keeps twice the largest block that it was given back, as long as that had at most 32 MB. A fresh process has
    seen only small ones, so each step faulted its activations in again, which took a tenth of a member's time.
    """
    torch.empty((32 << 20) - (64 << 10), dtype=torch.uint8)  # given back at once, and never touched


def _to_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {k: _to_cpu(v) for k, v in value.items()}
    return [_to_cpu(v) for v in value] if isinstance(value, list) else value
