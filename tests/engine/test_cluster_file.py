"""cluster.toml: what it may say, what is refused with which line, and who owns what by it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from ducktail.engine.errors import InvalidParameterValue, IoError, WrongState
from ducktail.engine.placement.cluster_file import (
    ClusterFile,
    FilePlacement,
    PartitionMove,
    partition_moves,
    read_cluster_file,
    read_cluster_text,
    render,
)
from ducktail.engine.placement.placement import Node, Rule, ranges_text, read_ranges

TEXT = """\
cluster = "shop"
epoch = 3

[defaults]
user = "node"
password_file = "node.password"

[nodes.n1]
host = "10.0.0.1"
port = 5480

[nodes.n2]
host = "10.0.0.2"
port = 5480
tls = "verify-full"
ca = "ca.pem"
password_env = "N2"

[[topics]]
name = "orders"
partitions = { n1 = "0-2, 5", n2 = "3-4" }

[[topics]]
name = "main.log*"
partitions = { n2 = "0" }

[[topics]]
name = "*"
partitions = { n1 = "1", n2 = 0 }
"""
N1 = Node("n1", "10.0.0.1", 5480)


def placement(text: str = TEXT) -> FilePlacement:
    """As node n1 has it."""
    return FilePlacement(read_cluster_text(text, "cluster.toml"), N1, Path("/etc/shop"))


def test_what_it_says() -> None:
    found = placement()
    assert (found.cluster, found.epoch, found.local.name) == ("shop", 3, "n1")
    n1, n2 = found.nodes
    assert n1 == Node("n1", "10.0.0.1", 5480, user="node", password_file="/etc/shop/node.password")
    assert n2 == Node(
        "n2", "10.0.0.2", 5480, "verify-full", ca="/etc/shop/ca.pem", user="node", password_env="N2"
    )


def test_the_first_rule_that_fits_says_who_owns_a_partition() -> None:
    found = placement()
    assert [found.owner("main", "Orders", p).name for p in range(6)] == ["n1", "n1", "n1", "n2", "n2", "n1"]
    assert [found.owner("main", "logins", p).name for p in range(3)] == ["n2"] * 3
    assert [found.owner("other", "orders", p).name for p in range(4)] == ["n2", "n1", "n2", "n1"]
    assert found.home("main", "orders").name == "n1"


def test_what_no_node_owns_is_55000() -> None:
    with pytest.raises(WrongState, match="partition 6 of topic"):
        placement().owner("main", "orders", 6)
    with pytest.raises(WrongState, match=r'owns topic "main\.other"') as caught:
        placement(TEXT.replace('"*"', '"main.x*"')).home("main", "other")
    assert 'name = "*"' in str(caught.value.hint)


def test_a_node_that_left_is_itself_and_owns_nothing() -> None:
    gone = Node("n9", "10.0.0.9", 1)
    found = FilePlacement(read_cluster_text(TEXT, "f"), gone, Path())
    assert found.local is gone
    assert gone not in found.nodes


WRONG = {
    "epoch = 3": {
        'epoch = "3"': (2, "wants a whole number"),
        "epoch = true": (2, "wants a whole number"),
        "epoch = 0": (2, "1 or more"),
        "epoc = 3": (2, 'unknown key "epoc"'),
        "epoch = ": (0, "line 2"),
        "": (0, '"epoch" is missing'),
        'epoch = 3\nlost = ["n9", "n2"]': (3, 'node "n2" is lost, and cannot be one of the nodes'),
        "epoch = 3\nlost = [2]": (3, "not a node's name: 2"),
        'epoch = 3\nlost = "n9"': (3, '"lost" wants an array'),
    },
    'cluster = "shop"': {'cluster = "a shop"': (1, "not a name")},
    '[nodes.n1]\nhost = "10.0.0.1"\nport = 5480': {
        '[nodes.n1]\nhost = "10.0.0.1"': (8, '"port" is missing in nodes.n1'),
        '[nodes.n1]\nhost = "10.0.0.1"\nprot = 1': (10, 'unknown key "prot" in nodes.n1'),
        '[nodes.n1]\nhost = "10.0.0.2"\nport = 5480': (14, 'nodes "n1" and "n2" are both at 10.0.0.2:5480'),
        '[nodes.n1]\nhost = "a"\nport = 70000': (10, "not a port"),
        '[nodes.n1]\nhost = ""\nport = 1': (9, "wants a host"),
        '[nodes.n1]\nhost = "a"\nport = 1\npassword = "x"': (11, 'unknown key "password" in nodes.n1'),
        '[nodes]\nn1 = 1\n[nodes.n3]\nhost = "a"\nport = 1': (9, 'node "n1" wants a table'),
    },
    'tls = "verify-full"': {
        'tls = "on"': (15, "tls is one of off, require, verify-full"),
        'tls = "require"': (16, "ca wants tls"),
    },
    'password_env = "N2"': {'password_env = "N2"\npassword_file = "x"': (17, "do not go together")},
    'user = "node"\n': {"": (7, "a password wants a user")},
    'partitions = { n1 = "0-2, 5", n2 = "3-4" }': {
        'partitions = { n1 = "0-2", n2 = "4" }': (21, 'no node owns partition 3 of "main.orders"'),
        'partitions = { n1 = "0-2", n2 = "2" }': (21, 'partition 2 of "main.orders" has two owners'),
        'partitions = { n1 = "0-2", n3 = "3" }': (21, 'unknown node "n3"'),
        'partitions = { n1 = "0-9999" }': (21, "at most 1024 partitions"),
        'partitions = { n1 = "2-0" }': (21, "goes down"),
        'partitions = { n1 = "all" }': (21, "not partitions like"),
        "partitions = {}": (21, "has no partitions"),
        "": (19, '"partitions" is missing in topics.1'),
    },
    'name = "main.log*"': {
        'name = "Main.Orders"': (24, 'rule "Main.Orders" is never reached'),
        'name = ""': (24, "not a topic's name"),
    },
    'name = "orders"': {'name = "main.*"': (24, 'rule "main.log*" is never reached: "main.*" before it')},
}
CASES = [(old, new, *told) for old, cases in WRONG.items() for new, told in cases.items()]


@pytest.mark.parametrize(("old", "new", "line", "told"), CASES)
def test_what_is_refused_and_where(old: str, new: str, line: int, told: str) -> None:
    assert old in TEXT
    with pytest.raises(InvalidParameterValue) as caught:
        read_cluster_text(TEXT.replace(old, new, 1), "shop/cluster.toml")
    assert told in caught.value.message
    assert caught.value.message.startswith(f"shop/cluster.toml:{line}:" if line else "shop/cluster.toml:")


def test_a_misspelt_key_is_told_the_right_one() -> None:
    with pytest.raises(InvalidParameterValue) as caught:
        read_cluster_text(TEXT.replace("epoch", "epoc"), "f")
    assert caught.value.hint == "Did you mean epoch?"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(IoError, match=r"cannot read cluster file .*none\.toml"):
        read_cluster_file(tmp_path / "none.toml")


def test_the_digest_is_of_what_it_says() -> None:
    said = read_cluster_text(TEXT, "f")
    respelt = "# of another spelling\n" + TEXT.replace('"0-2, 5"', '"5,0-2"')
    assert read_cluster_text(respelt, "f").digest == said.digest
    assert read_cluster_text(TEXT.replace("5480", "5481"), "f").digest != said.digest
    assert read_cluster_text('lost = ["n9"]\n' + TEXT, "f").digest != said.digest


def test_moves_are_places_with_another_owner() -> None:
    new = TEXT.replace('n1 = "0-2, 5", n2 = "3-4"', 'n1 = "0-2", n2 = "3-5"')
    assert placement(new).moves_from(placement()) == 1
    assert placement(new).moves_from(placement(new)) == 0


def test_a_topic_that_comes_under_another_rule_moves() -> None:
    deals, one = Rule("*", ("n1", "n2")), Rule("main.a", ("n1", "n1", "n1"))
    assert partition_moves([deals], [one, deals]) == [PartitionMove("main.a", 1, "n2", "n1")]
    assert partition_moves([one, deals], [deals]) == [PartitionMove("main.a", 1, "n1", "n2")]
    assert partition_moves([deals], [Rule("*", ("n1", "n2", "n3"))])[0] == PartitionMove("*", 2, "n1", "n3")


NAMES = some.sampled_from(["n1", "n2", "n-3", "n.4"])
TEXTS = some.text(some.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
NODES = some.builds(
    Node, NAMES, TEXTS, some.integers(1, 65535), some.sampled_from(["off", "require"]), user=TEXTS
)


@some.composite
def files(draw: some.DrawFn) -> ClusterFile:
    """A file that may be."""
    nodes = draw(some.lists(NODES, min_size=1, unique_by=lambda node: node.name))
    nodes = [Node(n.name, f"h{at}", n.port, n.tls, user=n.user) for at, n in enumerate(nodes)]
    owners = some.lists(some.sampled_from([node.name for node in nodes]), min_size=1, max_size=20)
    rule = some.builds(Rule, some.sampled_from(["main.a", "main.b", "x.*"]), owners.map(tuple))
    rules = draw(some.lists(rule, unique_by=lambda rule: rule.name))
    epoch = draw(some.integers(1, 2**63 - 1))
    lost = draw(some.sets(some.sampled_from(["o1", "o.2"])))
    nodes.sort(key=lambda node: node.name)
    return ClusterFile("c", epoch, tuple(nodes), tuple(rules), lost=tuple(sorted(lost)))


@given(files())
def test_what_is_written_is_read_as_it_was(file: ClusterFile) -> None:
    assert read_cluster_text(render(file), "f") == file


def test_defaults_stay_defaults_when_it_is_written() -> None:
    said = read_cluster_text(TEXT, "f")
    assert render(said).count("node.password") == 1
    assert read_cluster_text(render(said), "f") == said


@given(some.sets(some.integers(0, 1023), min_size=1))
def test_ranges_come_back(numbers: set[int]) -> None:
    assert read_ranges(ranges_text(numbers)) == sorted(numbers)


def test_the_examples_of_the_docs_can_be_read() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "cluster.md").read_text()
    examples = re.findall(r'^cluster = "shop".*?(?=^(?:```|END))', page, re.MULTILINE | re.DOTALL)
    assert [len(read_cluster_text(text, "docs/cluster.md").nodes) for text in examples] == [2, 2]
