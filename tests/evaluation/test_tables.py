"""Tables in the paper's form, results files, and the paper's own numbers."""

import math
from pathlib import Path

import pytest

from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.benchmarks import BENCHMARKS
from anchor3r.evaluation.results import Results, SequenceResult, published_rows
from anchor3r.evaluation.tables import MethodRow, compared, metric_table, run_tables


def run(method: str, ate: dict[str, float | None], benchmark: str = "kitti", **protocol: object) -> Results:
    sequences = {
        name: SequenceResult(num_frames=10, variants={"online": {"ate_rmse_m": value}})
        for name, value in ate.items()
    }
    return Results(benchmark=benchmark, method=method, protocol=protocol, config={}, sequences=sequences)


def cells(table: str, method: str) -> list[str]:
    line = next(line for line in table.splitlines() if line.startswith(f"| {method} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_best_and_second_are_marked() -> None:
    rows = [
        MethodRow(method="a", values={"x": 1.0, "y": 3.0001}),
        MethodRow(method="b", values={"x": 2.0, "y": 2.9999}),
        MethodRow(method="c", values={"x": 3.0, "y": 9.0}),
    ]
    table = metric_table(rows, ["x", "y"], "ate_rmse_m")
    assert cells(table, "a") == ["**1.000**", "**3.000**", "**2.000**"]
    assert cells(table, "b") == ["_2.000_", "**3.000**", "_2.500_"]
    assert cells(table, "c") == ["3.000", "_9.000_", "6.000"]


def test_higher_is_better_for_f1() -> None:
    rows = [MethodRow(method="a", values={"x": 0.9}), MethodRow(method="b", values={"x": 0.8})]
    assert cells(metric_table(rows, ["x"], "f1_at_0.25"), "a") == ["**0.900**", "**0.900**"]


def test_failed_and_not_run_do_not_count() -> None:
    rows = [MethodRow(method="a", values={"x": 4.0, "y": None}), MethodRow(method="b", values={"x": 5.0})]
    table = metric_table(rows, ["x", "y"], "ate_rmse_m")
    assert cells(table, "a") == ["**4.000**", "*", "**4.000** (1 of 2)"]
    assert cells(table, "b") == ["_5.000_", "–", "_5.000_ (1 of 2)"]


def test_a_run_lands_next_to_the_paper() -> None:
    table = run_tables([run("mine", {"00": 10.0, "05": 5.0})], ["ate_rmse_m"])
    assert table.splitlines()[0] == "| ATE (m) | 00 | 05 | Avg. |"
    assert cells(table, "Anchor3R-Offline [paper]") == ["19.680", "_7.560_", "13.620"]
    assert cells(table, "VGGT-Long [paper]") == ["**8.640**", "9.880", "_9.260_"]
    assert cells(table, "FastVGGT [paper]") == ["*", "157.740", "157.740 (1 of 2)"]
    assert cells(table, "mine-Online") == ["_10.000_", "**5.000**", "**7.500**"]


def test_where_the_paper_prints_only_averages() -> None:
    table = run_tables([run("mine", {"fr1_desk": 0.1, "fr1_room": 0.2}, "tum")], ["ate_rmse_m"])
    assert cells(table, "LongStream [paper]") == ["–", "–", "**0.076**"]
    assert cells(table, "mine-Online")[2] == "0.150"
    assert "The paper prints only averages" in table


def test_without_the_paper() -> None:
    assert "[paper]" not in run_tables([run("mine", {"00": 1.0})], ["ate_rmse_m"], with_paper=False)
    assert run_tables([run("mine", {"00": None})], ["ate_rmse_m"]) == ""


def test_compared_runs_and_their_protocols() -> None:
    text = compared(
        [
            run("a", {"00": 1.0}, alignment="sim3"),
            run("b", {"00": 2.0, "05": 3.0}, alignment="se3"),
            run("c", {"x": 4.0}, "other"),
        ],
        ["ate_rmse_m"],
    )
    assert text.index("## kitti") < text.index("**Not the same protocol**: alignment: a: sim3; b: se3.")
    assert cells(text, "a-Online") == ["**1.000**", "–", "**1.000** (1 of 2)"]
    assert cells(text, "c-Online") == ["4.000", "4.000"]
    with pytest.raises(Anchor3RError, match="unknown metric ape; there are ate_rmse_m"):
        compared([run("a", {"00": 1.0})], ["ape"])


def test_results_survive_the_disk(tmp_path: Path) -> None:
    results = run("mine", {"00": math.nan, "05": 2.5}, alignment="sim3")
    results.save(tmp_path / "deep/results.json")
    loaded = Results.load(tmp_path / "deep/results.json")
    assert loaded.rows("ate_rmse_m") == {"online": {"00": None, "05": 2.5}}
    assert loaded.versions == results.versions
    assert (loaded.benchmark, loaded.method, loaded.protocol) == ("kitti", "mine", {"alignment": "sim3"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "holds no JSON object"),
        ("{}", "no results file of format 1"),
        ('{"format_version": 1, "sequences": {}}', "no complete results file"),
        ('{"format_version": 1, "sequences": {"00": {"frames": 3}}}', "no complete results file"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(Anchor3RError, match=f"results.json.*{message}"):
        Results.load(path)
    with pytest.raises(Anchor3RError, match="cannot read"):
        Results.load(tmp_path / "absent.json")


def test_published_numbers() -> None:
    """Against the averages that the paper prints, except the three that it got wrong by itself."""
    misprinted = {"VGGT-Long", "Anchor3R-Offline", "InfiniteVGGT"}
    counted = 0
    for benchmark in BENCHMARKS:
        for metric in ("ate_rmse_m", "rre_rmse_deg", "rte_rmse_m"):
            for row in published_rows(benchmark, metric):
                values = [v for v in row.values.values() if v is not None]
                if values and row.method not in misprinted:
                    counted += 1
                    assert sum(values) / len(values) == pytest.approx(
                        row.printed_average, rel=1e-3, abs=0.006
                    )
    assert counted == 9 + 8 + 2 * 2 + 3 * 2
    kitti = {row.method: row for row in published_rows("kitti", "ate_rmse_m")}
    assert len(kitti) == 11
    assert kitti["Anchor3R-Online"].values["05"] == 62.63
    assert {row.method: row.printed_average for row in published_rows("7scenes", "cd_m")}[
        "Anchor3R-Online"
    ] == 1.848
    assert published_rows("kitti", "cd_m") == []


def test_published_sequences_are_those_of_the_benchmarks() -> None:
    for benchmark in ("kitti", "vbr", "vkitti2"):
        for row in published_rows(benchmark, "ate_rmse_m"):
            assert tuple(row.values) == BENCHMARKS[benchmark].protocol.sequences


def test_notes_on_the_papers_numbers_are_printed() -> None:
    found = {
        "online": {"rre_rmse_deg": 0.2, "ate_rmse_m": 40.0},
        "no-loops": {},
        "off10": {"ate_rmse_m": 30.0},
    }
    run = Results(
        benchmark="kitti",
        method="x",
        protocol={},
        config={},
        sequences={"00": SequenceResult(num_frames=4541, variants=found)},
    )
    text = run_tables([run], ["ate_rmse_m", "rre_rmse_deg"])
    assert "The paper does not say which mean over frames it takes; RMSE is assumed." in text
    assert "are not the means of their rows" in text
    assert "RRE (°): root mean square rotation error" in text
    assert "| x-Off-10 |" in text
    assert "not say which mean" not in run_tables([run], ["rre_rmse_deg"], with_paper=False)
