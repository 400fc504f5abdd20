"""Seeking while other threads poll by the same handle, and wait in it."""

from concurrent.futures import ThreadPoolExecutor

import jjq


def test_a_seek_beside_a_poll_is_where_the_next_one_goes_on(store: jjq.Store) -> None:
    store.create_topic("t", sync="none").push_many([b"%d" % i for i in range(20)])
    store.create_subscriber("t", "s")
    with ThreadPoolExecutor(2) as threads:
        for _ in range(20):
            with store.subscriber("s") as subscriber:
                for start in (10, 0, 10, 0):
                    polled, peeked = threads.submit(subscriber.poll, 1, 60), threads.submit(subscriber.peek, 60)
                    subscriber.seek(start)
                    [record] = polled.result(60)
                    assert peeked.result(60) is not None
                    was_before = record.offset != start
                    assert [each.offset for each in subscriber.poll(1, 60)] == [start if was_before else start + 1]


def test_a_poll_that_waits_while_others_seek_goes_on(store: jjq.Store) -> None:
    topic = store.create_topic("t", sync="none")
    topic.push_many([b"%d" % i for i in range(20)])
    with store.create_subscriber("t", "s", start="latest") as subscriber, ThreadPoolExecutor(2) as threads:
        assert subscriber.poll() == []
        polled, popped = threads.submit(subscriber.poll, 1, 60), threads.submit(subscriber.pop, 60)
        for _ in range(20):
            subscriber.seek("latest")
        topic.push_many([b"new"] * 2)
        assert {record.offset for record in (*polled.result(60), popped.result(60))} <= {20, 21}
