"""The controls beside the scene."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import viser

from anchor3r.store import ONLINE, best_poses
from anchor3r.viewer.contents import MapContents
from anchor3r.viewer.settings import MAX_POINTS, ViewSettings

_PLAY_STEPS = 150


class Panel:
    """Controls, shared by all clients. `changed` is called, from any thread, when one was moved."""

    def __init__(
        self, gui: viser.GuiApi, changed: Callable[[], None], point_budget: int, poses: str | None = None
    ) -> None:
        self._status = gui.add_markdown("Reading the map …")
        self._measured = gui.add_markdown("", visible=False)
        self._progress: Any = gui.add_progress_bar(0.0, animated=True, visible=False)
        self._is_pose_chosen, self._preferred = False, poses
        # mypy does not see that viser's values can be set.
        self.poses: Any = gui.add_dropdown("Poses", [ONLINE], hint="Found while mapping, or refined")
        self.component: Any = gui.add_dropdown(
            "Component", ["1"], visible=False, hint="Parts of the map that no measurement relates"
        )
        with gui.add_folder("Points"):
            self.confidence = gui.add_slider(
                "Confidence", 0.0, 1.0, 0.05, ViewSettings.min_confidence,
                hint="Shows points that are at least so likely to be within 5 % of their distance",
            )  # fmt: skip
            self.point_size = gui.add_slider("Point size", 0.2, 5.0, 0.1, 1.0)
            self.point_budget = gui.add_slider("Point budget", 10_000, MAX_POINTS, 10_000, point_budget)
        with gui.add_folder("Time"):
            self.range: Any = gui.add_multi_slider("Frames", 0, 1, 1, (0, 1))
            self.play = gui.add_checkbox("Play", False)
            self.follow = gui.add_checkbox("Follow camera", False)
        with gui.add_folder("Show"):
            self.colour_by: Any = gui.add_dropdown("Path colour", ["time", "uncertainty"])
            self.cameras = gui.add_slider("Cameras", 0, 100, 5, ViewSettings.cameras)
            self.accepted_loops = gui.add_checkbox("Loops", ViewSettings.accepted_loops)
            self.rejected_loops = gui.add_checkbox("Rejected loops", ViewSettings.rejected_loops)
            self.truth = gui.add_checkbox("Ground truth", ViewSettings.truth)
        self.view = gui.add_button_group("View", ["whole", "from above"])
        self.measure = gui.add_checkbox("Measure", False, hint="Click two points for their distance")
        self.taped: Any = gui.add_number(
            "Taped length (m)", 0.0, min=0.0, step=0.001, visible=False,
            hint="What a tape says between the two points: below is the command that gives the map metres",
        )  # fmt: skip
        self._command = gui.add_markdown("", visible=False)
        for control in (
            self.poses, self.component, self.confidence, self.point_size, self.point_budget, self.range,
            self.play, self.follow, self.colour_by, self.cameras, self.accepted_loops, self.rejected_loops,
            self.truth, self.measure, self.taped,
        ):  # fmt: skip
            control.on_update(lambda _: changed())

        @self.poses.on_update
        def _(event: viser.GuiEvent[Any]) -> None:
            self._is_pose_chosen |= event.client is not None

    def fit(self, contents: MapContents) -> None:
        """Takes over what there is to choose from; an open end of the time range stays open."""
        names = tuple(contents.trajectories)
        if self.poses.options != names:
            chosen = self.poses.value if self._is_pose_chosen else self._preferred or best_poses(names)
            self.poses.options = names
            self.poses.value = chosen if chosen in names else best_poses(names)
        labels = tuple(self._components(contents))
        if self.component.options != labels:
            chosen = self.component.value
            self.component.options, self.component.visible = labels, len(labels) > 1
            self.component.value = chosen if chosen in labels else labels[0]
        self.truth.disabled = contents.truth is None
        self.accepted_loops.disabled = self.rejected_loops.disabled = not any(contents.loops.values())
        online = contents.online
        if not len(online):
            return
        low, high = int(online.frames[0]), max(int(online.frames[-1]), int(online.frames[0]) + 1)
        first, last = self.range.value
        is_open = last >= self.range.max
        if (self.range.min, self.range.max) != (low, high):
            self.range.min, self.range.max = low, high
            self.range.value = (max(low, first), high if is_open and not self.play.value else min(last, high))

    def settings(self, contents: MapContents) -> ViewSettings:
        """What is to be shown of the map."""
        first, last = self.range.value
        return ViewSettings(
            poses=self.poses.value,
            first=int(first),
            last=int(last),
            component=self._components(contents).get(self.component.value),
            colour_by=self.colour_by.value,
            min_confidence=self.confidence.value,
            point_size=self.point_size.value,
            point_budget=int(self.point_budget.value),
            cameras=int(self.cameras.value),
            accepted_loops=self.accepted_loops.value,
            rejected_loops=self.rejected_loops.value,
            truth=self.truth.value,
        )

    def _components(self, contents: MapContents) -> dict[str, int]:
        """What the components of the chosen poses are called, and their numbers, the largest first."""
        labels = contents.components(self.poses.value) or [0]
        return {f"{k} of {len(labels)}": label for k, label in enumerate(labels, 1)}

    def advance(self) -> None:
        """One step of playing: the end of the time range moves on, and starts again behind the last frame."""
        first, last = self.range.value
        step = max(1, round((self.range.max - self.range.min) / _PLAY_STEPS))
        self.range.value = (first, min(last + step, self.range.max) if last < self.range.max else first)

    def say(self, text: str) -> None:
        """The words at the top."""
        if self._status.content != text:
            self._status.content = text

    def show_progress(self, percent: float | None) -> None:
        """Shows how far reading the points has come; None when all is read."""
        self._progress.visible = percent is not None
        if percent is not None:
            self._progress.value = percent

    def say_measured(self, text: str) -> None:
        """What measuring has to tell."""
        if self._measured.content != text:
            self._measured.visible, self._measured.content = bool(text), text

    def say_command(self, text: str) -> None:
        """What to paste so that a measured length gives the map metres; nothing as long as there is none."""
        if self._command.content != text:
            self._command.visible, self._command.content = bool(text), text
            self.taped.visible = bool(text)
