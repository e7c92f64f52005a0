"""What a frame, a pose, a group of edges, a loop and a snapshot look like as rows of the database."""

from __future__ import annotations

import json
import math
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, Pinhole
from anchor3r.io.inputs import parse_json
from anchor3r.limits import LIMITS
from anchor3r.places.keyframes import PlaceKeyframe
from anchor3r.pose_graph.correction import OnlineCorrection
from anchor3r.pose_graph.edges import Edges
from anchor3r.pose_graph.online_placement import OnlinePlacement
from anchor3r.predictors.interface import WindowPrediction, WindowStatus
from anchor3r.sources.frame import Frame
from anchor3r.store.database import CHECKED, EDGE, row_checksum
from anchor3r.store.pointmaps import (
    EncodedPoints,
    decode_picture,
    encode_picture,
    encode_points,
    inflated,
    resized,
)
from anchor3r.trajectory import FramePose

ONLINE = "online"
"""Name of the poses that the mapper itself found."""
OFFLINE = "offline"
"""Name that a refinement gives its poses."""
CONFIDENCE_KEY = "points_confidence"
"""Of the table meta, in maps whose points have probabilities as confidences; without it they are older."""
AT_END = "at_end"
"""In the identity of a search: whether its loops are those of a stream that has ended."""
POSE_COLUMNS = "frame, pose, covariance, component, log_scale, log_scale_sigma"
_EDGE_COLUMNS = ("rotation", "translation", "weight", "log_scale_ratio", "log_scale_sigma")
_SAME_PICTURE_LEVELS = 4.0  # mean grey levels; more than another version of the JPEG library changes
_PART_BYTES = 64 << 20
_STORED = 0  # level of zlib: a snapshot is written while the stream waits, and the next one replaces it
IMAGE_QUALITY = 90
"""JPEG quality of kept images, unless a map says another."""
_ROTATION_TOLERANCE = 1e-3  # of RᵀR - 1; ours are exact, those of a damaged disk are not
_LARGEST_LENGTH = 1e30  # that can still be squared in single precision
_LARGEST_LOG_SCALE = 50.0

# By which columns a row is found again, and in which a replay must agree (with the type of a BLOB's entries).
_KEYS = {"frames": ("frame",), "poses": ("name", "frame"), "edge_groups": ("anchor", "kind")}
_REPLAYED: dict[str, dict[str, np.dtype | None]] = {
    "frames": {"timestamp_s": None, "status": None},
    "poses": {"component": None, "pose": np.dtype("<f8")},
    "edge_groups": {"edges": EDGE},
}


def best_poses(names: Iterable[str]) -> str:
    """Of a map's poses those called offline, else those that were refined last, else the online ones.

    names: as `Map.trajectory_names` gives them.
    """
    known = list(names)
    return OFFLINE if OFFLINE in known else [ONLINE, *known][-1]


@dataclass(frozen=True, kw_only=True)
class Refinement:
    """How the poses of one name were made from a map."""

    name: str
    """By which `Map.trajectory` gives its poses."""
    settings: dict[str, Any]
    """Everything that the user could choose (JSON)."""
    summary: dict[str, Any]
    """What came out: counts, motions, the solver's report (JSON)."""
    search: int | None
    """Number of the search whose loops it uses; None without loops."""


class LoopState(StrEnum):
    """What became of a loop event.

    An event is measured first; if its measurements agree with each other, the pose graph judges it, anew in
    every refinement; the user has the last word. The paper's averaging takes events without verification.
    """

    UNRELATED = "unrelated"
    INCONSISTENT = "inconsistent"
    ASYMMETRIC = "asymmetric"
    PENDING = "pending"
    SUPPORTED = "supported"
    FITS = "fits"
    SCATTERED = "scattered"
    CONTRADICTED = "contradicted"
    UNVERIFIED = "unverified"
    ACCEPTED_BY_HAND = "accepted_by_hand"
    REJECTED_BY_HAND = "rejected_by_hand"

    @property
    def text(self) -> str:
        """The state in words, for tables and reports."""
        return _LOOP_TEXTS[self]

    @property
    def is_accepted(self) -> bool:
        """Whether the event's edges take part in the map."""
        return self in (
            LoopState.SUPPORTED,
            LoopState.FITS,
            LoopState.UNVERIFIED,
            LoopState.ACCEPTED_BY_HAND,
        )

    @property
    def is_by_hand(self) -> bool:
        """Whether the user has decided."""
        return self in (LoopState.ACCEPTED_BY_HAND, LoopState.REJECTED_BY_HAND)

    @property
    def is_left_out(self) -> bool:
        """Whether the event is not put to the pose graph: what was measured is of no use, or unwanted."""
        return self in (
            LoopState.UNRELATED,
            LoopState.INCONSISTENT,
            LoopState.ASYMMETRIC,
            LoopState.REJECTED_BY_HAND,
        )


_LOOP_TEXTS = {
    LoopState.UNRELATED: "the predictor found no relation",
    LoopState.INCONSISTENT: "its own edges disagree",
    LoopState.ASYMMETRIC: "its two directions disagree",
    LoopState.PENDING: "not judged yet",
    LoopState.SUPPORTED: "neighbouring events and the map agree",
    LoopState.FITS: "no neighbour, but the map agrees",
    LoopState.SCATTERED: "its own edges disagree about the map",
    LoopState.CONTRADICTED: "the map contradicts it",
    LoopState.UNVERIFIED: "taken without verification",
    LoopState.ACCEPTED_BY_HAND: "accepted by hand",
    LoopState.REJECTED_BY_HAND: "rejected by hand",
}
_STATE_OF_TEXT = {text: state for state, text in _LOOP_TEXTS.items()}
"""By which maps of format 1 are read: they hold texts instead of states."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """One event of place recognition and what became of it."""

    event: int
    """Number of the event in its map."""
    query: int
    """The later frame."""
    match: int
    """The earlier frame."""
    state: LoopState
    """How far the event has come, and whether it is believed."""
    figures: Mapping[str, float]
    """What the verdict rests on."""

    @property
    def accepted(self) -> bool:
        """Whether the event's edges take part in the map."""
        return self.state.is_accepted

    @property
    def reason(self) -> str:
        """Why, in words."""
        return self.state.text


@dataclass(frozen=True, kw_only=True)
class LoopClosing:
    """What a search for loops beside a stream has come to since it last said something."""

    search: int
    """Number of the search in its map."""
    found: Sequence[tuple[Loop, Sequence[Edges]]] = ()
    """New events, with the groups of edges that they measured; they are numbered when they are kept."""
    judged: Sequence[Loop] = ()
    """Earlier events whose verdict has changed; told by query and match."""
    correction: OnlineCorrection | None = None
    """Of the online poses, if it has changed."""
    places: Sequence[PlaceKeyframe] = ()
    """Features of new keyframes, for the map to keep."""


@dataclass(frozen=True)
class TableRow:
    """One row of one table, not yet written."""

    table: str
    values: Mapping[str, Any]

    def insert(self, database: sqlite3.Connection) -> None:
        """Writes it, with a checksum where the table has them."""
        values = dict(self.values)
        if self.table in CHECKED:
            values["checksum"] = row_checksum(*(values.get(column) for column in CHECKED[self.table]))
        marks = ", ".join("?" * len(values))
        statement = f"INSERT INTO {self.table} ({', '.join(values)}) VALUES ({marks})"
        database.execute(statement, tuple(values.values()))

    def difference(self, database: sqlite3.Connection) -> float:
        """How far this row is from its like in the database: 0 if equal, ∞ if there is none to compare."""
        keys, columns = _KEYS[self.table], _REPLAYED[self.table]
        where = " AND ".join(f"{key} = ?" for key in keys)
        query = f"SELECT {', '.join(columns)} FROM {self.table} WHERE {where}"
        stored = database.execute(query, [self.values[key] for key in keys]).fetchone()
        if stored is None:
            return np.inf
        return max(
            _difference(value, self.values[column], columns[column])
            for value, column in zip(stored, columns, strict=True)
        )


def _difference(stored: Any, recomputed: Any, dtype: np.dtype | None) -> float:
    if stored == recomputed:
        return 0.0
    if dtype is None or len(stored) != len(recomputed):
        return np.inf
    a, b = np.frombuffer(stored, dtype), np.frombuffer(recomputed, dtype)
    if dtype.names is None:
        return _array_difference(a, b)
    return max(_array_difference(a[name], b[name]) for name in dtype.names)


def _array_difference(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Largest relative difference (absolute below 1); ∞ where integers, or NaN and a number, differ."""
    same = (a == b) | ((a != a) & (b != b))
    if same.all():
        return 0.0
    if not np.issubdtype(a.dtype, np.floating):
        return np.inf
    relative = np.abs(a - b) / np.maximum(1, np.abs(a))
    return float(np.nan_to_num(relative[~same], nan=np.inf).max())


def decisive(
    frame: Frame, prediction: WindowPrediction, edges: Edges, poses: Iterable[FramePose]
) -> list[TableRow]:
    """What a frame adds to the trajectory and the graph: the part that a replay must reproduce."""
    intrinsics = prediction.intrinsics or frame.intrinsics
    found = [
        TableRow("frames", {
            "frame": frame.index, "timestamp_s": frame.timestamp_s, "status": prediction.status.value,
            "intrinsics": None if intrinsics is None else json.dumps(astuple(intrinsics)),
            "true_pose": _true_pose_blob(frame),
            "descriptor": None if prediction.descriptor is None else _floats(prediction.descriptor),
        })
    ]  # fmt: skip
    if len(edges):
        found.append(group_row(edges))
    found += [pose_row(ONLINE, pose, known_since=frame.index) for pose in poses]
    return found


def bulk(
    frame: Frame, prediction: WindowPrediction, image_side: int, image_quality: int
) -> Iterator[TableRow]:
    """Point maps of a frame and of those that waited for it, why it has no pose or who measured it, and its
    picture, the longer side at most `image_side`; none if that is 0."""
    if prediction.points_in_anchor is not None:
        encoded = encode_points(
            prediction.points_in_anchor,
            prediction.points_confidence,
            frame.image,
            prediction.intrinsics or frame.intrinsics,
        )
        yield _points_row(frame.index, encoded)
    if prediction.reason is not None:
        yield TableRow("reasons", {"frame": frame.index, "reason": prediction.reason.value})
    if prediction.measured_by is not None:
        yield TableRow("answers", {"frame": frame.index, "predictor": prediction.measured_by})
    for late in prediction.member_points:
        encoded = encode_points(late.points_in_member, late.confidence, late.colours, late.intrinsics)
        yield _points_row(late.frame, encoded)
    if image_side:
        height, width = frame.image.shape[:2]
        shrink = min(1.0, image_side / max(height, width))
        size = max(1, round(width * shrink)), max(1, round(height * shrink))
        jpeg = encode_picture(resized(frame.image, *size), image_quality)
        yield TableRow("pictures", {"frame": frame.index, "jpeg": jpeg})


def _points_row(frame: int, encoded: EncodedPoints) -> TableRow:
    camera = None if encoded.camera is None else json.dumps(astuple(encoded.camera))
    return TableRow("points", {"frame": frame, **vars(encoded), "camera": camera})


def shows_same(
    frame: Frame, timestamp_s: float, true_pose: bytes | None, jpeg: bytes | None, image_quality: int
) -> bool:
    """Whether a frame is the one that was recorded so."""
    if frame.timestamp_s != timestamp_s or _true_pose_blob(frame) != true_pose:
        return False
    if jpeg is None:
        return True
    kept = decode_picture(jpeg)
    size = kept.shape[1], kept.shape[0]
    again = decode_picture(encode_picture(resized(frame.image, *size), image_quality))
    return float(np.abs(kept.astype(np.int16) - again).mean()) <= _SAME_PICTURE_LEVELS


def pose_row(name: str, pose: FramePose, *, known_since: int) -> TableRow:
    """Refuses poses that could not be read back, whatever they come from."""
    try:
        checked_name(name)
        pose_values([_doubles(pose.rotation, pose.center)])
        insist_on_scales([pose.log_scale])
    except ValueError as error:
        raise Anchor3RError(
            f"frame {pose.frame} cannot be given {name[:60]} poses ({error}): a name, or something that was "
            "measured or stated, is beyond all bounds; check the files and options given"
        ) from error
    return TableRow("poses", {
        "name": name, "frame": pose.frame, "known_since": known_since, "component": pose.component,
        "pose": _doubles(pose.rotation, pose.center),
        "covariance": None if pose.covariance is None else _doubles(pose.covariance),
        "log_scale": pose.log_scale, "log_scale_sigma": pose.log_scale_sigma,
    })  # fmt: skip


def pose_values(blobs: Sequence[bytes]) -> NDArray[np.float64]:
    """(n, 12) rotation and centre or translation, of poses that can be computed with."""
    values = np.frombuffer(b"".join(blobs)).reshape(len(blobs), 12)
    rotation = values[:, :9].reshape(-1, 3, 3)
    with np.errstate(all="ignore"):
        skew = np.abs(rotation @ rotation.swapaxes(1, 2) - np.eye(3)).max(initial=0)
        good = skew <= _ROTATION_TOLERANCE and np.all(np.abs(values[:, 9:]) <= _LARGEST_LENGTH)
    if not good:
        raise ValueError("a pose is no rigid motion")
    return values


def insist_on_frames(
    index: Sequence[Any], timestamp_s: Sequence[Any], status: Sequence[Any] | None = None
) -> None:
    """Refuses frames that no source has."""
    if not all(isinstance(frame, int) and 0 <= frame <= LIMITS.frames for frame in index):
        raise ValueError("a frame has no index that a source could have given it")
    if not all(isinstance(time_s, float) and math.isfinite(time_s) for time_s in timestamp_s):
        raise ValueError("a frame has no time")
    if not set(status or ()) <= {known.value for known in WindowStatus}:
        raise ValueError("a frame has a status that is not known")


def insist_on_scales(log_scale: Sequence[Any]) -> None:
    """Refuses scales whose exponential could not be computed with."""
    if not all(isinstance(value, float) and abs(value) <= _LARGEST_LOG_SCALE for value in log_scale):
        raise ValueError("a pose has no scale")


def checked_name(name: Any) -> str:
    """The name of poses, if it can be one; files are called by it, so it must not lead to another folder."""
    if (
        not isinstance(name, str)
        or not name
        or len(name.encode()) > LIMITS.name_bytes
        or not name.isprintable()
        or set(name) & set("/\\")
    ):
        raise ValueError("poses have a name that cannot be one")
    return name


def refinement_from_row(row: Sequence[Any], where: str) -> Refinement:
    """From the values of the columns name, settings, summary and search."""
    name, settings, summary, search = row
    return Refinement(
        name=checked_name(name),
        settings=_json_object(settings, f"{where}, refinement {name!r}"),
        summary=_json_object(summary, f"{where}, refinement {name!r}"),
        search=None if search is None else _whole(search),
    )


def _json_object(text: Any, where: str) -> dict[str, Any]:
    content = parse_json(text, where)
    if not isinstance(content, dict):
        raise TypeError(f"{where} holds no JSON object")
    return content


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{str(value)[:40]!r} stands where a whole number belongs")
    return value


def pose_from_row(row: Sequence[Any]) -> FramePose:
    """From the values of POSE_COLUMNS."""
    frame, pose, covariance, component, log_scale, log_scale_sigma = row
    values = pose_values([pose])[0]
    insist_on_scales([log_scale])
    return FramePose(
        frame=frame,
        rotation=values[:9].reshape(3, 3),
        center=values[9:],
        covariance=None if covariance is None else np.frombuffer(covariance).reshape(6, 6),
        component=component,
        log_scale=log_scale,
        log_scale_sigma=log_scale_sigma,
    )


def _true_pose_blob(frame: Frame) -> bytes | None:
    pose = frame.camera_from_world
    return None if pose is None else _doubles(pose.rotation, pose.translation)


def true_pose_from_blob(blob: bytes) -> SE3:
    values = pose_values([blob])[0]
    return SE3(values[:9].reshape(3, 3), values[9:])


def pinhole_from_json(text: str | None) -> Pinhole | None:
    """A camera as the map keeps it: six numbers in the order of `Pinhole`, or none."""
    if text is None:
        return None
    fx, fy, cx, cy, width, height = (float(value) for value in json.loads(text))
    size = int(width), int(height)
    sane = min(fx, fy) > 0 and max(abs(v) for v in (fx, fy, cx, cy)) <= _LARGEST_LENGTH
    if not (sane and size == (width, height) and min(size) >= 1 and max(size) <= LIMITS.image_side):
        raise ValueError("a camera is none that could take a picture")
    return Pinhole(fx, fy, cx, cy, *size)


def group_row(edges: Edges, *, event: int | None = None) -> TableRow:
    """Edges of one anchor and one kind."""
    records = np.empty(len(edges), EDGE)
    records["member"] = edges.frame_i
    for name in _EDGE_COLUMNS:
        records[name] = getattr(edges, name)
    unknown = np.isnan(edges.information).all()
    return TableRow("edge_groups", {
        "anchor": int(edges.frame_t[0]), "kind": int(edges.kind[0]), "edges": records.tobytes(),
        "information": None if unknown else _doubles(edges.information), "event": event,
    })  # fmt: skip


def edges_from_groups(groups: Sequence[tuple[int, int, int, bytes, bytes | None]]) -> Edges:
    """Columns of all edges, from rows (id, anchor, kind, edges, information)."""
    records = np.frombuffer(b"".join(group[3] for group in groups), EDGE)
    counts = np.array([len(group[3]) // EDGE.itemsize for group in groups], np.int64)
    ids, anchors, kinds = (
        np.repeat(np.array([group[k] for group in groups], np.int64), counts) for k in range(3)
    )
    if any(group[4] is not None for group in groups):
        blobs = [
            group[4] or _doubles(np.full(36 * n, np.nan)) for group, n in zip(groups, counts, strict=True)
        ]
        information = np.frombuffer(b"".join(blobs)).reshape(-1, 6, 6)
    else:
        information = np.broadcast_to(np.nan, (len(records), 6, 6))
    columns = {name: records[name].copy() for name in _EDGE_COLUMNS}
    return Edges(
        frame_i=records["member"].copy(), frame_t=anchors, kind=kinds.astype(np.int8), group=ids,
        information=information, **columns,
    )  # fmt: skip


def correction_row(frame: int, heads: bytes, nodes: bytes | None) -> TableRow:
    return TableRow("corrections", {"frame": frame, "heads": heads, "nodes": nodes})


def placement_row(frame: int, placement: OnlinePlacement) -> TableRow:
    return TableRow("placements", {"frame": frame, "placement": placement.to_bytes()})


def loop_row(loop: Loop, search: int) -> TableRow:
    values = {"event": loop.event, "query": loop.query, "match": loop.match, "search": search}
    return TableRow("loops", values | verdict(loop))


def verdict(loop: Loop) -> dict[str, Any]:
    """The columns that say what became of a loop event."""
    return {
        "accepted": int(loop.accepted), "reason": loop.state.value, "figures": json.dumps(dict(loop.figures))
    }  # fmt: skip


def loop_from_row(row: Sequence[Any]) -> Loop:
    """From the values of the columns event, query, match, reason and figures."""
    event, query, match = (_whole(value) for value in row[:3])
    reason, figures = row[3], _json_object(row[4], f"loop event {event}")
    state = _STATE_OF_TEXT.get(reason) or LoopState(reason)
    numbers = {str(name): float(value) for name, value in figures.items()}
    return Loop(event=event, query=query, match=match, state=state, figures=numbers)


def snapshot(frame: int, state: Mapping[str, NDArray[Any]]) -> Iterator[TableRow]:
    """Arrays by name, in parts small enough for a BLOB and for memory."""
    for name, value in state.items():
        array = np.ascontiguousarray(value)
        data = array.reshape(-1).view(np.uint8)
        for part, start in enumerate(range(0, max(1, len(data)), _PART_BYTES)):
            yield TableRow("snapshots", {
                "frame": frame, "name": name, "part": part,
                "dtype": array.dtype.str, "shape": json.dumps(value.shape),
                "data": zlib.compress(data[start : start + _PART_BYTES].tobytes(), _STORED),
            })  # fmt: skip


def state_from_snapshot(parts: Iterable[tuple[str, str, str, bytes]]) -> dict[str, NDArray[Any]]:
    """From rows (name, dtype, shape, data) in the order of their parts."""
    data: dict[str, bytearray] = {}
    kinds: dict[str, tuple[str, list[int]]] = {}
    for name, dtype, shape, part in parts:
        data.setdefault(name, bytearray()).extend(inflated(part, _PART_BYTES))
        kinds[name] = dtype, json.loads(shape)
    return {name: np.frombuffer(data[name], dtype).reshape(shape) for name, (dtype, shape) in kinds.items()}


def _doubles(*arrays: ArrayLike) -> bytes:
    return b"".join(np.asarray(array, "<f8").tobytes() for array in arrays)


def _floats(array: ArrayLike) -> bytes:
    return np.asarray(array, "<f4").tobytes()
