"""The refinery as a researcher would write it for one paper: a plain PyTorch script, the yardstick of `bench`.

The same rule, settings and network as a run of ray_adaplr after its warm start, and the same start model, but a
`DataLoader` of PIL images with torchvision's transforms on each, contiguous NCHW tensors, `torch.optim.Adam`, members
one after another, and after each epoch a clean evaluation pass of every member, whose logits are averaged; ray_adaplr
averages those of the training pass, unless `logits_from = "clean"`. Of ray_adaplr it uses the store's reader, the start
model's file and the settings. It is as fast as costs a researcher nothing: workers that persist, evaluation in large
batches under `inference_mode`, vectorised residual labels, no copies in the loop.

    python -m benchmarks plain_pytorch STORE MODEL --epochs 8 --workers 2
"""

import json
import time
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks import command_line
from benchmarks.augment_rivals import torchvision_operations
from ray_adaplr.config import Config
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.training import augmentation
from ray_adaplr.storage.models import load_model


class Pictures(Dataset):
    """(image, sample number); the images lie in memory."""

    def __init__(self, pixels: np.ndarray, transform: Callable[[Image.Image], Tensor]) -> None:
        self.pixels, self.transform = pixels, transform

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pixels = self.pixels[index]
        return self.transform(Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])), index


def residual_labels(labels: Tensor, classes: int, n_e: int, n_rl: int) -> Tensor:
    """Disjoint shares for the members of classes that are not the label, [n_e, n, n_rl]."""
    keys = torch.rand(len(labels), classes)
    keys[torch.arange(len(labels)), labels] = 2.0  # sorted to the end
    drawn = keys.argsort(1)[:, : n_e * n_rl]
    return drawn.view(len(labels), n_e, n_rl).transpose(0, 1)


def loss_of(logits: Tensor, residuals: Tensor) -> Tensor:
    return -torch.log((1 - logits.softmax(1).gather(1, residuals)).clamp_min(1e-7)).mean()


def main(arguments: list[str] | None = None) -> None:
    parser = command_line("plain_pytorch", __doc__)
    parser.add_argument("store")
    parser.add_argument("model")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2, help="of the DataLoader")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)

    store = ImageStore.open(options.store)
    start = load_model(options.model)
    config = Config(epochs=options.epochs).resolve(start.spec.num_classes)
    pixels, truth = store.read(np.arange(len(store))), torch.from_numpy(np.array(store.ground_truth()))
    augmented = Pictures(pixels, torchvision_operations(augmentation(config, config.crop), pixels.shape[1]))
    clean = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div(255).contiguous()

    members: list[nn.Module] = [
        load_model(options.model).to(memory_format=torch.contiguous_format) for _ in range(config.n_e)
    ]
    optimizers = [torch.optim.Adam(m.parameters(), config.lr, weight_decay=config.weight_decay) for m in members]
    loaders = [
        DataLoader(
            augmented,
            config.batch_size,
            shuffle=True,
            num_workers=options.workers,
            drop_last=True,
            persistent_workers=options.workers > 0,
        )
        for _ in members
    ]
    steps = options.epochs * len(loaders[0])
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) for optimizer in optimizers]

    labels = predict(start, clean).argmax(1)
    start_noise = (labels != truth).float().mean().item()
    history: list[Tensor] = []
    seconds = []
    for epoch in range(options.epochs):
        began = time.perf_counter()
        residuals = residual_labels(labels, start.spec.num_classes, config.n_e, int(config.n_rl))
        votes = []
        for k, (model, optimizer, schedule) in enumerate(zip(members, optimizers, schedules)):
            model.train()
            for images, index in loaders[k]:
                loss = loss_of(model(images), residuals[k, index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
            votes.append(predict(model, clean))
        history = [*history, torch.stack(votes).mean(0)][-config.n_a :]
        probs = torch.stack(history).mean(0).softmax(1)
        confidence = probs[torch.arange(len(labels)), labels]
        gamma = (confidence > config.alpha).float().mean()
        if epoch >= config.warmup:
            labels = torch.where(confidence < gamma, probs.argmax(1), labels)
        seconds.append(time.perf_counter() - began)
    refined_noise = (labels != truth).float().mean().item()
    print(json.dumps({"start_noise": start_noise, "refined_noise": refined_noise, "epoch_seconds": seconds}))


@torch.inference_mode()
def predict(model: nn.Module, images: Tensor, batch_size: int = 512) -> Tensor:
    model.eval()
    return torch.cat([model(batch) for batch in images.split(batch_size)])
