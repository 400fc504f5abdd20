-- name: cursors_of_partition
SELECT s.name, c.next_offset FROM cursors c JOIN subscribers s ON s.id = c.subscriber_id
WHERE s.topic_id = :topic_id AND c.partition = :partition ORDER BY s.name

-- name: channels_of_partition
SELECT ch.name, p.fetch_offset, (SELECT MIN(l.start_offset) FROM channel_leases l
WHERE l.channel_id = p.channel_id AND l.partition = p.partition)
FROM channel_partitions p JOIN channels ch ON ch.id = p.channel_id
WHERE ch.topic_id = :topic_id AND p.partition = :partition ORDER BY ch.name
