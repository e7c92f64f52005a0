"""Offline motion averaging as the paper has it (Algorithm 2): all rotations first, then all centres."""

from __future__ import annotations

from anchor3r.geometry import SE3
from anchor3r.pose_graph.averaging.positions import PositionConfig, average_positions
from anchor3r.pose_graph.averaging.rotations import RotationConfig, average_rotations
from anchor3r.pose_graph.edges import Edges
from anchor3r.pose_graph.report import Report, Status
from anchor3r.pose_graph.topology import Topology, topology_of

_ROTATIONS = RotationConfig()
_POSITIONS = PositionConfig()


def average_motion(
    edges: Edges,
    initial: SE3,
    rotations: RotationConfig = _ROTATIONS,
    positions: PositionConfig = _POSITIONS,
    *,
    topology: Topology | None = None,
) -> tuple[SE3, Report]:
    """Poses (F,) camera_from_world of the topology's frames, from `initial`.

    The report's cost and gap are those of the centres; its details hold both reports.
    """
    topology = topology or topology_of(edges)
    rotation, turned = average_rotations(edges, initial.rotation, rotations, topology=topology)
    center, moved = average_positions(edges, rotation, initial.center(), positions, topology=topology)
    report = Report(
        status=moved.status if turned.status in (Status.CONVERGED, Status.TRIVIAL) else turned.status,
        iterations=turned.iterations + moved.iterations, cost=moved.cost, initial_cost=moved.initial_cost,
        gap=moved.gap, num_frames=moved.num_frames, num_edges=len(edges),
        num_components=moved.num_components, cpu_seconds=turned.cpu_seconds + moved.cpu_seconds,
        details={"rotations": turned.as_dict(), "positions": moved.as_dict()},
    )  # fmt: skip
    return SE3.from_center(rotation, center), report
