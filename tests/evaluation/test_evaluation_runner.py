"""Whole evaluations in miniature: map, score, write, read back; with the ground truth as the predictor."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from miniatures import HEIGHT, WIDTH, drive, write_depth, write_image

from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.association import paired
from anchor3r.evaluation.benchmarks import BENCHMARKS, CloudProtocol
from anchor3r.evaluation.benchmarks.benchmark import Benchmark, DepthFiles, PosedImages, ScoringProtocol
from anchor3r.evaluation.metrics import Alignment
from anchor3r.evaluation.results import Results
from anchor3r.evaluation.runner import MapAndRefine, run_benchmark
from anchor3r.evaluation.scoring import score_poses, scored_trajectory
from anchor3r.geometry import SE3, Pinhole, so3_exp
from anchor3r.pipeline.mapper import Mapper
from anchor3r.pipeline.settings import MapSettings, RefineSettings
from anchor3r.predictors import WindowPrediction
from anchor3r.predictors.ground_truth import GroundTruthPredictor
from anchor3r.sources import Frame, Source
from anchor3r.store import OFFLINE, MapWriter, load_map
from anchor3r.trajectory import Trajectory
from anchor3r.workers import WorkerSettings

EXACT = MapAndRefine(mapping=MapSettings(predictor="ground-truth", window=4))


def changed(**settings: Any) -> MapAndRefine:
    return replace(EXACT, mapping=replace(EXACT.mapping, **settings))


def trajectory(world_from_camera: SE3, **columns: Any) -> Trajectory:
    frames = columns.pop("frames", np.arange(len(world_from_camera)))
    rotation = world_from_camera.rotation.swapaxes(1, 2)
    return Trajectory(frames=frames, rotation=rotation, center=world_from_camera.translation, **columns)


def test_exact_measurements_have_no_error(kitti_miniature: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    results = run_benchmark(
        BENCHMARKS["kitti"], kitti_miniature("00", "05"), out, EXACT, sequences=("00", "05")
    )
    for name in ("00", "05"):
        found = results.sequences[name].variants["online"]
        assert found["ate_max_m"] == pytest.approx(0, abs=1e-6)
        assert found["neighbour_rotation_median_deg"] == pytest.approx(0, abs=1e-5)
        assert found["neighbour_direction_median_deg"] == pytest.approx(0, abs=1e-4)
        assert found["coverage"] == 1
        assert found["segment_translation_percent"] is None or np.isnan(found["segment_translation_percent"])
        assert results.sequences[name].num_frames == 25
        files = {path.name for path in (out / name).iterdir()}
        assert files >= {
            "trajectory.png",
            "error.png",
            "runtime.png",
            "online.tum",
            "truth.tum",
            "result.json",
        }
    stored = Results.load(out / "results.json")
    assert stored.protocol["alignment"] == "sim3"
    assert stored.config["map"]["predictor"] == "ground-truth"
    assert set(stored.versions) >= {"python", "numpy", "anchor3r"}
    assert stored.hardware["cores"]
    assert "| ATE (m) | 00 | 05 | Avg. |" in (out / "table.md").read_text()


def test_noise_shows_where_it_was_put(kitti_miniature: Callable[..., Path], tmp_path: Path) -> None:
    noisy = changed(predictor="ground-truth:0.5,0.02")
    results = run_benchmark(
        BENCHMARKS["kitti"], kitti_miniature("00", num=60), tmp_path / "out", noisy, sequences=("00",)
    )
    found = results.sequences["00"].variants["online"]
    # The median length of a vector of three normal components of 0.5° is 1.54 · 0.5°.
    assert found["neighbour_rotation_median_deg"] == pytest.approx(0.77, rel=0.25)
    assert found["ate_rmse_m"] is not None
    assert found["ate_rmse_m"] > 1e-3


def test_refinement_is_scored_beside(kitti_miniature: Callable[..., Path], tmp_path: Path) -> None:
    noisy = replace(
        changed(predictor="ground-truth:0.5,0.05", window=8), refinements={OFFLINE: RefineSettings()}
    )
    root = kitti_miniature("00", num=80)
    found = run_benchmark(BENCHMARKS["kitti"], root, tmp_path / "out", noisy, sequences=("00",)).sequences[
        "00"
    ]
    assert list(found.variants) == ["online", OFFLINE]
    online, refined = found.variants.values()
    assert refined["coverage"] == 1
    assert refined["rre_rmse_deg"] < online["rre_rmse_deg"]
    assert "| ground-truth-Offline |" in (tmp_path / "out/table.md").read_text()


@dataclass(frozen=True)
class Counting:
    """Maps like another function and leaves a mark for every map that it made."""

    inner: MapAndRefine
    marks: Path

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def config(self) -> dict[str, Any]:
        return self.inner.config

    def __call__(self, source: Source, folder: Path) -> None:
        self.inner(source, folder)
        (self.marks / folder.parent.name).write_text("")


def test_finished_sequences_are_read_back(kitti_miniature: Callable[..., Path], tmp_path: Path) -> None:
    root, out, marks = kitti_miniature("00", "03", num=8), tmp_path / "out", tmp_path / "marks"
    marks.mkdir()
    first = run_benchmark(BENCHMARKS["kitti"], root, out, Counting(EXACT, marks), sequences=("03",))
    assert [path.name for path in marks.iterdir()] == ["03"]
    (marks / "03").unlink()
    both = run_benchmark(BENCHMARKS["kitti"], root, out, Counting(EXACT, marks), sequences=("00", "03"))
    assert [path.name for path in marks.iterdir()] == ["00"]
    assert list(both.sequences) == ["00", "03"]
    ate = [run.sequences["03"].variants["online"]["ate_rmse_m"] for run in (first, both)]
    assert ate[0] == ate[1]


def test_another_run_is_not_mixed_in(kitti_miniature: Callable[..., Path], tmp_path: Path) -> None:
    root, out = kitti_miniature("00", num=8), tmp_path / "out"
    run_benchmark(BENCHMARKS["kitti"], root, out, EXACT, sequences=("00",))
    with pytest.raises(
        Anchor3RError, match=r"result.json is of another run \(its config differs: map.seed was 0, now 1\)"
    ):
        run_benchmark(BENCHMARKS["kitti"], root, out, changed(seed=1), sequences=("00",))
    with pytest.raises(Anchor3RError, match="max_frames differs"):
        run_benchmark(BENCHMARKS["kitti"], root, out, EXACT, sequences=("00",), max_frames=5)


@pytest.mark.parametrize(
    ("other", "max_frames", "named"),
    [({"window": 5}, None, "predictor"), ({"seed": 1}, None, "predictor"), ({}, 5, "stop")],
)
def test_an_unfinished_map_of_other_options_is_not_gone_on_with(
    kitti_miniature: Callable[..., Path], tmp_path: Path, other: dict, max_frames: int | None, named: str
) -> None:
    root, out = kitti_miniature("00", num=8), tmp_path / "out"
    run_benchmark(BENCHMARKS["kitti"], root, out, EXACT, sequences=("00",))
    (out / "00/result.json").unlink()
    with pytest.raises(Anchor3RError, match=f"was made with {named} = "):
        run_benchmark(
            BENCHMARKS["kitti"],
            root,
            out,
            changed(**other),
            sequences=("00",),
            max_frames=max_frames,
        )


def test_other_weights_under_the_same_name_are_another_run(tmp_path: Path) -> None:
    weights = tmp_path / "mine.safetensors"
    mine = MapAndRefine(
        mapping=MapSettings(predictor=str(weights)),
        refinements={OFFLINE: RefineSettings(descriptor=f"netvlad:{weights}")},
    )
    weights.write_bytes(b"one")
    first = mine.config
    weights.write_bytes(b"other")
    second = mine.config
    assert first["map"] != second["map"]
    assert first["refinements"] != second["refinements"]
    features = MapAndRefine(mapping=MapSettings(predictor="features")).config
    assert not any("weights" in key for key in features["map"])


def test_no_result_of_other_settings_is_read_back(
    kitti_miniature: Callable[..., Path], tmp_path: Path
) -> None:
    root, out = kitti_miniature("00", num=12), tmp_path / "out"

    def run(refinements: dict[str, RefineSettings]) -> Results:
        method = replace(EXACT, refinements=refinements)
        return run_benchmark(BENCHMARKS["kitti"], root, out, method, sequences=("00",))

    run({"off5": RefineSettings()})
    for other, words in (
        ({"off5": RefineSettings(method="paper")}, "refinements.off5.method was 'joint', now 'paper'"),
        ({"off5": RefineSettings(loops=False)}, "refinements.off5.loops was True, now False"),
        ({"off5": RefineSettings(top_k=1)}, "refinements.off5.top_k was 3, now 1"),
        ({"off10": RefineSettings(keyframe_interval=10)}, "refinements.off5 was"),
    ):
        with pytest.raises(Anchor3RError, match=words):
            run(other)
    assert list(run({"off5": RefineSettings(threads=1)}).sequences["00"].variants) == ["online", "off5"]


def test_several_at_once(kitti_miniature: Callable[..., Path], tmp_path: Path) -> None:
    root = kitti_miniature("00", "03", num=8)
    seen: list[str] = []
    results = run_benchmark(
        BENCHMARKS["kitti"],
        root,
        tmp_path / "out",
        EXACT,
        sequences=("00", "03"),
        workers=WorkerSettings(workers=2),
        finished=lambda name, result: seen.append(name),
    )
    assert sorted(seen) == list(results.sequences) == ["00", "03"]


def test_a_missing_sequence_shows_before_any_work(
    kitti_miniature: Callable[..., Path], tmp_path: Path
) -> None:
    root, marks = kitti_miniature("00", num=8), tmp_path / "marks"
    marks.mkdir()
    with pytest.raises(Anchor3RError, match=r"07.txt"):
        run_benchmark(
            BENCHMARKS["kitti"], root, tmp_path / "out", Counting(EXACT, marks), sequences=("00", "07")
        )
    assert not list(marks.iterdir())


def test_only_the_first_frames(kitti_miniature: Callable[..., Path], tmp_path: Path) -> None:
    root = kitti_miniature("00", num=12)
    results = run_benchmark(
        BENCHMARKS["kitti"], root, tmp_path / "out", EXACT, sequences=("00",), max_frames=7
    )
    assert results.sequences["00"].num_frames == 7
    assert results.sequences["00"].deviations == ["only the first 7 frames"]
    table = (tmp_path / "out/table.md").read_text()
    assert "ground-truth, 00: only the first 7 frames; 7 frames, 4541 in the paper." in table


def test_another_camera_is_a_deviation(kitti_miniature: Callable[..., Path], tmp_path: Path) -> None:
    root = kitti_miniature("00", num=8, camera=0)
    results = run_benchmark(BENCHMARKS["kitti"], root, tmp_path / "out", EXACT, sequences=("00",))
    assert results.sequences["00"].deviations == ["image_0 instead of image_2"]
    assert results.sequences["00"].made_from["predictor"].startswith("ground-truth")


class Walls(Benchmark):
    """A camera that always looks at a wall 4 m away."""

    protocol = ScoringProtocol(
        benchmark="walls",
        camera="the one",
        frames="all",
        ground_truth="as made",
        cloud=CloudProtocol(num_points=20_000, f1_thresholds_m=(0.1,)),
    )

    def open(self, root: Path, name: str, wanted: slice) -> Source:
        truth = drive(12)
        images = [root / f"image/{k}.png" for k in range(len(truth))]
        depth = [root / f"depth/{k}.png" for k in range(len(truth))]
        for k, (image_path, depth_path) in enumerate(zip(images, depth, strict=True)):
            write_image(image_path, k)
            write_depth(depth_path, 1000)
        return PosedImages(
            "walls",
            wanted,
            images,
            timestamps_s=np.arange(len(truth)) / 10,
            camera_from_world=[truth[k].inverse() for k in range(len(truth))],
            cameras=[Pinhole(60, 60, 31.5, 23.5, WIDTH, HEIGHT)] * len(truth),
            depth=DepthFiles(paths=depth, units_per_m=1000),
        )


class Stretched(GroundTruthPredictor):
    """Exact poses, but points that are 10 % too far away."""

    def step(self, frame: Frame) -> WindowPrediction:
        prediction = super().step(frame)
        assert prediction.points_in_anchor is not None
        return replace(prediction, points_in_anchor=np.float32(1.1) * prediction.points_in_anchor)


@dataclass(frozen=True)
class MapWith:
    """Maps with a given kind of predictor."""

    kind: type[GroundTruthPredictor]
    name = "walls"

    @property
    def config(self) -> dict[str, Any]:
        return {"kind": self.kind.__name__}

    def __call__(self, source: Source, folder: Path) -> None:
        with MapWriter.create(folder) as store:
            assert len(list(Mapper(self.kind(), store).run(source))) == source.num_frames


def test_cloud_and_depth(tmp_path: Path) -> None:
    found = []
    for kind in (GroundTruthPredictor, Stretched):
        out = tmp_path / kind.__name__
        results = run_benchmark(Walls(), tmp_path, out, MapWith(kind), sequences=("walls",))
        found.append(results.sequences["walls"].variants["online"])
    exact, stretched = found
    assert exact["accuracy_m"] < 0.08 < 0.2 < stretched["accuracy_m"] < 0.5
    assert exact["f1_at_0.1"] > 0.75 > 0.4 > stretched["f1_at_0.1"]
    for one in found:
        assert one["cd_m"] == pytest.approx(one["accuracy_m"] + one["completeness_m"])
        # One scale for the sequence takes the stretch away; half floats in the store leave 0.05 %.
        assert one["depth_abs_rel"] == pytest.approx(0, abs=1e-3)


def test_a_map_without_ground_truth(tmp_path: Path) -> None:
    MapWriter.create(tmp_path / "map").close()
    with load_map(tmp_path / "map") as scene_map, pytest.raises(Anchor3RError, match="had no ground truth"):
        score_poses(scene_map, Alignment.SIM3, tmp_path, "x")


def test_only_the_largest_component_counts() -> None:
    true = drive(20)
    world = np.where(np.arange(20) < 8, 0, 1)
    moved = SE3(so3_exp([0.0, 1.0, 0.0]), np.array([50.0, 0.0, 0.0])) @ true
    mixed = SE3(
        np.where((world == 0)[:, None, None], moved.rotation, true.rotation),
        np.where((world == 0)[:, None], moved.translation, true.translation),
    )
    estimate = trajectory(mixed, component=world)
    assert estimate.largest_component().frames.tolist() == list(range(8, 20))
    scored = scored_trajectory(estimate, trajectory(true), Alignment.SIM3)
    assert scored is not None
    assert scored.errors.absolute_m.max() == pytest.approx(0, abs=1e-9)
    assert scored.coverage == pytest.approx(12 / 20)


def test_too_few_poses_are_a_failure() -> None:
    true = trajectory(drive(10))
    assert scored_trajectory(true.select(slice(2)), true, Alignment.SIM3) is None
    assert scored_trajectory(true.select(slice(0)), true, Alignment.SIM3) is None


def test_poses_of_some_frames_are_paired_with_their_lines() -> None:
    true = trajectory(drive(20))
    some = true.select(np.array([2, 3, 5, 7, 11, 13]))
    estimate, reference = paired(some, Path("map"), true, Path("poses.txt"))
    np.testing.assert_array_equal(estimate.center, reference.center)
    with pytest.raises(Anchor3RError, match=r"map has 6 poses and poses.txt has 10"):
        paired(some, Path("map"), true.select(slice(10)), Path("poses.txt"))
