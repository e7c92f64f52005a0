"""Map a folder of images (or any other source) and print where the camera was.

python examples/00_map_a_folder.py IMAGES MAP [PREDICTOR]
"""

import sys

import anchor3r


def main(images: str, folder: str, predictor: str = "auto") -> None:
    source = anchor3r.open_source(images)
    with anchor3r.MapWriter.create(folder) as store:
        mapper = anchor3r.Mapper(anchor3r.load_predictor(predictor), store)
        for update in mapper.run(source):
            if update.pose is not None:
                print(update.frame, update.pose.center.round(3))

    with anchor3r.load_map(folder) as made:
        print(f"{len(made.trajectory())} of {made.num_frames} frames have a pose, {len(made.graph())} edges")


if __name__ == "__main__":
    main(*sys.argv[1:])
