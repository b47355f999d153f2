"""Limits and defaults, each named once; the unit is the last word of a name."""

from __future__ import annotations

from pravega_spark.units import KIB, MIB

MAX_EVENT_BYTES = 8 * MIB
MAX_ATOMIC_WRITE_BYTES = 2 * (MAX_EVENT_BYTES + 8)
MAX_SEGMENTS = 10_000

WRITER_BUFFER_BYTES = 64 * MIB
WRITER_BATCH_BYTES = 32 * MIB
WRITER_BATCH_EVENTS = 262_144
WRITER_EVENT_BYTES = 16
"""What a writer's buffer counts for an event besides its bytes, so that empty ones are bounded."""
WRITER_EXIT_SECONDS = 10.0
"""A process that ends waits at most so long for what its open writers have not committed."""
MAX_NOTE_LENGTH = 64 * KIB

CHUNK_BYTES = 64 * MIB
"""Most bytes of payload in one chunk; larger batches become several chunks of one commit."""
CHUNK_EVENTS = 1_000_000
ROW_GROUP_EVENTS = 131_072
ROW_GROUP_BYTES = 16 * MIB
COMPRESSION = "zstd"

STORAGE_THREADS = 8
"""So many chunks of one batch are written at once: their waits for the disk overlap."""

COPY_PAGE_FILES = 256
COPY_PAGE_BYTES = 64 << 20
"""A backup holds at most so many files, or so many bytes of them and one file, at a time."""
KEEP_PIN = "7 days"
"""A backup that dies keeps what it was copying from being swept for so long."""

RECENT_FILES = 4_096
"""An open log forgets the list of its newest files, and reads it anew, after about so many."""

DECODED_TEXT = 8 * 1024 * 1024
"""A process keeps the records of one kind that it read, made from so many characters of JSON."""

STATE_FILE_COMMITS = 256
"""A light state file is written about every so many commits."""
CHECKPOINT_COMMITS = 1_024
"""The first checkpoint; later ones at geometrically growing distances."""
CHECKPOINT_GROWTH = 8
"""A checkpoint when the commits since the last reach the number of files divided by this."""

MIN_LEASE_MS, MAX_LEASE_MS = 10_000, 600_000
"""Bounds of a transaction's lease, as in Pravega."""
DEFAULT_LEASE = "60 s"
MAX_EXECUTION_LEASES = 1_000
MAX_EXECUTION_MS = 86_400_000
"""A transaction ends after so many leases, or after a day, whatever is less, unless told."""
PREPARED_LIMIT = "7 days"
"""A prepared transaction is aborted when nobody has decided it for so long."""
KEEP_COMPLETED = "24 hours"
"""How long the outcome of a transaction can be asked for, as in Pravega."""
TRANSACTION_SWEEP_SECONDS = 30.0
"""A writer looks for abandoned transactions of others at most this often."""

COMMIT_ATTEMPTS = 10_000
COMMIT_DEADLINE_SECONDS = 60.0
STALE_SNAPSHOT_SECONDS = 1_800.0
"""After so long since the head was last seen, a commit looks whether its log was cleaned."""
CLEANUP_WAIT_SECONDS = 3_600.0
"""Elapsed time between the commit of a clean-up mark and the first deletion below it."""

CLOCK_FAR_MS = 5_000
"""So far from the storage's clock a host's clock is wrong: dates are rounded to a second."""
CLOCK_STEP_MS = 60_000
"""A larger step of the clock within one start of the machine is not followed."""
MAX_CLOCK_JUMP = "7 days"
"""So far the clock may have gone since it was last believed, where no boot clock explains it."""
CLOCK_RECORD_MS = 60_000
"""How often a root's clock record is renewed at most."""

RATES_COMMITS = 65_536
"""A decision on scaling reads at most about so many commits of a stream's log."""
SPLIT_SAMPLE_EVENTS = 65_536
"""Newest events of a segment whose keys a split by keys looks at."""
MIN_COOLDOWN_MS = 1_000
"""A shorter cool-down of automatic scaling is no pace: ticks would be shorter than commits."""
SAMPLE_FREQUENCY = "30 minutes"
"""The retention set gets an entry when the newest one is older, as in Pravega."""
MAX_SAMPLES = 2_000
"""So many entries the retention set has; then every second one of its older half goes."""
RETENTION_ATTEMPTS = 10
"""So often a run of retention decides anew because subscribers or the head moved meanwhile."""
STREAM_LIMIT = "10 minutes"
"""A stream on which the job of retention works for longer fails, and the others go on."""
STREAMS_OF_TASK = 50
"""Streams that one task of a job works on, one after the other."""

POLL_LOCAL_SECONDS = (0.001, 0.050)
POLL_REMOTE_SECONDS = (0.250, 2.0)
"""Shortest and longest pause between two looks for new commits while following a tail."""
POLL_IDLE_SHARE = 0.125
"""In between, the pause is this part of the time since the last news: so late it is at most."""

DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
