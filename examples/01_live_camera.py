"""Map a live camera in a loop of your own: a pose for every frame, as soon as it is known.

python examples/01_live_camera.py MAP [SOURCE] [PREDICTOR] [NUM_FRAMES]

SOURCE is camera:0, an rtsp:// address, or anything else that can be opened. The map is on the disk all the
time: `anchor3r view MAP` shows it while it grows, and what was seen until Ctrl-C stays.
"""

import sys
from contextlib import suppress

import anchor3r


def main(folder: str, uri: str = "camera:0", predictor: str = "auto", num_frames: str = "300") -> None:
    measuring = anchor3r.load_predictor(predictor)
    with (
        anchor3r.open_source(uri) as source,
        anchor3r.MappingRun(source, measuring, folder) as run,
        suppress(KeyboardInterrupt),
    ):
        for update in run:
            if update.pose is None:
                print(update.frame, update.status)
            else:
                x, y, z = update.pose.center
                print(f"{update.frame}: ({x:.2f}, {y:.2f}, {z:.2f})")
            if run.num_updates == int(num_frames):
                break


if __name__ == "__main__":
    main(*sys.argv[1:])
