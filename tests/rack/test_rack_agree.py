"""What the nodes of a group must have in common, by changing one thing at a time."""

from __future__ import annotations

import itertools

import pytest

from k3ctl.errors import K3Error, MachineError, UsageError
from k3ctl.rack import agree


def node(number: int, **changes: object) -> dict[str, object]:
    return {
        "hostname": f"h{number}",
        "address": f"10.0.0.{number + 1}",
        "place": f"place{number}",
        "versions": {"k3ctl": "1", "python": "3.12", "vllm": "0.33.0", "torch": "2.13.0"},
        "profile": "digest",
        "values": {"model": "m", "env.A": "1", "speculative_config.method": "x"},
    } | changes


def rack(count: int = 4) -> dict[str, dict[str, object]]:
    return {f"tray{number}": node(number) for number in range(count)}


def test_equal_nodes_agree():
    agree.check(rack())


@pytest.mark.parametrize("odd", range(4))
@pytest.mark.parametrize("package", ["k3ctl", "python", "vllm", "torch"])
def test_one_other_version_is_refused_and_its_node_named_wherever_it_stands(package, odd):
    nodes = rack()
    nodes[f"tray{odd}"]["versions"] = {**nodes["tray0"]["versions"], package: "9.9"}
    with pytest.raises(MachineError) as caught:
        agree.check(nodes)
    assert f"tray{odd} has {package} 9.9" in caught.value.message
    assert not [host for host in nodes if host != f"tray{odd}" and host in caught.value.message]
    agree.check(nodes, any_version=True)


@pytest.mark.parametrize("odd", range(4))
def test_one_other_profile_is_refused_even_where_versions_may_differ(odd):
    nodes = rack()
    nodes[f"tray{odd}"]["profile"] = "another"
    with pytest.raises(UsageError, match=f"the profile differs on tray{odd} "):
        agree.check(nodes, any_version=True)


@pytest.mark.parametrize("values", [{"env.A": "2"}, {"env.B": "1"}, {"env.A": None}])
def test_a_value_that_differs_is_missing_or_is_there_on_one_node_only_is_named(values):
    nodes = rack()
    own = {**nodes["tray2"]["values"], **values}
    nodes["tray2"]["values"] = {key: value for key, value in own.items() if value is not None}
    with pytest.raises(UsageError) as caught:
        agree.check(nodes)
    assert "differs on tray2" in caught.value.message and next(iter(values)) in caught.value.message


def test_two_of_two_that_differ_are_both_named():
    nodes = rack(2)
    nodes["tray1"]["profile"] = "another"
    with pytest.raises(UsageError, match="tray0 and tray1"):
        agree.check(nodes)


@pytest.mark.parametrize("pair", itertools.combinations(range(4), 2))
def test_two_names_of_one_node_are_refused(pair):
    nodes = rack()
    first, second = (f"tray{number}" for number in pair)
    nodes[second]["place"] = nodes[first]["place"]
    with pytest.raises(UsageError, match=f"`{first}` and `{second}` are one and the same"):
        agree.check(nodes)


def test_the_order_of_the_nodes_changes_no_refusal():
    nodes = rack()
    nodes["tray3"]["profile"] = "another"
    said = set()
    for order in itertools.permutations(nodes):
        with pytest.raises(K3Error) as caught:
            agree.check({host: nodes[host] for host in order})
        said.add(caught.value.message.split(" (")[0])
    assert said == {"the profile differs on tray3"}


@pytest.mark.parametrize(
    ("first", "others", "wanted", "answer"),
    [
        ("10.0.0.1", "10.0.0.2", None, "10.0.0.1"),
        ("10.0.0.1", "10.0.0.2", "rack0-ib", "rack0-ib"),
        ("fd00::1", "fd00::2", None, "fd00::1"),
        ("127.0.0.1", "127.0.0.2", None, "127.0.0.1"),
        ("::1", "::1", None, "::1"),
        ("127.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.1"),
    ],
)
def test_the_master_address(first, others, wanted, answer):
    nodes = {"a": node(0, address=first), "b": node(1, address=others)}
    assert agree.master_address(nodes, wanted) == answer


@pytest.mark.parametrize(
    ("first", "others", "wanted"),
    [
        ("127.0.0.1", "10.0.0.2", None),
        ("::1", "10.0.0.2", None),
        ("", "10.0.0.2", None),
        ("10.0.0.1", "10.0.0.2", "localhost"),
        ("10.0.0.1", "10.0.0.2", "127.0.0.1"),
    ],
)
def test_a_master_that_the_others_cannot_reach_is_refused_with_the_option_that_helps(first, others, wanted):
    nodes = {"a": node(0, address=first), "b": node(1, address=others)}
    with pytest.raises(UsageError) as caught:
        agree.master_address(nodes, wanted)
    assert caught.value.message.startswith("a: ") and "--master-addr" in (caught.value.hint or "")
