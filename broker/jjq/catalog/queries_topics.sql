-- name: ephemeral_topics
SELECT name, config FROM topics WHERE config LIKE '%"ephemeral": true%' ORDER BY name

-- name: partition_count
SELECT partitions FROM topics WHERE id = :topic_id

-- name: fill_cursors
INSERT INTO cursors (subscriber_id, partition, next_offset, lineage)
SELECT s.id, p.partition, 0, 0 FROM subscribers s JOIN partitions p ON p.topic_id = s.topic_id
WHERE s.topic_id = :topic_id AND NOT EXISTS (
SELECT 1 FROM cursors c WHERE c.subscriber_id = s.id AND c.partition = p.partition)

-- name: fill_channel_partitions
INSERT INTO channel_partitions (channel_id, partition, fetch_offset, lineage, delivered, acked, requeued, timed_out,
returned, dead, lost)
SELECT c.id, p.partition, 0, 0, 0, 0, 0, 0, 0, 0, 0 FROM channels c JOIN partitions p ON p.topic_id = c.topic_id
WHERE c.topic_id = :topic_id AND NOT EXISTS (
SELECT 1 FROM channel_partitions x WHERE x.channel_id = c.id AND x.partition = p.partition)
