"""Saved cuts of a stream: names for positions, in the stream's own log.

A saved cut holds no data: a truncation passes it, and a read from it then raises TruncatedData. It
is a record of one life of the stream, and a deletion removes it. A subscriber is what holds data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit import Proposal
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS, to_json, typed
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import ConfigMismatch, CorruptLog, IllegalState, NoSuchCut
from pravega_spark.values.limits import MAX_SAVED_CUTS
from pravega_spark.values.names import check_cut
from pravega_spark.values.segments import StreamCut

CUT_PREFIX = "pravega.cut."


@dataclass(frozen=True, slots=True)
class SavedCut:
    """A cut of a stream under a name; ``saved_ms`` is in ms since 1970.

    ``version`` is the version of the log that saved it.
    """

    name: str
    cut: StreamCut
    saved_ms: int
    version: int

    def encode(self) -> str:
        """Return the JSON text; the stream and its life are those of the log."""
        return to_json([self.saved_ms, self.version, [list(cell) for cell in self.cut]])


def decode_cut(view: StreamView, name: str, text: str) -> SavedCut:
    """Read what ``SavedCut.encode`` wrote."""
    try:
        saved_ms, version, cells = json.loads(text)
        positions = {typed(s, int): typed(offset, int) for s, offset in cells}
        cut = StreamCut(view.stream, view.life, positions)
        return SavedCut(name, cut, saved_ms=typed(saved_ms, int), version=typed(version, int))
    except DECODE_ERRORS as error:
        raise CorruptLog(
            f"{view.snapshot.where}: the log holds a damaged saved cut {name}: {error!r}; delete "
            "it, or restore the log from a copy.",
            path=view.snapshot.where,
        ) from error


def saved_cuts(view: StreamView) -> list[SavedCut]:
    """Return the saved cuts, by name."""
    domains = view.snapshot.domains
    found = sorted(view.snapshot.names(CUT_PREFIX))
    return [decode_cut(view, name.removeprefix(CUT_PREFIX), domains[name]) for name in found]


def saved_cut(view: StreamView, name: str) -> SavedCut:
    """Return a saved cut by its name. Raises NoSuchCut, InvalidName."""
    text = view.snapshot.domains.get(f"{CUT_PREFIX}{check_cut(name)}")
    if text is None:
        known = [found.removeprefix(CUT_PREFIX) for found in view.snapshot.names(CUT_PREFIX)]
        others = f"it has {', '.join(sorted(known))}" if known else "it has none"
        raise NoSuchCut(
            f"stream {view.stream} has no saved cut {name}; {others}. Save it first.",
            stream=view.stream,
            name=name,
        )
    return decode_cut(view, name, text)


def save_cut(
    stream: StreamLog, name: str, cut: StreamCut | str, *, replace: bool, life: int
) -> SavedCut:
    """Save a cut under a name in one commit, or return the equal one that is saved already.

    EARLIEST and LATEST are those of the very commit. Raises InvalidStreamCut; TruncatedData below
    the head; ConfigMismatch for a name that has another cut, unless ``replace``; IllegalState for
    too many; InvalidName.
    """
    domain = f"{CUT_PREFIX}{check_cut(name)}"

    def decide(view: StreamView) -> Proposal[SavedCut]:
        wanted = locate(view, cut).readable().cut
        text = view.snapshot.domains.get(domain)
        known = None if text is None else decode_cut(view, name, text)
        if known is not None and known.cut == wanted:
            return None, known
        if known is not None and not replace:
            raise ConfigMismatch(
                f"stream {stream.name} has a saved cut {name} at {known.cut}, not at {wanted}: "
                "choose another name, or replace it."
            )
        if known is None and len(list(view.snapshot.names(CUT_PREFIX))) >= MAX_SAVED_CUTS:
            raise IllegalState(
                f"stream {stream.name} has {MAX_SAVED_CUTS} saved cuts, and no more are allowed: "
                "delete one first."
            )
        made = SavedCut(name, wanted, saved_ms=stream.now_ms(), version=view.version + 1)
        body = Body("SAVE CUT", {"name": name, "cut": str(wanted)}, domains={domain: made.encode()})
        return body, made

    return stream.commit(decide, life=life).value


def delete_cut(stream: StreamLog, name: str, *, life: int) -> bool:
    """Delete a saved cut in one commit; return False if there is none, damaged or not."""
    domain = f"{CUT_PREFIX}{check_cut(name)}"

    def decide(view: StreamView) -> Proposal[bool]:
        if domain not in view.snapshot.domains:
            return None, False
        return Body("DELETE CUT", {"name": name}, domains={domain: None}), True

    return stream.commit(decide, life=life).value
