"""What the feature predictor can be told."""

from __future__ import annotations

from dataclasses import dataclass

from anchor3r.geometry import Pinhole


@dataclass(frozen=True, kw_only=True)
class FeaturesConfig:
    """Lengths in pixels are of the working image; fractions are of its width."""

    min_side: int = 256
    """Smaller images are enlarged to this many pixels on their longer side: patches of a few pixels would
    cover too much of what they show."""
    max_side: int = 800
    """Larger images are reduced to this many, before anything is measured."""
    window: int = 10
    """Frames in a window, the anchor included: it is related to the last window - 1 keyframes."""
    memory: int = 32
    """Keyframes whose points and observations are kept; until then a point can come back into sight."""
    free_keyframes: int = 8
    """The newest of them, which an adjustment may move; the older ones are held."""

    points: int = 400
    """Points to follow, spread evenly over the image."""
    flow_window: int = 11
    """Side of the optical-flow window."""
    flow_levels: int = 3
    """Pyramid levels above the image itself."""
    patch_radius: int = 5
    """Of the square patch that pins a point to its template."""
    min_correlation: float = 0.8
    """A point that looks less like its template than this is no longer followed."""
    max_error_px: float = 2.0
    """Reprojection error above which an observation is rejected (moving objects, mismatches)."""
    huber_px: float = 0.5
    """Errors above this count linearly."""
    adjust_steps: int = 5
    """Levenberg–Marquardt steps of the bundle adjustment at a keyframe, which starts near its minimum."""

    keyframe_parallax: float = 0.025
    """Median image motion not due to rotation that makes a keyframe, as a fraction of the width."""
    keyframe_overlap: float = 0.6
    """Fewer of the last keyframe's points than this part still followed make a keyframe, too."""
    min_parallax_deg: float = 1.0
    """Angle between the rays of a point that makes its depth trusted; half of it where few points have it."""
    min_points: int = 20
    """A frame with fewer agreeing points than this is lost."""
    min_agreeing: float = 0.5
    """A frame of whose followed points a smaller part than this agrees is lost."""
    few_points: float = 0.25
    """With fewer trusted points than this part of `points`, half of the parallax makes one trusted."""
    patience: int = 3
    """Lost frames in a row after which the local map is given up and a new one started."""
    start_parallax: float = 0.03
    """Median image motion before a two-view initialisation is tried, as a fraction of the width."""
    unknown_start_parallax: float = 0.15
    """Median image motion before initialisation where the camera is unknown, for half of `start_frames` at
    most: a few frames that hardly differ fit with any focal length."""
    start_agreeing: float = 0.6
    """Part of the corners that have to agree on the motion that initialises a map."""
    start_frames: int = 60
    """Frames remembered while waiting for initialisation, to be posed by it; of more, every other one is."""
    start_keyframes: int = 4
    """Of the frames that waited for initialisation, so many stay in the local map."""

    assumed_fov_deg: float = 60.0
    """Horizontal field of view that self-calibration starts from where the source knows no intrinsics."""
    assumed_focal_sigma: float = 0.6
    """Relative spread of that focal length: fields of view from 20° to 120° lie within two of it."""
    tried_fov_deg: tuple[float, ...] = (20.0, 30.0, 44.0, 60.0, 80.0, 100.0, 120.0)
    """Horizontal fields of view that initialisation tries in that case; it goes on with what fits best."""
    focal_bias: float = 0.02
    """Relative error of a self-calibrated focal length that more windows do not average out, roughly: by so
    much windows from all over a real drive agree on a focal length that is off."""
    focal_inflation: float = 3.0
    """Spread of a self-calibrated focal length over what independent errors of one pixel would leave: tracks
    err as a whole. On 36 drives and orbits through worlds 201 to 206, seen with 20° to 120°, a value of 1 has
    the truth within two spreads in 33 of them, and the others are off by up to 5.8."""
    known_focal_sigma: float = 0.05
    """Relative spread of the focal length above which it is called undetermined."""
    focal_sigma: float = 0.003
    """Relative spread of a focal length that the source states; 0 holds it. Calibrations with a target repeat
    to a few tenths of a per cent."""
    doubted_focal_sigma: float = 0.1
    """Relative spread of a stated focal length if the evidence says that it is of another camera, or if it is
    nominal, as a field of view or what a photograph says of itself; 0 believes what is stated whatever is
    seen."""
    center_sigma: float = 0.003
    """Spread of a stated principal point, as a fraction of the width; 0 holds it. Calibrations hardly tell it
    from a turned camera."""
    radial_sigma: float = 0.02
    """Spread of the radial distortion coefficients k1 and k2 about the stated ones; 0 holds them. Targets
    seldom reach the corners of the image, where what is left of a lens is largest."""
    assumed_center_sigma: float = 0.002
    """Spread of the principal point where the focal length is nominal or assumed."""
    nominal_radial_sigma: float = 0.02
    """Spread of k1 and k2 where the focal length is nominal."""
    assumed_radial_sigma: float = 0.003
    """Spread of k1 and k2 where the focal length is only assumed: a lens that bends is easily taken for a
    longer one."""
    calibration_interval: int = 4
    """Of so many keyframes one is adjusted with all that are remembered free to move: those that are held
    embody the camera they were made with, and would only confirm it."""
    calibration_steps: int = 10
    """Levenberg–Marquardt steps of these adjustments, which begin farther from their minimum."""
    calibration_steps_a_frame: int = 3
    """So many of them are taken with each of the frames that follow, so that none of these takes much longer
    than others; they are done before the next such adjustment begins."""
    intrinsics: Pinhole | None = None
    """Of the source's images, in place of what the source says, where it is known better."""
    radial: tuple[float, float] = (0.0, 0.0)
    """Radial distortion k1, k2 of the source's images, where it is known."""

    def __post_init__(self) -> None:
        if not 2 <= self.window - 1 <= self.memory:
            raise ValueError(f"a window of {self.window} needs 2 to memory = {self.memory} keyframes")
        if not 1 <= self.free_keyframes <= self.memory - 2:
            raise ValueError(
                f"free_keyframes {self.free_keyframes} must leave 2 of memory {self.memory} held"
            )
        if not 64 <= self.min_side <= self.max_side:
            raise ValueError(
                f"min_side {self.min_side} to max_side {self.max_side} is no range from 64 pixels up"
            )
