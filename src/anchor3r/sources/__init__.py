"""Where frames come from."""

from anchor3r.sources.frame import Frame
from anchor3r.sources.opening import is_remote, open_source
from anchor3r.sources.source import Source, UndecodableFrameError
from anchor3r.sources.stated_camera import StatedCamera

__all__ = ["Frame", "Source", "StatedCamera", "UndecodableFrameError", "is_remote", "open_source"]
