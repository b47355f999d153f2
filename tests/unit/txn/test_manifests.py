from __future__ import annotations

from collections.abc import Sequence

import pytest

from pravega_spark.engine.chunk_paths import chunk_folder
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.errors import CommitUnknown, StoreError
from pravega_spark.txn.manifests import (
    Manifest,
    ManifestKind,
    Manifests,
    not_in,
    read_new,
    transaction_folder,
)
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.small_streams import reopen
from tests.harness.transaction_world import World

ID = "00000000token"


@pytest.fixture
def world() -> World:
    return World()


def chunk(path: str, rows: int = 1) -> StagedChunk:
    return StagedChunk(path, 0, rows, 10, rows, 0, 0, 0)


def put(
    manifests: Manifests, *paths: str, kind: ManifestKind = ManifestKind.WRITE
) -> Manifest | None:
    return manifests.append(lambda entries: Manifest(kind, tuple(map(chunk, paths))))


def test_keys_are_numbered_in_the_folder_of_the_transaction(world: World) -> None:
    manifests = Manifests(world.stream, ID)
    put(manifests, "a")
    put(manifests, "b")
    names = [entry.key for entry in world.store.list("s/t/transactions")]
    assert names == [f"s/t/transactions/{ID}/0000000{n}.json" for n in range(2)]
    assert transaction_folder(world.stream, ID) == f"s/t/transactions/{ID}"
    assert chunk_folder(ID) == f"t-{ID}"


def test_processes_append_in_turn_and_read_each_others_manifests(world: World) -> None:
    one, two = Manifests(world.stream, ID), Manifests(world.process(), ID)
    put(one, "a")
    put(two, "b")
    put(one, "c")
    assert [c.path for c in one.chunks] == ["a", "b", "c"]
    assert [c.path for c in two.chunks] == ["a", "b"]
    two.read()
    assert two.entries == one.entries
    assert len({entry.token for entry in one.entries}) == 3


def test_loser_of_a_race_proposes_again_on_the_winners_manifest(world: World) -> None:
    late = Manifests(world.process(), ID)
    put(Manifests(world.stream, ID), "a", kind=ManifestKind.COMMITTING)
    seen: list[int] = []

    def propose(entries: Sequence[Manifest]) -> Manifest | None:
        seen.append(len(entries))
        return None if entries else Manifest(ManifestKind.ABORTING)

    assert late.append(propose) is None
    assert seen == [0, 1]
    assert late.is_closed


@pytest.mark.parametrize(
    "fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.RESEND, Fault.DELAY]
)
def test_put_with_a_lost_answer_is_one_manifest(world: World, fault: Fault) -> None:
    world.store.rules.add(Rule(fault, "put_if_absent", nth=1))
    manifests = Manifests(world.stream, ID)
    assert put(manifests, "a") is not None
    world.store.deliver()
    assert put(manifests, "b") is not None
    other = Manifests(world.process(), ID)
    assert [c.path for entry in other.read() for c in entry.chunks] == ["a", "b"]


def test_unknown_outcome_of_a_manifest_asks_to_call_again(world: World) -> None:
    world.store.rules.add(
        Rule(Fault.DELAY, "put_if_absent"), Rule(StoreError("down"), "get", "*/transactions/*")
    )
    manifests = Manifests(world.stream, ID)
    with pytest.raises(
        CommitUnknown, match=f"manifest 0 of transaction {ID} of stream s/t was written; call again"
    ):
        put(manifests, "a")
    assert manifests.entries == []


def test_refused_proposal_puts_nothing(world: World) -> None:
    world.store.rules.add(Rule(Fault.REFUSE, "put_if_absent"))
    with pytest.raises(StoreError):
        put(Manifests(world.stream, ID), "a")
    assert world.store.inner.list("s/t/transactions") == []


def test_nothing_is_read_after_a_closing_manifest_or_a_gap(world: World) -> None:
    manifests = Manifests(world.stream, ID)
    for n in range(5):
        put(manifests, f"c{n}")
    put(manifests, kind=ManifestKind.COMMITTING)
    stray = Manifest(ManifestKind.WRITE, (chunk("stray"),), token="x").encode()
    world.store.put(manifests.key(6), stray)
    assert [len(Manifests(world.process(), ID).read())] == [6]
    world.store.inner.delete([manifests.key(2)])
    other = Manifests(world.process(), ID)
    assert len(other.read()) == 2
    assert not other.is_closed


def test_many_manifests_of_many_transactions_are_read_in_few_rounds(
    world: World,
) -> None:
    counts = {f"0000000{n}token": size for n, size in enumerate((0, 1, 40, 200))}
    for name, size in counts.items():
        manifests = Manifests(world.stream, name)
        for n in range(size):
            put(manifests, f"{n}")
    rounds = 0
    stream = reopen(world.stream)
    several = [Manifests(stream, name) for name in counts]
    inner = world.store.inner.get_many

    def counted(keys: Sequence[str]) -> list[bytes | None]:
        nonlocal rounds
        rounds += 1
        return inner(keys)

    world.store.inner.get_many = counted  # type: ignore[method-assign]
    read_new(several)
    assert [len(manifests.entries) for manifests in several] == list(counts.values())
    assert rounds <= 10
    rounds = 0
    read_new(several)
    assert rounds == 1


def test_new_entries_are_made_durable_and_known_ones_are_not_read_again(world: World) -> None:
    put(Manifests(world.process(), ID), "a")
    manifests = Manifests(world.stream, ID)
    manifests.read()
    assert world.store.count("make_durable", ID) == 1
    manifests.read()
    assert world.store.count("make_durable", ID) == 1
    assert manifests.append(lambda entries: None) is None
    assert world.store.count("make_durable", ID) == 2


def test_status_follows_from_the_last_entries() -> None:
    manifests = Manifests(World().stream, ID)
    found = []
    for kind in (ManifestKind.WRITE, ManifestKind.PREPARED, ManifestKind.COMMITTING):
        found.append((manifests.last, manifests.is_prepared, manifests.is_closed))
        put(manifests, kind=kind)
    found.append((manifests.last, manifests.is_prepared, manifests.is_closed))
    assert found == [
        (ManifestKind.WRITE, False, False),
        (ManifestKind.WRITE, False, False),
        (ManifestKind.PREPARED, True, False),
        (ManifestKind.COMMITTING, True, True),
    ]


def test_copy_is_independent(world: World) -> None:
    manifests = Manifests(world.stream, ID)
    put(manifests, "a")
    other = manifests.copy()
    put(other, "b")
    assert (len(manifests.entries), len(other.entries)) == (1, 2)


def test_not_in_returns_the_chunks_that_no_entry_names() -> None:
    entries = [Manifest(ManifestKind.WRITE, (chunk("a"), chunk("b")))]
    assert not_in(entries, [chunk("b"), chunk("c")]) == [chunk("c")]
