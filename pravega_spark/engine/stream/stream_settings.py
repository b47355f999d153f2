"""The settings that hold for a stream: of a call's flags, its configuration and its root."""

from __future__ import annotations

from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.tables.settings_table import open_settings
from pravega_spark.root_settings import (
    NOTHING_GIVEN,
    EffectiveSettings,
    GivenSettings,
    SettingOrigin,
    SettingSources,
)

logger = own_logger(__name__)


def read_sources(stream: StreamLog, flags: GivenSettings = NOTHING_GIVEN) -> SettingSources:
    """Read the settings of a stream's root: one storage call if nothing changed.

    Raises Damaged if they cannot be read: no default takes their place.
    """
    return SettingSources(open_settings(stream.store, stream.runtime).read(), flags)


def stream_settings(
    stream: StreamLog, view: StreamView, flags: GivenSettings = NOTHING_GIVEN
) -> EffectiveSettings:
    """Return the settings that hold for a stream as of a view."""
    return read_sources(stream, flags).of_stream(view.record.configuration.settings)


def log_flags(what: str, stream: StreamLog, settings: EffectiveSettings) -> None:
    """Log the flags that decide in place of the stream's and the root's settings."""
    flags = settings.given_by(SettingOrigin.FLAG)
    if flags:
        logger.info(
            "%s of stream %s follows the flags %s",
            what,
            stream.name,
            flags,
            extra=log_fields(what, stream.name),
        )
