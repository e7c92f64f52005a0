"""Where frames come from."""

from anchor3r.sources.frame import Frame
from anchor3r.sources.opening import open_source
from anchor3r.sources.source import Source, UndecodableFrameError

__all__ = ["Frame", "Source", "UndecodableFrameError", "open_source"]
