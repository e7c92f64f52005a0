"""Training data: the sixteen sets of the paper in their download layouts, and maps of one's own."""

from anchor3r.datasets.aria_synthetic import AriaSynthetic
from anchor3r.datasets.blendedmvs import BlendedMvs
from anchor3r.datasets.co3d import Co3d
from anchor3r.datasets.dataset import Card, DataSet, Picture, RecordedSequence, SequenceTable
from anchor3r.datasets.dl3dv import Dl3dv
from anchor3r.datasets.files import Files, open_files
from anchor3r.datasets.hypersim import HyperSim
from anchor3r.datasets.mapfree import MapFree
from anchor3r.datasets.mapillary import Mapillary
from anchor3r.datasets.megadepth import MegaDepth
from anchor3r.datasets.mvs_synth import MvsSynth
from anchor3r.datasets.replica import Replica
from anchor3r.datasets.scannet import ScanNet
from anchor3r.datasets.spring import Spring
from anchor3r.datasets.tartanair import TartanAir
from anchor3r.datasets.virtual_kitti2 import VirtualKitti2
from anchor3r.datasets.waymo import Waymo
from anchor3r.datasets.wildrgbd import WildRgbd

DATA_SETS: dict[str, DataSet] = {
    dataset.card.name: dataset
    for dataset in (
        WildRgbd(), ScanNet(), HyperSim(), Mapillary(), Replica(), MapFree(), TartanAir(), MvsSynth(),
        VirtualKitti2(), AriaSynthetic(), Spring(), Waymo(), BlendedMvs(), Co3d(), MegaDepth(), Dl3dv(),
    )
}  # fmt: skip
"""In the order of the paper."""

__all__ = [
    "DATA_SETS",
    "Card",
    "DataSet",
    "Files",
    "Picture",
    "RecordedSequence",
    "SequenceTable",
    "open_files",
]
