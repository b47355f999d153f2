"""A schema registry on the loopback: the part of Confluent's REST API that serializers call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import unquote, urlsplit

FIRST_ID = 100_001
Answer = tuple[int, dict[str, Any] | list[Any]]


class Registry:
    """Schemas by id, and the ids of each subject's versions; refuses what ``refuses`` names."""

    def __init__(self) -> None:
        self.url = ""
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.failure: Answer | None = None
        """What each request gets as its answer, if set."""
        self._lock = Lock()

    def answer(self, method: str, path: str, body: dict[str, Any]) -> Answer:
        with self._lock:
            self.requests.append(f"{method} {path}")
            if self.failure is not None:
                return self.failure
            parts = [unquote(part) for part in path.strip("/").split("/")]
            if parts[:2] == ["schemas", "ids"] and method == "GET":
                found = self.schemas.get(int(parts[2]))
                return (200, found) if found else _error(40403, "Schema not found")
            if parts[0] == "subjects" and method == "POST":
                return self._post(parts[1], body, is_new=parts[2:] == ["versions"])
            if parts[0] == "subjects" and parts[2:3] == ["versions"] and method == "GET":
                return self._version(parts[1], parts[3])
            return _error(40400, f"{method} {path}")

    def _post(self, subject: str, body: dict[str, Any], *, is_new: bool) -> Answer:
        known = {json.dumps(given, sort_keys=True): key for key, given in self.schemas.items()}
        number = known.get(json.dumps(body, sort_keys=True))
        if is_new:
            if number is None:
                number = FIRST_ID + len(self.schemas)
                self.schemas[number] = body
            versions = self.subjects.setdefault(subject, [])
            if number not in versions:
                versions.append(number)
            return 200, {"id": number}
        versions = self.subjects.get(subject, [])
        if number not in versions:
            return _error(40403, "Schema not found")
        return 200, self._entry(subject, versions.index(number))

    def _version(self, subject: str, version: str) -> Answer:
        versions = self.subjects.get(subject)
        if not versions:
            return _error(40401, f"Subject '{subject}' not found.")
        return 200, self._entry(subject, -1 if version == "latest" else int(version) - 1)

    def _entry(self, subject: str, index: int) -> dict[str, Any]:
        versions = self.subjects[subject]
        number = versions[index]
        version = range(1, len(versions) + 1)[index]
        return {"subject": subject, "version": version, "id": number, **self.schemas[number]}


def _error(code: int, message: str) -> Answer:
    return code // 100, {"error_code": code, "message": message}


@contextmanager
def running_registry() -> Iterator[Registry]:
    """Serve an empty registry at ``url`` until the block ends."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: dict[str, Any]) -> None:
            status, found = registry.answer(self.command, urlsplit(self.path).path, body)
            payload = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
