#!/usr/bin/env bash
# A sweep that needs no labels: `examples/sweep.sh [DIR]`. It prints the settings of its best trial.
# DIR must hold what examples/folder.sh made (a source model and a store); the default is the same, runs/folder.
set -euo pipefail
dir=${1:-runs/folder}
here=$(dirname "$0")

ray-adaplr tune "$here/my_space.py" --source "$dir/source" --target "$dir/stores/scans" \
    --search random --trials 2 --engine local --set epochs=2 --set warm_start_epochs=2 --set warmup=1 \
    --out "$dir/sweep"

grep -E "^(alpha|n_e|n_rl) " "$dir/sweep/best.toml"
echo "ray-adaplr adapt --config $dir/sweep/best.toml --source $dir/source --target $dir/stores/scans --out $dir/best"
