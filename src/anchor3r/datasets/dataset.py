"""What a training data set is: sequences whose cameras are known without decoding a picture.

A loader has two parts. `index` reads cameras and file names of one sequence into a `SequenceTable`, once;
the table is kept, so nothing is parsed or listed while training. `picture` decodes one frame.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anchor3r.datasets.files import Files
from anchor3r.datasets.overlap import load_or_measure
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, Pinhole, nearest_rotation
from anchor3r.kernels import Array, kernel
from anchor3r.limits import LIMITS
from anchor3r.sources.frame import Frame
from anchor3r.sources.images import read_image
from anchor3r.sources.source import UndecodableFrameError, logger

ROTATION_TOLERANCE = 0.01
"""How far an entry of a rotation may be off because of the digits it was printed with."""


_JPEG_BEGIN, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"


@dataclass(frozen=True, kw_only=True)
class Card:
    """What somebody who wants to use a data set has to know."""

    name: str
    """On the command line, and of its folder under a data root."""
    title: str
    """As its authors call it."""
    licence: str
    size: str
    """Of the download."""
    scenes: str
    """How many sequences, and of what."""
    kind: Literal["real", "synthetic"]
    download: str
    """What to get from where."""
    layout: str
    """What is looked for under its root."""
    ordered: bool = True
    """Whether frames are in the order of time; otherwise clips are chained by overlap."""
    depth: Literal["dense", "sparse", "none"] = "dense"
    metric: bool = True
    """Whether lengths are metres."""


@dataclass(frozen=True, kw_only=True)
class SequenceTable:
    """All of a sequence but its pixels, in columns of n frames."""

    name: str
    images: tuple[str, ...]
    """What the data set finds a picture by: mostly its file, relative to the root."""
    depths: tuple[str, ...] = ()
    """What the data set finds depth by; empty where the sequence has none, "" where a frame has none."""
    camera_from_world: NDArray[np.float64]
    """(n, 3, 4), NaN where a frame has no pose"""
    cameras: NDArray[np.float64]
    """(n, 4) fx, fy, cx, cy in pixels of the picture as `picture` gives it"""
    lens: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    """(n, k) what else of the camera decoding needs; empty if nothing"""

    def __post_init__(self) -> None:
        n = len(self.images)
        if not (self.camera_from_world.shape == (n, 3, 4) and self.cameras.shape == (n, 4)):
            raise ValueError(f"columns of {self.name} are of different lengths")
        if len(self.depths) not in (0, n) or len(self.lens) not in (0, n):
            raise ValueError(f"columns of {self.name} are of different lengths")

    def __len__(self) -> int:
        return len(self.images)

    def known(self) -> NDArray[np.bool_]:
        """(n,) which frames have a pose and a camera."""
        finite = np.isfinite(self.camera_from_world.reshape(len(self), 12)).all(axis=1)
        return np.asarray(finite & (self.cameras[:, :2] > 0).all(axis=1))

    def camera(self, index: int, width: int, height: int) -> Pinhole:
        """The camera of a frame whose picture has this size."""
        fx, fy, cx, cy = self.cameras[index].tolist()
        return Pinhole(fx, fy, cx, cy, width, height)

    def pose(self, index: int) -> SE3 | None:
        matrix = self.camera_from_world[index]
        return SE3(matrix[:, :3], matrix[:, 3]) if np.isfinite(matrix).all() else None


@dataclass(frozen=True)
class Picture:
    """One decoded frame."""

    image: NDArray[np.uint8]
    """(H, W, 3) RGB"""
    depth_m: NDArray[np.float32] | None = None
    """(H, W) along z, 0 where unknown; in the sequence's unit where that is not the metre"""
    camera: Pinhole | None = None
    """The camera, if it is another one than the table says."""
    confidence: NDArray[np.float32] | None = None
    """(H, W) in 0–1, how far depth is to be trusted; None where it is true"""
    pose_confidence: float = 1.0
    """In 0–1, how far the pose is to be trusted."""


class DataSet(ABC):
    """One data set in the layout it is downloaded in."""

    card: ClassVar[Card]
    depth_is_clean: ClassVar[bool] = False
    """Whether `depth` gives float32 with zeros where depth is unknown, so that nothing is left to be done."""

    @abstractmethod
    def names(self, files: Files) -> list[str]:
        """Names of all sequences, without opening any."""

    @abstractmethod
    def index(self, files: Files, name: str) -> SequenceTable:
        """Cameras and file names of one sequence."""

    def place(self, name: str) -> str:
        """What a sequence shows: sequences of one place are trained on, or held out, together."""
        return name

    def reserved(self, name: str) -> bool:
        """Whether a sequence is evaluated on, and so never trained on."""
        return False

    def picture(self, files: Files, table: SequenceTable, index: int) -> Picture:
        """Decodes one frame."""
        image = self.image(files, table.images[index])
        return Picture(image, self.depth_of(files, table, index, image))

    def image(self, files: Files, name: str) -> NDArray[np.uint8]:
        """Decodes an image file to (H, W, 3) RGB."""
        return decode_image(files.read(name), str(files.root / name))

    def depth_of(
        self, files: Files, table: SequenceTable, index: int, image: NDArray[np.uint8]
    ) -> NDArray[np.float32] | None:
        """(H, W) of the frame's image, None where it has none."""
        if not table.depths or not table.depths[index]:
            return None
        depth = self.depth(files, table, index)
        if depth.shape != image.shape[:2]:
            raise Anchor3RError(
                f"{files.root / table.depths[index]} is {depth.shape[1]}×{depth.shape[0]}, but its image is "
                f"{image.shape[1]}×{image.shape[0]}; get them again"
            )
        if self.depth_is_clean:
            return depth
        known = np.empty(depth.shape, np.float32)
        _keep_known(depth.ravel(), known.ravel())
        return known

    def depth(self, files: Files, table: SequenceTable, index: int) -> NDArray[Any]:
        """Decodes depth along z; what is not positive or not finite is unknown."""
        raise NotImplementedError

    def nothing_found(self, files: Files) -> Anchor3RError:
        return Anchor3RError(
            f"no sequence of {self.card.title} in {files.root}: looked for {self.card.layout}; "
            f"download {self.card.download}"
        )


def decode_image(data: bytes, name: str) -> NDArray[np.uint8]:
    """An image file's bytes -> (H, W, 3) RGB, upright; errors name the file.

    OpenCV decodes a JPEG straight into the array, to the same bits as Pillow in four fifths of its time, but
    does not mind if the end is missing: what is not a whole JPEG in the usual colours is Pillow's.
    """
    if data.startswith(_JPEG_BEGIN) and data.endswith(_JPEG_END):
        with Image.open(io.BytesIO(data)) as header:
            is_usual = header.mode in ("RGB", "L") and header.width * header.height <= LIMITS.pixels
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) if is_usual else None
        if decoded is not None:
            return np.asarray(cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB, dst=decoded), np.uint8)
    file = io.BytesIO(data)
    file.name = name
    return read_image(file)


@kernel
def _keep_known(depth: Array, out: Array) -> None:
    """Copies what is positive and finite, else 0; one pass over the image instead of numpy's five."""
    for k in range(len(depth)):
        out[k] = depth[k] if 0 < depth[k] < np.inf else 0.0


@dataclass(frozen=True)
class RecordedSequence:
    """A sequence that can be read: `read` decodes a frame, `poses` decodes none."""

    dataset: DataSet
    files: Files
    table: SequenceTable
    overlap_path: Path | None = None
    """Where the overlap of its pictures is kept."""

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def num_frames(self) -> int:
        return len(self.table)

    def poses(self) -> list[SE3 | None]:
        return self._poses

    @cached_property
    def _poses(self) -> list[SE3 | None]:
        return [self.table.pose(k) for k in range(len(self.table))]

    def overlap(self) -> NDArray[np.float32] | None:
        """(n, n) of the frames with a pose: how much of each other they see. Measured from all depths when it
        is first asked for, and kept; None where there are no depths or no place to keep it."""
        if self.overlap_path is None or not self.table.depths:
            return None
        return self._overlap

    @cached_property
    def _overlap(self) -> NDArray[np.float32]:
        assert self.overlap_path is not None
        known = (k for k, pose in enumerate(self.poses()) if pose is not None)
        return load_or_measure(self.overlap_path, map(self._read_or_blind, known))

    def _read_or_blind(self, index: int) -> Frame:
        """A frame, without any depth where it cannot be decoded: one broken file must not cost a sequence."""
        try:
            return self.read(index)
        except UndecodableFrameError as error:
            logger.warning("%s overlaps with nothing: %s", self.table.images[index], error)
            camera = self.table.camera(index, 1, 1)
            pixel = np.zeros((1, 1, 3), np.uint8)
            return Frame(
                index=index, timestamp_s=float(index), image=pixel, intrinsics=camera,
                camera_from_world=self.table.pose(index),
            )  # fmt: skip

    def read(self, index: int) -> Frame:
        """Decodes a frame; raises UndecodableFrameError, also where a file is missing or of another size."""
        try:
            picture = self.dataset.picture(self.files, self.table, index)
        except Anchor3RError as error:
            raise UndecodableFrameError(str(error)) from error
        height, width = picture.image.shape[:2]
        camera = picture.camera
        if camera is None and self.table.cameras[index, 0] > 0:
            camera = self.table.camera(index, width, height)
        return Frame(
            index=index,
            timestamp_s=float(index),
            image=picture.image,
            intrinsics=camera,
            depth_m=picture.depth_m,
            camera_from_world=self.table.pose(index),
            depth_confidence=picture.confidence,
            pose_confidence=picture.pose_confidence,
        )


def poses_from_camera(world_from_camera: NDArray[np.float64], where: str) -> NDArray[np.float64]:
    """(n, 3 or 4, 4) camera-to-world -> camera_from_world (n, 3, 4); NaN stays where a pose is not finite."""
    given = rigid(world_from_camera, where)
    inverse = SE3(given[:, :, :3], given[:, :, 3]).inverse()
    return np.concatenate([inverse.rotation, inverse.translation[..., None]], -1)


def rigid(matrices: NDArray[np.float64], where: str) -> NDArray[np.float64]:
    """(n, 3 or 4, 4) -> (n, 3, 4) with exact rotations; NaN where an entry is not finite."""
    given = np.asarray(matrices, np.float64).reshape(len(matrices), -1, 4)[:, :3]
    finite = np.asarray(np.isfinite(given).all((1, 2)))
    rotation = np.where(finite[:, None, None], given[:, :, :3], np.eye(3))
    exact = nearest_rotation(rotation)
    wrong = np.abs(exact - rotation).max((1, 2)) > ROTATION_TOLERANCE
    if wrong.any():
        raise Anchor3RError(f"pose {int(np.argmax(wrong))} of {where} is no rigid motion; get it again")
    result = np.concatenate([exact, given[:, :, 3:]], -1)
    result[~finite] = np.nan
    return result


def cameras_from_matrix(matrix: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """A camera matrix (3 or 4, 3 or 4) -> (count, 4) fx, fy, cx, cy."""
    row = [matrix[0, 0], matrix[1, 1], matrix[0, 2], matrix[1, 2]]
    return np.tile(np.array(row, np.float64), (count, 1))


def common_stems(*lists: Sequence[str]) -> list[str]:
    """The names, without folder and suffix, that all lists of files share, in the order of the first."""
    stems = [[name.rpartition("/")[2].split(".")[0] for name in names] for names in lists]
    shared = set(stems[0]).intersection(*stems[1:])
    return [stem for stem in stems[0] if stem in shared]
