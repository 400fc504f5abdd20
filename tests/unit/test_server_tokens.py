"""The file of tokens: what is kept, how it changes, and that nothing in it could be used."""

import json
import re
import stat
import threading
from pathlib import Path

import pytest

from jjq.errors import InvalidArgument, InvalidName, StoreError
from jjq.server.tokens import Token, TokenExists, TokenFile, TokenNotFound, hashed


@pytest.fixture
def file(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "tokens.json")


def test_a_token_is_kept_as_its_hash_alone_and_for_its_owner_alone(file: TokenFile) -> None:
    secret, made = file.create("loader", write=("orders.*",))
    text = file.path.read_text()
    assert re.fullmatch(r"jjq_[\w-]{43}", secret)
    assert secret not in text
    assert secret[4:] not in text
    assert hashed(secret) in text
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert file.tokens() == [made]


def test_neither_the_token_nor_its_hash_is_shown(file: TokenFile) -> None:
    secret, made = file.create("loader", read=("*",))
    assert hashed(secret) not in repr(made)
    assert "hash" not in made.to_dict()
    assert "previous_hash" not in made.to_dict()


def test_no_two_tokens_are_alike(file: TokenFile) -> None:
    secrets = {file.create(f"t{i}", read=("*",))[0] for i in range(10)}
    assert len(secrets) == 10
    assert [each.name for each in file.tokens()] == sorted(f"t{i}" for i in range(10))


def test_a_rotated_token_has_the_same_rights_and_the_old_one_its_time(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json", clock=lambda: 1_000)
    old, made = file.create("loader", write=("a", "b"), records_per_s=7)
    new, rotated = file.rotate("loader", keep_us=500)
    assert new != old
    assert (rotated.hash, rotated.previous_hash, rotated.previous_until) == (hashed(new), hashed(old), 1_500)
    assert (rotated.write, rotated.records_per_s, rotated.created_at, rotated.rotated_at) == (
        ("a", "b"),
        7,
        1_000,
        1_000,
    )
    newest, again = file.rotate("loader")
    assert (again.hash, again.previous_hash) == (hashed(newest), None)
    assert made.previous_hash is None


def test_a_revoked_token_is_gone(file: TokenFile) -> None:
    file.create("a", read=("*",))
    file.create("b", read=("*",))
    assert file.revoke("a").name == "a"
    assert [each.name for each in file.tokens()] == ["b"]


def test_a_name_is_there_once_and_one_that_is_not_there_is_named_with_those_that_are(file: TokenFile) -> None:
    file.create("loader", read=("*",))
    with pytest.raises(TokenExists, match="rotate or revoke it"):
        file.create("loader", read=("*",))
    for change in (file.rotate, file.revoke):
        with pytest.raises(TokenNotFound, match=r"no token 'laoder' .*there are: loader"):
            change("laoder")


@pytest.mark.parametrize(
    "rights", [{}, {"read": ("",)}, {"write": "orders"}, {"read": ("*",), "records_per_s": 0}, {"admin": (1,)}]
)
def test_a_token_that_could_do_nothing_or_says_nonsense_is_refused(file: TokenFile, rights: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        file.create("x", **rights)  # type: ignore[arg-type]
    assert file.tokens() == []


def test_a_name_follows_the_one_rule(file: TokenFile) -> None:
    with pytest.raises(InvalidName):
        file.create("a b", read=("*",))


def test_commands_that_change_the_file_at_once_lose_nothing(file: TokenFile) -> None:
    def make(number: int) -> None:
        for each in range(10):
            TokenFile(file.path).create(f"t{number}-{each}", read=("*",))

    threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(file.tokens()) == 40
    assert [path.name for path in file.path.parent.iterdir()] == ["tokens.json"]


def test_a_change_is_seen_by_its_signature(file: TokenFile) -> None:
    assert file.signature() is None
    file.create("a", read=("*",))
    first = file.signature()
    assert first is not None
    file.rotate("a")
    assert file.signature() != first


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"version": 2, "tokens": []}', '{"version": 1}', '{"version": 1, "tokens": {}, "x": 1}x',
        '{"version": 1, "tokens": [{"name": "a"}]}', '{"version": 1, "tokens": [{"name": "a", "hash": "short"}]}',
        '{"version": 1, "tokens": [7]}',
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_named_and_left_as_it_is(file: TokenFile, text: str) -> None:
    file.path.write_text(text)
    for ask in (file.tokens, lambda: file.create("a", read=("*",))):
        with pytest.raises(InvalidArgument, match=r"tokens\.json is no file of tokens"):
            ask()
    assert file.path.read_text() == text


def test_a_later_versions_fields_are_left_out(file: TokenFile) -> None:
    file.create("a", read=("*",))
    body = json.loads(file.path.read_text())
    body["tokens"][0]["colour"] = "red"
    file.path.write_text(json.dumps(body))
    assert isinstance(file.tokens()[0], Token)


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        TokenFile(tmp_path / "nowhere" / "tokens.json").create("a", read=("*",))
