"""The viewer in a real browser: what is on the screen, and what the controls do to it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from chromium import EXECUTABLE, Browser, Page, eventually
from numpy.typing import NDArray
from street import bent, record_street

from anchor3r.store import MapWriter, load_map
from toy_source import write_toy_sequence

pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium; 'make browser' installs it")
pytest.importorskip("viser", reason="the viewer extra is not installed")

SLOW_MAP = Path(__file__).with_name("slow_map.py")
SCENE = np.s_[160:, :560]
"""Where neither the panel nor a notice hides the scene."""
ORANGE = np.array([230, 120, 60], np.int16)
"""The left wall of the street."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium") / "profile") as opened:
        yield opened


@pytest.fixture
def view(browser: Browser) -> Iterator[Callable[[Path], Page]]:
    """Opens a map that `anchor3r view` serves in a process of its own."""
    servers: list[subprocess.Popen[str]] = []

    def opened(folder: Path) -> Page:
        servers.append(anchor3r("view", str(folder), "--port", "8300"))
        assert servers[-1].stdout is not None
        return browser.open(address(servers[-1].stdout.readline()))

    yield opened
    for server in servers:
        server.send_signal(signal.SIGINT)
    assert [server.wait(20) for server in servers] == [0] * len(servers)


def anchor3r(*arguments: str, program: Sequence[str] = ("-m", "anchor3r")) -> subprocess.Popen[str]:
    path = [str(SLOW_MAP.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, *program, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
    )  # fmt: skip


@contextmanager
def ending(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Whatever goes wrong, the process does not outlive the test; nor does the viewer that it has started."""
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)


def address(line: str) -> str:
    return next(word for word in line.split() if word.startswith("http://"))


def lit(picture: NDArray[np.uint8]) -> int:
    """Pixels of the scene that are not background."""
    scene = picture[SCENE].astype(np.int16)
    return int((np.abs(scene - scene[-1, 0]).max(-1) > 25).sum())


def num_points(page: Page) -> int:
    """As the panel tells; 0 while it does not."""
    told = re.search(r"([\d,]+) points shown", page.text)
    return int(told[1].replace(",", "")) if told else 0


def num_frames(page: Page) -> int:
    """As the panel tells; 0 while it does not."""
    told = re.search(r"([\d,]+)(?: of [\d,]+)? frames", page.text)
    return int(told[1].replace(",", "")) if told else 0


def num_stored(folder: Path) -> int:
    with load_map(folder) as made:
        return made.num_frames


def shown(page: Page) -> NDArray[np.uint8]:
    """The picture once there is a cloud."""
    eventually("the panel tells of points", lambda: num_points(page) > 0)
    # What viser says of rendering without a GPU would hide a part of the scene.
    page.evaluate("document.querySelectorAll('.mantine-Notification-closeButton').forEach(e => e.click())")
    eventually("the scene is not blank", lambda: lit(page.screenshot()) > 500)
    return page.settle()


def assert_in_frame(picture: NDArray[np.uint8]) -> None:
    """The map fills a good part of the window, and its middle is near the window's."""
    rows, columns = np.nonzero(np.abs(picture.astype(np.int16) - picture[-1, 0]).max(-1) > 25)
    rows, columns = rows[columns < SCENE[1].stop], columns[columns < SCENE[1].stop]
    height, width = picture.shape[:2]
    assert np.ptp(rows) > 0.3 * height or np.ptp(columns) > 0.4 * width
    assert 0.25 * height < np.median(rows) < 0.75 * height
    assert 0.2 * width < np.median(columns) < 0.7 * width


def lit_difference(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> int:
    """Pixels of the scene that differ."""
    return int((np.abs(a[SCENE].astype(np.int16) - b[SCENE]).max(-1) > 25).sum())


def click_checkbox(page: Page, label: str) -> None:
    page.evaluate(
        f"(() => {{ let e = [...document.querySelectorAll('label')].find(e => e.innerText === '{label}');"
        " while (!e.querySelector('input')) e = e.parentElement;"
        " e.querySelector('input').click(); })()"
    )


def enter_number(page: Page, label: str, value: str) -> None:
    page.evaluate(
        f"(() => {{ let e = [...document.querySelectorAll('label')].find(e => e.innerText === '{label}');"
        " while (!e.querySelector('input')) e = e.parentElement;"
        " const box = e.querySelector('input');"
        " Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(box, "
        f"'{value}'); box.dispatchEvent(new Event('input', {{bubbles: true}})); box.blur(); }})()"
    )


def move_slider(page: Page, number: int, key: str) -> None:
    page.evaluate(f"document.querySelectorAll('[role=slider]')[{number}].focus()")
    page.press(key)


def choose_poses(page: Page, name: str) -> None:
    box = page.evaluate(
        "(() => { const box = [...document.querySelectorAll('input')]"
        ".find(e => e.type === 'text' && ['online', 'offline'].includes(e.value)).getBoundingClientRect();"
        " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    page.click(*box)
    option = f"[...document.querySelectorAll('[role=option]')].find(e => e.innerText === '{name}')"
    eventually("the list of poses is open", lambda: page.evaluate(f"!!{option}"))
    page.evaluate(f"{option}.click()")


def test_a_map_is_seen_and_its_controls_change_what_is_seen(
    view: Callable[[Path], Page], street: Path, pictures: Path
) -> None:
    page = view(street)
    offline = shown(page)
    page.screenshot(pictures / "street.png")
    assert "60 offline poses" in page.text
    assert num_points(page) > 20_000
    assert_in_frame(offline)

    choose_poses(page, "online")
    eventually("the panel tells", lambda: "60 online poses" in page.text)
    online = page.settle()
    page.screenshot(pictures / "online.png")
    assert lit_difference(offline, online) > 0.5 * min(lit(offline), lit(online)), (
        "the cloud moves with the poses"
    )

    move_slider(page, 2, "Home")  # point budget
    eventually("the budget is kept", lambda: 5_000 < num_points(page) <= 10_000)
    # Few points leave gaps, so that their size shows; at the usual number the walls are closed at any size.
    move_slider(page, 1, "Home")  # point size
    eventually("smaller points cover less", lambda: lit(page.screenshot()) < 0.8 * lit(online))
    small = lit(page.settle())
    move_slider(page, 1, "End")
    eventually("larger points cover more", lambda: lit(page.screenshot()) > 1.3 * small)
    move_slider(page, 0, "End")  # confidence
    eventually("words instead of a blank page", lambda: "All points are filtered away" in page.text)
    eventually("the points are gone", lambda: lit(page.screenshot()) < 0.5 * lit(online))
    page.screenshot(pictures / "filtered.png")
    move_slider(page, 0, "Home")
    eventually("the points are back", lambda: num_points(page) > 5_000)
    eventually("unsure ones too", lambda: "confidence ≥" not in page.text)
    assert not page.problems
    page.close()


def test_looking_around_playing_and_measuring(
    view: Callable[[Path], Page], street: Path, pictures: Path
) -> None:
    page = view(street)
    whole = shown(page)
    page.evaluate("[...document.querySelectorAll('button')].find(e => e.innerText === 'from above').click()")
    eventually("it looks different from above", lambda: lit_difference(page.screenshot(), whole) > 1000)
    above = page.settle()

    click_checkbox(page, "Measure")
    eventually("it says what to do", lambda: "Click two points" in page.text)
    rows, columns = np.nonzero(np.abs(above[SCENE] - ORANGE).max(-1) < 20)
    for k in (len(rows) // 5, 4 * len(rows) // 5):
        page.click(float(columns[k]), float(rows[k] + SCENE[0].start))
        page.settle()
    said = eventually("a distance", lambda: re.search(r"([\d.]+) units = ([\d.]+) m by ground", page.text))
    line = eventually("the command", lambda: re.search(r"refine .* (--distance \S+ \S+ )METRES", page.text))
    enter_number(page, "Taped length (m)", "12.5")
    eventually("the length in it", lambda: f"{line[1]}12.5" in page.text)
    page.screenshot(pictures / "measured.png")
    assert 3 < float(said[1]) < 60

    all_points = num_points(page)
    click_checkbox(page, "Play")
    eventually("playing starts again", lambda: 0 < num_points(page) < all_points / 2)
    eventually("and goes on", lambda: num_points(page) > all_points / 2)
    assert not page.problems
    page.close()


def test_two_clients_see_the_map_grow_and_being_refined(
    view: Callable[[Path], Page], browser: Browser, tmp_path: Path, pictures: Path
) -> None:
    folder = tmp_path / "map"
    with MapWriter.create(folder) as store:
        page = view(folder)
        eventually("an empty map has words", lambda: "The map is empty so far" in page.text)
        page.screenshot(pictures / "empty.png")
        other = browser.open(page.evaluate("location.href"))
        record_street(store, range(30))
        eventually("both see it", lambda: min(num_points(page), num_points(other)) > 0)
        before = num_points(page)
        page.close()  # nobody else minds
        record_street(store, range(30, 60))
        eventually("the other client sees it grow", lambda: num_points(other) > 1.5 * before)
        assert "growing" in other.text
    with load_map(folder) as made:
        refined = bent(made.trajectory())
    with MapWriter.open(folder) as store:
        store.write_trajectory("offline", refined)
    eventually("refined poses are taken", lambda: "60 offline poses" in other.text)
    assert not other.problems
    other.close()


def test_the_mapper_goes_on_when_a_client_leaves(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "map"
    command = ("map", "slow:100000", "--predictor", "ground-truth", "--out", str(folder), "--view")
    with ending(anchor3r(*command, program=[str(SLOW_MAP)])) as mapper:
        assert mapper.stderr is not None
        url = address(next(line for line in mapper.stderr if "http://" in line))
        page = browser.open(url)
        eventually("one client sees points", lambda: num_points(page) > 0)
        other = browser.open(url)
        eventually("and another", lambda: num_points(other) > 0)
        page.close()
        stored, seen = num_stored(folder), num_frames(other)
        assert mapper.poll() is None
        eventually("frames are still written", lambda: num_stored(folder) > stored + 20)
        eventually("and seen by who stays", lambda: num_frames(other) > max(stored, seen) + 20)
        other.close()
        stored = num_stored(folder)
        eventually("also when nobody looks", lambda: num_stored(folder) > stored + 20)
        late = browser.open(url)
        eventually("and a new client sees them", lambda: num_frames(late) > stored + 20)
        assert not late.problems
        late.close()
        mapper.send_signal(signal.SIGINT)
        said = mapper.stderr.read()
        assert mapper.wait(20) == 130
    assert "--resume goes on with it" in said
    assert "Traceback" not in said


def test_the_page_stays_when_the_map_is_done(browser: Browser, tmp_path: Path) -> None:
    source = write_toy_sequence(tmp_path / "toy", 40)
    arguments = ("--predictor", "ground-truth", "--out", str(tmp_path / "map"), "--view")
    with ending(anchor3r("map", source, *arguments)) as mapper:
        assert mapper.stderr is not None
        page = browser.open(address(next(line for line in mapper.stderr if "http://" in line)))
        assert mapper.stdout is not None
        assert "40 of 40 frames" in mapper.stdout.readline()
        shown(page)
        assert mapper.poll() is None
        page.close()
        mapper.send_signal(signal.SIGINT)
        assert mapper.wait(20) == 0


def test_a_saved_page_needs_no_program(
    browser: Browser, street: Path, tmp_path: Path, pictures: Path
) -> None:
    saving = anchor3r("view", str(street), "--save", str(tmp_path / "site"))
    out, errors = saving.communicate(timeout=60)
    assert saving.returncode == 0, errors
    assert "index.html" in out
    page = browser.open((tmp_path / "site" / "index.html").as_uri())
    eventually("points are shown", lambda: num_points(page) > 0)
    assert page.evaluate("document.title") == f"{street.name}: 60 frames, offline poses"
    first = page.screenshot(pictures / "saved.png")
    assert lit(first) > 500
    assert_in_frame(first)

    def change(control: str, value: str) -> NDArray[np.uint8]:
        kind = "change" if control == "poses" else "input"
        page.evaluate(
            f"(() => {{ const e = document.getElementById('{control}'); e.value = '{value}';"
            f" e.dispatchEvent(new Event('{kind}')); }})()"
        )
        return page.screenshot()

    shown_at_first = num_points(page)
    assert lit(change("size", "5")) > 1.3 * lit(change("size", "0.2"))
    change("confidence", "0")
    assert num_points(page) > 1.2 * shown_at_first
    assert lit(change("last", "20")) < 0.8 * lit(change("last", "59"))
    assert lit_difference(change("poses", "online"), first) > 500
    assert "60 online poses" in page.text
    with_loops = page.screenshot()
    page.evaluate("document.getElementById('accepted').click()")
    assert 50 < lit_difference(page.screenshot(), with_loops) < 5000, "the line of a loop is gone"
    assert not page.problems
    page.close()
