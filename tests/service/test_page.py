"""The page of a daemon, in a browser and below it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.service.scrapes import scrape
from tests.service.test_page_calls import secret_of
from tests.waits import LONGEST_WAIT

pytest.importorskip("prometheus_client", reason="opdispatch[http] is not installed")
pytest.importorskip("starlette", reason="opdispatch[http] is not installed")
pytest.importorskip("uvicorn", reason="opdispatch[http] is not installed")

from opdispatch_server.daemon.monitoring.live import MOST_PAGES
from opdispatch_server.daemon.monitoring.pages import PAGE_FILES

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
MILLISECONDS = LONGEST_WAIT * 1000

SHAPES = """\
from opdispatch import Library

lib = Library("shapes", "DEF")
lib.define("area(Tensor x) -> Tensor")
lib.define("edge(Tensor x) -> Tensor")


def area(x):
    \"\"\"<img src=x onerror="document.title='broken'"> & <b>the area</b>\"\"\"
    return x * x


lib.impl("area", area, "CompositeImplicitAutograd")
"""
FASTER = """\
from opdispatch import Library

lib = Library("shapes", "IMPL")
lib.impl("area", lambda x: x * x + 0, "CPU")
"""


def get_json(url: str, path: str) -> Any:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=LONGEST_WAIT)
    with contextlib.closing(connection):
        connection.request("GET", path)
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()
        return json.loads(reply.read())


@contextlib.contextmanager
def event_stream(url: str) -> Iterator[Iterator[tuple[str, str]]]:
    """Open the events of one page."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=LONGEST_WAIT)
    connection.request("GET", "/events")
    reply = connection.getresponse()
    assert reply.headers["content-type"].startswith("text/event-stream")

    def events() -> Iterator[tuple[str, str]]:
        kind = ""
        while True:
            line = reply.readline().decode()
            if not line:
                return
            name, _, value = line.rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                yield kind, value

    try:
        yield events()
    finally:
        connection.close()


def latest_state(events: Iterator[tuple[str, str]], holds: Callable[[Any], object]) -> Any:
    """Return the first state of a page of which something holds."""
    states = (json.loads(value) for kind, value in events if kind == "state")
    return next(state for state in states if "error" not in state and holds(state))


@pytest.fixture
def watched(start_daemon: StartDaemon) -> RunningDaemon:
    return start_daemon("--http", "127.0.0.1:0", workers=2)


def test_changes_since_an_epoch_are_all_that_is_sent(
    watched: RunningDaemon, write_library: WriteLibrary
):
    before = get_json(watched.url, "/api/operators")
    assert (before["whole"], before["changed"]) == (True, [])
    with watched.connect() as session:
        session.load(str(write_library("shapes", SHAPES)))
        after = get_json(watched.url, f"/api/operators?since={before['epoch']}")
        assert not after["whole"]
        assert [name for name, _ in after["changed"]] == ["shapes::area", "shapes::edge"]
        same = get_json(watched.url, f"/api/operators?since={after['epoch']}")
        assert (same["changed"], same["removed"]) == ([], [])
        session.unload("shapes")
        gone = get_json(watched.url, f"/api/operators?since={after['epoch']}")
        assert gone["removed"] == ["shapes::area", "shapes::edge"]
    for nonsense in ("x", "-1", "9" * 30, str(after["epoch"] + 1000), ""):
        assert get_json(watched.url, f"/api/operators?since={nonsense}")["whole"]


def test_cells_say_where_their_kernels_come_from(
    watched: RunningDaemon, write_library: WriteLibrary
):
    with watched.connect() as session:
        session.load(str(write_library("shapes", SHAPES)))
        session.load(str(write_library("faster", FASTER)))
        found = get_json(watched.url, "/api/cells?operator=shapes::area&operator=nothing::there")
        cells = found["shapes::area"]
        assert cells["CPU"][0] == "exact"
        assert cells["CUDA"][0] == "composite"
        assert "faster.py" in cells["CPU"][2]
        assert found["nothing::there"] == {}
        session.ops.shapes.area(np.ones(2))
        about = get_json(watched.url, "/api/operator?name=" + quote("shapes::area"))
        [calls] = about["calls"]
        assert calls[:6] == ["CPU", "faster", "1", 1, 0, 0]
        assert "<b>the area</b>" in about["documentation"]


def test_events_tell_of_a_new_epoch_and_of_a_death(
    watched: RunningDaemon, write_library: WriteLibrary
):
    watched.expects_errors = True
    with event_stream(watched.url) as events, watched.connect() as session:
        first = next(int(value) for kind, value in events if kind == "epoch")
        session.load(str(write_library("shapes", SHAPES)))
        assert next(int(value) for kind, value in events if kind == "epoch") > first
        victim = session.interpreters()[0]
        os.kill(victim.pid, signal.SIGKILL)
        deaths = (json.loads(value)["deaths"] for kind, value in events if kind == "state")
        [name, cause, *_] = next(each[0] for each in deaths if each)
        assert (name, cause) == (victim.name, "killed")


def test_files_of_the_page_refer_to_no_other_place(watched: RunningDaemon):
    for path, (_, media_type) in PAGE_FILES.items():
        connection = http.client.HTTPConnection(urlsplit(watched.url).netloc, timeout=LONGEST_WAIT)
        with contextlib.closing(connection):
            connection.request("GET", path)
            reply = connection.getresponse()
            assert reply.headers["content-type"].startswith(media_type)
            text = reply.read().decode().replace("http://www.w3.org/2000/svg", "")
            assert "//" not in text.replace("// ", ""), "no address of another place"
            assert "innerHTML" not in text


def test_a_hundred_pages_hold_up_neither_each_other_nor_the_end(watched: RunningDaemon):
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(event_stream(watched.url)) for _ in range(100)]
        for events in streams:
            assert next(kind for kind, _ in events) in ("epoch", "state")
        assert watched.stop() == 0


def test_pages_that_disconnect_leave_their_places_to_others(watched: RunningDaemon):
    for _ in range(3):
        with contextlib.ExitStack() as stack:
            for _ in range(MOST_PAGES // 2):
                assert next(stack.enter_context(event_stream(watched.url)))
    with event_stream(watched.url) as events:
        assert next(events)


try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:  # the fixture below says so
    pass
else:
    expect.set_options(timeout=MILLISECONDS)


# -- in a browser ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return a browser; skip where there is none, and say what is missing."""
    give_up = pytest.fail if os.environ.get("OPDISPATCH_REQUIRE_BROWSER") else pytest.skip
    if "sync_playwright" not in globals():
        give_up("playwright is not installed: pip install playwright")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        give_up("no Chromium is installed: apt-get install chromium")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield found
        finally:
            found.close()


@pytest.fixture
def page(browser: Any, watched: RunningDaemon) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1500, "height": 900})
    page = context.new_page()
    page.set_default_timeout(MILLISECONDS)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    page.goto(watched.url)
    expect(page.locator("#status")).to_contain_text("serving;")
    yield page
    context.close()
    problems = [each for each in problems if "422" not in each]  # a call that fails, on purpose
    assert problems == [], "nothing is refused by the content security policy"


def cell_of(page: Any, operator: str, key: str) -> Any:
    return page.locator(f'[data-operator="{operator}"] [data-key="{key}"]')


def test_rows_come_and_go_with_libraries_and_cells_with_kernels(
    page: Any, watched: RunningDaemon, write_library: WriteLibrary
):
    with watched.connect() as session:
        session.load(str(write_library("shapes", SHAPES)))
        row = page.locator('[data-operator="shapes::area"]')
        row.wait_for()
        cell = cell_of(page, "shapes::area", "CPU")
        expect(cell).to_have_class("cell composite")
        expect(cell).to_have_text("C")
        session.load(str(write_library("faster", FASTER)))
        expect(cell).to_have_class("cell exact")
        expect(cell).to_have_text("K")
        session.unload("faster")
        session.unload("shapes")
        row.wait_for(state="detached")


def test_markup_of_libraries_stays_text(
    page: Any, watched: RunningDaemon, write_library: WriteLibrary
):
    with watched.connect() as session:
        session.load(str(write_library("shapes", SHAPES)))
        page.locator('[data-operator="shapes::area"]').click()
        documentation = page.locator("#detail-documentation")
        expect(documentation).to_contain_text("<b>the area</b>")
    assert page.title() == "opdispatch"
    assert page.locator("img").count() == 0


def test_the_grid_is_used_by_keyboard_alone(
    page: Any, watched: RunningDaemon, write_library: WriteLibrary
):
    with watched.connect() as session:
        session.load(str(write_library("shapes", SHAPES)))
        page.locator('[data-operator="shapes::area"]').wait_for()
        page.locator("#grid").focus()
        for key in ("ArrowDown", "ArrowDown", "Enter"):
            page.keyboard.press(key)
        expect(page.locator("#detail-name")).to_have_text("shapes::edge")
        expect(page.locator("#detail-name")).to_be_focused()
        active = page.locator("#grid").get_attribute("aria-activedescendant")
        assert page.locator(f"#{active}").get_attribute("aria-rowindex") == "3"
        page.locator("#grid").focus()
        page.keyboard.press("Escape")
        assert page.locator("#detail").is_hidden()


def test_of_ten_thousand_operators_only_what_is_visible_is_drawn(
    page: Any, watched: RunningDaemon, write_library: WriteLibrary
):
    source = (
        'from opdispatch import Library\nlib = Library("many", "DEF")\n'
        'for n in range(10_000):\n    lib.define(f"f{n:05}(float x) -> float")\n'
    )
    with watched.connect() as session:
        session.load(str(write_library("many", source)))
        expect(page.locator("#count")).to_have_text("10000 of 10000")
        assert 0 < page.locator("#rows .row").count() < 200
        page.reload()
        cells = page.locator("#rows .cell")
        cells.first.wait_for()
        expect(page.locator("#count")).to_have_text("10000 of 10000")
        assert page.locator("*").count() < 2000, "as many elements as with a hundred operators"
        asked = page.evaluate(
            "performance.getEntriesByType('resource').map(each => [each.name, each.transferSize])"
        )
        [whole] = [size for name, size in asked if name.endswith("/api/operators")]
        assert whole < 60 * 10_000, "names and libraries, and nothing else of all operators"
        described = [name for name, _ in asked if "/api/cells" in name]
        assert sum(name.count("operator=") for name in described) < 200, "only visible ones"
        page.locator("#filter").fill("f09999")
        page.locator('[data-operator="many::f09999"]').wait_for()
        assert page.locator("#rows .row").count() == 1


def test_all_columns_of_tables_are_within_the_window(
    page: Any, watched: RunningDaemon, write_library: WriteLibrary
):
    with watched.connect() as session:
        session.load(str(write_library("shapes", SHAPES)))
        busiest = page.locator("#busiest td", has_text="CompositeImplicitAutograd")

        def is_shown() -> bool:
            session.ops.shapes.area(np.ones(2))
            return bool(busiest.count())

        assert wait_for(is_shown)
        page.locator('[data-operator="shapes::area"]').click()
        expect(page.locator("#detail-tables")).to_contain_text("math kernel")
        right = page.evaluate(
            "Math.max(...[...document.querySelectorAll('td')]"
            ".map((each) => each.getBoundingClientRect().right))"
        )
        assert right <= page.viewport_size["width"]


def test_deaths_and_their_reasons_are_shown(page: Any, watched: RunningDaemon):
    watched.expects_errors = True
    with watched.connect() as session:
        victim = session.interpreters()[0]
        os.kill(victim.pid, signal.SIGKILL)
        page.locator("#deaths td", has_text=victim.name).wait_for()
        assert "killed" in page.locator("#deaths").inner_text()


def test_an_operator_is_called_with_numbers_and_with_a_picture(
    page: Any, watched: RunningDaemon, write_library: WriteLibrary
):
    with watched.connect() as session:
        session.load(str(write_library("shapes", SHAPES)))
    page.locator('[data-operator="shapes::area"]').click()
    page.get_by_label("x: Tensor", exact=True).fill("[2, 3]")
    page.get_by_label("Token").fill(secret_of(watched))
    page.get_by_role("button", name="Call").click()
    result = page.locator("#call-result")
    expect(result).to_contain_text("[4 9]")
    picture = page.evaluate(
        "async () => { const c = new OffscreenCanvas(16, 12); const p = c.getContext('2d');"
        " p.fillStyle = 'rgb(3, 2, 1)'; p.fillRect(0, 0, 16, 12);"
        " const b = await c.convertToBlob(); return [...new Uint8Array(await b.arrayBuffer())]; }"
    )
    page.get_by_label("a picture for x").set_input_files(
        {"name": "a.png", "mimeType": "image/png", "buffer": bytes(picture)}
    )
    page.get_by_role("button", name="Call").click()
    expect(result).to_contain_text("uint8 [12, 16, 3]")
    canvas = result.get_by_role("img", name="the result as a picture")
    pixel = canvas.evaluate("c => [...c.getContext('2d').getImageData(5, 5, 1, 1).data]")
    assert pixel == [9, 4, 1, 255]


def test_a_call_that_fails_says_why_as_text(
    page: Any, watched: RunningDaemon, write_library: WriteLibrary
):
    watched.expects_errors = True
    source = SHAPES.replace("return x * x", "raise ValueError('<img src=x>')")
    with watched.connect() as session:
        session.load(str(write_library("shapes", source)))
    page.locator('[data-operator="shapes::area"]').click()
    page.get_by_label("Token").fill(secret_of(watched))
    page.get_by_label("x: Tensor", exact=True).fill("{")
    page.get_by_role("button", name="Call").click()
    expect(page.locator("#call-result")).to_contain_text("x is no JSON")
    page.get_by_label("x: Tensor", exact=True).fill("[1]")
    with page.expect_response("**/api/call"):
        page.get_by_role("button", name="Call").click()
    expect(page.locator("#call-result")).to_contain_text("<img src=x>")
    assert page.locator("img").count() == 0


HOSTILE = """\
from opdispatch import Library

lib = Library("hostile", "DEF")
lib.define("f(Tensor x) -> Tensor")


def f(x):
    \"\"\"</pre><script>document.title = 'broken'</script>\\x1b[2J\\u202e\"\"\"
    raise ValueError("<script>document.title = 'broken'</script>\\x1b[2J")


lib.impl("f", f, "CPU")
"""


def test_markup_and_control_characters_are_shown_nowhere_as_such(
    page: Any, watched: RunningDaemon, write_library: WriteLibrary
):
    watched.expects_errors = True
    with watched.connect() as session:
        session.load(str(write_library("hostile", HOSTILE)))
        with pytest.raises(oc.KernelError):
            session.ops.hostile.f(np.ones(1))
        page.locator('[data-operator="hostile::f"]').click()
        expect(page.locator("#detail-documentation")).to_contain_text("</pre><script>")
        with pytest.raises(oc.LibraryLoadError, match="<script>"):
            session.load(str(write_library("broken", "raise OSError('<script>\\x1b[2J')")))
        scrape(watched.url)
    assert page.title() == "opdispatch"
    assert page.locator("script").count() == 1


def test_a_page_that_sleeps_gets_the_latest_state_when_it_wakes(
    watched: RunningDaemon, write_library: WriteLibrary
):
    """It reads nothing meanwhile: its socket takes no more, and nothing is kept for it."""
    with event_stream(watched.url) as events, watched.connect() as session:
        next(events)
        path = write_library("shapes", SHAPES)
        for _ in range(10):
            session.load(str(path))
            session.unload("shapes")
        session.load(str(path))
        epoch = session.refresh_server_info().epoch
        seen = [0]
        while seen[-1] < epoch:
            seen.append(next(int(value) for kind, value in events if kind == "epoch"))
        assert seen == sorted(seen)
        assert seen[-1] == epoch


def test_the_page_says_it_when_the_daemon_does_not_answer(page: Any, watched: RunningDaemon):
    assert watched.stop() == 0
    expect(page.locator("#status")).to_contain_text("does not answer")


def test_any_number_of_browser_tabs_stay_live(
    browser: Any, watched: RunningDaemon, write_library: WriteLibrary
):
    """A browser makes six connections to an address, and the events of a page are one."""
    with contextlib.closing(browser.new_context()) as context, watched.connect() as session:
        pages = [context.new_page() for _ in range(8)]
        for page in pages:
            page.set_default_timeout(MILLISECONDS)
            page.goto(watched.url)
            expect(page.locator("#status")).to_contain_text("serving;")
        session.load(str(write_library("shapes", SHAPES)))
        for page in pages:
            page.locator('[data-operator="shapes::area"]').wait_for()
        pages[0].close()  # which has read the events for all of them
        session.unload("shapes")
        for page in pages[1:]:
            page.locator('[data-operator="shapes::area"]').wait_for(state="detached")


def test_colours_follow_the_browser(browser: Any, watched: RunningDaemon):
    colours = {}
    for scheme in ("light", "dark"):
        with contextlib.closing(browser.new_context(color_scheme=scheme)) as context:
            page = context.new_page()
            page.goto(watched.url)
            page.locator(".cell.exact").first.wait_for()
            colours[scheme] = page.locator(".cell.exact").first.evaluate(
                "each => getComputedStyle(each).backgroundColor"
            )
    assert colours["light"] != colours["dark"]


def test_a_screen_reader_finds_its_way(
    page: Any, watched: RunningDaemon, write_library: WriteLibrary
):
    with watched.connect() as session:
        session.load(str(write_library("shapes", SHAPES)))
        grid = page.get_by_role("grid", name="Operators")
        grid.get_by_role("row").nth(2).wait_for()
        assert grid.get_by_role("columnheader").first.inner_text() == "operator"
        names = grid.get_by_role("rowheader").all_inner_texts()
        assert names == ["shapes::area", "shapes::edge"]
        cell = grid.get_by_role("gridcell", name="CPU: math kernel").first
        expect(cell).to_have_text("C")
        page.get_by_role("searchbox", name="Filter").fill("edge")
        expect(grid).to_have_attribute("aria-rowcount", "2")
        for heading in ("Interpreters", "Libraries", "Busiest calls", "Recent deaths"):
            assert page.get_by_role("heading", name=heading).count() == 1
