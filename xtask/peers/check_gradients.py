"""Compares the PyTorch model, in f64, with the golden files of the reference's loss, gradients and AdamW steps.

A golden names its weights and holds samples and checksums of what came out; the weights themselves are made here, from
their names. Every gradient is judged: its norm, its checksum, each stored element, and whether there is one at all.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import deepseek_v41
from deepseek_v41 import Config, Model, fold_scales, next_token_loss

GOLDENS = Path(__file__).resolve().parents[2] / "goldens" / "gradients"
GRADIENT_BOUND = 1e-4
LOSS_BOUND = 1e-3
GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)


# --- Values made from names -------------------------------------------------------------------------------------------


def fnv1a64(text: str) -> int:
    """FNV-1a over UTF-8 bytes."""
    state = 0xCBF29CE484222325
    for byte in text.encode():
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return state


def raw_values(name: str, count: int) -> np.ndarray:
    """64 bits for each of `count` indices: splitmix64 of the name's hash and the index."""
    z = np.uint64(fnv1a64(name)) ^ (np.arange(count, dtype=np.uint64) * GOLDEN_RATIO)
    z = z + GOLDEN_RATIO
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def made_weight(name: str, meta: dict, salt: str) -> Tensor:
    """A golden's tensor, rounded to the type it is stored in, as f64."""
    unit = 2 * ((raw_values(salt + name, meta["n"]) >> np.uint64(40)) / 2**24) - 1
    values = torch.from_numpy((unit * meta["scale"] + meta["offset"]).astype(np.float32))
    stored = values.to(getattr(torch, meta["dtype"])).float().double()
    found = checksum(stored)
    if not math.isclose(found, meta["ck"], rel_tol=1e-9, abs_tol=1e-9):
        raise ValueError(f"{name}: the checksum of the made values is {found}; expected {meta['ck']}")
    return stored.view(meta["shape"])


def made_weights(golden: dict) -> dict[str, Tensor]:
    """Every parameter of a golden; a table's scales are multiplied in."""
    salt = golden["fixture"]["salt"]
    weights = {name: made_weight(name, meta, salt) for name, meta in golden["weights_meta"].items()}
    return fold_scales(weights)


def made_ids(golden: dict) -> Tensor:
    """The golden's token ids, `[B, S]`."""
    fixture, stored = golden["fixture"], golden["train"]["input_ids"]
    count = fixture["batch"] * fixture["length"]
    ids = (raw_values(fixture["salt"] + "input_ids", count) % np.uint64(fixture["vocab_size"])).astype(np.int64)
    if ids[:: stored["stride"]].tolist() != stored["data"]:
        raise ValueError(f"the made token ids start {ids[:8].tolist()}; expected {stored['data'][:8]}")
    return torch.from_numpy(ids).view(fixture["batch"], fixture["length"])


def checksum(values: Tensor) -> float:
    """`sum(value * (index + 1))`."""
    flat = values.flatten()
    return float(flat @ torch.arange(1, len(flat) + 1, dtype=torch.float64))


# --- Comparisons ------------------------------------------------------------------------------------------------------


def deviation(found: Tensor, stored: dict) -> float:
    """The largest relative deviation of a tensor's norm, checksum and stored elements.

    A checksum is held against the sum of its terms' magnitudes, an element against the tensor's largest.
    """
    flat = found.flatten().double()
    sampled = flat[:: stored["stride"]]
    deviations = [
        abs(checksum(flat) - stored["ck"]) / checksum(flat.abs()),
        float((sampled - torch.tensor(stored["data"], dtype=torch.float64)).abs().max() / flat.abs().max()),
    ]
    if "norm" in stored:
        deviations.append(abs(float(flat.norm()) - stored["norm"]) / stored["norm"])
    return max(deviations)


def losses_of_training(model: Model, ids: Tensor, settings: dict) -> list[float]:
    """The losses before and after each AdamW step; every parameter that has a gradient decays."""
    optimiser = torch.optim.AdamW(
        model.parameters(),
        lr=settings["lr"],
        betas=tuple(settings["betas"]),
        eps=settings["eps"],
        weight_decay=settings["weight_decay"],
    )
    losses = []
    for _ in settings["losses"]:
        optimiser.zero_grad()
        loss = next_token_loss(model(ids), ids)
        losses.append(loss.item())
        loss.backward()
        optimiser.step()
    return losses


def check(path: Path) -> bool:
    """Prints what one golden's comparison found and says whether all of it is within bounds."""
    golden = json.loads(path.read_text())
    train = golden["train"]
    model = Model(Config.from_dict({"gate_temp": 1.0, **golden["fixture"]})).double()
    model.load_state_dict(made_weights(golden))
    ids = made_ids(golden)

    print(path.name)
    passed = [
        check_step(model, ids, train, gather_from, name)
        for name, gather_from in (("masked attention", math.inf), ("gathered attention", 0))
    ]
    losses = losses_of_training(model, ids, train["adamw"])
    off = max(abs(a / b - 1) for a, b in zip(losses, train["adamw"]["losses"], strict=True))
    passed.append(judge("AdamW losses", off, LOSS_BOUND, f"{len(losses)}, the last is {losses[-1]:.9f}"))
    return all(passed)


def check_step(model: Model, ids: Tensor, train: dict, gather_from: float, name: str) -> bool:
    """Loss, logits and gradients with one of the two ways to reach the selected positions."""
    print(f"  {name}")
    deepseek_v41.GATHER_FROM = gather_from
    model.zero_grad()
    logits = model(ids)
    loss = next_token_loss(logits, ids)
    loss.backward()

    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    present = {name for name, gradient in gradients.items() if gradient is not None}
    expected = {name for name, stored in train["grads"].items() if stored is not None}
    compared = {name: deviation(gradients[name], train["grads"][name]) for name in present & expected}
    worst = max(compared, key=compared.get)
    passed = [
        judge("loss", abs(loss.item() / train["loss"] - 1), GRADIENT_BOUND, f"{loss.item():.12f}"),
        judge("logits", deviation(logits.detach(), train["logits_full"]), GRADIENT_BOUND, f"{logits.numel()} values"),
        judge("gradients", compared[worst], GRADIENT_BOUND, f"{len(compared)} tensors, the worst is {worst}"),
    ]
    for name in sorted(present ^ expected):
        print(f"    FAILED: {name} has {'a' if name in present else 'no'} gradient and should not be so")
    return present == expected and all(passed)


def judge(what: str, found: float, bound: float, note: str) -> bool:
    """Prints one deviation and whether it is within its bound."""
    print(f"    {what:<13} {found:9.2e} of {bound:.0e}  {'ok' if found <= bound else 'FAILED':<7} {note}")
    return found <= bound


def main() -> int:
    """Exits with 1 where a golden is not met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("goldens", nargs="*", type=Path, default=[GOLDENS / f"grad-{n}.json" for n in ("tiny", "wide")])
    passed = [check(path) for path in parser.parse_args().goldens]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
