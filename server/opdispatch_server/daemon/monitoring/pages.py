"""The page at ``/``, and what it asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from opdispatch.errors import OpdispatchError
from opdispatch_server.daemon.monitoring.facts import DaemonReader, Facts
from opdispatch_server.daemon.monitoring.grid import OperatorGrid
from opdispatch_server.daemon.monitoring.live import LiveEvents
from opdispatch_server.metrics.call_counts import NOTHING, Counts
from opdispatch_wire.errors import DaemonUnavailableError

PAGE_FILES = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
    "/page.svg": ("page.svg", "image/svg+xml"),
}
_LONGEST_NAME = 4096


def page_routes(reader: DaemonReader) -> tuple[list[Route], LiveEvents]:
    """Return the routes of the page, and the events that it is sent."""
    grid = OperatorGrid(reader.view)
    live = LiveEvents(lambda: reader.epoch, lambda: _state(reader))

    async def operators(request: Request) -> Response:
        text = request.query_params.get("since", "")
        epoch = int(text) if text.isdecimal() and len(text) < 20 else -1
        return JSONResponse(await asyncio.to_thread(grid.since, epoch))

    async def cells(request: Request) -> Response:
        names = [name[:_LONGEST_NAME] for name in request.query_params.getlist("operator")]
        return JSONResponse(await asyncio.to_thread(grid.cells, names))

    async def operator(request: Request) -> Response:
        name = request.query_params.get("name", "")[:_LONGEST_NAME]
        try:
            found = await asyncio.to_thread(grid.describe, name)
        except OpdispatchError as error:
            return PlainTextResponse(f"{error}\n", 404)
        calls = await asyncio.to_thread(reader.calls)
        found["calls"] = [
            [series.key, series.library, series.version, *_figures(counts)]
            for series, counts in sorted(calls.items())
            if series.operator == found["name"]
        ]
        return JSONResponse(found)

    async def events(request: Request) -> Response:
        if live.is_full:
            return PlainTextResponse("too many pages are open\n", 503)
        return StreamingResponse(live.events(), media_type="text/event-stream")

    answers = {
        "/api/operators": operators,
        "/api/cells": cells,
        "/api/operator": operator,
        "/events": events,
    }
    routes = [Route(path, answer) for path, answer in answers.items()]
    return [*routes, *(_file(path, *about) for path, about in PAGE_FILES.items())], live


def _file(path: str, name: str, media_type: str) -> Route:
    content = (files(__package__) / "page" / name).read_bytes()

    async def answer(request: Request) -> Response:
        return Response(content, media_type=media_type)

    return Route(path, answer)


def _state(reader: DaemonReader) -> Mapping[str, Any]:
    """Return what the page shows beside the grid; an error where the daemon cannot be read."""
    try:
        return _described(reader.read())
    except DaemonUnavailableError as error:
        return {"error": str(error)}


def _described(facts: Facts) -> Mapping[str, Any]:
    return {
        "ready": facts.is_ready,
        "interpreters": [
            {
                "name": each.name,
                "state": each.state,
                "trouble": each.trouble,
                "libraries": list(each.libraries),
                "running": list(facts.running.get(each.name, ())),
                "in_flight": each.calls_in_flight,
                "queued": each.calls_queued,
                "restarts": each.restarts,
            }
            for each in facts.interpreters
        ],
        "libraries": [
            {
                "name": each.name,
                "version": each.version,
                "state": each.state,
                "trouble": each.error or each.trouble or each.waiting_for,
                "errors": each.kernel_errors,
                "operators": len(each.operators),
                "interpreters": list(each.interpreters),
            }
            for each in facts.libraries
        ],
        "deaths": [
            [each.interpreter, each.cause, each.reason, each.at, list(each.running)]
            for each in facts.recent_deaths
        ],
        "calls": _totals(facts),
    }


def _totals(facts: Facts) -> list[float]:
    return _figures(sum(facts.calls.values(), NOTHING))


def _figures(counts: Counts) -> list[float]:
    """Return calls that went well, failed, were cut off; and mean seconds of runs and of waits."""
    ended = max(counts.ok + counts.failed, 1)
    means = (counts.run_ns / ended / 1e9, counts.queue_ns / ended / 1e9)
    return [counts.ok, counts.failed, counts.died, *means]
