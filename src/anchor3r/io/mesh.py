"""Coloured triangle meshes of any size: PLY as it comes, read back without loading it, and GLB.

A PLY file names its vertices before its faces and says how many there are before either. So what comes waits
in temporary files until all is known, and only what is kept of it is written.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.io.extras import export_library
from anchor3r.io.files import replacing
from anchor3r.io.inputs import insist_on_file

VERTEX = np.dtype(
    [(name, "<f4") for name in ("x", "y", "z", "nx", "ny", "nz")]
    + [(name, "u1") for name in ("red", "green", "blue")]
    + [("confidence", "<f4"), ("frame", "<i4")]
)
"""A vertex of a mesh: point, normal, colour, confidence and a frame that saw it."""
FACE = np.dtype([("count", "u1"), ("vertices", "<i4", (3,))])
_TYPES = {"<f4": "float", "|u1": "uchar", "<i4": "int"}
_BATCH = 500_000
_LINE_BYTES = 1 << 24
"""Of a header's line at most; that about a mesh may name many frames."""
_HEADER_LINES = 32
"""More than a header of ours has."""
_DIGITS = 12
"""More than a count or a checksum has."""
_FINITE = ("x", "y", "z", "nx", "ny", "nz", "confidence")
"""Of a vertex, what has to be a number."""
_COMMENT, _CHECKSUMS = "comment anchor3r ", "comment checksums "
GLB_FROM_MAP = np.array([1.0, -1.0, -1.0], np.float32)
"""glTF has y up and looks along -z, the map has y down and looks along z."""


@dataclass(frozen=True)
class Mesh:
    """Vertices and faces; of a file they may be mapped into memory rather than read."""

    vertices: NDArray[np.void]
    """(n,) of VERTEX"""
    faces: NDArray[np.void]
    """(m,) of FACE"""
    about: str = ""
    """One line that whoever wrote it has left."""
    checksums: tuple[int, int] | None = None
    """CRC-32 of `about` with the vertices, and of the faces, as the file tells; None where it does not."""

    def points(self, which: NDArray[Any] | slice = slice(None)) -> NDArray[np.float32]:
        """(n, 3)"""
        return _columns(self.vertices[which], "x", "y", "z")

    def normals(self, which: NDArray[Any] | slice = slice(None)) -> NDArray[np.float32]:
        """(n, 3)"""
        return _columns(self.vertices[which], "nx", "ny", "nz")

    def colours(self, which: NDArray[Any] | slice = slice(None)) -> NDArray[np.uint8]:
        """(n, 3) RGB"""
        return _columns(self.vertices[which], "red", "green", "blue")


def _columns(records: NDArray[np.void], *names: str) -> NDArray[Any]:
    return np.stack([records[name] for name in names], -1)


def vertex_records(
    points: NDArray[np.float32],
    normals: NDArray[np.float32],
    colours: NDArray[np.uint8],
    confidence: NDArray[np.float32],
    frames: NDArray[np.int32],
) -> NDArray[np.void]:
    """(n,) of VERTEX from columns."""
    records = np.empty(len(points), VERTEX)
    for k, axis in enumerate("xyz"):
        records[axis], records[f"n{axis}"] = points[:, k], normals[:, k]
    for k, channel in enumerate(("red", "green", "blue")):
        records[channel] = colours[:, k]
    records["confidence"], records["frame"] = confidence, frames
    return records


class WaitingMesh:
    """Vertices and faces that wait in temporary files until all of them are there."""

    def __init__(self, vertices: BinaryIO, faces: BinaryIO) -> None:
        self._vertices, self._faces = vertices, faces
        self.num_vertices = self.num_faces = 0

    def add(self, vertices: NDArray[np.void], faces: NDArray[np.integer]) -> None:
        """Vertices (n,) of VERTEX, and faces (m, 3) that name any vertices by their numbers."""
        self._vertices.write(vertices.tobytes())
        self._faces.write(faces.astype("<i4").tobytes())
        self.num_vertices += len(vertices)
        self.num_faces += len(faces)

    def write(self, path: Path, kept: NDArray[np.bool_], about: str) -> tuple[int, int]:
        """Writes the kept vertices (n,), and faces whose vertices are all kept; returns how many of both."""
        num_vertices, num_faces = int(kept.sum()), 0
        checksums = [zlib.crc32(about.encode()), 0]
        for batch in self._kept_vertices(kept):
            checksums[0] = zlib.crc32(batch, checksums[0])
        for batch in self._kept_faces(kept):
            checksums[1] = zlib.crc32(batch, checksums[1])
            num_faces += len(batch) // FACE.itemsize
        with replacing(path) as file:
            file.write(_header(num_vertices, num_faces, about, (checksums[0], checksums[1])).encode())
            file.writelines(self._kept_vertices(kept))
            file.writelines(self._kept_faces(kept))
        return num_vertices, num_faces

    def _kept_vertices(self, kept: NDArray[np.bool_]) -> Iterator[bytes]:
        self._vertices.seek(0)
        for start in range(0, self.num_vertices, _BATCH):
            count = min(_BATCH, self.num_vertices - start)
            records = np.frombuffer(self._vertices.read(count * VERTEX.itemsize), VERTEX)
            yield records[kept[start : start + count]].tobytes()

    def _kept_faces(self, kept: NDArray[np.bool_]) -> Iterator[bytes]:
        number = np.cumsum(kept, dtype=np.int32) - np.int32(1)
        for faces in self._face_batches():
            yield face_records(number[faces[kept[faces].all(1)]]).tobytes()

    def _face_batches(self) -> Iterator[NDArray[np.int32]]:
        self._faces.seek(0)
        while data := self._faces.read(_BATCH * 12):
            yield np.frombuffer(data, "<i4").reshape(-1, 3)


@contextmanager
def waiting_mesh(folder: Path) -> Iterator[WaitingMesh]:
    """Temporary files in a folder with room for the mesh."""
    try:
        with tempfile.TemporaryFile(dir=folder) as vertices, tempfile.TemporaryFile(dir=folder) as faces:
            yield WaitingMesh(vertices, faces)
    except OSError as error:
        raise Anchor3RError(
            f"cannot keep a mesh in {folder}: {error.strerror or error}; free some space there and try again"
        ) from error


def face_records(faces: NDArray[np.integer]) -> NDArray[np.void]:
    """(m, 3) -> (m,) of FACE"""
    records = np.empty(len(faces), FACE)
    records["count"], records["vertices"] = 3, faces
    return records


def write_mesh_ply(path: Path, mesh: Mesh) -> None:
    """Writes a binary PLY."""
    with replacing(path) as file:
        file.write(_header(len(mesh.vertices), len(mesh.faces), mesh.about).encode())
        for records in (mesh.vertices, mesh.faces):
            for start in range(0, len(records), _BATCH):
                file.write(records[start : start + _BATCH].tobytes())


def _header(num_vertices: int, num_faces: int, about: str, checksums: tuple[int, int] | None = None) -> str:
    lines = [
        "ply",
        "format binary_little_endian 1.0",
        f"{_COMMENT}{about}",
        *([] if checksums is None else [f"{_CHECKSUMS}{checksums[0]} {checksums[1]}"]),
        f"element vertex {num_vertices}",
        *(f"property {_TYPES[VERTEX[name].str]} {name}" for name in VERTEX.names or ()),
        f"element face {num_faces}",
        "property list uchar int vertex_indices",
        "end_header",
    ]
    return "\n".join(lines) + "\n"


def read_mesh_ply(path: Path) -> Mesh:
    """Maps a mesh that this module wrote into memory."""
    path = insist_on_file(path)
    lines: list[str] = []
    try:
        with open(path, "rb") as file:
            while len(lines) < _HEADER_LINES and lines[-1:] != ["end_header"]:
                lines.append(file.readline(_LINE_BYTES).decode("ascii", "replace").rstrip("\n"))
            start = file.tell()
    except OSError as error:
        raise Anchor3RError(f"cannot read {path}: {error.strerror or error}") from error
    about = next((line.removeprefix(_COMMENT) for line in lines if line.startswith(_COMMENT)), "")
    counts, told = _numbers(lines, "element "), _numbers(lines, _CHECKSUMS)
    if len(counts) != 2 or len(told) not in (0, 2):
        raise Anchor3RError(f"{path} is no mesh of this program; remove it and make it again")
    num_vertices, num_faces = counts
    checksums = (told[0], told[1]) if told else None
    size = start + num_vertices * VERTEX.itemsize + num_faces * FACE.itemsize
    written = _header(num_vertices, num_faces, about, checksums).splitlines()
    if lines != written or not about.isascii() or path.stat().st_size != size:
        raise Anchor3RError(f"{path} is damaged or of another program; remove it and make it again")
    return Mesh(
        _mapped(path, VERTEX, start, num_vertices),
        _mapped(path, FACE, start + num_vertices * VERTEX.itemsize, num_faces),
        about,
        checksums,
    )


def _numbers(lines: list[str], head: str) -> list[int]:
    """Those in the lines of a header that begin like this, as far as they can be counts or checksums."""
    words = [word for line in lines if line.startswith(head) for word in line.split()[1:]]
    return [int(word) for word in words if word.isdecimal() and len(word) < _DIGITS]


def insist_on_vertices(mesh: Mesh, path: Path) -> None:
    """Refuses a mesh whose vertices are not those that were written, or are nowhere."""
    checksum = zlib.crc32(mesh.about.encode())
    for start in range(0, len(mesh.vertices), _BATCH):
        batch = mesh.vertices[start : start + _BATCH]
        checksum = zlib.crc32(batch.tobytes(), checksum)
        if not np.isfinite(_columns(batch, *_FINITE)).all():
            raise Anchor3RError(f"{path} is damaged: a vertex is nowhere; remove it and make it again")
    if mesh.checksums is not None and checksum != mesh.checksums[0]:
        raise Anchor3RError(f"{path} is damaged: its vertices have changed; remove it and make it again")


def insist_on_faces(mesh: Mesh, path: Path) -> None:
    """Refuses a mesh whose faces are not those that were written, or name vertices that it does not have."""
    checksum = 0
    for start in range(0, len(mesh.faces), _BATCH):
        batch = mesh.faces[start : start + _BATCH]
        checksum = zlib.crc32(batch.tobytes(), checksum)
        if batch["vertices"].min() < 0 or batch["vertices"].max() >= len(mesh.vertices):
            raise Anchor3RError(f"{path} is damaged: a face has no vertices; remove it and make it again")
    if mesh.checksums is not None and checksum != mesh.checksums[1]:
        raise Anchor3RError(f"{path} is damaged: its faces have changed; remove it and make it again")


def _mapped(path: Path, dtype: np.dtype[Any], offset: int, count: int) -> NDArray[np.void]:
    # An empty range cannot be mapped.
    return np.memmap(path, dtype, "r", offset, (count,)) if count else np.empty(0, dtype)


def write_mesh_glb(path: Path, mesh: Mesh) -> None:
    """Writes a GLB with colours and normals; the whole mesh is in memory."""
    trimesh = export_library("trimesh")
    shown = trimesh.Trimesh(
        mesh.points() * GLB_FROM_MAP,
        mesh.faces["vertices"],
        vertex_normals=mesh.normals() * GLB_FROM_MAP,
        vertex_colors=mesh.colours(),
        process=False,
    )
    with replacing(path) as file:
        file.write(trimesh.Scene({"surface": shown}).export(file_type="glb", include_normals=True))


def select_vertices(mesh: Mesh, kept: NDArray[np.bool_]) -> Mesh:
    """The kept vertices (n,) and the faces between them; these are in memory."""
    number = np.cumsum(kept, dtype=np.int32) - np.int32(1)
    faces = mesh.faces["vertices"]
    faces = faces[kept[faces].all(1)]
    return Mesh(np.array(mesh.vertices[kept]), face_records(number[faces]), mesh.about)


def simplified(mesh: Mesh, max_faces: int) -> Mesh:
    """About so many faces, by collapsing edges where the surface is flattest; the whole mesh is in memory.

    Vertices of what comes out have colour, confidence and frame of the nearest vertex that went in.
    """
    if len(mesh.faces) <= max_faces:
        return mesh
    from scipy.spatial import KDTree

    library = export_library("fast_simplification")
    before = mesh.points()
    faces = np.ascontiguousarray(mesh.faces["vertices"])
    points, left = library.simplify(before, faces, target_count=max_faces)
    _, nearest = KDTree(before).query(points)
    vertices = np.array(mesh.vertices[nearest])
    for k, axis in enumerate("xyz"):
        vertices[axis] = points[:, k]
    return Mesh(vertices, face_records(left), mesh.about)
