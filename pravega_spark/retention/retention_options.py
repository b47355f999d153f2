"""The options of a retention run, as numbers and as users write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pravega_spark.arguments import check_flag
from pravega_spark.limits import KEEP_COMPLETED, SAMPLE_FREQUENCY, SWEEP_GRACE, SWEEP_RETAIN
from pravega_spark.units import parse_duration_ms


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    """The options of a run, with times in ms."""

    sample_every_ms: int = parse_duration_ms("the frequency", SAMPLE_FREQUENCY)
    """The least age of the newest sample at which a run takes another one."""
    expire_ms: int | None = None
    """A subscriber that published nothing for this long is removed; None: never."""
    sweep: bool = True
    grace_ms: int = parse_duration_ms("grace", SWEEP_GRACE)
    retain_ms: int = parse_duration_ms("retain", SWEEP_RETAIN)
    completed_ms: int = parse_duration_ms("keep_completed", KEEP_COMPLETED)


DEFAULTS: Final = RetentionOptions()


def parse_options(
    *,
    sample_every: str | float = SAMPLE_FREQUENCY,
    expire: str | float | None = None,
    sweep: bool = True,
    grace: str | float = SWEEP_GRACE,
    retain: str | float = SWEEP_RETAIN,
) -> RetentionOptions:
    """Return the options of a run from durations such as ``"30 min"`` or seconds."""
    return RetentionOptions(
        parse_duration_ms("the frequency of samples", sample_every),
        None if expire is None else parse_duration_ms("the expiry of subscribers", expire),
        check_flag("sweep", sweep),
        parse_duration_ms("grace", grace),
        parse_duration_ms("retain", retain),
    )
