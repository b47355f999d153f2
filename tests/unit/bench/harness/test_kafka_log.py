from __future__ import annotations

import numpy as np
import pytest

from bench.harness.kafka_log import log_bytes


@pytest.mark.parametrize(("batch_bytes", "expected"), [(16 << 10, 53_275), (1 << 20, 53_300)])
def test_bytes_are_those_of_kafkas_own_record_batches(batch_bytes: int, expected: int) -> None:
    """``expected`` is what MemoryRecordsBuilder of kafka-clients 4.1.0 makes of these records."""
    random = np.random.default_rng(7).bytes(100 * 500)
    records = [(b"key-%d" % i, random[100 * i : 100 * i + 100]) for i in range(500)]
    assert log_bytes(records, batch_bytes) == pytest.approx(expected, rel=1e-3)


def test_an_empty_log_has_no_bytes() -> None:
    assert log_bytes([], 16 << 10) == 0
