"""All peers, in the order of the table's columns."""

from __future__ import annotations

from collections.abc import Sequence

from bench.peers.delta_rs import DeltaRs
from bench.peers.delta_spark import DeltaSpark
from bench.peers.ducklake import DuckLake
from bench.peers.kafka import Kafka, KafkaSynced
from bench.peers.ours import Ours
from bench.peers.paimon import Paimon
from bench.peers.parquet import PlainParquet
from bench.peers.peer import Peer
from bench.peers.pravega import Pravega

PEERS: Sequence[type[Peer]] = (
    PlainParquet,
    Ours,
    KafkaSynced,
    Kafka,
    DeltaRs,
    DeltaSpark,
    DuckLake,
    Paimon,
    Pravega,
)
