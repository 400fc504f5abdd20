-- Bytes of files that were ever closed or linked, whatever has become of them; the active file is not among them yet.
CREATE TABLE pushed (
    topic_id TEXT NOT NULL,
    partition INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition)
);
INSERT INTO pushed (topic_id, partition, bytes)
SELECT topic_id, partition, SUM(length) FROM segments GROUP BY topic_id, partition;
