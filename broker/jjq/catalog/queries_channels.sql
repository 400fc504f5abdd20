-- name: add_channel
INSERT INTO channels (topic_id, name, ack_timeout_us, max_attempts, ordered, dead_letter, paused, created_at,
dead_topic_id, dead_next)
VALUES (:topic_id, :name, :ack_timeout_us, :max_attempts, :ordered, :dead_letter, 0, :created_at, NULL, 0)
ON CONFLICT (topic_id, name) DO NOTHING RETURNING id

-- name: add_channel_place
INSERT INTO channel_partitions (channel_id, partition, fetch_offset, lineage, delivered, acked, requeued, timed_out,
returned, dead, lost)
VALUES (:channel_id, :partition, :fetch_offset, :lineage, 0, 0, 0, 0, 0, 0, 0)

-- name: channel
SELECT c.id, c.topic_id, t.name, c.name, c.ack_timeout_us, c.max_attempts, c.ordered, c.dead_letter, c.paused,
c.created_at FROM channels c JOIN topics t ON t.id = c.topic_id WHERE c.topic_id = :topic_id AND c.name = :name

-- name: channel_by_id
SELECT c.id, c.topic_id, t.name, c.name, c.ack_timeout_us, c.max_attempts, c.ordered, c.dead_letter, c.paused,
c.created_at FROM channels c JOIN topics t ON t.id = c.topic_id WHERE c.id = :channel_id

-- name: channels
SELECT c.id, c.topic_id, t.name, c.name, c.ack_timeout_us, c.max_attempts, c.ordered, c.dead_letter, c.paused,
c.created_at FROM channels c JOIN topics t ON t.id = c.topic_id ORDER BY t.name, c.name

-- name: alter_channel
UPDATE channels SET ack_timeout_us = :ack_timeout_us, max_attempts = :max_attempts, dead_letter = :dead_letter
WHERE id = :channel_id

-- name: pause_channel
UPDATE channels SET paused = :paused WHERE id = :channel_id

-- name: pause_topic
UPDATE topics SET paused = :paused WHERE id = :topic_id

-- name: topic_paused
SELECT paused FROM topics WHERE id = :topic_id

-- name: drop_channel_leases
DELETE FROM channel_leases WHERE channel_id = :channel_id

-- name: drop_channel_consumers
DELETE FROM channel_consumers WHERE channel_id = :channel_id

-- name: drop_channel_partitions
DELETE FROM channel_partitions WHERE channel_id = :channel_id

-- name: drop_channel
DELETE FROM channels WHERE id = :channel_id

-- name: drop_topic_channel_leases
DELETE FROM channel_leases WHERE channel_id IN (SELECT id FROM channels WHERE topic_id = :topic_id)

-- name: drop_topic_channel_consumers
DELETE FROM channel_consumers WHERE channel_id IN (SELECT id FROM channels WHERE topic_id = :topic_id)

-- name: drop_topic_channel_partitions
DELETE FROM channel_partitions WHERE channel_id IN (SELECT id FROM channels WHERE topic_id = :topic_id)

-- name: drop_topic_channels
DELETE FROM channels WHERE topic_id = :topic_id

-- name: move_topic_channels
UPDATE channel_partitions SET fetch_offset = :next_offset, lineage = :lineage
WHERE partition = :partition AND fetch_offset < :next_offset
AND channel_id IN (SELECT id FROM channels WHERE topic_id = :topic_id)

-- name: drop_topic_leases_below
DELETE FROM channel_leases WHERE partition = :partition AND end_offset <= :next_offset
AND channel_id IN (SELECT id FROM channels WHERE topic_id = :topic_id)

-- name: channel_facts
SELECT c.paused + t.paused, c.max_attempts, c.ordered,
(SELECT COUNT(*) FROM channel_consumers k WHERE k.id = :consumer_id AND k.channel_id = c.id),
(SELECT COALESCE(SUM(l.pending), 0) FROM channel_leases l
 WHERE l.channel_id = c.id AND l.consumer_id = :consumer_id AND l.due_at > :now)
FROM channels c JOIN topics t ON t.id = c.topic_id WHERE c.id = :channel_id

-- name: channel_places
SELECT partition, fetch_offset, lineage FROM channel_partitions WHERE channel_id = :channel_id ORDER BY partition

-- name: place_channel
UPDATE channel_partitions SET fetch_offset = :fetch_offset, lineage = :lineage, lost = lost + :lost
WHERE channel_id = :channel_id AND partition = :partition AND fetch_offset = :expected
AND lineage = :expected_lineage

-- name: count_channel
UPDATE channel_partitions SET fetch_offset = COALESCE(:fetch_offset, fetch_offset), delivered = delivered + :delivered, acked = acked + :acked,
requeued = requeued + :requeued, timed_out = timed_out + :timed_out, returned = returned + :returned,
dead = dead + :dead, lost = lost + :lost WHERE channel_id = :channel_id AND partition = :partition

-- name: channel_counts
SELECT partition, fetch_offset, delivered, acked, requeued, timed_out, returned, dead, lost
FROM channel_partitions WHERE channel_id = :channel_id ORDER BY partition

-- name: channel_load
SELECT COALESCE(SUM(CASE WHEN consumer_id IS NOT NULL AND due_at > :now THEN pending ELSE 0 END), 0),
COALESCE(SUM(CASE WHEN consumer_id IS NULL AND due_at > :now AND due_at < :never THEN pending ELSE 0 END), 0),
COALESCE(SUM(CASE WHEN due_at <= :now OR (consumer_id IS NULL AND due_at = :never) THEN pending ELSE 0 END), 0)
FROM channel_leases WHERE channel_id = :channel_id

-- name: next_due
SELECT MIN(due_at) FROM channel_leases WHERE channel_id = :channel_id AND due_at > :now

-- name: any_due
SELECT id FROM channel_leases WHERE channel_id = :channel_id AND due_at <= :now LIMIT 1

-- name: leases_due
SELECT id, partition, start_offset, end_offset, done, pending, attempts, consumer_id, due_at, key_hash, reason
FROM channel_leases WHERE channel_id = :channel_id AND due_at <= :now ORDER BY due_at, id LIMIT :most

-- name: lease
SELECT id, partition, start_offset, end_offset, done, pending, attempts, consumer_id, due_at, key_hash, reason
FROM channel_leases WHERE channel_id = :channel_id AND id = :id

-- name: leases_beyond
SELECT id, partition, start_offset, end_offset, done, pending, attempts, consumer_id, due_at, key_hash, reason
FROM channel_leases WHERE channel_id = :channel_id AND partition = :partition AND end_offset > :cut

-- name: add_lease
INSERT INTO channel_leases (channel_id, partition, start_offset, end_offset, done, pending, attempts, consumer_id,
due_at, key_hash, reason)
VALUES (:channel_id, :partition, :start_offset, :end_offset, :done, :pending, :attempts, :consumer_id, :due_at,
:key_hash, :reason) RETURNING id

-- name: put_aside
INSERT INTO channel_leases (channel_id, partition, start_offset, end_offset, done, pending, attempts, consumer_id,
due_at, key_hash, reason)
VALUES (:channel_id, :partition, :start_offset, :end_offset, NULL, :pending, 0, NULL, :due_at, :key_hash, :reason)

-- name: set_lease
UPDATE channel_leases SET start_offset = :start_offset, end_offset = :end_offset, done = :done, pending = :pending,
attempts = :attempts, consumer_id = :consumer_id, due_at = :due_at, reason = :reason WHERE id = :id

-- name: drop_lease
DELETE FROM channel_leases WHERE id = :id

-- name: finish_lease
DELETE FROM channel_leases WHERE id = :id AND channel_id = :channel_id AND attempts = :attempts
AND start_offset = :start_offset AND end_offset = :end_offset AND pending = :pending RETURNING key_hash

-- name: bury_lease
DELETE FROM channel_leases WHERE id = :id AND channel_id = :channel_id AND attempts = :attempts
AND pending = :pending AND consumer_id IS NULL

-- name: postpone_lease
UPDATE channel_leases SET due_at = :due_at WHERE id = :id AND channel_id = :channel_id AND attempts = :attempts
AND consumer_id IS NULL

-- name: holders
SELECT DISTINCT consumer_id FROM channel_leases
WHERE channel_id = :channel_id AND consumer_id IS NOT NULL AND consumer_id <> :consumer_id

-- name: held_by_consumer
SELECT partition, SUM(pending) FROM channel_leases
WHERE channel_id = :channel_id AND consumer_id = :consumer_id GROUP BY partition

-- name: free_leases
UPDATE channel_leases SET consumer_id = NULL, due_at = :now, reason = :reason
WHERE channel_id = :channel_id AND consumer_id = :consumer_id

-- name: key_is_busy
SELECT id FROM channel_leases WHERE channel_id = :channel_id AND key_hash = :key_hash
AND (consumer_id IS NOT NULL OR attempts > 0 OR due_at <= :now OR due_at = :never) LIMIT 1

-- name: key_is_held
SELECT id FROM channel_leases WHERE channel_id = :channel_id AND key_hash = :key_hash AND id <> :id
AND (consumer_id IS NOT NULL OR attempts > 0) LIMIT 1

-- name: first_of_key
SELECT id, partition, start_offset, end_offset, done, pending, attempts, consumer_id, due_at, key_hash, reason
FROM channel_leases WHERE channel_id = :channel_id AND key_hash = :key_hash AND consumer_id IS NULL
AND (due_at <= :now OR due_at = :never) ORDER BY partition, start_offset LIMIT 1

-- name: wake_key
UPDATE channel_leases SET due_at = :now WHERE id = (
SELECT id FROM channel_leases WHERE channel_id = :channel_id AND key_hash = :key_hash AND due_at = :never
ORDER BY partition, start_offset LIMIT 1)

-- name: wake_all_keys
UPDATE channel_leases SET due_at = :now WHERE channel_id = :channel_id AND due_at = :never

-- name: count_parked
SELECT COUNT(*) FROM (SELECT id FROM channel_leases WHERE channel_id = :channel_id AND due_at = :never LIMIT :most) parked

-- name: add_channel_consumer
INSERT INTO channel_consumers (id, channel_id, host, pid, started_at)
VALUES (:id, :channel_id, :host, :pid, :started_at)

-- name: drop_channel_consumer
DELETE FROM channel_consumers WHERE id = :consumer_id

-- name: channel_consumers
SELECT k.id, k.host, k.pid, k.started_at, (SELECT COALESCE(SUM(l.pending), 0) FROM channel_leases l
WHERE l.channel_id = k.channel_id AND l.consumer_id = k.id AND l.due_at > :now)
FROM channel_consumers k WHERE k.channel_id = :channel_id ORDER BY k.started_at, k.id

-- name: channel_dead
SELECT dead_topic_id, dead_next FROM channels WHERE id = :channel_id

-- name: set_channel_dead
UPDATE channels SET dead_topic_id = :dead_topic_id, dead_next = :dead_next WHERE id = :channel_id
