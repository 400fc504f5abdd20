-- What `record_offset` is before it is that of a record, and what partition -2 means, is in docs/format.md.

-- name: add_object_reference
INSERT INTO object_references (id, hash, topic_id, partition, record_offset, created_at)
VALUES (:id, :hash, :topic_id, -1, -3, :created_at)

-- name: begin_object_reference
UPDATE object_references SET record_offset = -1 WHERE id = :id

-- name: place_object_reference
UPDATE object_references SET partition = :partition, record_offset = :record_offset WHERE id = :id

-- name: drop_object_reference
DELETE FROM object_references WHERE id = :id

-- name: add_object
INSERT INTO objects (hash, bytes, created_at) VALUES (:hash, :bytes, :created_at) ON CONFLICT (hash) DO NOTHING

-- name: object
SELECT bytes FROM objects WHERE hash = :hash

-- name: objects
SELECT o.hash, o.bytes, o.created_at, COUNT(r.id) FROM objects o
LEFT JOIN object_references r ON r.hash = o.hash AND r.partition <> -2
GROUP BY o.hash, o.bytes, o.created_at ORDER BY o.hash

-- name: topics_of_object
SELECT DISTINCT topic_id FROM object_references WHERE hash = :hash

-- name: drop_passed_references
DELETE FROM object_references WHERE record_offset >= 0 AND record_offset < COALESCE(
(SELECT p.start_offset FROM partitions p WHERE p.topic_id = object_references.topic_id
AND p.partition = object_references.partition), record_offset + 1)

-- name: unplaced_references
SELECT id FROM object_references WHERE record_offset IN (-1, -3) LIMIT 1

-- name: begun_references
SELECT id FROM object_references WHERE hash = :hash AND record_offset <> -3 AND partition <> -2

-- name: drop_unbegun_references
DELETE FROM object_references WHERE record_offset = -3

-- name: mark_orphaned_references
UPDATE object_references SET record_offset = -2, created_at = MAX(created_at, :now) WHERE record_offset = -1

-- name: drop_orphaned_references
DELETE FROM object_references WHERE record_offset = -2 AND created_at < :before
AND NOT EXISTS (SELECT 1 FROM segments s WHERE s.topic_id = object_references.topic_id
AND s.appended_at < object_references.created_at + :margin)
AND NOT EXISTS (SELECT 1 FROM partitions p WHERE p.topic_id = object_references.topic_id AND p.active IS NOT NULL
AND p.end_offset = p.start_offset)

-- name: unreferenced_objects
SELECT o.hash, o.bytes FROM objects o
WHERE NOT EXISTS (SELECT 1 FROM object_references r WHERE r.hash = o.hash) ORDER BY o.hash

-- name: drop_object
DELETE FROM objects WHERE hash = :hash
