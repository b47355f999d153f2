"""The page: files of this package, and the same document for every address of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

FOLDER: Final = Path(__file__).parent / "page"
_REVALIDATED: Final = {"Cache-Control": "no-cache"}
_PAGES: Final = (
    "/",
    "/streams",
    "/streams/{scope}/{stream}",
    "/streams/{scope}/{stream}/events",
    "/groups",
    "/groups/{scope}/{group}",
    "/tables",
    "/tables/{scope}/{table}",
    "/api/docs",
)
"""The addresses of the page, which are deep links."""
_DATA_FOLDERS: Final = ("/api/", "/metrics", "/ping", "/static/", "/v1/")
"""Below them every answer is for a program, also that there is nothing."""


class PageFiles(StaticFiles):
    """Static files that browsers ask for again, so that an upgrade shows at once."""

    def file_response(self, *args: object, **options: object) -> FileResponse:
        """Return a file, or that it has not changed."""
        response = super().file_response(*args, **options)  # type: ignore[arg-type]
        response.headers.update(_REVALIDATED)
        return response  # type: ignore[return-value]


def page(status: int = 200) -> FileResponse:
    """Return the document of the page, which asks for its data itself."""
    return FileResponse(FOLDER / "index.html", status, headers=_REVALIDATED)


def is_for_people(request: Request) -> bool:
    """Return whether an address that is none was opened in a browser, and not by a program."""
    return (
        request.method in ("GET", "HEAD")
        and not request.url.path.startswith(_DATA_FOLDERS)
        and "text/html" in request.headers.get("accept", "")
    )


def add_page(app: Starlette) -> None:
    """Add the page and its files to an application."""

    async def found(request: Request) -> FileResponse:
        return page()

    for path in _PAGES:
        app.router.routes.append(Route(path, found))
    app.mount("/static", PageFiles(directory=FOLDER), name="static")
