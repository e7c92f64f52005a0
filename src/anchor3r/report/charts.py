"""Small charts as SVG text, to be put into a page as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import ArrayLike, NDArray

WIDTH, HEIGHT = 460, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 30, 34
COLOURS = ("#d9680f", "#1f77b4", "#7b4fc9", "#2a9d5c")


def line_chart(
    title: str, x: ArrayLike, lines: Mapping[str, ArrayLike], *, x_label: str, from_zero: bool = True
) -> str:
    """Lines over a common x (n,), broken where they are not finite; empty text if nowhere are two values."""
    at = np.asarray(x, np.float64)
    values = {name: np.asarray(y, np.float64) for name, y in lines.items()}
    finite = np.concatenate([y[np.isfinite(y)] for y in values.values()])
    if len(at) < 2 or len(finite) < 2:
        return ""
    low, high = (min(0.0, finite.min()) if from_zero else finite.min()), finite.max()
    frame = _Frame(at.min(), at.max(), low, high if high > low else low + 1)
    drawn = [
        frame.line(at[a:b], y[a:b], colour)
        for y, colour in zip(values.values(), COLOURS, strict=False)
        for a, b in _runs(np.isfinite(y))
    ]
    return frame.svg(title, x_label, drawn, list(values) if len(values) > 1 else [])


def histogram(title: str, samples: Mapping[str, ArrayLike], *, x_label: str, bins: int = 40) -> str:
    """How values are distributed, each kind as its share a bin, up to the 99th percentile of all."""
    values = {name: np.asarray(v, np.float64) for name, v in samples.items() if np.size(v)}
    if not values:
        return ""
    top = float(np.quantile(np.concatenate(list(values.values())), 0.99)) or 1.0
    shares = {name: np.histogram(v, bins, (0, top))[0] / len(v) for name, v in values.items()}
    frame = _Frame(0.0, top, 0.0, max(float(s.max()) for s in shares.values()))
    edges = np.repeat(np.linspace(0, top, bins + 1), 2)[1:-1]
    drawn = [
        frame.line(edges, np.repeat(share, 2), colour)
        for share, colour in zip(shares.values(), COLOURS, strict=False)
    ]
    return frame.svg(title, x_label, drawn, list(shares) if len(shares) > 1 else [])


class _Frame:
    """The axes of one chart."""

    def __init__(self, left: float, right: float, low: float, high: float) -> None:
        self.left, self.right, self.low, self.high = left, right, low, high

    def line(self, x: NDArray[np.float64], y: NDArray[np.float64], colour: str) -> str:
        across = (x - self.left) / max(self.right - self.left, 1e-12) * (WIDTH - _LEFT - _RIGHT) + _LEFT
        down = (self.high - y) / (self.high - self.low) * (HEIGHT - _TOP - _BOTTOM) + _TOP
        points = " ".join(f"{u:.1f},{v:.1f}" for u, v in zip(across, down, strict=True))
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'

    def svg(self, title: str, x_label: str, drawn: Sequence[str], names: Sequence[str]) -> str:
        bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
        labels = [
            (_LEFT, 18, "start", title, "title"),
            (_LEFT - 6, _TOP + 5, "end", _number(self.high), ""),
            (_LEFT - 6, bottom, "end", _number(self.low), ""),
            (_LEFT, HEIGHT - 14, "start", _number(self.left), ""),
            (right, HEIGHT - 14, "end", _number(self.right), ""),
            ((_LEFT + right) / 2, HEIGHT - 14, "middle", x_label, ""),
        ]
        texts = [
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'
            for x, y, anchor, text, kind in labels
        ]
        legend = [
            f'<text x="{right}" y="{_TOP + 12 + 14 * k}" text-anchor="end" style="fill:{colour}">'
            f"{escape(name)}</text>"
            for k, (name, colour) in enumerate(zip(names, COLOURS, strict=False))
        ]
        axes = f'<path d="M{_LEFT},{_TOP}V{bottom}H{right}" fill="none" stroke="#999"/>'
        body = "".join([axes, *drawn, *texts, *legend])
        return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{body}</svg>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _runs(good: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Begin and end of each stretch of true values."""
    steps = np.diff(np.concatenate([[False], good, [False]]).astype(int))
    return list(zip(np.flatnonzero(steps == 1).tolist(), np.flatnonzero(steps == -1).tolist(), strict=True))
