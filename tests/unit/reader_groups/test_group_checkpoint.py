"""A checkpoint as text, and the streams that a publication leaves out."""

from __future__ import annotations

import json

import pytest

from pravega_spark.errors import InvalidInput
from pravega_spark.reader_groups.checkpoint_future import GroupCheckpoint
from pravega_spark.values.segments import StreamCut
from tests.harness.group_world import NAME, World

OTHER, THIRD = "s/u", "s/v"


def test_checkpoint_of_a_text_resets_the_group_as_the_checkpoint_does() -> None:
    world = World(segments=2, names=(NAME, OTHER))
    world.write(6)
    group = world.created()
    with group.create_reader("a") as reader:
        for _ in range(4):
            reader.read_next_event(0)
    made = group.initiate_checkpoint("am Abend, 1/2").result(0)
    text = str(made)
    assert GroupCheckpoint.parse(text) == made
    assert str(GroupCheckpoint.parse(text)) == text
    group.reset(GroupCheckpoint.parse(text))
    assert group.stream_cuts() == made.stream_cuts


CUT = str(StreamCut(NAME, 1, {0: 3}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        CUT,
        '{"checkpoint":"c"}',
        '{"checkpoint":"c","cuts":[]}',
        '{"checkpoint":"c","cuts":["earliest"]}',
        json.dumps({"checkpoint": "", "cuts": [CUT]}),
        json.dumps({"checkpoint": 7, "cuts": [CUT]}),
        json.dumps({"checkpoint": "c", "cuts": [CUT, CUT]}),
        json.dumps({"checkpoint": "c", "cuts": [CUT[:-1]]}),
        '{"checkpoint":"c","cuts":[[]]}',
        "[" * 100_000,
        None,
    ],
)
def test_text_that_is_no_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a checkpoint of a reader group"):
        GroupCheckpoint.parse(text)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [r.getMessage() for r in caplog.records if "has published no cut" in r.getMessage()]
    caplog.clear()
    return found


def test_publication_warns_once_of_a_stream_that_keeps_everything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(names=(NAME, OTHER, THIRD))
    for name in (NAME, OTHER, THIRD):
        world.write(4, name)
    group = world.created(retention="manual")
    group.publish({THIRD: StreamCut(THIRD, 1, {0: 1})})
    assert [m.split()[8] for m in warned(caplog)] == [NAME, OTHER]
    first, second = ({NAME: StreamCut(NAME, 1, {0: n})} for n in (1, 2))
    another = world.group()
    another.publish(first)
    (message,) = warned(caplog)
    assert f"reader group s/g has published no cut of {OTHER} yet" in message
    world.store.calls.clear()
    another.publish(second)
    assert warned(caplog) == []
    assert [key for _, key in world.store.calls if OTHER in key or THIRD in key] == []


def test_publication_that_names_all_streams_asks_none_of_them_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(names=(NAME, OTHER))
    world.write(4)
    group = world.created(retention="manual")
    group.publish({name: world.streams[name].view().tail for name in (NAME, OTHER)})
    assert warned(caplog) == []
