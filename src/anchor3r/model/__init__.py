"""The network: the current-centric pose-query transformer, VGGT, and their checkpoints."""

from pathlib import Path

TINY_WEIGHTS = Path(__file__).parent / "weights" / "tiny.safetensors"
"""The network that ships with the package."""
