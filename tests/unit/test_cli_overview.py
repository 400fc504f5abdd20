"""What `jjq stats` and `jjq top` make of numbers: rates from differences, and lines that fit."""

from typing import Any

from jjq.cli.overview import lines, per_second, with_rates
from jjq.cli.watching import frame

S = 1_000_000


def topic(name: str, pushed: int, **others: Any) -> dict[str, Any]:
    return {
        "name": name, "id": f"id-{name}", "partitions": 1, "paused": False, "records": pushed, "bytes": pushed * 100,
        "pushed_records": pushed, "pushed_bytes": pushed * 100, "records_per_s": 5.0, "ephemeral": False, "dropped": None,
        "segments": {"active": 1, "rolled": 0, "sealed": 2, "lost": 0}, **others,
    }  # fmt: skip


def subscriber(name: str, position: int, behind: int) -> dict[str, Any]:
    return {
        "name": name, "id": f"id-{name}", "topic": "t", "records": behind, "bytes": behind, "seconds": 90.0, "lost": 0,
        "positions": {"0": position},
    }  # fmt: skip


def channel(name: str, acked: int, depth: int) -> dict[str, Any]:
    counts = dict.fromkeys(("in_flight", "deferred", "requeued", "timed_out", "returned", "dead", "lost"), 0)
    return {
        "name": name, "topic": "t", "paused": False, "depth": depth, "delivered": 2 * acked, "acked": acked, **counts,
        "consumers": [],
    }  # fmt: skip


def stats(at_s: float, **parts: Any) -> dict[str, Any]:
    hot = {"budget_bytes": 1, "bytes": 0, "hits": 0, "misses": 0, "prefetches": 0, "dropped": 0, "segments": []}
    return {
        "at": int(at_s * S), "store": {"path": "/s", "id": "i", "disk_free_bytes": 1 << 30}, "topics": [],
        "subscribers": [], "channels": [], "subscriptions": [], "hot": hot, "maintenance": None, "damaged": [], **parts,
    }  # fmt: skip


def test_rates_are_differences_by_the_time_between() -> None:
    before = stats(10, topics=[topic("t", 100)], subscribers=[subscriber("s", 5, 1)], channels=[channel("c", 7, 0)])
    now = stats(12, topics=[topic("t", 300)], subscribers=[subscriber("s", 25, 1)], channels=[channel("c", 17, 0)])
    found = with_rates(now, before)
    assert (found["topics"][0]["records_per_s"], found["topics"][0]["bytes_per_s"]) == (100, 10_000)
    assert found["subscribers"][0]["read_per_s"] == 10
    assert (found["channels"][0]["acked_per_s"], found["channels"][0]["delivered_per_s"]) == (5, 10)
    assert found["interval_s"] == 2


def test_what_is_new_has_no_rate_and_nothing_goes_below_zero() -> None:
    before = stats(10, topics=[topic("t", 300)], subscribers=[subscriber("s", 25, 1)])
    now = stats(12, topics=[topic("t", 300), topic("new", 9)], subscribers=[subscriber("s", 5, 21)])
    found = with_rates(now, before)
    assert [each["records_per_s"] for each in found["topics"]] == [0, None]
    assert found["subscribers"][0]["read_per_s"] == 0  # it was moved back
    assert with_rates(now, None) == now
    assert with_rates(now, now) == now


def test_rates_are_written_short() -> None:
    assert [per_second(value) for value in (None, 0, 0.25, 9.94, 12.6, 123456.7)] == [
        "-", "0", "0.2", "9.9", "13", "123,457",
    ]  # fmt: skip


def test_the_busiest_come_first_where_it_is_asked_for() -> None:
    found = stats(
        1,
        topics=[topic("quiet", 1, records_per_s=0.0), topic("loud", 1, records_per_s=9.0)],
        subscribers=[subscriber("near", 9, 1), subscriber("far", 1, 9)],
        channels=[channel("empty", 1, 0), channel("full", 1, 5)],
    )
    first = [line.split()[0] for line in lines(found, busiest_first=True) if line]
    assert first.index("loud") < first.index("quiet")
    assert first.index("far") < first.index("near")
    assert first.index("full") < first.index("empty")
    plain = [line.split()[0] for line in lines(found) if line]
    assert plain.index("quiet") < plain.index("loud")


def test_what_is_out_of_the_ordinary_is_noted() -> None:
    segments = {"active": 1, "rolled": 0, "sealed": 0, "lost": 2}
    found = "\n".join(
        lines(
            stats(
                1,
                topics=[topic("a", 1, paused=True, segments=segments), topic("b", 1, ephemeral=True, dropped=1234)],
                channels=[channel("c", 1, 0) | {"paused": True}],
                subscriptions=[{"names": ["news"], "patterns": ["log.*"]}],
                maintenance={
                    "at": 0, "thorough_at": 0, "took_us": 1500, "host": "h", "pid": 7,
                    "did": {"expired": 3, "waiting": ["t partition 0: 4 segments wait"]},
                },
            )
        )
    )  # fmt: skip
    for part in (
        "paused; 2 ranges lost", "ephemeral, 1,234 dropped", "c (paused)", "subscribed: news, log.*", "by h:7",
        "expired 3, waiting 1", "retention of t partition 0: 4 segments wait",
    ):  # fmt: skip
        assert part in found


def test_the_hot_store_shows_for_whom_it_holds_what() -> None:
    held = {
        "topic": "t", "partition": 0, "id": "ab" * 16, "state": "sealed", "start": 70, "end": 90, "bytes": 2048,
        "batches": 1, "for": ["billing", "audit"],
    }  # fmt: skip
    hot = {
        "budget_bytes": 1 << 20, "bytes": 2048, "hits": 5, "misses": 1, "prefetches": 2, "dropped": 0, "segments": [held],
    }  # fmt: skip
    found = "\n".join(lines(stats(1, hot=hot)))
    assert "hot store: 2.0 KiB of 1.0 MiB, 5 hits, 1 miss, 2 loaded ahead" in found
    assert "abababab  t      sealed    70  2.0 KiB  billing, audit" in found


def test_text_from_outside_moves_no_cursor() -> None:
    found = lines(stats(1, subscriptions=[{"names": [], "patterns": ["\x1b[2J*"]}]))
    assert all(line.isprintable() for line in found)


def test_a_frame_fits_its_terminal_and_clears_what_was_there() -> None:
    drawn = frame(["x" * 100, "short", "third", "fourth"], columns=20, rows=3)
    assert drawn == "\033[H" + "x" * 20 + "\033[K\nshort\033[K\nthird\033[K" + "\033[J"
