-- Channels: consumers that share a topic's records, each record acknowledged by itself.
ALTER TABLE topics ADD COLUMN paused INTEGER NOT NULL DEFAULT 0;

-- Ids are never used again, as handles and files go by them. dead_next is the first offset of the dead-letter topic
-- (of that id) that was not requeued yet.
CREATE TABLE channels (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic_id TEXT NOT NULL,
    name TEXT NOT NULL,
    ack_timeout_us INTEGER NOT NULL,
    max_attempts INTEGER,
    ordered INTEGER NOT NULL,
    dead_letter TEXT NOT NULL,
    paused INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    dead_topic_id TEXT,
    dead_next INTEGER NOT NULL,
    UNIQUE (topic_id, name)
);
-- Everything below fetch_offset was leased once, and what is not done of it is in channel_leases. The rest are counts.
CREATE TABLE channel_partitions (
    channel_id INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    fetch_offset INTEGER NOT NULL,
    lineage INTEGER NOT NULL,
    delivered INTEGER NOT NULL,
    acked INTEGER NOT NULL,
    requeued INTEGER NOT NULL,
    timed_out INTEGER NOT NULL,
    returned INTEGER NOT NULL,
    dead INTEGER NOT NULL,
    lost INTEGER NOT NULL,
    PRIMARY KEY (channel_id, partition)
);
CREATE TABLE channel_consumers (
    id TEXT PRIMARY KEY,
    channel_id INTEGER NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started_at INTEGER NOT NULL
);
-- A range of offsets; bit n of done (little-endian, NULL: none) is set when start_offset + n is done or in another lease.
-- With a consumer it is in that one's hands until due_at, without one it waits, not before due_at.
CREATE TABLE channel_leases (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    channel_id INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    start_offset INTEGER NOT NULL,
    end_offset INTEGER NOT NULL,
    done BLOB,
    pending INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    consumer_id TEXT,
    due_at INTEGER NOT NULL,
    key_hash INTEGER,
    reason TEXT
);
CREATE INDEX channel_leases_by_due ON channel_leases (channel_id, due_at);
CREATE INDEX channel_leases_by_consumer ON channel_leases (channel_id, consumer_id) WHERE consumer_id IS NOT NULL;
CREATE INDEX channel_leases_by_key ON channel_leases (channel_id, key_hash, partition, start_offset)
WHERE key_hash IS NOT NULL;
