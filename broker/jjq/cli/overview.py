"""What `jjq stats` and `jjq top` show of `Store.stats`: values in, lines out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jjq.cli import output

Stats = Mapping[str, Any]


def with_rates(now: Stats, before: Stats | None) -> dict[str, Any]:
    """The same with what happened a second since an earlier look: of topics `records_per_s` and `bytes_per_s`, of subscribers
    `read_per_s`, of channels `delivered_per_s` and `acked_per_s`. None where it was not there before."""
    seconds = 0.0 if before is None else (now["at"] - before["at"]) / 1_000_000
    if before is None or seconds <= 0:
        return dict(now)

    def rated(kind: str, keys: Sequence[str], counts: Mapping[str, Any]) -> list[dict[str, Any]]:
        known = {tuple(each[key] for key in keys): each for each in before[kind]}
        found = []
        for each in now[kind]:
            old = known.get(tuple(each[key] for key in keys))
            rates = {
                name: None if old is None else max(0.0, (count(each) - count(old)) / seconds)
                for name, count in counts.items()
            }
            found.append({**each, **rates})
        return found

    return {
        **now,
        "interval_s": seconds,
        "topics": rated("topics", ["id"], {
            "records_per_s": lambda each: each["pushed_records"], "bytes_per_s": lambda each: each["pushed_bytes"],
        }),
        "subscribers": rated("subscribers", ["id"], {"read_per_s": lambda each: sum(each["positions"].values())}),
        "channels": rated("channels", ["topic", "name"], {
            "delivered_per_s": lambda each: each["delivered"], "acked_per_s": lambda each: each["acked"],
        }),
    }  # fmt: skip


def lines(stats: Stats, *, busiest_first: bool = False) -> list[str]:
    """For people. `busiest_first`: topics by what is pushed, subscribers and channels by what they have yet to read."""
    topics, subscribers, channels = stats["topics"], stats["subscribers"], stats["channels"]
    if busiest_first:
        topics = sorted(topics, key=lambda each: -(each["records_per_s"] or 0))
        subscribers = sorted(subscribers, key=lambda each: -each["records"])
        channels = sorted(channels, key=lambda each: -each["depth"])
    parts = [
        _head(stats),
        _topics(topics),
        _subscribers(subscribers),
        _channels(channels),
        [_subscription(each) for each in stats["subscriptions"]],
        _hot(stats["hot"]),
    ]
    found: list[str] = []
    for part in parts:
        if part:
            found += [*([""] if found else []), *part]
    return found


def _head(stats: Stats) -> list[str]:
    size = output.size(sum(each["bytes"] for each in stats["topics"]))
    free = output.size(stats["store"]["disk_free_bytes"])
    found = [
        f"{stats['store']['path']}: {output.count(len(stats['topics']), 'topic')}, {size}, {free} free on the disk"
    ]
    last = stats["maintenance"]
    if last is None:
        found.append("maintenance in the background: not yet")
    else:
        did = ", ".join(f"{name.replace('_', ' ')} {_short(value)}" for name, value in last["did"].items())
        found.append(
            f"maintenance {output.ago(last['at'])} by {last['host']}:{last['pid']}, "
            f"{output.span(last['took_us'] / 1_000_000)}: {did or 'nothing was due'}"
        )
        waiting = last["did"].get("waiting", [])
        found += [f"retention of {each}" for each in waiting]
    return [output.plain(line) for line in found]


def _short(value: Any) -> str:
    return str(len(value)) if isinstance(value, list) else output.number(value)


def per_second(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _topics(topics: Sequence[Stats]) -> list[str]:
    return output.table_lines(
        ("TOPIC", "PER S", "RECORDS", "SIZE", "EVER", "EVER SIZE", "ACTIVE", "ROLLED", "SEALED", "NOTE"),
        [
            (
                each["name"], per_second(each["records_per_s"]), output.number(each["records"]),
                output.size(each["bytes"]), output.number(each["pushed_records"]), output.size(each["pushed_bytes"]),
                each["segments"]["active"], each["segments"]["rolled"], each["segments"]["sealed"], _note(each),
            )
            for each in topics
        ],
    )  # fmt: skip


def _note(topic: Stats) -> str:
    notes = ["paused"] if topic["paused"] else []
    if topic["ephemeral"]:
        notes.append(f"ephemeral, {output.number(topic['dropped'])} dropped")
    if topic["segments"]["lost"]:
        notes.append(f"{output.count(topic['segments']['lost'], 'range')} lost")
    return "; ".join(notes)


def _subscribers(subscribers: Sequence[Stats]) -> list[str]:
    return output.table_lines(
        ("SUBSCRIBER", "TOPIC", "PER S", "BEHIND", "SIZE", "OLDEST", "LOST"),
        [
            (
                each["name"], each["topic"], per_second(each.get("read_per_s")), output.number(each["records"]),
                output.size(each["bytes"]), output.span(each["seconds"]) if each["records"] else "-",
                output.number(each["lost"]),
            )
            for each in subscribers
        ],
    )  # fmt: skip


def _channels(channels: Sequence[Stats]) -> list[str]:
    return output.table_lines(
        ("CHANNEL", "TOPIC", "PER S", "DEPTH", "IN HAND", "DEFERRED", "REQUEUED", "TIMED OUT", "DEAD", "LOST", "CONSUMERS"),
        [
            (
                each["name"] + (" (paused)" if each["paused"] else ""), each["topic"], per_second(each.get("acked_per_s")),
                *(output.number(each[name]) for name in (
                    "depth", "in_flight", "deferred", "requeued", "timed_out", "dead", "lost",
                )),
                len(each["consumers"]),
            )
            for each in channels
        ],
    )  # fmt: skip


def _subscription(each: Stats) -> str:
    return output.plain("subscribed: " + ", ".join([*each["names"], *each["patterns"]]))


def _hot(hot: Stats) -> list[str]:
    """Of this process: empty where it has no subscribers of its own."""
    if not hot["hits"] + hot["misses"]:
        return []
    used, budget = output.size(hot["bytes"]), output.size(hot["budget_bytes"])
    counts = f"{output.count(hot['hits'], 'hit')}, {output.count(hot['misses'], 'miss', 'misses')}, {hot['prefetches']:,} loaded ahead"
    held = output.table_lines(
        ("SEGMENT", "TOPIC", "STATE", "FROM", "SIZE", "FOR"),
        [
            (each["id"][:8], each["topic"], each["state"], each["start"], output.size(each["bytes"]), ", ".join(each["for"]))
            for each in hot["segments"]
        ],
    )  # fmt: skip
    return [f"hot store: {used} of {budget}, {counts}", *held]
