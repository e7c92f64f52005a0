"""Reading a map, finished or still growing. Every call is one short query, so nothing holds up the writer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.dense.keyframe_depth import KeyframeDepth
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.io.inputs import parse_json
from anchor3r.places.keyframes import PlaceKeyframe
from anchor3r.predictors.confidence import from_old_map
from anchor3r.predictors.interface import NoPoseReason, WindowStatus
from anchor3r.records import record_from_json
from anchor3r.sources import Frame, Source
from anchor3r.store import rows
from anchor3r.store.database import DATABASE
from anchor3r.store.keyframe_depths import (
    DENSIFICATION_KEY,
    DEPTH_COLUMNS,
    Densification,
    depth_from_row,
)
from anchor3r.store.parts import PARTS_KEY, MapPart, PartSources, open_again, part_of
from anchor3r.store.places import PLACE_COLUMNS, PLACES_KEY, place_from_row
from anchor3r.store.pointmaps import EncodedPoints, PointMap, decode_picture, decode_points
from anchor3r.store.queries import decodes
from anchor3r.store.rows import CONFIDENCE_KEY, ONLINE
from anchor3r.store.stored_loops import StoredLoops
from anchor3r.trajectory import FramePose

if TYPE_CHECKING:
    from anchor3r.places.localiser import Localisation
    from anchor3r.store.localising import MapLocaliser

PHOTOGRAPHS = "photographs placed by COLMAP"
"""What a map of photographs in no order names as its predictor."""
NO_SHARED_VIEW = "not all photographs share enough of what they see"


@dataclass(frozen=True, kw_only=True)
class FrameTable:
    """Columns of all n frames that were mapped, with a pose or without."""

    index: NDArray[np.int64]
    """(n,) ascending"""
    timestamp_s: NDArray[np.float64]
    """(n,)"""
    status: NDArray[np.str_]
    """(n,) `WindowStatus` values"""

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How much of a stream is in a map."""

    frames: int
    with_pose: int
    """Frames that have an online pose."""
    lost: int
    """Frames without a pose that the predictor could not relate to any other."""
    components: int
    """Parts that no measurement relates."""


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """How mapping went, (n,) each."""

    frames: NDArray[np.int64]
    seconds: NDArray[np.float64]
    """Wall time since the frame before."""
    peak_rss_bytes: NDArray[np.float64]
    """NaN where the system does not tell."""


def load_map(folder: Path | str) -> Map:
    """Opens a map to read it; it may be growing meanwhile."""
    return Map(Path(folder))


class Map(StoredLoops):
    """A map on disk, as it is at the moment of each call. A context manager."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._localiser: MapLocaliser | None = None

    @property
    def num_frames(self) -> int:
        return self._all("SELECT count(*) FROM frames")[0][0]

    @decodes
    def counts(self) -> Counts:
        """What a summary needs, without reading the frames into memory."""
        lost = self._all(
            "SELECT count(*) FROM frames WHERE status = ? AND frame NOT IN "
            "(SELECT frame FROM poses WHERE name = ?)",
            (WindowStatus.LOST.value, ONLINE),
        )[0][0]
        with_pose, components = self._all(
            "SELECT count(*), count(DISTINCT component) FROM poses WHERE name = ?", (ONLINE,)
        )[0]
        for _, correction in self._corrections():  # may have joined some of them
            components -= len(np.unique(correction.track)) - len(np.unique(correction.component))
        return Counts(frames=self.num_frames, with_pose=with_pose, lost=lost, components=components)

    @decodes
    def frames(self) -> FrameTable:
        """All frames, those without a pose too. A frame that could not be decoded is not among them."""
        self._insist_on_checksums("frames")
        index, timestamp_s, status = self._columns(
            "SELECT frame, timestamp_s, status FROM frames ORDER BY frame", 3
        )
        rows.insist_on_frames(index, timestamp_s, status)
        return FrameTable(
            index=np.array(index, np.int64),
            timestamp_s=np.array(timestamp_s, np.float64),
            status=np.array(status, np.str_),
        )

    @decodes
    def no_pose_reasons(self) -> dict[int, NoPoseReason]:
        """Why frames had no pose when they came, as far as the predictor could tell; later windows may have
        given them one."""
        if not self._has_table("reasons"):
            return {}
        return {
            frame: NoPoseReason(reason) for frame, reason in self._all("SELECT frame, reason FROM reasons")
        }

    @decodes
    def answers(self) -> dict[str, int]:
        """How many frames each predictor answered for, in a map of several; empty in others."""
        if not self._has_table("answers"):
            return {}
        return dict(
            self._all("SELECT predictor, count(*) FROM answers GROUP BY predictor ORDER BY predictor")
        )

    def lack_of_poses(self) -> str:
        """What to say of a map without any, and why if frames were mapped."""
        text, count = f"{self.folder} has no online poses yet", self.num_frames
        if not count:
            return f"{text}."
        return f"{text}: none of its {count} frames could be related to others. Does the camera move?"

    @property
    def is_of_photographs(self) -> bool:
        """Whether its images were matched all with all, and not followed one by one."""
        return bool(self.meta.get("identity", {}).get("predictor") == PHOTOGRAPHS)

    def keeps_images(self) -> bool:
        """Whether `image` and `frame` can give any picture."""
        return bool(self._all("SELECT EXISTS (SELECT * FROM pictures)")[0][0])

    @decodes
    def descriptors(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Frames (n,) that have a global descriptor, and those (n, d)."""
        frame, blobs = self._columns(
            "SELECT frame, descriptor FROM frames WHERE descriptor IS NOT NULL ORDER BY frame", 2
        )
        values = np.frombuffer(b"".join(blobs), "<f4")
        return np.array(frame, np.int64), values.reshape(len(frame), -1 if frame else 0)

    @decodes
    def frame(self, index: int) -> Frame:
        """A frame as the map keeps it: its picture, with intrinsics of that size, and its true pose."""
        self._insist_on_checksums("frames", "frame = ?", (int(index),))
        found = self._of_frame("SELECT timestamp_s, intrinsics, true_pose FROM frames", index)
        if not found:
            raise Anchor3RError(f"{self.folder} has no frame {index}; its frames are in `Map.frames()`")
        (timestamp_s, intrinsics, true_pose), image = found[0], self.image(index)
        camera = rows.pinhole_from_json(intrinsics)
        return Frame(
            index=int(index),
            timestamp_s=timestamp_s,
            image=image,
            intrinsics=None if camera is None else camera.resized(image.shape[1], image.shape[0]),
            camera_from_world=None if true_pose is None else rows.true_pose_from_blob(true_pose),
        )

    @decodes
    def timestamp_s(self, index: int) -> float | None:
        """When a frame was taken, on the source's clock; None if the map does not have it, or not yet."""
        found = self._of_frame("SELECT timestamp_s FROM frames", index)
        return found[0][0] if found else None

    @contextmanager
    def original_source(self) -> Iterator[Source | None]:
        """The source of the map, opened as it was to be mapped; None if it is gone or was live.

        Nothing is fetched from a server, nor a camera opened, because a map says so: it may be a stranger's.
        """
        if parts := self.parts():
            source: Source | None = PartSources.of(parts)
        else:
            meta = self.meta
            identity = meta.get("identity", {})
            start, stride = identity.get("start", 0), identity.get("stride", 1)
            uri, count, camera = identity.get("source", ""), meta.get("num_frames"), identity.get("camera")
            source = open_again(uri, start, stride, count, camera)
        if source is None:
            yield None
            return
        with source:
            yield source

    @decodes
    def parts(self) -> tuple[MapPart, ...]:
        """The maps that a merged map was made of, in the order of its frames; none of a map of one source."""
        found = self._all("SELECT value FROM meta WHERE key = ?", (PARTS_KEY,))
        if not found:
            return ()
        where = f"{self.folder}: {DATABASE}, {PARTS_KEY}"
        entries = parse_json(found[0][0], where)
        if not isinstance(entries, list) or not entries:
            raise ValueError("its parts are no list")
        parts = tuple(record_from_json(MapPart, entry, where) for entry in entries)
        if any(np.diff([part.first_frame for part in parts]) <= 0):
            raise ValueError("its parts have no order")
        return parts

    def cause_of_components(self) -> str:
        """Why it may have components that no measurement relates."""
        if self.is_of_photographs:
            return NO_SHARED_VIEW
        return "its parts have not all been joined" if self.parts() else "tracking broke"

    def part_of(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) which of its parts frames (n,) are of; 0 in a map of one source."""
        return part_of(frames, self.parts())

    def path_of(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) numbers of the paths that frames (n,) lie on: those of its parts; photographs in no order have
        one each."""
        if self.is_of_photographs and not self.trajectory().is_in_order():
            return frames.copy()
        return self.part_of(frames)

    @decodes
    def table_rows(self, table: str) -> Iterator[dict[str, Any]]:
        """The rows of a table as they are kept, checked, one by one; for copies of the map."""
        if not self._has_table(table):
            return
        self._insist_on_checksums(table)
        columns = [row[1] for row in self._all(f"PRAGMA main.table_info({table})")]
        wanted = [column for column in columns if column not in ("id", "checksum")]
        for (row,) in self._all(f"SELECT rowid FROM main.{table} ORDER BY rowid"):
            values = self._all(f"SELECT {', '.join(wanted)} FROM main.{table} WHERE rowid = ?", (row,))[0]
            yield dict(zip(wanted, values, strict=True))

    @decodes
    def intrinsics(self, index: int) -> Pinhole | None:
        """The camera of a frame's image as it came from the source; None if nobody knew it."""
        found = self._of_frame("SELECT intrinsics FROM frames", index)
        return rows.pinhole_from_json(found[0][0]) if found else None

    @decodes
    def shows(self, frame: Frame) -> bool:
        """Whether a frame that was read from a source again is the one that was mapped."""
        found = self._of_frame(
            "SELECT timestamp_s, true_pose, jpeg FROM frames LEFT JOIN pictures USING (frame)", frame.index
        )
        quality = self.meta.get("store", {}).get("image_quality", rows.IMAGE_QUALITY)
        if not found:
            return False
        timestamp_s, true_pose, jpeg = found[0]
        return rows.shows_same(frame, timestamp_s, true_pose, jpeg, quality)

    @decodes
    def jpeg(self, index: int) -> bytes | None:
        """The picture of a frame as it is kept; None if it is not."""
        self._insist_on_checksums("pictures", "frame = ?", (int(index),))
        found = self._of_frame("SELECT jpeg FROM pictures", index)
        return found[0][0] if found else None

    @decodes
    def image(self, index: int) -> NDArray[np.uint8]:
        """(h, w, 3) RGB, the picture of a frame as the map keeps it."""
        jpeg = self.jpeg(index)
        if jpeg is None:
            raise Anchor3RError(
                f"{self.folder} keeps no image of frame {index}; it was made with --no-keep-images, "
                "or has no such frame"
            )
        return decode_picture(jpeg)

    @decodes
    def points(self, index: int) -> PointMap | None:
        """The point map of a frame in its own camera and scale; None if it has none."""
        self._insist_on_checksums("points", "frame = ?", (int(index),))
        found = self._of_frame(
            "SELECT height, width, scale, camera, points, colours, confidence FROM points", index
        )
        if not found:
            return None
        height, width, scale, camera, *blobs = found[0]
        encoded = EncodedPoints(height, width, scale, rows.pinhole_from_json(camera), *blobs)
        point_map = decode_points(encoded)
        if encoded.confidence is None or self._all("SELECT * FROM meta WHERE key = ?", (CONFIDENCE_KEY,)):
            return point_map
        predictor = str(self.meta.get("identity", {}).get("predictor", ""))
        return replace(point_map, confidence=from_old_map(point_map.confidence, predictor))

    @decodes
    def frames_with_points(self) -> NDArray[np.int64]:
        """(n,) frames that have a point map, ascending"""
        return np.array([row[0] for row in self._all("SELECT frame FROM points ORDER BY frame")], np.int64)

    def iter_points(
        self, name: str = ONLINE, frames: Iterable[int] | None = None
    ) -> Iterator[tuple[FramePose, PointMap]]:
        """Pose and point map of each frame that has both, one by one; `pose.to_world` places the points."""
        trajectory = self.trajectory(name)
        wanted = None if frames is None else set(frames)
        for k, frame in enumerate(trajectory.frames.tolist()):
            if wanted is not None and frame not in wanted:
                continue
            point_map = self.points(frame)
            if point_map is not None:
                yield trajectory.pose(k), point_map

    @decodes
    def densification(self) -> Densification | None:
        """How the depths of keyframes were measured; None if the map has none."""
        found = self._all("SELECT value FROM meta WHERE key = ?", (DENSIFICATION_KEY,))
        if not found:
            return None
        where = f"{self.folder}: {DATABASE}, {DENSIFICATION_KEY}"
        return record_from_json(Densification, parse_json(found[0][0], where), where)

    @decodes
    def keyframe_depth_frames(self) -> NDArray[np.int64]:
        """(n,) frames that have a measured depth, ascending."""
        if not self._has_table("keyframe_depths"):
            return np.empty(0, np.int64)  # a map of before there were any
        found = self._all("SELECT frame FROM keyframe_depths ORDER BY frame")
        return np.array([row[0] for row in found], np.int64)

    @decodes
    def keyframe_depth(self, index: int) -> KeyframeDepth:
        """The measured depth of a keyframe, in the scale of the poses that it was measured with."""
        self._insist_on_checksums("keyframe_depths", "frame = ?", (int(index),))
        found = self._of_frame(f"SELECT {DEPTH_COLUMNS} FROM keyframe_depths", index)
        if not found:
            raise Anchor3RError(
                f"{self.folder} has no measured depth of frame {index}; "
                f"'anchor3r densify {self.folder}' measures those of keyframes"
            )
        return depth_from_row(found[0])

    def keyframe_depths(self, frames: Iterable[int] | None = None) -> Iterator[KeyframeDepth]:
        """Measured depths of all keyframes, or of those among `frames`, one by one."""
        wanted = None if frames is None else set(frames)
        for frame in self.keyframe_depth_frames().tolist():
            if wanted is None or frame in wanted:
                yield self.keyframe_depth(frame)

    @decodes
    def place_frames(self) -> NDArray[np.int64]:
        """(n,) keyframes whose features the map keeps to recognise places by, ascending."""
        if not self._has_table("place_features"):
            return np.empty(0, np.int64)
        found = self._all("SELECT frame FROM place_features ORDER BY frame")
        return np.array([row[0] for row in found], np.int64)

    @decodes
    def place_identity(self) -> dict[str, Any]:
        """How the features of keyframes were made (JSON); empty if there are none."""
        found = self._all("SELECT value FROM meta WHERE key = ?", (PLACES_KEY,))
        return dict(parse_json(found[0][0], f"{self.folder}: {DATABASE}, {PLACES_KEY}")) if found else {}

    @decodes
    def place(self, index: int) -> PlaceKeyframe:
        """The features of a keyframe."""
        self._insist_on_checksums("place_features", "frame = ?", (int(index),))
        found = self._of_frame(f"SELECT {PLACE_COLUMNS} FROM place_features", index)
        if not found:
            raise Anchor3RError(f"{self.folder} keeps no features of frame {index}; see `Map.place_frames()`")
        return place_from_row(found[0])

    @decodes
    def place_if_kept(self, index: int) -> PlaceKeyframe | None:
        """The features of a keyframe, None if the map does not keep them (yet)."""
        if not self._has_table("place_features"):
            return None
        found = self._all(f"SELECT {PLACE_COLUMNS} FROM place_features WHERE frame = ?", (int(index),))
        return place_from_row(found[0]) if found else None

    def localise(self, image: NDArray[np.uint8], camera: Pinhole | None = None) -> Localisation:
        """Where an image (H, W, 3) RGB was taken in the map as it was at the first call, or why that is not
        told.

        camera: of the image; that of the map if it is not given. `anchor3r localise` keeps the features of
        keyframes in the map; without it the first call computes them.
        """
        from anchor3r.store.localising import MapLocaliser

        if self._localiser is None:
            self._localiser = MapLocaliser(self)
        return self._localiser.localise(image, camera)

    @decodes
    def runtime(self) -> Runtime:
        """Time and memory of the mapping run(s)."""
        frame, seconds, rss = self._columns(
            "SELECT frame, seconds, peak_rss_bytes FROM runtime ORDER BY frame", 3
        )
        return Runtime(
            frames=np.array(frame, np.int64),
            seconds=np.array(seconds, np.float64),
            peak_rss_bytes=np.array(rss, np.float64),
        )
