"""The data sets of the literature, one small class each: layout, camera, frames, ground truth, scoring."""

from anchor3r.evaluation.benchmarks.benchmark import Benchmark, CloudProtocol, ScoringProtocol
from anchor3r.evaluation.benchmarks.kitti import Kitti
from anchor3r.evaluation.benchmarks.oxford_spires import OxfordSpires
from anchor3r.evaluation.benchmarks.seven_scenes import SevenScenes
from anchor3r.evaluation.benchmarks.tum import Tum
from anchor3r.evaluation.benchmarks.vbr import Vbr
from anchor3r.evaluation.benchmarks.virtual_kitti2 import VirtualKitti2Benchmark
from anchor3r.evaluation.benchmarks.waymo import WaymoBenchmark

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.protocol.benchmark: benchmark
    for benchmark in (
        Kitti(),
        Vbr(),
        Tum(),
        OxfordSpires(),
        WaymoBenchmark(),
        SevenScenes(),
        VirtualKitti2Benchmark(),
    )
}

__all__ = ["BENCHMARKS", "Benchmark", "CloudProtocol", "ScoringProtocol"]
