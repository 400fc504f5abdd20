-- Big objects that records refer to: kept once by their content's hash, as long as a record refers to them.
CREATE TABLE objects (hash TEXT PRIMARY KEY, bytes INTEGER NOT NULL, created_at INTEGER NOT NULL);
-- record_offset is -1 from before the push until after it: then nobody may take the object away.
CREATE TABLE object_references (
    hash TEXT NOT NULL,
    topic_id TEXT NOT NULL,
    partition INTEGER NOT NULL,
    record_offset INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    id TEXT PRIMARY KEY
);
CREATE INDEX object_references_by_hash ON object_references (hash);
CREATE INDEX object_references_by_place ON object_references (topic_id, partition, record_offset);
