"""The OpenAPI document: FastAPI's, with the errors and the security that this server really has."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from pydantic import BaseModel

_VERBS: Final = frozenset({"get", "put", "post", "delete"})


class ProblemCause(BaseModel):
    """What went wrong: the class of the error, and a text for people."""

    type: str
    message: str


class ProblemAnswer(BaseModel):
    """Every error has this body."""

    error: ProblemCause


def _answer(description: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{ProblemAnswer.__name__}"}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def describe_errors(app: FastAPI, *, has_token: bool) -> None:
    """Make the document say 400 where FastAPI says 422, and give each error its body."""
    original = app.openapi

    def document() -> dict[str, Any]:
        is_new = app.openapi_schema is None
        found = original()
        if is_new:
            _complete(found, has_token)
        return found

    app.openapi = document  # type: ignore[method-assign]


def _complete(found: dict[str, Any], has_token: bool) -> None:
    components = found["components"]
    schemas = components["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for model in (ProblemAnswer, ProblemCause):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schema.pop("$defs", None)
        schemas[model.__name__] = schema
    if has_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
    for path, verbs in found["paths"].items():
        for verb in _VERBS & verbs.keys():
            _complete_operation(path, verb, verbs[verb], has_token)


def _complete_operation(path: str, verb: str, operation: dict[str, Any], has_token: bool) -> None:
    answers = operation["responses"]
    if answers.pop("422", None) is not None:
        answers["400"] = _answer("Bad input")
    for status, answer in answers.items():
        if status >= "400":
            answers[status] = _answer(answer["description"])
    if verb != "get":
        answers["403"] = _answer("The server is read-only, or the request is of another origin")
    if has_token:
        answers["401"] = _answer("No token, or a wrong one")
    if path != "/ping":
        answers.setdefault("503", _answer("The storage does not answer; try again"))
    operation["responses"] = dict(sorted(answers.items()))
