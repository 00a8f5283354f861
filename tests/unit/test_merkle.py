"""Merkle trees are those of RFC 6962, and a proof proves its leaf at its place and no other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carbonq import merkle, verify
from carbonq.merkle import Range

#: The inputs and roots that implementations of certificate transparency test themselves with.
LEAVES = [
    bytes.fromhex(one).decode()
    for one in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]

hashes = st.lists(st.integers(0, 3).map(lambda n: merkle.leaf(str(n))), min_size=1, max_size=40)


@pytest.mark.parametrize("count", range(1, 9))
def test_roots_are_those_of_the_standard(count: int) -> None:
    assert merkle.root_of(map(merkle.leaf, LEAVES[:count])).hex() == ROOTS[count - 1]


def test_nothing_has_the_root_of_nothing() -> None:
    assert merkle.root_of([]) == merkle.EMPTY
    assert merkle.EMPTY.hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@settings(max_examples=100)
@given(hashes, st.data())
def test_a_proof_leads_to_the_root_from_its_leaf_alone(leaves: list[bytes], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(leaves) - 1))
    root, path = merkle.root_of(leaves), merkle.path(leaves, index)
    assert merkle.root_from(leaves[index], index, len(leaves), path) == root
    assert verify._root(leaves[index].hex(), index, len(leaves), [one.hex() for one in path]) == root.hex()
    other = merkle.leaf("another")
    assert merkle.root_from(other, index, len(leaves), path) != root
    assert merkle.root_from(leaves[index], index, len(leaves), [*path, other]) is None
    if path:
        assert merkle.root_from(leaves[index], index, len(leaves), path[:-1]) is None
        changed = [*path[:-1], other]
        assert merkle.root_from(leaves[index], index, len(leaves), changed) != root
    for wrong in (-1, len(leaves)):
        assert merkle.root_from(leaves[index], wrong, len(leaves), path) is None
        with pytest.raises(IndexError):
            merkle.path(leaves, wrong)


@given(hashes, hashes)
def test_a_tree_goes_on_from_its_peaks(first: list[bytes], more: list[bytes]) -> None:
    tree = Range()
    tree.extend(b"".join(first))
    again = Range(tree.peaks, tree.count)
    for one in more:
        again.add(one)
    assert again.root() == merkle.root_of([*first, *more])
    with pytest.raises(ValueError, match="peaks"):
        Range([*tree.peaks, merkle.EMPTY], tree.count)


def test_what_is_hashed_does_not_depend_on_order_and_tells_tables_apart() -> None:
    assert merkle.content("entries", {"b": "é\n\0", "a": 1}) == 'entries 1 {"a":1,"b":"é\\n\\u0000"}'
    assert merkle.content("facts", {"a": 1}) != merkle.content("rates", {"a": 1})
    assert merkle.leaf(merkle.content("entries", {"a": "\udcff"})) != merkle.leaf(merkle.content("entries", {"a": "?"}))
    assert merkle.content("entries", {"a": b"x"}) == 'entries 1 {"a":"b\'x\'"}'
