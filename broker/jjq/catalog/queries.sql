-- Every statement of the catalog, by name. Standard SQL with :name parameters, so that another database is another
-- driver and not another design.

-- name: meta
SELECT value FROM meta WHERE key = :key

-- name: set_meta
INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value

-- name: topic_by_name
SELECT t.id, t.name, t.partitions, t.config, t.schema_version, t.created_at, s.schema
FROM topics t JOIN topic_schemas s ON s.topic_id = t.id AND s.version = t.schema_version WHERE t.name = :name

-- name: topic_by_id
SELECT t.id, t.name, t.partitions, t.config, t.schema_version, t.created_at, s.schema
FROM topics t JOIN topic_schemas s ON s.topic_id = t.id AND s.version = t.schema_version WHERE t.id = :id

-- name: topics
SELECT t.id, t.name, t.partitions, t.config, t.schema_version, t.created_at, s.schema
FROM topics t JOIN topic_schemas s ON s.topic_id = t.id AND s.version = t.schema_version ORDER BY t.name

-- name: topic_ids
SELECT id, name FROM topics ORDER BY name

-- name: topic_names
SELECT name FROM topics ORDER BY name

-- name: topic_schemas
SELECT version, schema FROM topic_schemas WHERE topic_id = :topic_id ORDER BY version

-- name: add_topic
INSERT INTO topics (id, name, partitions, config, schema_version, created_at)
VALUES (:id, :name, :partitions, :config, :schema_version, :created_at)

-- name: add_topic_schema
INSERT INTO topic_schemas (topic_id, version, schema) VALUES (:topic_id, :version, :schema)

-- name: update_topic
UPDATE topics SET config = :config, schema_version = :schema_version, partitions = :partitions WHERE id = :id

-- name: drop_topic
DELETE FROM topics WHERE id = :topic_id

-- name: drop_topic_schemas
DELETE FROM topic_schemas WHERE topic_id = :topic_id

-- name: drop_partitions
DELETE FROM partitions WHERE topic_id = :topic_id

-- name: drop_lineages
DELETE FROM lineages WHERE topic_id = :topic_id

-- name: drop_topic_segments
DELETE FROM segments WHERE topic_id = :topic_id

-- name: drop_topic_cursors
DELETE FROM cursors WHERE subscriber_id IN (SELECT id FROM subscribers WHERE topic_id = :topic_id)

-- name: drop_topic_subscribers
DELETE FROM subscribers WHERE topic_id = :topic_id

-- name: add_partition
INSERT INTO partitions
(topic_id, partition, start_offset, end_offset, active, active_schema, lineage, boot_id, prefix_max_ts)
VALUES (:topic_id, :partition, :start_offset, :end_offset, :active, :active_schema, :lineage, :boot_id, :prefix_max_ts)

-- name: partition
SELECT topic_id, partition, start_offset, end_offset, active, active_schema, lineage, boot_id, prefix_max_ts
FROM partitions WHERE topic_id = :topic_id AND partition = :partition

-- name: partitions
SELECT topic_id, partition, start_offset, end_offset, active, active_schema, lineage, boot_id, prefix_max_ts
FROM partitions WHERE topic_id = :topic_id ORDER BY partition

-- name: partitions_by_topic
SELECT t.name, p.topic_id, p.partition, p.start_offset, p.end_offset, p.active, p.active_schema, p.lineage, p.boot_id,
p.prefix_max_ts FROM topics t JOIN partitions p ON p.topic_id = t.id ORDER BY t.name, p.partition

-- name: partitions_by_name
SELECT t.name, p.topic_id, p.partition, p.start_offset, p.end_offset, p.active, p.active_schema, p.lineage, p.boot_id,
p.prefix_max_ts FROM topics t JOIN partitions p ON p.topic_id = t.id WHERE t.name = :name ORDER BY p.partition

-- name: update_partition
UPDATE partitions SET start_offset = :start_offset, end_offset = :end_offset, active = :active,
active_schema = :active_schema, lineage = :lineage, boot_id = :boot_id, prefix_max_ts = :prefix_max_ts
WHERE topic_id = :topic_id AND partition = :partition

-- name: add_lineage
INSERT INTO lineages (topic_id, partition, number, start_offset) VALUES (:topic_id, :partition, :number, :start_offset)

-- name: lineages
SELECT number, start_offset FROM lineages
WHERE topic_id = :topic_id AND partition = :partition AND number > :after ORDER BY number

-- name: add_segment
INSERT INTO segments (topic_id, partition, base, end_offset, uuid, kind, length, crc, meta_crc, schema_version,
min_ts, max_ts, prefix_max_ts, appended_at, level)
VALUES (:topic_id, :partition, :base, :end_offset, :uuid, :kind, :length, :crc, :meta_crc, :schema_version,
:min_ts, :max_ts, :prefix_max_ts, :appended_at, :level)

-- name: segments_in
SELECT uuid, kind, base, end_offset, length, crc, meta_crc, schema_version, min_ts, max_ts, prefix_max_ts, appended_at, level
FROM segments WHERE topic_id = :topic_id AND partition = :partition AND base < :end_offset AND base >= COALESCE(
(SELECT MAX(base) FROM segments WHERE topic_id = :topic_id AND partition = :partition AND base <= :start_offset), 0)
ORDER BY base

-- name: segment_by_uuid
SELECT topic_id, partition, uuid, kind, base, end_offset, length, crc, meta_crc, schema_version, min_ts, max_ts,
prefix_max_ts, appended_at, level FROM segments WHERE uuid = :uuid

-- name: first_segment_reaching
SELECT uuid, kind, base, end_offset, length, crc, meta_crc, schema_version, min_ts, max_ts, prefix_max_ts, appended_at, level
FROM segments WHERE topic_id = :topic_id AND partition = :partition AND prefix_max_ts >= :ts
ORDER BY prefix_max_ts, base LIMIT 1

-- name: segment_counts
SELECT partition, COUNT(*), COALESCE(SUM(length), 0), COALESCE(SUM(CASE WHEN kind = 'arrows' THEN 1 ELSE 0 END), 0),
  COALESCE(SUM(CASE WHEN kind = 'lost' THEN end_offset - base ELSE 0 END), 0)
FROM segments WHERE topic_id = :topic_id GROUP BY partition ORDER BY partition

-- name: drop_segment
DELETE FROM segments WHERE topic_id = :topic_id AND partition = :partition AND base = :base AND uuid = :uuid

-- name: drop_segments_below
DELETE FROM segments WHERE topic_id = :topic_id AND partition = :partition AND end_offset <= :end_offset

-- name: writer
SELECT id, query_id, last_batch, updated_at FROM writers WHERE id = :id

-- name: writers
SELECT id, query_id, last_batch, updated_at FROM writers ORDER BY id

-- name: set_writer
INSERT INTO writers (id, query_id, last_batch, updated_at) VALUES (:id, :query_id, :last_batch, :updated_at)
ON CONFLICT (id) DO UPDATE SET query_id = excluded.query_id, last_batch = excluded.last_batch,
updated_at = excluded.updated_at

-- name: drop_writer
DELETE FROM writers WHERE id = :id

-- name: writer_batch
SELECT positions FROM writer_batches WHERE writer_id = :writer_id AND batch_id = :batch_id

-- name: add_writer_batch
INSERT INTO writer_batches (writer_id, batch_id, positions, run) VALUES (:writer_id, :batch_id, :positions, :run)

-- name: claim_writer_batch
UPDATE writer_batches SET run = :run WHERE writer_id = :writer_id AND batch_id = :batch_id AND run IS NOT :run

-- name: trim_writer_batches
DELETE FROM writer_batches WHERE writer_id = :writer_id AND batch_id <= :up_to

-- name: drop_writer_batches
DELETE FROM writer_batches WHERE writer_id = :writer_id

-- name: subscriber
SELECT s.id, s.name, s.topic_id, s.on_data_loss, s.created_at, t.name
FROM subscribers s JOIN topics t ON t.id = s.topic_id WHERE s.name = :name

-- name: subscriber_by_id
SELECT s.id, s.name, s.topic_id, s.on_data_loss, s.created_at, t.name
FROM subscribers s JOIN topics t ON t.id = s.topic_id WHERE s.id = :id

-- name: subscribers
SELECT s.id, s.name, s.topic_id, s.on_data_loss, s.created_at, t.name
FROM subscribers s JOIN topics t ON t.id = s.topic_id ORDER BY s.name

-- name: add_subscriber
INSERT INTO subscribers (id, name, topic_id, on_data_loss, created_at)
VALUES (:id, :name, :topic_id, :on_data_loss, :created_at)

-- name: drop_subscriber
DELETE FROM subscribers WHERE id = :id

-- name: drop_cursors
DELETE FROM cursors WHERE subscriber_id = :subscriber_id

-- name: cursors
SELECT partition, next_offset, lineage FROM cursors WHERE subscriber_id = :subscriber_id ORDER BY partition

-- name: set_cursor
INSERT INTO cursors (subscriber_id, partition, next_offset, lineage)
VALUES (:subscriber_id, :partition, :next_offset, :lineage)
ON CONFLICT (subscriber_id, partition) DO UPDATE SET next_offset = excluded.next_offset, lineage = excluded.lineage

-- name: move_cursor
UPDATE cursors SET next_offset = :next_offset, lineage = :lineage
WHERE subscriber_id = :subscriber_id AND partition = :partition AND next_offset = :expected AND :lineage = (
SELECT p.lineage FROM partitions p JOIN subscribers s ON s.topic_id = p.topic_id
WHERE s.id = :subscriber_id AND p.partition = :partition)

-- name: advance_cursor
UPDATE cursors SET next_offset = :next_offset, lineage = :lineage
WHERE subscriber_id = :subscriber_id AND partition = :partition
AND (next_offset < :next_offset OR lineage < :lineage)

-- name: move_topic_cursors
UPDATE cursors SET next_offset = :next_offset, lineage = :lineage
WHERE partition = :partition AND next_offset < :next_offset
AND subscriber_id IN (SELECT id FROM subscribers WHERE topic_id = :topic_id)

-- name: add_garbage
INSERT INTO garbage (path, due_at) VALUES (:path, :due_at) ON CONFLICT (path) DO NOTHING

-- name: garbage_due
SELECT path FROM garbage WHERE due_at <= :now ORDER BY path

-- name: garbage
SELECT path FROM garbage ORDER BY path

-- name: drop_garbage
DELETE FROM garbage WHERE path = :path

-- name: first_segment_with
SELECT uuid, kind, base, end_offset, length, crc, meta_crc, schema_version, min_ts, max_ts, prefix_max_ts, appended_at, level
FROM segments WHERE topic_id = :topic_id AND partition = :partition AND max_ts >= :ts ORDER BY base LIMIT 1

-- name: ids_without_topic
SELECT topic_id FROM segments WHERE topic_id NOT IN (SELECT id FROM topics)
UNION SELECT topic_id FROM partitions WHERE topic_id NOT IN (SELECT id FROM topics)
UNION SELECT topic_id FROM lineages WHERE topic_id NOT IN (SELECT id FROM topics)
UNION SELECT topic_id FROM subscribers WHERE topic_id NOT IN (SELECT id FROM topics)
UNION SELECT topic_id FROM channels WHERE topic_id NOT IN (SELECT id FROM topics)

-- name: garbage_row
SELECT path FROM garbage WHERE path = :path

-- name: writer_batches
SELECT batch_id, positions FROM writer_batches WHERE writer_id = :writer_id ORDER BY batch_id
