"""What a streaming step costs: frames a second, memory and their growth, for each preset with random weights.

Each step is compared, in the same run, with (a) recomputing the whole window with the same weights and (b)
the time that its matrix products and attention kernels alone take. Prints a table and writes streaming.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from anchor3r.model.cache import ImageCache
from anchor3r.model.config import PRESETS
from anchor3r.model.memory import streaming_bytes
from anchor3r.model.network import Anchor3RNetwork
from anchor3r.predictors.inference import backbone_precision, choose_device, choose_dtype, dtype_name

KERNELS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "scaled_dot_product", "_LocalCorrelation")
SIZES = {"full": (392, 518), "base": (294, 392), "small": (294, 392), "tiny": (96, 128)}


@dataclass(frozen=True)
class StreamingCost:
    preset: str
    size: str
    parameters: int
    step_ms: float
    frames_per_s: float
    recompute_ms: float | None
    kernel_share: float
    cache_mib: float
    peak_rss_gib: float
    counted_gib: float
    """Weights, cache and tensors of a step, as counted without computing (`model.memory`)"""
    peak_gpu_gib: float | None
    """Largest memory that PyTorch had allocated on the GPU, if there is one"""


def images(size: tuple[int, int], count: int) -> torch.Tensor:
    return torch.rand(count, 3, *size, generator=torch.Generator().manual_seed(0))


def seconds(action: object, repeats: int, device: torch.device) -> float:
    """Seconds of one call, median: of CPU time, or of the clock where a GPU computes."""
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        clock = time.perf_counter if device.type == "cuda" else time.process_time
        began = clock()
        action()  # type: ignore[operator]
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(clock() - began)
    return sorted(times)[len(times) // 2]


def kernel_share(network: Anchor3RNetwork, cache: ImageCache, image: torch.Tensor) -> float:
    """Share of a step's own CPU time that is spent in matrix products, convolutions and attention."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        network.stream(image, cache)
    events = recorded.key_averages()
    total = sum(e.self_cpu_time_total for e in events)
    inside = sum(e.self_cpu_time_total for e in events if any(k in e.key for k in KERNELS))
    return inside / total


@torch.inference_mode()
def measure(
    preset: str, frames: int, device: torch.device, dtype: torch.dtype, *, recompute: bool, compiled: bool
) -> StreamingCost:
    config, size = PRESETS[preset], SIZES[preset]  # type: ignore[index]
    torch.manual_seed(0)
    network = Anchor3RNetwork(config).eval().requires_grad_(False).to(device)
    if compiled:
        network.compile_parts()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    stream = images(size, config.window).to(device)
    cache = network.new_cache(*size, dtype=dtype)
    with backbone_precision(device, dtype):
        for k in range(frames):
            network.stream(stream[k % len(stream), None], cache)
        peak_gpu = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
        step_s = seconds(lambda: network.stream(stream[:1], cache), 1 if preset == "full" else 7, device)
        share = kernel_share(network, cache, stream[:1])
        recompute_s = seconds(lambda: network(stream[None]), 3, device) if recompute else None
    weights = sum(p.nbytes for p in network.parameters())
    return StreamingCost(
        preset=preset,
        size=f"{size[1]}×{size[0]}",
        parameters=sum(p.numel() for p in network.parameters()),
        step_ms=1e3 * step_s,
        frames_per_s=1 / step_s,
        recompute_ms=None if recompute_s is None else 1e3 * recompute_s,
        kernel_share=share,
        cache_mib=cache.nbytes / 2**20,
        peak_rss_gib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        counted_gib=(weights + streaming_bytes(config, *size, dtype)) / 2**30,
        peak_gpu_gib=None if peak_gpu is None else peak_gpu / 2**30,
    )


@torch.inference_mode()
def measure_growth(preset: str, size: tuple[int, int], first: int, last: int) -> dict[str, float]:
    """Growth of the cache and of resident memory between two frames of one stream, in percent."""
    network = Anchor3RNetwork(PRESETS[preset]).eval()  # type: ignore[index]
    stream, cache = images(size, 16), network.new_cache(*size)
    readings = []
    for k in range(last):
        network.stream(stream[k % 16, None], cache)
        if k + 1 in (first, last):
            resident = int(Path("/proc/self/statm").read_text().split()[1])
            readings.append((cache.nbytes, resident))
    (cache_a, rss_a), (cache_b, rss_b) = readings
    return {"cache_percent": 100 * (cache_b / cache_a - 1), "rss_percent": 100 * (rss_b / rss_a - 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", nargs="+", default=["tiny", "small", "base"], choices=list(PRESETS))
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="encoder and heads through torch.compile")
    parser.add_argument("--growth-frames", type=int, default=2_000, help="0 leaves the long stream out")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = choose_device(arguments.device)
    dtype = choose_dtype(arguments.dtype, device)
    print(f"{device}, {dtype_name(dtype)}")
    rows = []
    print(
        "preset  size      parameters   step ms  frames/s  recompute/step  kernels  cache MiB  counted GiB"
        "  peak GiB  GPU GiB"
    )
    for preset in arguments.presets:
        row = measure(preset, 12, device, dtype, recompute=preset != "full", compiled=arguments.compile)
        on_gpu = "-" if row.peak_gpu_gib is None else f"{row.peak_gpu_gib:.2f}"
        rows.append(row)
        ratio = "-" if row.recompute_ms is None else f"{row.recompute_ms / row.step_ms:.1f}"
        print(
            f"{row.preset:7} {row.size:9} {row.parameters:12,} {row.step_ms:8.1f} {row.frames_per_s:9.2f} "
            f"{ratio:>15} {row.kernel_share:8.0%} {row.cache_mib:10.1f} {row.counted_gib:12.2f} "
            f"{row.peak_rss_gib:9.2f} {on_gpu:>8}"
        )
    growth = None
    if arguments.growth_frames:
        growth = measure_growth("small", (56, 84), 100, arguments.growth_frames)
        print(
            f"small, frame 100 -> {arguments.growth_frames}: cache {growth['cache_percent']:+.2f} %, "
            f"resident memory {growth['rss_percent']:+.2f} %"
        )
    arguments.out.mkdir(parents=True, exist_ok=True)
    machine = {"threads": arguments.threads, "device": str(device), "dtype": dtype_name(dtype)}
    report = {**machine, "rows": [asdict(row) for row in rows], "growth": growth}
    (arguments.out / "streaming.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
