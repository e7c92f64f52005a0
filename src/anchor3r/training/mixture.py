"""Which data sets a recipe trains on, with what share and how cut into clips; and what of them was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from anchor3r.datasets import DATA_SETS, DataSet
from anchor3r.datasets.index import SetIndex, find_roots
from anchor3r.datasets.maps import OwnMap
from anchor3r.errors import Anchor3RError
from anchor3r.training.data import RecordedSet, SequenceSet, SourceSet
from anchor3r.training.sampling import SamplingConfig

MIN_CLIP = 4
"""Sequences with fewer posed frames are left out; longer ones, but shorter than a clip, are used whole."""

Index = Callable[[DataSet, Path], SetIndex]
"""Makes or loads the index of a data set, and may show how far it is."""


@dataclass(frozen=True, kw_only=True)
class MixtureEntry:
    """One data set of a mixture."""

    name: str
    """As `anchor3r data list` has it."""
    share: float = 1.0
    """Of the clips, as a part of all shares of the sets that were found."""
    sampling: SamplingConfig = SamplingConfig(reverse_probability=0.0)
    """How its sequences are cut into clips."""
    use_depth: bool = True
    """Whether depth is a target; without it poses alone are."""


def _video(interval: int, video: float = 0.8, fixed: float = 0.8, block: int = 16) -> SamplingConfig:
    return SamplingConfig(
        max_interval=interval, video_probability=video, fixed_probability=fixed, block=block,
        reverse_probability=0.0,
    )  # fmt: skip


_UNORDERED = SamplingConfig(ordered=False, overlap="depth", reverse_probability=0.0)

PAPER_MIXTURE = (
    MixtureEntry(name="wildrgbd", sampling=_video(10)),
    MixtureEntry(name="scannet", sampling=_video(30, 0.6, 0.6, 16)),
    MixtureEntry(name="hypersim", sampling=_UNORDERED),
    MixtureEntry(name="mapillary", sampling=_UNORDERED),
    MixtureEntry(name="replica", sampling=_video(20)),
    MixtureEntry(name="mapfree", sampling=_video(10), use_depth=False),
    MixtureEntry(name="tartanair", sampling=_video(20, 0.8, 0.8, 16)),
    MixtureEntry(name="mvs_synth", sampling=_video(4)),
    MixtureEntry(name="vkitti2", sampling=_video(5, 1.0, 0.9)),
    MixtureEntry(name="ase", sampling=_video(5)),
    MixtureEntry(name="spring", sampling=_video(5)),
    MixtureEntry(name="waymo", sampling=_video(8, 0.9, 0.9, 16)),
    MixtureEntry(name="blendedmvs", sampling=_UNORDERED),
    MixtureEntry(name="co3d", sampling=_video(5)),
    MixtureEntry(name="megadepth", sampling=_UNORDERED),
    MixtureEntry(name="dl3dv", sampling=_video(20, 0.5, 0.5, 25), use_depth=False),
)
"""The paper's sixteen sets. Intervals and probabilities of ScanNet, TartanAir, Virtual KITTI, Waymo and DL3DV
are those that CUT3R and its followers publish; the others are set by how fast each camera moves. Shares are
equal: neither the paper nor its peers publish any for these sets."""

ABLATION_MIXTURE = (MixtureEntry(name="vkitti2", sampling=_video(5, 1.0, 0.9)),)


def open_mixture(
    entries: tuple[MixtureEntry, ...], root: Path, index: Index
) -> tuple[tuple[SequenceSet, float], ...]:
    """Those sets of a mixture that lie under one root, each in a folder of its name, with their shares."""
    wanted = {entry.name: DATA_SETS[entry.name] for entry in entries}
    roots = find_roots(root, wanted)
    return tuple(
        (recorded(index(wanted[entry.name], roots[entry.name]), entry), entry.share)
        for entry in entries
        if entry.name in roots
    )


def recorded(found: SetIndex, entry: MixtureEntry) -> RecordedSet:
    chosen = RecordedSet(found, entry.sampling, use_depth=entry.use_depth, shortest=MIN_CLIP)
    if not chosen.training:
        raise Anchor3RError(
            f"nothing of {found.dataset.card.title} in {found.root} can be trained on: "
            f"{chosen.num_short} sequences have fewer than {MIN_CLIP} posed frames"
        )
    return chosen


def open_sets(
    uris: tuple[str, ...], sampling: SamplingConfig, index: Index
) -> tuple[tuple[SequenceSet, float], ...]:
    """What a user names, in equal shares: `NAME:ROOT` of a data set, `map:FOLDER`, or a source."""
    known: dict[str, DataSet] = {**DATA_SETS, "map": OwnMap()}
    sets: list[tuple[SequenceSet, float]] = []
    for uri in uris:
        scheme, _, place = uri.partition(":")
        if scheme in known:
            card = known[scheme].card
            given = {entry.name: entry for entry in PAPER_MIXTURE}.get(scheme)
            entry = given or MixtureEntry(name=scheme, sampling=replace(sampling, ordered=card.ordered))
            sets.append((recorded(index(known[scheme], Path(place)), entry), 1.0))
    plain = tuple(uri for uri in uris if uri.partition(":")[0] not in known)
    if plain:
        sets.append((SourceSet(uris=plain, sampling=sampling), float(len(plain))))
    return tuple(sets)


def describe(
    sets: tuple[tuple[SequenceSet, float], ...], num_frames: int, part: float = 1.0
) -> list[tuple[str, ...]]:
    """Rows of a table: set, sequences, held out, too short, unusable, clips, share (in all: `part`)."""
    total = sum(share for _, share in sets) / part
    rows = []
    for chosen, share in sets:
        in_words = f"{100 * share / total:.1f} %"
        if isinstance(chosen, RecordedSet):
            counts = (
                len(chosen.training),
                len(chosen.validation),
                chosen.num_short,
                len(chosen.index.broken),
            )
            clips = f"{chosen.num_clips(num_frames):,}"
            rows.append((chosen.index.name, *(f"{count:,}" for count in counts), clips, in_words))
        else:
            rows.append((type(chosen).__name__, "", "", "", "", "", in_words))
    return rows
