"""Read a map as in a notebook: what is in it, the path from above, the points of one frame.

python examples/05_read_a_map.py MAP [PICTURE.png]

The cells between the `# %%` lines run one by one in editors that know them.
"""

# %% Open a map; it may still be growing.
import sys

import matplotlib.pyplot as plt
import numpy as np

import anchor3r
from anchor3r.store import best_poses

folder, picture = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
scene_map = anchor3r.load_map(folder)
poses = best_poses(scene_map.trajectory_names())
print(scene_map.meta["identity"]["source"], scene_map.counts(), poses)

# %% Poses are world-to-camera; the camera's centre lies in the world.
trajectory = scene_map.trajectory(poses)
print(trajectory.camera_from_world.matrix().shape, f"path of {trajectory.path_length():.2f} units")

# %% What was measured: relative poses, each a window's or a loop's.
edges = scene_map.graph(rejected_loops=True).edges
print(len(edges), "edges;", [(loop.query, loop.match, loop.reason) for loop in scene_map.loops()][:5])

# %% The points of every tenth frame that has any, in the world, over the path.
figure, axes = plt.subplots(figsize=(8, 8))
for pose, point_map in scene_map.iter_points(poses, trajectory.frames[::10].tolist()):
    sure = point_map.confidence >= np.median(point_map.confidence)
    points = pose.to_world(point_map.points_in_camera[sure])
    axes.scatter(points[:, 0], points[:, 2], s=0.5, c=point_map.colours[sure] / 255)
axes.plot(trajectory.center[:, 0], trajectory.center[:, 2], "k-")
axes.set_aspect("equal")
if picture:
    figure.savefig(picture)
else:
    plt.show()
scene_map.close()
