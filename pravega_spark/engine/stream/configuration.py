"""Updates of a stream's configuration, and the settings that hold for it.

The commit decides: it applies the update to the configuration of its own snapshot. So two updates
of different fields both count, and a caller that expects a version learns of any change since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pravega_spark.config.encryption import EncryptionPolicy
from pravega_spark.config.policies import (
    UNCHANGED,
    RetentionPolicy,
    ScalingPolicy,
    StreamConfiguration,
    Unchanged,
    check_configuration,
)
from pravega_spark.config.policy_texts import scaling_text
from pravega_spark.config.root_settings import (
    NOTHING_GIVEN,
    EffectiveSettings,
    GivenSettings,
    SettingChanges,
    SettingOrigin,
    SettingSources,
    StreamSettings,
    check_stream_settings,
)
from pravega_spark.config.stream_schema import StreamSchema
from pravega_spark.engine.kinds import log_title
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.state.settings_table import open_settings
from pravega_spark.engine.stream.records import StreamRecord
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import ConfigurationConflict, InvalidConfiguration, StreamSealed
from pravega_spark.values.checks import check_whole, shown
from pravega_spark.values.limits import MAX_TAGS
from pravega_spark.values.tags import check_tags


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationUpdate:
    """The fields of a configuration to change; the others stay as the commit finds them.

    Adding a tag that is present, or removing one that is absent, changes nothing.
    """

    scaling: ScalingPolicy | Unchanged = UNCHANGED
    retention: RetentionPolicy | Unchanged | None = UNCHANGED
    add_tags: frozenset[str] = frozenset()
    remove_tags: frozenset[str] = frozenset()
    settings: SettingChanges = field(default_factory=SettingChanges)
    encryption: EncryptionPolicy | Unchanged = UNCHANGED
    schema: StreamSchema | Unchanged | None = UNCHANGED


def checked_update(
    stream: str,
    configuration: StreamConfiguration | None,
    scaling: ScalingPolicy | Unchanged,
    retention: RetentionPolicy | Unchanged | None,
    add_tags: Iterable[str] | None,
    remove_tags: Iterable[str] | None,
    settings: Mapping[str, Any] | None,
    encryption: EncryptionPolicy | Unchanged = UNCHANGED,
    schema: Any = UNCHANGED,
) -> StreamConfiguration | ConfigurationUpdate:
    """Return the arguments of an update; raise InvalidConfiguration unless they are one.

    Raises InvalidSchema for a schema that is none.
    """
    given = {
        "scaling": scaling is not UNCHANGED,
        "retention": retention is not UNCHANGED,
        "add_tags": add_tags is not None,
        "remove_tags": remove_tags is not None,
        "settings": settings is not None,
        "encryption": encryption is not UNCHANGED,
        "schema": schema is not UNCHANGED,
    }
    fields = [name for name, is_given in given.items() if is_given]
    if configuration is not None:
        if fields:
            raise InvalidConfiguration(
                f"the update of stream {stream} gives a whole configuration and also "
                f"{', '.join(fields)}; give one or the other. Nothing was changed."
            )
        return check_configuration(configuration)
    if not fields:
        raise InvalidConfiguration(
            f"the update of stream {stream} names nothing to change: give a StreamConfiguration, "
            f"or some of {', '.join(given)}."
        )
    if not isinstance(scaling, ScalingPolicy | Unchanged):
        raise InvalidConfiguration(
            f"the scaling of stream {stream} must be a ScalingPolicy, got {shown(scaling)}; a "
            "stream always has one."
        )
    if not isinstance(retention, RetentionPolicy | Unchanged | None):
        raise InvalidConfiguration(
            f"the retention of stream {stream} must be a RetentionPolicy, or None to keep "
            f"everything, got {shown(retention)}."
        )
    if not isinstance(encryption, EncryptionPolicy | Unchanged):
        raise InvalidConfiguration(
            f"the encryption of stream {stream} must be an EncryptionPolicy, got "
            f"{shown(encryption)}; an encrypted stream stays so for its life."
        )
    added, removed = tag_changes(f"stream {stream}", add_tags, remove_tags)
    changes = check_stream_settings({} if settings is None else settings)
    columns = schema if schema is UNCHANGED or schema is None else StreamSchema.of(schema)
    return ConfigurationUpdate(
        scaling=scaling,
        retention=retention,
        add_tags=added,
        remove_tags=removed,
        settings=changes,
        encryption=encryption,
        schema=columns,
    )


def tag_changes(
    title: str, add_tags: Iterable[str] | None, remove_tags: Iterable[str] | None
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the tags that an update adds and removes; raise InvalidConfiguration."""
    added = check_tags(() if add_tags is None else add_tags, title=title)
    removed = check_tags(() if remove_tags is None else remove_tags, most=None)
    if added & removed:
        raise InvalidConfiguration(
            f"the update of {title} adds and removes the tag {shown(min(added & removed))}; name "
            "it once. Nothing was changed."
        )
    return added, removed


def check_version(stream: str, expected_version: int | None) -> None:
    """Raise InvalidInput unless the expected version is a version, or None."""
    if expected_version is not None:
        check_whole(
            f"the configuration version that the update of {stream} expects", expected_version
        )


def updated(
    stream: str, present: StreamConfiguration, change: StreamConfiguration | ConfigurationUpdate
) -> StreamConfiguration:
    """Return the configuration after an update of the present one.

    Raises InvalidConfiguration if it would have too many tags, begin or end the encryption, or make
    a raw stream typed or a typed one raw; SchemaChangeRefused for a schema that does not follow the
    present one.
    """
    if not isinstance(change.encryption, Unchanged):
        _check_same_kind(stream, present.encryption, change.encryption)
    schema = present.schema
    if not isinstance(change.schema, Unchanged):
        schema = _evolved(stream, present.schema, change.schema)
    if isinstance(change, StreamConfiguration):
        return replace(change, schema=schema)
    tags = (present.tags - change.remove_tags) | change.add_tags
    if len(tags) > MAX_TAGS:
        raise InvalidConfiguration(
            f"{log_title(stream)} has {len(present.tags)} tags and would have {len(tags)}; at most "
            f"{MAX_TAGS} are allowed. Remove some by remove_tags."
        )
    return replace(
        present,
        scaling=present.scaling if change.scaling is UNCHANGED else change.scaling,
        retention=present.retention if change.retention is UNCHANGED else change.retention,
        tags=tags,
        settings=StreamSettings(change.settings.apply(present.settings)),
        encryption=present.encryption if change.encryption is UNCHANGED else change.encryption,
        schema=schema,
    )


def check_scalable(
    stream: str, present: StreamConfiguration, wanted: StreamConfiguration, *, is_sealed: bool
) -> None:
    """Raise StreamSealed if an update would change the scaling of a sealed stream."""
    if is_sealed and wanted.scaling != present.scaling:
        raise StreamSealed(
            f"stream {stream} is sealed: its scaling policy cannot be updated. Update only the "
            f"retention policy and tags, or give the present one, {scaling_text(present.scaling)}.",
            stream=stream,
        )


def _check_same_kind(
    stream: str, present: EncryptionPolicy | None, wanted: EncryptionPolicy | None
) -> None:
    """Raise InvalidConfiguration if an update would begin or end the encryption.

    Writers that have not seen such an update would go on to store what it forbids.
    """
    if (present is None) == (wanted is None):
        return
    is_encrypted = present is not None
    raise InvalidConfiguration(
        f"stream {stream} is {'encrypted' if is_encrypted else 'not encrypted'}, and stays so for "
        f"its life: give {'its key, or another one' if is_encrypted else 'none'}, or "
        "copy its events to a stream that is created otherwise. Nothing was changed."
    )


def _evolved(
    stream: str, present: StreamSchema | None, wanted: StreamSchema | None
) -> StreamSchema | None:
    """Return the schema after an update; raise SchemaChangeRefused, which names the stream."""
    if present is None or wanted is None:
        if present is wanted:
            return None
        is_typed = present is not None
        raise InvalidConfiguration(
            f"stream {stream} is {'typed' if is_typed else 'raw'}, and stays so for its life: give "
            f"{'its schema, or one with more nullable columns' if is_typed else 'no schema'}, or "
            "copy its events to a stream that is created otherwise. Nothing was changed."
        )
    return present.evolve_to(wanted, f"the schema of stream {stream}")


def check_expected(
    record: StreamRecord, wanted: StreamConfiguration, expected_version: int | None
) -> None:
    """Raise ConfigurationConflict if the configuration is not of the expected version."""
    if expected_version is None or expected_version == record.configuration_version:
        return
    raise ConfigurationConflict(
        f"stream {record.stream} has the configuration of version {record.configuration_version}, "
        f"and the update expects that of version {expected_version}; nothing was changed. "
        f"It has {_difference(record.configuration, wanted)}. Read stream_info, decide on its "
        "configuration, and update with its configuration_version.",
        stream=record.stream,
        expected_version=expected_version,
        current_version=record.configuration_version,
        configuration=record.configuration,
        wanted=wanted,
    )


def _difference(present: StreamConfiguration, wanted: StreamConfiguration) -> str:
    """Return what differs between two configurations, as a list."""
    mine, theirs = wanted.to_json(), present.to_json()
    cells = [
        f"{name} {to_json(theirs.get(name))} (wanted: {to_json(mine.get(name))})"
        for name in {**theirs, **mine}
        if theirs.get(name) != mine.get(name)
    ]
    return ", ".join(cells)


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
    """Log the flags that decide instead of the stream's and the root's settings."""
    flags = settings.given_by(SettingOrigin.FLAG)
    if flags:
        logger.info(
            "%s of stream %s follows the flags %s",
            what,
            stream.name,
            flags,
            extra=log_fields(what, stream.name),
        )
