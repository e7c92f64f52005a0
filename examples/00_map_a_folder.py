"""Map a folder of images (or any other source), close its loops and print where the camera was.

python examples/00_map_a_folder.py IMAGES MAP [PREDICTOR]
"""

import sys

import anchor3r


def main(images: str, folder: str, predictor: str = "auto") -> None:
    anchor3r.map_source(images, folder, anchor3r.MapSettings(predictor=predictor))
    anchor3r.refine_map(folder)
    with anchor3r.load_map(folder) as scene_map:
        trajectory = scene_map.trajectory("offline")
        print(f"{len(trajectory)} of {scene_map.num_frames} frames have a pose")
        for frame, center in zip(trajectory.frames, trajectory.center, strict=True):
            print(frame, center.round(3))


if __name__ == "__main__":
    main(*sys.argv[1:])
