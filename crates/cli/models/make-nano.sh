#!/usr/bin/env bash
# Trains the model that `dsv41 generate` runs where none is named, and writes it as nano.gguf beside this script.
# Ten minutes on two cores; the numbers differ in their last bits from machine to machine, and so do the weights.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
cd "$here/../../.."
run="$(mktemp -d)/recall"

cargo run --release -- train --config configs/nano.json --task recall --out "$run" --steps 900 --batch 16 --accumulate 2 \
    --parallel 2 --length 96 --no-packing --optimizer muon --rate 4e-3 --schedule stable-decay --log-every 100
cargo run --release -- convert "$run" "$here/nano.gguf" --types q8_0
rm -r "$run"
