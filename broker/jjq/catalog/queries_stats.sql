-- name: count_pushed
INSERT INTO pushed (topic_id, partition, bytes) VALUES (:topic_id, :partition, :bytes)
ON CONFLICT (topic_id, partition) DO UPDATE SET bytes = pushed.bytes + excluded.bytes

-- name: pushed_bytes
SELECT COALESCE(SUM(bytes), 0) FROM pushed WHERE topic_id = :topic_id

-- name: drop_pushed
DELETE FROM pushed WHERE topic_id = :topic_id

-- name: drop_lost_pushed
DELETE FROM pushed WHERE topic_id NOT IN (SELECT id FROM topics)

-- name: segments_by_kind
SELECT kind, COUNT(*), SUM(length) FROM segments WHERE topic_id = :topic_id GROUP BY kind
