"""The page at ``/``, and the routes that it requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from opdispatch.errors import OpdispatchError
from opdispatch_server.daemon.monitoring.facts import DaemonReader
from opdispatch_server.daemon.monitoring.grid import OperatorGrid
from opdispatch_server.daemon.monitoring.live import LiveEvents
from opdispatch_server.daemon.servicers.registry_feed import RegistrySnapshot
from opdispatch_server.metrics.call_table import Counts
from opdispatch_wire.v1 import registry_pb2 as pb

PAGE_FILES = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
    "/page.svg": ("page.svg", "image/svg+xml"),
}
_LONGEST_NAME = 4096
_MOST_BUSY = 12


def page_routes(reader: DaemonReader) -> tuple[list[Route], LiveEvents]:
    """Return the routes of the page, and the events sent to it."""
    grid = OperatorGrid(reader.view)
    live = LiveEvents(reader.loop, lambda: reader.feed.snapshots(), _described)

    async def operators(request: Request) -> Response:
        text = request.query_params.get("since", "")
        epoch = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None
        feed = reader.feed
        if request.query_params.get("instance", feed.instance) != feed.instance:
            epoch = None
        log = await asyncio.to_thread(reader.up_to_date)
        rows = await asyncio.to_thread(grid.since, log, epoch)
        return JSONResponse({"instance": feed.instance, **rows})

    async def cells(request: Request) -> Response:
        names = [name[:_LONGEST_NAME] for name in request.query_params.getlist("operator")]
        return JSONResponse(await asyncio.to_thread(grid.cells, reader.feed.log, names))

    async def operator(request: Request) -> Response:
        name = request.query_params.get("name", "")[:_LONGEST_NAME]
        try:
            found = await asyncio.to_thread(grid.describe, name)
        except OpdispatchError as error:
            return PlainTextResponse(f"{error}\n", 404)
        calls = await asyncio.to_thread(reader.calls)
        found["calls"] = [
            [series.key, series.library, series.version, *_figures(counts)]
            for series, counts in sorted(calls.counts().items())
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


def _described(snapshot: RegistrySnapshot) -> Mapping[str, Any]:
    """Return what the page shows besides the grid."""
    activity = snapshot.activity
    doing = {each.name: each for each in activity.interpreters}
    nothing = pb.InterpreterActivity()
    interpreters = [
        (each, doing.get(name, nothing)) for name, each in snapshot.interpreters.items()
    ]
    seconds = activity.interval
    return {
        "ready": activity.ready,
        "interpreters": [
            {
                "name": each.name,
                "state": each.state,
                "trouble": each.trouble,
                "libraries": list(each.libraries),
                "running": list(now.running),
                "in_flight": now.calls_in_flight,
                "queued": now.calls_queued,
                "restarts": each.restarts,
            }
            for each, now in interpreters
        ],
        "libraries": [
            {
                "name": each.name,
                "version": each.version,
                "state": each.state,
                "trouble": each.error or each.trouble or each.waiting_for,
                "errors": snapshot.kernel_errors[key],
                "operators": len(each.operators),
                "interpreters": list(each.interpreters),
            }
            for key, each in snapshot.libraries.items()
        ],
        "deaths": [
            [each.interpreter, each.cause, each.reason, each.at.ToSeconds(), list(each.running)]
            for each in activity.deaths
        ],
        "busiest": [
            [
                *(each.operator, each.key, each.library, each.version),
                (each.ok + each.failed + each.died) / seconds,
                (each.failed + each.died) / seconds,
                *(each.run_mean, each.run_p99, each.queue_mean),
            ]
            for each in activity.calls[:_MOST_BUSY]
            if seconds
        ],
        "clients": [[each.client, each.calls / seconds] for each in activity.clients if seconds],
        "calls": [activity.since_start.ok, activity.since_start.failed, activity.since_start.died],
    }


def _figures(counts: Counts) -> list[float]:
    """Return the calls that succeeded, failed and were cut off, and mean run and wait seconds."""
    ended = max(counts.ok + counts.failed, 1)
    means = (counts.run_ns / ended / 1e9, counts.queue_ns / ended / 1e9)
    return [counts.ok, counts.failed, counts.died, *means]
