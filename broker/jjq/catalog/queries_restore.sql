-- name: drop_lost_channels
DELETE FROM channels WHERE topic_id NOT IN (SELECT id FROM topics)

-- name: drop_lost_channel_partitions
DELETE FROM channel_partitions WHERE channel_id NOT IN (SELECT id FROM channels)

-- name: drop_lost_channel_leases
DELETE FROM channel_leases WHERE channel_id NOT IN (SELECT id FROM channels)

-- name: free_channel_leases
UPDATE channel_leases SET consumer_id = NULL, due_at = 0 WHERE consumer_id IS NOT NULL

-- name: drop_lost_object_references
DELETE FROM object_references WHERE topic_id NOT IN (SELECT id FROM topics)

-- name: doubt_object_references
INSERT INTO object_references (id, hash, topic_id, partition, record_offset, created_at)
SELECT DISTINCT hash || ':' || topic_id, hash, topic_id, -2, -1, :now FROM object_references WHERE TRUE
ON CONFLICT (id) DO UPDATE SET record_offset = -1
