"""The files of the page: they are in the package, ask nobody else, and make no markup of data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import TopologicalSorter

import pytest
from starlette.testclient import TestClient

from pravega_spark.serve.page_files import FOLDER
from tests.harness.web_world import TOKEN, new_manager, web_client

FILES = sorted(path.name for path in FOLDER.iterdir())
SCRIPTS = [name for name in FILES if name.endswith(".js")]
TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg+xml"}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with web_client(new_manager()) as opened:
        yield opened


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/streams", "/streams/nyc/f", "/streams/a/b?q=1", "/api/docs"),
        *("/groups", "/groups/nyc/g", "/tables", "/tables/nyc/t", "/streams/nyc/f/events"),
    ],
)
def test_every_address_of_the_page_is_a_deep_link(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.text) == (200, (FOLDER / "index.html").read_text())


@pytest.mark.parametrize("path", ["/x", "/streams/nyc", "/streams/a/b/c", "/favicon.ico"])
def test_an_unknown_address_is_404_with_the_page_for_a_browser_and_json_for_a_program(
    client: TestClient, path: str
) -> None:
    shown = client.get(path, headers={"Accept": "text/html,*/*;q=0.8"})
    assert (shown.status_code, shown.text) == (404, (FOLDER / "index.html").read_text())
    assert client.get(path).json()["error"]["type"] == "HTTPError"
    assert client.post(path, headers={"Accept": "text/html"}).status_code != 200


@pytest.mark.parametrize("path", ["/api/x", "/v1/x", "/v1/scopes/none", "/static/x.js"])
def test_an_address_of_data_that_is_none_is_json_for_a_browser_too(
    client: TestClient, path: str
) -> None:
    answer = client.get(path, headers={"Accept": "text/html"})
    assert (answer.status_code, list(answer.json())) == (404, ["error"])


def test_an_unknown_address_is_404_without_the_token_too() -> None:
    with web_client(new_manager(), token=TOKEN) as client:
        assert client.get("/x", headers={"Accept": "text/html"}).status_code == 404
        assert client.get("/api/x", headers={"Accept": "text/html"}).status_code == 401


def test_scripts_import_each_other_without_a_circle() -> None:
    imports = re.compile(r"""(?:^import\s|\sfrom\s|\bimport\()[^"']*["']\./([\w.]+)["']""", re.M)
    graph = {name: set(imports.findall((FOLDER / name).read_text())) for name in SCRIPTS}
    assert graph["app.js"] >= {"dom.js", "stream_view.js"}
    assert set().union(*graph.values()) <= graph.keys()
    TopologicalSorter(graph).prepare()  # raises CycleError, which shows a circle


@pytest.mark.parametrize("name", FILES)
def test_files_are_served_with_their_type_and_are_asked_for_again(
    client: TestClient, name: str
) -> None:
    answer = client.get(f"/static/{name}")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith(TYPES[name.rpartition(".")[2]])
    assert answer.headers["Cache-Control"] == "no-cache"
    same = client.get(f"/static/{name}", headers={"If-None-Match": answer.headers["ETag"]})
    assert same.status_code == 304


@pytest.mark.parametrize("path", ["/static/../web_app.py", "/static/%2e%2e/web_app.py", "/x"])
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("name", FILES)
def test_no_file_names_another_host(name: str) -> None:
    urls = re.findall(r"https?://[^\s\"'`)]+", (FOLDER / name).read_text())
    assert set(urls) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_can_make_markup_or_code_of_a_text(name: str) -> None:
    text = (FOLDER / name).read_text()
    forbidden = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(")
    found = [word for word in (*forbidden, "new Function", "javascript:") if word in text]
    assert found == []


def test_the_document_has_no_inline_script_or_style() -> None:
    text = (FOLDER / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son[a-z]+=", text) == []


def test_the_page_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 160_000
