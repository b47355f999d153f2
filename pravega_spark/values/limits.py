"""Limits, defaults and tuning values of the system; the unit is the last word of a name.

A duration or a size that users may set is a text, such as ``"7 days"``. Values that matter to one
module only stay in that module.
"""

from __future__ import annotations

from pravega_spark.values.units import KIB, MIB

# Events and segments

MAX_EVENT_BYTES = 8 * MIB
MAX_ATOMIC_WRITE_BYTES = 2 * MAX_EVENT_BYTES
MAX_LARGE_EVENT_BYTES = 1024 * MIB
"""With the option ``large_events``: the payload of a larger event is a separate object."""
MAX_ROUTING_KEY_LENGTH = 64 * KIB
"""In characters. Keys are stored with the events, but are not part of an event's 8 MiB."""
MAX_SEGMENTS = 10_000
MAX_TAGS = 128
MAX_TAG_LENGTH = 256
MAX_NOTE_LENGTH = 64 * KIB
MAX_PRINCIPAL_LENGTH = 256
MAX_KEY_NAME_LENGTH = 256
MAX_FENCING_TOKEN_BYTES = 36

# Writers

WRITER_BUFFER_BYTES = 64 * MIB
WRITER_BATCH_BYTES = 32 * MIB
WRITER_BATCH_EVENTS = 262_144
WRITER_EVENT_BYTES = 16
"""Overhead that a writer's buffer adds to each event, so that empty events are limited, too."""
PREPARE_AHEAD_BYTES = 1 * MIB
"""If this size waits for the next commit, its chunks are stored during the commit before it."""
WRITER_EXIT_SECONDS = 10.0
"""A process that exits waits at most this long for uncommitted events of its open writers."""
WRITER_THREADS = 128
"""Threads that the writers of a process share. An idle writer uses none."""
WRITER_STREAM_THREADS = 32
"""Threads that work for the writers of one stream, so that others go on if it hangs."""
WRITER_STUCK_SECONDS = 0.1
"""If all threads are busy for this long, there is one more."""
MOST_WRITER_THREADS = 512
RESTAGE_VERSIONS = 1_024
"""After this many versions of the log, chunks are staged in the folder of a newer version."""

# Many writers of one stream

OFFER_FOLDER_VERSIONS = 32
"""Chunks that are offered at this many versions of the log share a staging folder."""
OFFER_VERSIONS = 8
"""Offers are listed for this many versions; the process that made an older one commits it."""
OLD_OFFER_VERSIONS = 64
"""How many versions back a process lists offers once its own has waited that long."""
OFFERS_PER_COMMIT = 512
"""Most chunks of other processes in one commit."""
REQUEST_AFTER = 3
"""After this many lost races a verb commits a request for the next version."""
REQUEST_LOCAL_SECONDS, REQUEST_REMOTE_SECONDS = 0.050, 0.5
"""How long all others leave the next version to a requester, on a local disk and elsewhere."""
REQUEST_MOST_SECONDS = 20.0
"""A requester whose decision takes longer asks for twice its time, and for this at most."""

# Time

AUTOMATIC_NOTE_SECONDS = 5.0
"""How often a writer notes the time automatically, as in Pravega."""
AUTOMATIC_NOTE_BACK_MS = 1_000
"""The noted time is this far back, since a write may be interrupted after it took its time."""
EVENT_TIME_NOTE_SECONDS = 1.0
"""The shortest time between two notes of the times of a writer's events, except for flushes."""
TIMESTAMP_AGGREGATION_TIMEOUT = "5 minutes"
"""A writer that notes no time for this long no longer holds the watermark back."""
MAX_WATERMARKS = 256
"""Watermarks in a stream's log before every second one of the older half leaves it."""
RECORD_WATERMARK_SECONDS = 9.5
"""Writers record the watermark with a note about every 10 s, as Pravega computes it; a little less,
so that notes of every 5 s meet it."""
WATERMARKS_INTERVAL = "60 s"
"""How often maintenance records the watermarks of streams with news, and drops silent writers."""

# Byte streams

BLOCK_BYTES = 1 * MIB
"""A byte stream's writer cuts what it is given into events of this many bytes."""
BYTE_BUFFER_BYTES = 64 * MIB

# Chunks

CHUNK_BYTES = 64 * MIB
"""Most bytes of payload in one chunk; a larger batch becomes several chunks of one commit."""
CHUNK_EVENTS = 1_000_000
ROW_GROUP_EVENTS = 131_072
ROW_GROUP_BYTES = 16 * MIB
COMPRESSION = "zstd"
STORAGE_THREADS = 8
"""Storage calls that one operation makes at the same time: their waits overlap."""
OBJECT_CALLS = 16
"""Requests to an object store that one call of many objects makes at the same time."""
OBJECT_HELPERS = 112
"""Threads of a process that help to make such requests, for all of its calls together."""
CHECK_THREADS = 32
"""Streams, groups or tables that one call looks at at the same time on remote storage."""
BACKGROUND_EXIT_SECONDS = 2.0
"""A process that exits waits at most this long for storage calls of its background threads."""
READ_BATCH_EVENTS = 65_536
"""Most events in one Arrow batch of a reader."""
PREFETCH_BYTES = 8 * MIB
PREFETCH_CHUNKS = 64
PREFETCH_CHUNK_BYTES = 1 * MIB
"""Files of at most this size are fetched complete, several in one call."""
CHUNK_CACHE = "64 MiB"
"""What a process keeps of such files of an object store, for all of its readers."""
CHUNK_CACHE_READ_SECONDS = 60.0
"""So long after its last read a stream counts as read, so that its new files are kept."""
READ_AHEAD_PARTS = 2
READ_AHEAD_BYTES = 4 * MIB
"""The parts, and the bytes of events of each, that a merge reads while it writes earlier ones."""

# Large events

LARGE_EVENT_PIECE_BYTES = 1 * MIB
"""A payload is taken from its file and stored in pieces of this size."""
LARGE_EVENT_BLOCK_BYTES = 4 * MIB
"""Each block of a payload has a digest; a read fetches and checks whole blocks."""
LARGE_EVENT_WINDOW_BYTES = 8 * MIB
LARGE_EVENT_READ_AHEAD = 3
"""A read fetches one window at once, and from remote storage this many further ones at a time."""

# Outages of an object store

RETRY_TIMEOUT = "60 s"
"""How long a call is repeated while the storage gives no answer, or asks for fewer calls."""
CONNECT_TIMEOUT, READ_TIMEOUT = "5 s", "15 s"
"""How long one attempt waits for a connection, and for the next bytes of an answer."""
LONGEST_TIMEOUT_MS = 86_400_000
"""The longest of these two that can be given; sockets have a limit, too."""

# Logs and state tables

COMMIT_ATTEMPTS = 10_000
COMMIT_DEADLINE_SECONDS = 60.0
"""A commit whose outcome is unknown for this long raises CommitUnknown; on an object store for so
much longer as its calls are repeated."""
STALE_SNAPSHOT_SECONDS = 1_800.0
"""A commit on a snapshot older than this first checks whether a sweep cleaned the log since."""
CLEANUP_WAIT_SECONDS = 3_600.0
"""Time between the commit of a commit-deletion mark and the first deletion below it."""
STATE_FILE_COMMITS = 256
"""A light state file is written about once in this many commits."""
FAR_COMMITS = 64
"""A follower that has read so many commits in a row looks for a state file that passed the rest."""
KEPT_COMMIT_BYTES = 8 << 20
"""The most bytes of new commits on object stores that a process keeps for the next state files."""
OPENED_COMMITS = 2 * STATE_FILE_COMMITS
"""The most commits that an opening on an object store reads at the same time."""
CHECKPOINT_COMMITS = 1_024
"""Commits between two checkpoints; more for a table of more than 65,536 live files."""
CHECKPOINT_GROWTH = 64
"""The rows of a checkpoint that cost a Delta reader as much as one commit, by measurement."""
RECENT_FILES = 4_096
"""Newest files that an open log holds in memory before it drops and reads them again."""
DECODED_TEXT_CHARACTERS = 8 * 1024 * 1024
"""A process caches decoded records of one kind up to this many characters of their JSON."""
OPEN_STREAM_BYTES = 256 * MIB
"""A process keeps streams open though nobody uses them, as many as fit; an idle one takes about 12
KiB, so more than 20,000 do. Of more, some are opened again."""
OPEN_SCOPE_BYTES = 64 * MIB
"""The same for indexes of scopes, with about 600 bytes for each stream, table and group."""
STATE_TABLE_FILE_ROWS = 512
"""Most rows in one file of a state table. A change of one row rewrites one or two files."""
HISTORY_MERGE_FILES = 16
"""Neighbouring files of a history that are merged, and appends between two looks for them."""
LAYOUT_ROWS_SECONDS = 1.0
"""How long after a rolling commit its process adds the rows of the new epochs to the history."""
HISTORY_FILE_BYTES = 4 * 1024 * 1024
"""Size of the large files of a history; one of half of it is never written again."""

# Key-value tables

MAX_TABLE_KEY_BYTES = 8 * KIB
"""Of both parts of a key together, as in Pravega."""
TABLE_VALUE_BYTES = 1 * MIB - 8 * KIB
"""The largest value by default, as in Pravega."""
MAX_TABLE_VALUE_BYTES = MAX_EVENT_BYTES - MAX_TABLE_KEY_BYTES - 16
"""The largest value that can be configured: with its key and 16 bytes more it is one event."""
MAX_TABLE_UPDATE_KEYS = 256
"""Keys of one atomic update, and of one call that gets several, as in Pravega."""
TABLE_INDEX_VALUE_BYTES = 128 * MIB
"""Bytes of values that a process keeps of one table; values beyond it stay in their chunks."""
TABLE_COMMIT_KEYS, TABLE_COMMIT_BYTES = 16_384, 32 * MIB
"""About the most keys and bytes of conditional updates that share one commit."""
TABLE_STALENESS = "1 s"
"""How old what a get sees of others may be, by default."""

# Transactions

MIN_LEASE_MS, MAX_LEASE_MS = 10_000, 600_000
"""Bounds of a transaction's lease, as in Pravega."""
DEFAULT_LEASE = "60 s"
FIRST_PING_SECONDS = 1.0
"""A transaction that stays open this long gets its lease object."""
MAX_EXECUTION_LEASES = 1_000
MAX_EXECUTION_MS = 86_400_000
"""By default a transaction ends after this many leases, or after a day, whichever is shorter."""
PREPARED_LIMIT = "7 days"
"""A prepared transaction is aborted if it is not decided for this long."""
TRANSACTION_BATCH_BYTES, TRANSACTION_BATCH_EVENTS = 8 * MIB, 65_536
"""A transaction's handle holds up to this as Python objects, then makes columns of them."""
TRANSACTION_BUFFER_BYTES = 128 * MIB
"""The bytes of columns that a transaction's handle holds while they do not fill a chunk."""
KEEP_COMPLETED = "24 hours"
"""How long the outcome of a transaction is kept, as in Pravega."""
DECIDED_SECONDS = 1.0
"""How long a decision of this process waits for others that share its commit to the log."""
DECIDED_RETRY_SECONDS = 4.0
"""The pause before a decision that could not be carried out is tried again."""
OPEN_LOOK_SECONDS = 2.0
"""How often a process looks, in memory, whether an open transaction is older than its lease."""
TRANSACTION_SWEEP_SECONDS = 30.0
"""A writer checks for abandoned transactions of others at most this often."""

# Reader groups

GROUP_REFRESH = "3 s"
"""How often a reader refreshes its group's state if none of its reads makes it do so."""
MAX_GROUP_REFRESH_MS = 86_400_000
CHECKPOINT_INTERVAL = "30 s"
MIN_CHECKPOINT_MS = 100
"""Every reader commits for an automatic checkpoint: a shorter interval would flood the log."""
MAX_OUTSTANDING_CHECKPOINTS = 3
"""Checkpoints that may be pending by default; a row of the group's table for each."""
MOST_OUTSTANDING_CHECKPOINTS = 10_000
KEPT_CHECKPOINTS = 8
"""Complete checkpoints retained for callers that wait, and as many silent ones."""
KEPT_OWNERS = 4
"""Last owners of a segment that a group's state records."""
KEPT_FINISHED = 64
"""Finished segments of a stream whose owners the state keeps; more if it has many in reach."""
READER_LEASE = "60 s"
MAX_POLL_INTERVAL = "5 minutes"
"""How long a reader may be busy with one event; its lease, if that is longer."""
MIN_READER_LEASE_MS, MAX_READER_LEASE_MS = 5_000, 86_400_000
QUERY_LEASE_MS = 30_000
"""The lease of a streaming query in its group."""
MAX_GROUP_STREAMS = 1_000
GROUP_BUFFER_EVENTS = 4_096
"""Events of one segment before the next segment with events gets its turn."""

# Leases over an outage

OUTAGE_LEASE_FRACTION = 0.5
"""Storage that was silent for this part of a lease may have kept its holder from extending it."""

# Clocks

CLOCK_SKEW_MS = 5_000
"""A host's clock that differs this much from the storage's is wrong: dates have whole seconds."""
CLOCK_STEP_MS = 60_000
"""A larger step of the clock without a restart of the machine is not followed."""
MAX_CLOCK_JUMP = "7 days"
"""How far a clock may have advanced unobserved, with no boot clock to confirm it."""
CLOCK_RECORD_MS = 60_000
"""How often a root's clock record is renewed at most."""
TABLE_CLOCK_SECONDS = 10.0
"""How long a table with a ttl judges by the boot clock before it reads the believed time again."""

# Scaling and retention

RATES_COMMITS = 65_536
"""A scaling decision reads at most about this many commits of a stream's log."""
SPLIT_SAMPLE_EVENTS = 65_536
"""Newest events of a segment whose keys a split by keys examines."""
MIN_COOLDOWN_MS = 1_000
"""With a shorter cool-down, the ticks of automatic scaling would be shorter than commits."""
SWEEP_GRACE = "1 day"
"""A sweep keeps files that were staged more recently: longer than any job that writes."""
SWEEP_RETAIN = "30 days"
"""A sweep keeps versions of a table that are younger."""
SWEEP_SEGMENT_FILES = 2_048
"""The names of files that a sweep's record holds before it moves them to a segment."""
TOLD_PATHS = 16_384
"""A state file that would name more removed files to sweeps names none: who opens reads it, too."""
FULL_LISTING_MS = 86_400_000
"""A sweep lists all files of a table when the last complete listing is older than this."""
SWEEP_PROBES = 4_096
"""The folders that a sweep on local storage looks at by their names before it lists them."""
SAMPLE_FREQUENCY = "30 minutes"
"""The retention set gets an entry when its newest is older than this, as in Pravega."""
MAX_SAVED_CUTS = 1_000
"""Of one stream: each is in every state file of its log."""
MAX_SAMPLES = 2_000
"""Entries of the retention set before every second one of its older half is deleted."""
RETENTION_ATTEMPTS = 10
"""Decisions of one retention run, which decides again if subscribers or the head moved."""
RETENTION_INTERVAL = "30 minutes"
"""The retention job starts a round this often, as in Pravega, if it keeps running."""
SCALING_INTERVAL = TRANSACTIONS_INTERVAL = "60 s"
"""The jobs of scaling and transactions start a round this often if they keep running."""
STREAM_TIMEOUT = "10 minutes"
"""A job gives up on a stream after this long, and continues with the others."""
MAX_STREAM_TIMEOUT_MS = 604_800_000
"""The longest limit that a job may be given for a stream: a week."""
STREAMS_PER_TASK = 50
"""Streams that one task of a job works on, one after the other."""

# Maintenance

COMPACTION_INTERVAL = "10 minutes"
SWEEPING_INTERVAL = "30 minutes"
"""How often streams with news are compacted, and swept."""
DUE_SHARD_STREAMS = 256
"""Most streams in one object of due hints, about."""
DUE_CHECKED_MS = 600_000
"""A due hint that was checked longer ago proves nothing unless its commit is still stored."""
DUE_LATEST_MS = 86_400_000
"""Every stream is looked at fully about once in this time, even if its due hint names no work."""
MAINTAIN_THREADS = 4
"""Streams that a round without Spark maintains at the same time."""
MAINTAINED_ROWS = 1_000
"""Most rows in the table of a maintenance round."""
AUTO_SHARE_STREAMS, AUTO_SHARE_SECONDS = 50, 10.0
"""The streams that a process with ``maintain="auto"`` visits at a wake-up at most, and the time
after which it begins none."""
AUTO_SHARE_FRACTION = 0.25
"""The part of its time that such a process may spend on that."""
AUTO_WAKE_SECONDS = 30.0
"""It looks about this often what is due."""
AUTO_FIRST_SECONDS = 60.0
"""It first looks this long, or half as long again, after it opened the root: short ones never."""
AUTO_SLACK = 1.25
"""It leaves a run to scheduled jobs until this many intervals have passed."""
AUTO_SETTINGS_SECONDS = 300.0
"""It reads the settings of the root this often."""
AUTO_EXIT_SECONDS = 0.5
"""A process that exits waits this long for the stream that is being maintained."""
CLAIM_MS = 90_000
"""A process that maintains a root extends its claim; without that the claim ends after this."""
OVERDUE_INTERVALS, OVERDUE_MS = 4, 7_200_000
"""A run is overdue after this many of its intervals, but not before this time."""
RECORD_RETAIN_MS = 3_600_000
"""Versions of the record of maintenance that are older are swept."""
RECORD_SWEEP_COMMITS = 128
"""The record of maintenance is swept about once in this many commits of its table."""
RECORD_FAILURES = 8
RECORD_FAILURE_CHARACTERS = 300
"""Failures that the record of a run names, and the length of each error's text."""
SCOPE_RECORD_MS = 2_592_000_000
"""The record of a scope's runs is dropped if none finished for this long."""

# Compaction

COMPACT_TARGET = "128 MiB"
"""Compaction merges chunks to files of about this size."""
COMPACT_HEAD_AFTER = "1 day"
"""A head that has not moved for this long is rewritten without its truncated events."""
COMPACT_SETTLE_MS = 60_000
"""Chunks that were committed more recently are left alone: readers at the tail read them."""

# Folded tables

FOLDED_FILE_BYTES = 64 * MIB
"""A fold writes files of about this size; one below a quarter of it is merged with a neighbour."""
FOLDED_GROUP_ROWS, FOLDED_GROUP_BYTES = 4_096, 1 * MIB
"""Most rows of a row group, and most bytes of their keys and values: a get reads one."""
FOLDED_READ_BYTES = 8 * MIB
"""About the size that scans and folds read of a file in one call."""
FOOTER_CACHE_BYTES = 32 * MIB
"""Footers of files that an open table keeps."""
FOLD_RUN_BYTES = 64 * MIB
"""Changes that a fold holds in memory before it spills them, sorted, to a temporary file."""
FOLD_CHANGED_BYTES, FOLD_CHANGES, FOLD_CHANGED_PART = 16 * MIB, 65_536, 0.1
"""A fold is due at this size or number of changes, if they are at least this part of the table.

Each process that opens a table reads the changes, and a fold the rows that they touch: it costs a
fifth as much a row, so two openings repay it."""
FOLDING_INTERVAL = "60 s"
"""How often tables with news are looked at, whether a fold is due."""
FOLD_AGE_MS = 600_000
"""Changes that are older than this are due to be folded."""

# Following a tail

POLL_LOCAL_SECONDS = (0.001, 0.050)
POLL_REMOTE_SECONDS = (0.020, 2.0)
"""Shortest and longest pause between two checks for new commits while following a tail."""
POLL_WATCHED_SECONDS = (0.250, 2.0)
"""The same in a folder whose file system reports new commits, where they need no check."""
POLL_GAP_FRACTION = 1 / 16
"""The pause before the next commit is expected, as a fraction of the mean gap of the last ones."""
POLL_SPREAD_FRACTION = 1 / 12
"""The pause while it is expected, as a fraction of the mean deviation of these gaps."""
POLL_IDLE_FRACTION = 1 / 16
"""The pause after that, as a fraction of the time since then; bounds the delay."""

# Backup

COPY_PAGE_FILES = 256
COPY_PAGE_BYTES = 64 * MIB
"""A backup copies at most this many files, or about this many bytes of them, at a time."""
KEEP_PIN = "7 days"
"""A killed backup protects what it was copying from sweeps for this long."""

# Spark

PARTITION_BYTES = 128 * MIB
"""A batch read splits a segment after about this size of files, as Spark splits its own files."""
PARTITION_CHUNKS = 4_096
"""The chunks of which a task of a part of the keys is told; it finds the others in the log."""
PACKED_ROWS = 32_768
PACKED_BYTES = 8 * MIB
PACKED_CHUNKS = 64
"""About the most rows, bytes and chunks of the ranges of one task, which then mostly reads."""
PACKED_READS = 16
"""Ranges that a task reads at the same time from an object store, if it reads several."""
SCAN_CHANGED_BYTES = 32 * MIB
"""Up to this size the driver reads a table's changes after the fold and sends them to the tasks."""
SCAN_CHANGE_READS = 8
"""Each task of a scan reads a larger size itself; a scan then has at most this many tasks."""
MESSAGE_KEYS = 8_192
"""The most hashes of keys that a task sends to the driver; it stores more than that."""
KEY_RUN_ROWS, KEY_BLOCK_ROWS = 4 << 20, 8_192
"""Hashes that a task sorts and stores together, and those that the driver reads as a whole."""
KEY_MERGE_ROWS = 4 << 20
"""Hashes that the driver reads at a time to find those that come twice."""
ROUTE_BYTES = 16 * MIB
"""Rows are routed in groups of about this size: each distinct key is hashed once per group."""
TASK_BYTES = 256 * MIB
"""Bytes of events and of chunks that a task holds before it stages its largest segment."""
STAGING_THREADS = 2
"""Row groups and chunks that a task stages at once: one is encoded while another is fsynced."""
STREAM_REFRESH_SECONDS = 1.0
"""Shortest time between two refreshes of a stream on remote storage, and the longest one between
two looks of an idle query."""
IDLE_LOOK_SECONDS, IDLE_LOOK_SHARE = 0.040, 16
"""The shortest time between looks of an idle query, whose looks take at most 1/16 of its time."""
DISCOVERY_SECONDS = 10.0
"""Shortest time between two searches for a pattern's streams, or for a deleted stream."""
GROUP_INTERVAL_MS = 5_000
"""How often the driver's listener publishes the positions of queries to their reader groups."""
GROUP_EXIT_SECONDS = 10.0
"""A driver that exits waits at most this long for reports of last batches to reader groups."""
NAMES_PER_TASK = 200
"""Streams or groups that one task of a metadata frame reads."""
LAG_HISTORY_BATCHES = 1_000
"""Measurements that a lag listener keeps by default."""
