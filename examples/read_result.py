"""Use a run's result without ray_adaplr: `python examples/read_result.py [RUN]`.

Reads what `examples/own_network.py` wrote with pyarrow, safetensors and plain PyTorch alone. The network is built by
its own class; for a torchvision name in `model.json` use `torchvision.models.get_model(name, num_classes=...)`.
"""

import json
import sys
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from own_network import MyNetwork, optical_digits
from safetensors.torch import load_file


def main(run: Path) -> None:
    """Count the labels, then predict with the target model."""
    labels = pq.read_table(run / "labels.parquet")
    changed = labels.filter(pc.not_equal(labels["initial_label"], labels["refined_label"]))
    sure = labels.filter(labels["high_confidence"])
    print(f"{len(labels)} labels, {len(changed)} changed, {len(sure)} held with high confidence")

    spec = json.loads((run / "target_model" / "model.json").read_text())
    print(f"input: {spec['channels']} channel(s), mean {spec['mean']}, std {spec['std']}; head: {spec['head']}")
    network = MyNetwork()
    network.load_state_dict(load_file(run / "target_model" / "model.safetensors"))
    network.eval()

    images, _ = optical_digits(500)
    values = torch.from_numpy(images).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(spec[name]).view(1, -1, 1, 1) for name in ("mean", "std"))
    with torch.no_grad():
        predicted = network((values - mean) / std).argmax(1)
    agree = (predicted.numpy() == labels["refined_label"].to_numpy()).mean()
    print(f"the target model agrees with the refined labels on {agree:.3f} of the images")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/own_network"))
