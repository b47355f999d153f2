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
    "/groups",
    "/groups/{scope}/{group}",
    "/tables",
)
"""The addresses of the page, which are deep links."""


class PageFiles(StaticFiles):
    """Static files that browsers ask for again, so that an upgrade shows at once."""

    def file_response(self, *args: object, **options: object) -> FileResponse:
        """Return a file, or that it has not changed."""
        response = super().file_response(*args, **options)  # type: ignore[arg-type]
        response.headers.update(_REVALIDATED)
        return response  # type: ignore[return-value]


def add_page(app: Starlette) -> None:
    """Add the page and its files to an application."""

    async def page(request: Request) -> FileResponse:
        return FileResponse(FOLDER / "index.html", headers=_REVALIDATED)

    async def docs(request: Request) -> FileResponse:
        return FileResponse(FOLDER / "docs.html", headers=_REVALIDATED)

    for path in _PAGES:
        app.router.routes.append(Route(path, page))
    app.router.routes.append(Route("/api/docs", docs))
    app.mount("/static", PageFiles(directory=FOLDER), name="static")
