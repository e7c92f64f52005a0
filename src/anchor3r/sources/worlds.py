"""Frames of a procedural world, with exact depth and poses: `world:SEED?option=value&…`."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from anchor3r.errors import Anchor3RError
from anchor3r.sources.frame import Frame
from anchor3r.sources.source import IndexedSource
from anchor3r.worlds import World, WorldConfig, make_world, sample_config


class WorldSource(IndexedSource):
    """A world that is made from its seed; each frame is rendered when it is read.

    Without the option `frames` it is as long as its config says, or up to the `stop` of a longer cut.
    """

    def __init__(self, uri: str, location: str, wanted: slice) -> None:
        seed, _, query = location.partition("?")
        try:
            options = _options(query, sample_config(int(seed)))
            config = sample_config(int(seed), **options)
        except ValueError as error:
            raise Anchor3RError(
                f"cannot make {uri} ({error}); write it as world:3 or world:3?motion=driving&frames=500"
            ) from error
        if "frames" not in options and wanted.stop is not None:
            config = replace(config, frames=max(config.frames, wanted.stop))
        super().__init__(uri, wanted, config.frames)
        self._world = make_world(config)

    def _load(self, index: int) -> Frame:
        return world_frame(self._world, index)


def world_frame(world: World, index: int) -> Frame:
    """Renders one frame of a world, with its ground truth."""
    rendered = world.render(index)
    return Frame(
        index=index,
        timestamp_s=float(world.timestamps_s[index]),
        image=rendered.image,
        intrinsics=world.intrinsics,
        depth_m=rendered.depth_m,
        camera_from_world=world.camera_from_world[index],
    )


def _options(query: str, example: WorldConfig) -> dict[str, Any]:
    """The fields of the config that a query names, each of the type that it has in the example."""
    names = [field.name for field in fields(example) if field.name != "seed"]
    options: dict[str, Any] = {}
    for name, text in parse_qsl(query, strict_parsing=bool(query)):
        if name not in names:
            raise ValueError(f"there is no option {name}, only {', '.join(names)}")
        present = getattr(example, name)
        options[name] = Path(text) if present is None else type(present)(text)
    return options
