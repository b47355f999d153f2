"""What the lines of a history must hold: each operation's arguments, and its answer.

The checkers take both for granted, since our own recorder writes them. A history that somebody
else has written or changed is looked at here first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.sim.recorded import BadHistory, Recorded

Shape = Callable[[Any], bool]


def check(calls: Sequence[Recorded]) -> None:
    """Raise BadHistory for the first call that no checker could read; the message has its line."""
    for call in calls:
        known = OPERATIONS.get(call.operation)
        if known is None:
            raise BadHistory(f"line {call.began}: no operation is called {call.operation!r}")
        arguments, answer = known
        if not isinstance(call.arguments, Mapping):
            raise BadHistory(f"line {call.began}: the arguments are no object")
        for name, shape in arguments.items():
            if name not in call.arguments:
                raise BadHistory(f"line {call.began}: {call.operation} lacks the argument {name!r}")
            if not shape(call.arguments[name]):
                raise BadHistory(
                    f"line {call.began}: {call.operation} cannot have "
                    f"{name!r} {_shown(call.arguments[name])}"
                )
        if call.ok and not (answer(call.value) and _as_many(call)):
            raise BadHistory(
                f"line {call.ended}: {call.operation} cannot have the value {_shown(call.value)}"
            )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _as_many(call: Recorded) -> bool:
    """Return whether there is an answer for each thing that was asked for."""
    asked = _ANSWERED_EACH.get(call.operation)
    return asked is None or len(call.value) == len(call.arguments[asked])


_ANSWERED_EACH = {"write": "events", "write_if": "events", "update": "changes", "get": "keys"}


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _anything(value: Any) -> bool:
    return True


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _maybe(shape: Shape) -> Shape:
    return lambda value: value is None or shape(value)


def _list(shape: Shape) -> Shape:
    return lambda value: isinstance(value, list) and all(map(shape, value))


def _tuple(*shapes: Shape) -> Shape:
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(shapes)
        and all(shape(one) for shape, one in zip(shapes, value, strict=True))
    )


def _object(**shapes: Shape) -> Shape:
    return lambda value: (
        isinstance(value, dict)
        and all(name in value and shape(value[name]) for name, shape in shapes.items())
    )


def _map(shape: Shape) -> Shape:
    return lambda value: isinstance(value, dict) and all(map(shape, value.values()))


def _segment(value: Any) -> bool:
    return _text(value) or _number(value)


def _real(value: Any) -> bool:
    return _number(value) or isinstance(value, float)


_POSITION = _tuple(_segment, _number)
_CUT = _map(_number)
_CUTS = _map(_CUT)
_PAIRS = _list(_tuple(_maybe(_text), _text))
_EVENTS = _list(_tuple(_segment, _number, _maybe(_text), _text))
_STREAM: dict[str, Shape] = {"stream": _text}
_COPY: dict[str, Shape] = {"copy": _text}
_TRANSACTION: dict[str, Shape] = {"transaction": _text}
_GROUP: dict[str, Shape] = {"group": _text}
_READER: dict[str, Shape] = {**_GROUP, "reader": _text}
_TABLE: dict[str, Shape] = {"table": _text}
_STATE: dict[str, Shape] = {"state": _text}
_WRITE: dict[str, Shape] = {**_STREAM, "writer": _text, "events": _PAIRS}
_ENTRY = _tuple(_anything, _POSITION)
_UPDATES = _list(_text)


def _expected(value: Any) -> bool:
    shapes = {"position": _POSITION, "cut": _CUT, "number": _number}
    return (
        isinstance(value, dict)
        and len(value) == 1
        and all(name in shapes and shapes[name](one) for name, one in value.items())
    )


def _handed(value: Any) -> bool:
    event = _object(stream=_text, position=_POSITION, event=_text)
    return event(value) or _object(checkpoint=_text)(value)


OPERATIONS: dict[str, tuple[dict[str, Shape], Shape]] = {
    "write": (_WRITE, _list(_POSITION)),
    "write_if": ({**_WRITE, "expected": _expected}, _list(_POSITION)),
    "open_writer": ({**_STREAM, "writer": _text}, _number),
    "read": (_STREAM, _object(**{"from": _CUT}, to=_CUT, events=_EVENTS)),
    "layout": (_STREAM, _map(_list(_segment))),
    "scale": (_STREAM, _anything),
    "segments": (_STREAM, _list(_tuple(_real, _real))),
    "keep_version": ({**_STREAM, "version": _number}, _anything),
    "autoscale": ({**_STREAM, "minimum": _number}, _maybe(_number)),
    "seal": (_STREAM, _anything),
    "backup": (_COPY, _anything),
    "restore": (_COPY, _anything),
    "live_on": (_COPY, _anything),
    "read_copy": ({**_COPY, **_STREAM}, _object(**{"from": _CUT}, events=_EVENTS)),
    "truncate": ({**_STREAM, "cut": _CUT}, _maybe(_CUT)),
    "retain": (_STREAM, _maybe(_CUT)),
    "subscribe": ({**_STREAM, "subscriber": _text}, _anything),
    "release": ({**_STREAM, "subscriber": _text, "cut": _CUT}, _anything),
    "unsubscribe": ({**_STREAM, "subscriber": _text}, _anything),
    "stage": ({**_TRANSACTION, "streams": _map(_PAIRS)}, _anything),
    "commit": (_TRANSACTION, _anything),
    "abort": (_TRANSACTION, _anything),
    "settle": ({}, _anything),
    "create_group": ({**_GROUP, "streams": _CUTS}, _anything),
    "join": ({**_READER, "acknowledge": _text, "streams": _list(_text)}, _anything),
    "next": (_READER, _maybe(_handed)),
    "leave": (_READER, _anything),
    "expire": (_READER, _anything),
    "drain": (_GROUP, _anything),
    "checkpoint": ({**_GROUP, "name": _text}, _CUTS),
    "stream_cuts": (_GROUP, _CUTS),
    "reset": ({**_GROUP, "to": _CUTS}, _maybe(_number)),
    "update": ({**_TABLE, "changes": _list(_object(key=_text, value=_anything))}, _list(_POSITION)),
    "get": ({**_TABLE, "keys": _list(_text), "fresh": _flag}, _list(_maybe(_ENTRY))),
    "scan": (_TABLE, _map(_ENTRY)),
    "fence": ({**_STREAM, "token": _text}, _anything),
    "fencing_token": (_STREAM, _maybe(_text)),
    "update_state": ({**_STATE, "update": _text}, _UPDATES),
    "fetch_updates": (_STATE, _UPDATES),
    "note_time": ({**_STREAM, "writer": _text, "time": _number}, _anything),
    "forget": ({**_STREAM, "writer": _text}, _anything),
    "watermark": (_STREAM, _maybe(_object(lower=_number, upper=_number, cut=_CUT))),
    "delete_stream": (_STREAM, _anything),
    "write_bytes": ({**_STREAM, "writer": _text, "text": _text}, _anything),
    "read_bytes": (_STREAM, _object(**{"from": _number}, text=_text)),
    "truncate_bytes": ({**_STREAM, "before": _number}, _anything),
    "find_damage": ({}, _anything),
    **{
        name: ({}, _anything)
        for name in (
            *("compact", "sweep", "sweep_scope", "maintain", "update_settings", "update_stream"),
            *("update_group", "update_table", "update_watermark", "delete_table"),
            *("create", "sweep_transactions", "cancel_checkpoints"),
        )
    },
}
"""Of each operation the arguments that it must have, and its answer when it is ok."""
