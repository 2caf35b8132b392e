"""Times one training step of the PyTorch model on the CPU: forward with the loss, and backward, apart.

Weights and token ids come from a safetensors file with the release's names and layouts (and `input_ids`, i64 `[B, S]`),
or are seeded random ones, which `--write` saves to such a file, so that another implementation can take the same step.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from deepseek_v41 import Config, Model, fold_scales, next_token_loss

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "small.json"
DTYPES = {"f32": torch.float32, "f64": torch.float64}
IDS = "input_ids"
MIB = 2**20


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=CONFIG, help="the model's shape (default: configs/small.json)")
    parser.add_argument("--weights", type=Path, help="read weights, and token ids where the file has them")
    parser.add_argument("--write", type=Path, metavar="FILE", help="save the weights and token ids of this run")
    parser.add_argument("--gradients", type=Path, metavar="OUT", help="save `loss` and every parameter's gradient")
    parser.add_argument("--batch", type=int, help="sequences (default: 2, or as the file has)")
    parser.add_argument("--sequence", type=int, help="tokens of each (default: 512, or as the file has)")
    parser.add_argument("--repeats", type=int, default=5, help="timed steps, after one that is not (default: 5)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--seed", type=int, default=0, help="of random weights and token ids (default: 0)")
    parser.add_argument("--profile", type=int, metavar="N", help="also list the N operations that take most time")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def make_model(args: argparse.Namespace) -> tuple[Model, Tensor]:
    """The model and the token ids of the step."""
    torch.set_default_dtype(DTYPES[args.dtype])
    model = Model(Config.load(args.config))
    ids = None
    if args.weights is None:
        model.fill(args.seed)
    else:
        stored = load_file(args.weights)
        ids = stored.pop(IDS, None)
        weights = {name: weight.to(DTYPES[args.dtype]) for name, weight in stored.items()}
        model.load_state_dict(fold_scales(weights))
    if ids is None:
        shape = (args.batch or 2, args.sequence or 512)
        generator = torch.Generator().manual_seed(args.seed + 1)
        ids = torch.randint(model.config.vocab_size, shape, generator=generator)
    wanted = (args.batch or ids.shape[0], args.sequence or ids.shape[1])
    if wanted != tuple(ids.shape):
        raise SystemExit(f"{args.weights}: {IDS} is {list(ids.shape)}; expected {list(wanted)}")
    return model, ids


def step(model: Model, ids: Tensor) -> tuple[float, float, float]:
    """One step without an optimiser: the loss and the seconds of forward and of backward."""
    model.zero_grad(set_to_none=True)
    start = time.perf_counter()
    loss = next_token_loss(model(ids), ids)
    middle = time.perf_counter()
    loss.backward()
    return loss.item(), middle - start, time.perf_counter() - middle


def reset_peak() -> None:
    """Starts the peak of resident memory anew, where the system can, so that reading the file is not in it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass


def memory(key: str) -> int:
    """A line of this process's status in bytes: `VmRSS`, the resident memory, or `VmHWM`, its peak."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024


def save_gradients(path: Path, model: Model, loss: float) -> None:
    """Writes the loss and the gradients; a parameter without one (the indexer's) is left out."""
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    save_file({"loss": torch.tensor([loss], dtype=torch.float64), **gradients}, path)


def spread(seconds: list[float]) -> dict[str, float]:
    """The least and the median of repeated measurements."""
    return {"min_s": min(seconds), "median_s": statistics.median(seconds)}


def table_of_operations(run: Callable[[], object], rows: int) -> str:
    """What one run spends its time on."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    return profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=rows, max_name_column_width=40)


def main() -> None:
    """Takes the steps, reports, and writes what was asked for."""
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    model, ids = make_model(args)
    if args.write:
        save_file({IDS: ids, **model.state_dict()}, args.write)

    at_start = memory("VmRSS")
    reset_peak()
    step(model, ids)
    losses, forward, backward = zip(*(step(model, ids) for _ in range(args.repeats)), strict=True)
    peak = memory("VmHWM")
    if args.gradients:
        save_gradients(args.gradients, model, losses[-1])

    whole = [a + b for a, b in zip(forward, backward, strict=True)]
    report = {
        "torch": torch.__version__,
        "config": args.config.name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "batch": ids.shape[0],
        "sequence": ids.shape[1],
        "dtype": args.dtype,
        "threads": args.threads,
        "repeats": args.repeats,
        "loss": losses[-1],
        "forward": spread(forward),
        "backward": spread(backward),
        "step": spread(whole),
        "tokens_per_second": ids.numel() / statistics.median(whole),
        "resident_before_bytes": at_start,
        "peak_bytes": peak,
    }
    print(json.dumps(report) if args.json else as_text(report))
    if args.profile:
        print(table_of_operations(lambda: step(model, ids), args.profile))


def as_text(report: dict) -> str:
    """The report for a reader."""
    lines = [
        f"torch {report['torch']}, {report['config']}, {report['parameters'] / 1e6:.1f} M parameters, "
        f"batch {report['batch']} x {report['sequence']}, {report['dtype']}, {report['threads']} threads",
        f"loss      {report['loss']:.9f}",
    ]
    for part in ("forward", "backward", "step"):
        lines.append(f"{part:<9} {report[part]['min_s']:.3f} s min, {report[part]['median_s']:.3f} s median")
    lines.append(f"          {report['tokens_per_second']:.0f} tokens a second (median)")
    lines.append(
        f"memory    {report['peak_bytes'] / MIB:.0f} MiB at most, "
        f"{report['resident_before_bytes'] / MIB:.0f} MiB before the first step"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
