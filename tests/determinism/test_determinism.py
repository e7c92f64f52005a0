"""The same bits again and with other threads; `make digests` compares more, and with what is stored."""

from __future__ import annotations

from pathlib import Path

from digests import compare, run, versions


def test_a_second_run_with_two_threads_has_the_same_bits(tmp_path: Path) -> None:
    first = run("ground truth", tmp_path / "a", threads=1)
    assert run("ground truth", tmp_path / "b", threads=2) == first


def test_a_change_says_when_and_why_the_digest_was_stored() -> None:
    stored = {
        "cpu": {"date": "2026-01-02", "why": "new solver", "versions": versions(), "digests": {"a": "1"}}
    }
    assert compare({"a": "1"}, "cpu", stored) == []
    said = " ".join(compare({"a": "2"}, "cpu", stored))
    assert "2026-01-02 (new solver)" in said
    assert "nothing is stored" in compare({"a": "1"}, "another", stored)[0]
