"""Distances along rays in a world, by solving for each of its surfaces: a second way beside the renderer."""

import numpy as np

from anchor3r.worlds.scenes.scene import TRIANGLE, TWO_SIDED, Scene


def cast(scene: Scene, origin: np.ndarray, rays: np.ndarray, reach: float = np.inf) -> np.ndarray:
    """Distances (n,) of the first surface along unit rays (n, 3) from one origin, inf where there is none."""
    nearest = np.full(len(rays), np.inf)
    spheres = scene.quads["sphere"]
    near = np.linalg.norm(spheres[:, :3] - origin, axis=1) - spheres[:, 3] < reach
    for quad in scene.quads[near]:
        s, t = quad["edge_s"], quad["edge_t"]
        normal = np.cross(s, t)
        towards = rays @ normal
        distance = np.divide(
            (quad["origin"] - origin) @ normal, towards, out=np.full(len(rays), -1.0), where=towards != 0
        )
        facing = (towards < 0) | bool(quad["flags"] & TWO_SIDED)
        candidates = np.flatnonzero(facing & (distance > 0.02) & (distance < nearest))
        point = origin + rays[candidates] * distance[candidates, None] - quad["origin"]
        gram = np.array([[s @ s, s @ t], [s @ t, t @ t]])
        a, b = np.linalg.solve(gram, np.stack([point @ s, point @ t]))
        inside = (a >= 0) & (b >= 0) & ((a + b <= 1) if quad["flags"] & TRIANGLE else (a <= 1) & (b <= 1))
        nearest[candidates[inside]] = distance[candidates[inside]]
    for ball in scene.balls:
        p, d = ball["ball_from_world"] @ (origin - ball["centre"]), rays @ ball["ball_from_world"].T
        a, b, c = (d * d).sum(1), d @ p, p @ p - 1
        root = b * b - a * c
        distance = (-b - np.sqrt(np.maximum(root, 0))) / a
        hit = (root > 0) & (distance > 0.02) & (distance < nearest)
        nearest[hit] = distance[hit]
    return np.where(nearest < reach, nearest, np.inf)
