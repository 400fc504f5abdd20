"""Where a store may live, and what is said where it may not."""

import shutil
import subprocess
from pathlib import Path

import pytest

import jjq
from jjq.founding import file_system, type_at
from tests.brokers import COMMAND, environment

UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]

mounts_here = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode != 0,
    reason="nothing can be mounted here",
)

MOUNTS = """\
/dev/sda / ext4 rw 0 0
proc /proc proc rw 0 0
server:/export /srv nfs4 rw,vers=4.2 0 0
/dev/sdb /srv/disk xfs rw 0 0
//server/share /with\\040space\\134 cifs rw 0 0
host /données 9p rw 0 0
/dev/sdc /twice ext4 rw 0 0
server:/export /twice nfs rw 0 0
"""


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ("/home/x", "ext4"), ("/srv", "nfs4"), ("/srv/x", "nfs4"), ("/srv2", "ext4"), ("/srv/disk/x", "xfs"),
        ("/with space\\/x", "cifs"), ("/données/x", "9p"), ("/twice/x", "nfs"),
    ],
)  # fmt: skip
def test_a_path_is_on_what_was_mounted_last_nearest_above_it(where: str, kind: str) -> None:
    assert type_at(where, MOUNTS) == kind


def on_tmpfs(point: bytes | Path, options: str, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """What a command says where a tmpfs is mounted at `point`, for it alone."""
    script = 'mount -t tmpfs -o "$1" none "$2" && shift 2 && exec "$@"'
    return subprocess.run(
        [*UNSHARE, "sh", "-c", script, "sh", options, point, *command],
        capture_output=True, text=True, env=environment(),
    )  # fmt: skip


@mounts_here
def test_a_mount_whose_name_is_no_text_keeps_no_store_from_opening(tmp_path: Path) -> None:
    odd = bytes(tmp_path) + b"/\xff"
    subprocess.run(["mkdir", odd], check=True)
    done = on_tmpfs(odd, "rw", COMMAND, "topic", "create", "t", "--store", tmp_path / "s")
    assert (done.returncode, done.stderr) == (0, "")


@mounts_here
def test_who_may_not_write_in_a_directory_is_told_that_no_store_can_be_made_there(tmp_path: Path) -> None:
    done = on_tmpfs(tmp_path, "ro", COMMAND, "topic", "create", "t", "--store", tmp_path)
    assert done.returncode == 1
    assert f"cannot make a store at {tmp_path}: user 0 may not write there; give it the directory" in done.stderr


def test_what_else_is_in_a_directory_is_named(tmp_path: Path) -> None:
    assert file_system(tmp_path)
    (tmp_path / "lost+found").mkdir()
    with pytest.raises(jjq.StoreFormat, match=r"has something else in it, lost\+found; name an empty directory"):
        jjq.open(tmp_path)
    jjq.open(tmp_path / "store").close()


def test_no_store_is_made_in_another_one(tmp_path: Path) -> None:
    with jjq.open(tmp_path / "store") as store:
        inside = store.path / "topics" / store.create_topic("t").id
    (tmp_path / "link").symlink_to(inside)
    for where in (inside / "0" / "new", tmp_path / "link" / "new", tmp_path / "store" / "new"):
        with pytest.raises(jjq.StoreFormat, match=r"is inside the store .*/store, .*; name a place beside that"):
            jjq.open(where)
        assert not where.exists()


def test_a_store_that_its_file_system_cannot_keep_whole_is_read_only_and_none_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    with jjq.open(path, maintenance=False) as store:
        store.create_topic("t").push(b"v")
    monkeypatch.setattr("jjq.founding.file_system", lambda path: "nfs4")
    for place in (path, tmp_path / "new", tmp_path / "a" / "new"):
        with pytest.raises(jjq.StoreError, match=r"is on nfs4, .* use a local disk, or open it with read_only=True"):
            jjq.open(place)
    assert [each.name for each in tmp_path.iterdir()] == ["store"]
    with jjq.open(path, read_only=True) as store:
        assert store.topic("t").read().read_all().num_rows == 1
