"""The client by itself: what names a broker, and that nothing of the embedded interface is forgotten."""

import inspect
from collections.abc import Iterable

import pytest

import jjq
from jjq.client.channel import RemoteChannel
from jjq.client.connection import Address
from jjq.client.pubsub import RemotePubSub
from jjq.client.store import RemoteStore
from jjq.client.subscriber import RemoteSubscriber
from jjq.client.topic import RemoteTopic
from jjq.pubsub import PubSub


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("jjq://host", Address("host", 4750, False)),
        ("jjq://host:1/", Address("host", 1, False)),
        ("jjq+tls://a.b-c.example:65535", Address("a.b-c.example", 65535, True)),
        ("jjq://[::1]:7", Address("[::1]", 7, False)),
    ],
)
def test_a_broker_is_named_by_a_url(url: str, address: Address) -> None:
    assert Address.parse(url) == address
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:4750",
        "http://host:4750",
        "jjq://",
        "jjq://host:x",
        "jjq://host:70000",
        "jjq://token@host",
        "jjq://a b",
        "jjq://a\0",
        "jjq://a%b",
        None,
        7,
    ],
)
def test_what_names_no_broker_says_how_to(url: object) -> None:
    with pytest.raises(jjq.InvalidArgument, match="jjq://host:port"):
        jjq.connect(url)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "token", ["jjq_secret\njjq_secret", "jjq_sécret", "jjq_secret # mine", "jjq_secret\0", b"jjq_secret"]
)
def test_what_cannot_be_a_token_is_refused_and_not_shown(token: object) -> None:
    with pytest.raises(jjq.InvalidArgument, match=r"^token ") as raised:
        jjq.connect("jjq://host", token=token)  # type: ignore[arg-type]
    assert "cret" not in str(raised.value)


def test_certificates_go_with_tls_and_together(tmp_path: object) -> None:
    for options, says in (
        ({"tls_ca": "x"}, r"jjq\+tls://host:4750"),
        ({"tls_cert": "x", "tls_key": "x"}, r"jjq\+tls"),
    ):
        with pytest.raises(jjq.InvalidArgument, match=says):
            jjq.connect("jjq://host", **options)
    with pytest.raises(jjq.InvalidArgument, match="go together"):
        jjq.connect("jjq+tls://host", tls_cert="x")
    with pytest.raises(jjq.InvalidArgument, match="cannot be read"):
        jjq.connect("jjq+tls://host", tls_ca=f"{tmp_path}/none")


# What works over the network as it is inherited: it rests on what is overridden.
INHERITED = {
    RemoteStore: {"facts", "partition_dir", "segment_files", "listener"},  # of the files, which are not here
    RemoteTopic: {
        "id", "name", "row", "created_at", "partitions", "schema", "schema_version", "check_partition", "check_partitions", "check_size",
        "check_records", "push", "push_chosen", "push_many", "push_table", "choose", "plain", "stamps", "select", "check_metadata", "plan_read",
        "to_pandas", "empty", "pause", "unpause", "append_all", "retry_schema",
    },
    RemoteSubscriber: {"id", "name", "topic", "on_data_loss", "created_at", "polled", "poll_from", "commit_to"},
    RemoteChannel: {"topic", "max_in_flight"},
    RemotePubSub: set(),
}  # fmt: skip


@pytest.mark.parametrize(
    ("remote", "embedded"),
    [
        (RemoteStore, jjq.Store), (RemoteTopic, jjq.Topic), (RemoteSubscriber, jjq.Subscriber), (RemoteChannel, jjq.Channel),
        (RemotePubSub, PubSub),
    ],
    ids=lambda kind: kind.__name__,
)  # fmt: skip
def test_everything_of_the_embedded_interface_is_there_with_the_same_arguments(remote: type, embedded: type) -> None:
    def names(kinds: Iterable[type]) -> set[str]:
        return {name for kind in kinds for name in vars(kind) if not name.startswith("_")}

    public = names(embedded.__mro__[:-1])
    own = names(kind for kind in remote.__mro__ if kind not in embedded.__mro__)
    assert public - own == INHERITED[remote]
    for name in public & own:
        theirs, ours = getattr(embedded, name), getattr(remote, name)
        if inspect.isfunction(theirs) and (remote, name) != (RemoteStore, "reader"):
            wanted = [(each.name, each.kind, each.default) for each in inspect.signature(theirs).parameters.values()]
            assert [(e.name, e.kind, e.default) for e in inspect.signature(ours).parameters.values()] == wanted, name


def test_a_name_that_no_host_can_have_is_not_reached() -> None:
    with pytest.raises(jjq.BrokerUnavailable, match="cannot be reached"):
        jjq.connect("jjq://a..b", retry_s=0)
