-- The first catalog. Times are microseconds since the epoch (UTC); offsets are [start, end).
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);

CREATE TABLE topics (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    partitions INTEGER NOT NULL,
    config TEXT NOT NULL,
    schema_version INTEGER NOT NULL,
    created_at INTEGER NOT NULL
);
CREATE TABLE topic_schemas (
    topic_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    schema BLOB,
    PRIMARY KEY (topic_id, version)
);

-- end_offset is where the last row of segments ends, which is the base of the active file, if there is one.
CREATE TABLE partitions (
    topic_id TEXT NOT NULL,
    partition INTEGER NOT NULL,
    start_offset INTEGER NOT NULL,
    end_offset INTEGER NOT NULL,
    active TEXT,
    active_schema INTEGER NOT NULL,
    lineage INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    prefix_max_ts INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition)
);
-- A lineage begins where a power cut or a failed sync may have moved the end back to.
CREATE TABLE lineages (
    topic_id TEXT NOT NULL,
    partition INTEGER NOT NULL,
    number INTEGER NOT NULL,
    start_offset INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition, number)
);

CREATE TABLE segments (
    topic_id TEXT NOT NULL,
    partition INTEGER NOT NULL,
    base INTEGER NOT NULL,
    end_offset INTEGER NOT NULL,
    uuid TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    length INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    meta_crc INTEGER NOT NULL,
    schema_version INTEGER NOT NULL,
    min_ts INTEGER NOT NULL,
    max_ts INTEGER NOT NULL,
    prefix_max_ts INTEGER NOT NULL,
    appended_at INTEGER NOT NULL,
    level INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition, base)
);
CREATE INDEX segments_by_time ON segments (topic_id, partition, prefix_max_ts);
CREATE INDEX segments_to_compact ON segments (kind, topic_id, partition, base);

CREATE TABLE writers (
    id TEXT PRIMARY KEY,
    query_id TEXT,
    last_batch INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);
CREATE TABLE writer_batches (
    writer_id TEXT NOT NULL,
    batch_id INTEGER NOT NULL,
    positions TEXT NOT NULL,
    PRIMARY KEY (writer_id, batch_id)
);

CREATE TABLE subscribers (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    topic_id TEXT NOT NULL,
    on_data_loss TEXT NOT NULL,
    created_at INTEGER NOT NULL
);
CREATE TABLE cursors (
    subscriber_id TEXT NOT NULL,
    partition INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    lineage INTEGER NOT NULL,
    PRIMARY KEY (subscriber_id, partition)
);

-- Files that no row names any more; removed after a grace period, which only saves readers from planning again.
CREATE TABLE garbage (path TEXT PRIMARY KEY, due_at INTEGER NOT NULL);
