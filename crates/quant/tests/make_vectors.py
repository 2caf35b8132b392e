"""Makes vectors/: blocks of each type with their values by PyPI's `gguf`, and the errors of another quantiser.

    pip install gguf==0.19.0
    python make_vectors.py quant-peer.json

TYPE.bin is blocks and values in turn: for each block its bytes, then its values as little-endian f32.

quant-peer.json holds what candle 0.11 makes of two matrices: for each type and matrix `rmse`, and `first_row` with
`first_row_values_f32` in base64. The first block of each first row joins the vectors; the errors go to peer.json.
"""

import base64
import json
import sys
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize

VECTORS = Path(__file__).parent / "vectors"

# Where the f16 scales lie in a block.
F16_SCALES = {
    "q4_0": [0],
    "q8_0": [0],
    "q2_k": [80, 82],
    "q3_k": [108],
    "q4_k": [0, 2],
    "q5_k": [0, 2],
    "q6_k": [208],
}
# Zero, negative zero, the smallest and the largest subnormal, the smallest normal, one, the largest, infinity.
EDGES = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0xFBFF, 0x7C00], np.uint16).view(np.float16)


def values_of(blocks, name):
    with np.errstate(all="ignore"):
        return dequantize(blocks, Type[name.upper()]).astype("<f4").reshape(len(blocks), -1)


def random_blocks(name, rng):
    """Two blocks with scales of usual size, then one for each edge of the scales."""
    scales = np.concatenate([rng.normal(0, 0.01, 2).astype(np.float16), EDGES])
    blocks = rng.integers(0, 256, (len(scales), GGML_QUANT_SIZES[Type[name.upper()]][1]), dtype=np.uint8)
    for number, at in enumerate(F16_SCALES[name]):
        blocks[:, at : at + 2] = np.roll(scales, 3 * number).view(np.uint8).reshape(-1, 2)
    return blocks


def peer_blocks(name, matrices):
    size = GGML_QUANT_SIZES[Type[name.upper()]][1]
    rows = []
    for matrix in matrices.values():
        row = np.frombuffer(base64.b64decode(matrix["first_row"]), np.uint8).reshape(-1, size)
        values = np.frombuffer(base64.b64decode(matrix["first_row_values_f32"]), "<u4")
        assert np.array_equal(values_of(row, name).reshape(-1).view(np.uint32), values), "gguf and candle differ"
        rows.append(row[:1])
    return np.concatenate(rows)


def mxfp4_blocks(rng):
    """Random codes under small, usual and large scales, the last of which the standard makes a NaN."""
    blocks = rng.integers(0, 256, (12, 17), dtype=np.uint8)
    blocks[:, 0] = [0, 1, 2, 3, 100, 126, 127, 128, 129, 250, 254, 255]
    return blocks


def half_floats():
    return np.arange(0, 1 << 16, 97, dtype=np.uint16).view(np.uint8).reshape(-1, 2)


def main():
    peer = json.loads(Path(sys.argv[1]).read_text())["types"]
    matrices = {name.lower(): found for name, found in peer.items()}
    rng = np.random.default_rng(41)
    blocks = {"f16": half_floats(), "bf16": half_floats(), "mxfp4": mxfp4_blocks(rng)}
    for name in F16_SCALES:
        blocks[name] = np.concatenate([random_blocks(name, rng), peer_blocks(name, matrices[name])])

    VECTORS.mkdir(exist_ok=True)
    for name, packed in blocks.items():
        records = [block.tobytes() + row.tobytes() for block, row in zip(packed, values_of(packed, name))]
        (VECTORS / f"{name}.bin").write_bytes(b"".join(records))
    errors = {name: {key: matrix["rmse"] for key, matrix in found.items()} for name, found in matrices.items()}
    (VECTORS / "peer.json").write_text(json.dumps(errors, indent=2) + "\n")


if __name__ == "__main__":
    main()
