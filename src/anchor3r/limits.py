"""How large anything may be that comes from outside: one table, which every reader goes by.

The limits are far beyond what a camera, a map or a published data set has, and low enough that a file which
was made to hurt is refused before it takes the memory of a laptop.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is refused beyond, of each input."""

    pixels: int = 64_000_000
    """Of one image: 8K video has 33 million, a full-frame camera up to 61."""
    image_side: int = 32_768
    """Pixels along one side of an image."""
    aspect_ratio: int = 32
    """Longer side of an image over the shorter one; panoramas have up to 10."""
    frames: int = 100_000_000
    """Index of a frame in a map, a graph or a source: at 60 frames a second 19 days."""
    world_frames: int = 200_000
    """Of a procedural world, whose whole path is in memory."""
    world_pixels: int = 16_000_000
    """Of a frame of a procedural world."""
    text_bytes: int = 1 << 30
    """Of a text file that is read line by line: a graph of three million edges."""
    line_bytes: int = 1 << 20
    """Of one line of such a file."""
    json_bytes: int = 64 << 20
    """Of a JSON document."""
    json_depth: int = 64
    """Objects and lists within each other in a JSON document."""
    calibration_bytes: int = 1 << 20
    """Of a file that describes a camera."""
    array_bytes: int = 2 << 30
    """Of all arrays of one .npy or .npz file once they are unpacked."""
    blob_bytes: int = 1 << 30
    """Of one array of a map once it is unpacked."""
    chunk_bytes: int = 256 << 20
    """Of one chunk or message of a recording once it is unpacked: writers make chunks of some megabytes."""
    unpacked_ratio: int = 1_000
    """Times its own size that a packed file of a recording may come to; what cameras see packs by ten."""
    name_bytes: int = 255
    """Of a name in a map or a file: what file systems allow."""
    window: int = 1_000
    """Frames of a window."""
    seed: int = 2**63 - 1
    """Of a generator."""
    coordinate_m: float = 1e9
    """Of a stated position: grids that span the Earth stay below a hundredth of it."""
    least_sigma: float = 1e-9
    """Standard deviation that may be stated of anything, in metres, radians or as a part."""
    threads: int = 1_024
    """Of one process."""


LIMITS = Limits()
"""The ones in force."""
