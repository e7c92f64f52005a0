"""Features of keyframes as rows of the database: what places are recognised by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anchor3r.limits import LIMITS
from anchor3r.places.features import DESCRIPTOR_SIZE, LocalFeatures
from anchor3r.places.keyframes import PlaceKeyframe

PLACES_KEY = "places"
"""Of the table meta: how the features in the map were made."""
PLACE_COLUMNS = "frame, width, height, pixel, descriptor, word, signature, depth, depth_sigma"


def place_row(keyframe: PlaceKeyframe) -> dict[str, Any]:
    """The columns of one keyframe."""
    return {
        "frame": keyframe.frame,
        "width": keyframe.width,
        "height": keyframe.height,
        "pixel": keyframe.features.pixel.astype("<f4").tobytes(),
        "descriptor": keyframe.features.descriptor.tobytes(),
        "word": keyframe.word.astype("<i4").tobytes(),
        "signature": keyframe.signature.astype("<u8").tobytes(),
        "depth": keyframe.depth.astype("<f4").tobytes(),
        "depth_sigma": keyframe.depth_sigma.astype("<f4").tobytes(),
    }


def place_from_row(row: Sequence[Any]) -> PlaceKeyframe:
    """From the values of PLACE_COLUMNS."""
    frame, width, height, pixel, descriptor, word, signature, depth, depth_sigma = row
    if not (1 <= width <= LIMITS.image_side and 1 <= height <= LIMITS.image_side):
        raise ValueError("features are of an image that cannot be")
    found = PlaceKeyframe(
        frame=frame,
        width=width,
        height=height,
        features=LocalFeatures(
            pixel=np.frombuffer(pixel, "<f4").reshape(-1, 2),
            descriptor=np.frombuffer(descriptor, np.uint8).reshape(-1, DESCRIPTOR_SIZE),
        ),
        word=np.frombuffer(word, "<i4"),
        signature=np.frombuffer(signature, "<u8"),
        depth=np.frombuffer(depth, "<f4"),
        depth_sigma=np.frombuffer(depth_sigma, "<f4"),
    )
    columns = (found.features.descriptor, found.word, found.signature, found.depth, found.depth_sigma)
    if {len(column) for column in columns} != {len(found.features)}:
        raise ValueError("the features of a keyframe lack something")
    if len(found.word) and not 0 <= found.word.min() <= found.word.max() < 2**24:
        raise ValueError("a feature has a word that cannot be")
    return found
