"""A store read by nothing but what docs/format.md says: the numbers here are the page's, not the code's."""

import base64
import contextlib
import sqlite3
import struct
from pathlib import Path

import pyarrow as pa
import pytest
from crc32c import crc32c

import jjq
from jjq.log import format as fmt

RESIDUE = 0x48674BC7
OPEN, BATCH, CLOSE = 1, 2, 3
LARGE = bytes(range(256)) * 8192


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """The directory of a partition with a closed stream file, a sealed file and an active one."""
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("events")
        topic.push(b"one")
        topic.push_many([b"two", None], keys=[b"k", None])
        topic.push_many([LARGE, LARGE])
        topic.push_table(pa.table({"value": [b"x", b"y"]}), writer_id="w", batch_id=0)
        topic.push(b"last", headers={"h": b"v"})
        return topic.directory(0)


def entries(path: Path) -> list[tuple[int, ...]]:
    data = path.read_bytes()
    assert len(data) % 80 == 0
    assert crc32c(data, RESIDUE) == RESIDUE  # one pass over all of it
    for at in range(0, len(data), 80):
        assert struct.unpack_from("<I", data, at + 76)[0] == crc32c(data[at : at + 76], RESIDUE)
    return [struct.unpack_from("<BBHIqqqqqqqqI", data, at) for at in range(0, len(data), 80)]


def field_of(head: bytes, start: bytes, characters: int) -> tuple[int, bytes]:
    at = head.index(start)
    return at, base64.b64decode(head[at : at + characters], validate=True)


def streams(partition: Path) -> list[Path]:
    """The stream files, by their base offset."""
    return sorted(partition.glob("*.arrows"), key=lambda path: entries(path.with_suffix(".index"))[0][4])


def test_every_message_is_where_its_entry_says_and_proves_itself(partition: Path) -> None:
    topic = bytes.fromhex(partition.parent.name)
    for path in streams(partition):
        data = path.read_bytes()
        first, *rest = entries(path.with_suffix(".index"))
        assert first[0] == OPEN
        end, offset = first[7], first[4]
        running = crc32c(data[:end])
        assert running == first[12]
        for kind, _, _, _, base, rows, position, length, low, high, _, appended_at, file_crc in rest:
            if kind != BATCH:
                assert (kind, base, position, file_crc) == (CLOSE, offset, end, running)
                continue
            message = data[position : position + length]
            running = crc32c(message, running)
            assert (base, position, file_crc) == (offset, end, running)
            assert message[:4] == b"\xff\xff\xff\xff"
            head = message[: 8 + struct.unpack_from("<i", message, 4)[0]]
            at, field = field_of(head, b"ampx", 96)
            assert field[:4] == b"jjq\x01"
            assert (field[8:24], struct.unpack_from("<H", field, 4)[0]) == (topic, 0)
            assert struct.unpack_from("<qIqq", field, 24) == (offset, rows, position, appended_at)  # synced up to here
            blank = message[: at + 88] + b"A" * 8 + message[at + 96 :]
            assert struct.unpack_from("<I", field, 68)[0] == crc32c(blank)
            stamps = struct.unpack_from(f"<{rows}q", message, len(head))  # the body begins with the timestamps
            assert (min(stamps), max(stamps)) == (low, high)
            offset, end = offset + rows, position + length
        assert end == len(data)


def test_files_follow_one_another_and_any_arrow_reader_opens_them(partition: Path) -> None:
    first, active = streams(partition)
    assert [entry[0] for entry in entries(first.with_suffix(".index"))][-1] == CLOSE
    (sealed,) = partition.glob("*.arrow")
    columns = ["_timestamp", "_key", "_headers", "value"]
    tables = [
        pa.ipc.open_stream(first.read_bytes()).read_all(),
        pa.ipc.open_file(sealed.read_bytes()).read_all(),
        pa.ipc.open_stream(active.read_bytes()).read_all(),
    ]
    assert all(table.schema.names == columns for table in tables)
    assert [value for table in tables for value in table["value"].to_pylist()] == [
        b"one", b"two", None, LARGE, LARGE, b"x", b"y", b"last",
    ]  # fmt: skip


def test_a_sealed_file_and_its_row_agree(partition: Path) -> None:
    (sealed,) = partition.glob("*.arrow")
    data = sealed.read_bytes()
    with contextlib.closing(sqlite3.connect(partition.parents[2] / "catalog.db")) as catalog:
        row = catalog.execute("SELECT length, crc, meta_crc FROM segments WHERE uuid = ?", (sealed.stem,)).fetchone()
        active = catalog.execute("SELECT active, end_offset FROM partitions").fetchone()
    assert (len(data), crc32c(data)) == row[:2]
    assert data[:8] == b"ARROW1\0\0"
    assert data[-6:] == b"ARROW1"
    footer_at = len(data) - 10 - struct.unpack_from("<i", data, len(data) - 10)[0]
    assert data[footer_at - 8 : footer_at] == b"\xff\xff\xff\xff\0\0\0\0"
    schema_end = 16 + struct.unpack_from("<i", data, 12)[0]
    assert crc32c(data[:schema_end] + data[footer_at - 8 :]) == row[2]
    head = data[schema_end : schema_end + 8 + struct.unpack_from("<i", data, schema_end + 4)[0]]
    characters = -(-(40 + 4 * 4) // 3) * 4  # four physical columns
    at, field = field_of(head, b"ampz", characters)
    assert field[:4] == b"jjs\x01"
    head_crc, count, rows, first_row = struct.unpack_from("<IIIq", field, 4)
    assert (count, rows, first_row) == (4, 2, 0)
    blank = base64.b64encode(field[:4] + bytes(4) + field[8:])
    assert head_crc == crc32c(head[:at] + blank + head[at + characters :])
    assert active == (streams(partition)[1].stem, 7)


def test_the_checksum_is_castagnolis() -> None:
    # The check value and the vectors of RFC 3720, B.4: any other polynomial, or another library, must give the same.
    assert crc32c(b"123456789") == 0xE3069283
    assert [crc32c(bytes([each] * 32)) for each in (0, 255)] == [0x8A9136AA, 0x62A8AB43]
    assert fmt.crc32c(bytes(range(32))) == 0x46DD794E
    assert fmt.crc32c(b"6789", fmt.crc32c(b"12345")) == 0xE3069283
