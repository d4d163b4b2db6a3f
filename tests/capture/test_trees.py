"""Nested containers as flat rows."""

from collections import namedtuple

import torch

from pullback.capture.trees import (
    flatten,
    is_row,
    literal_of,
    map_leaves,
    paths_of,
    tensor_leaves,
    unflatten,
)

Pair = namedtuple("Pair", "left right")


def test_flattened_tree_is_rebuilt():
    tree = {"a": (1, [2, None]), "b": Pair(3, "x")}

    leaves, spec = flatten(tree)

    assert leaves == [1, 2, None, 3, "x"]
    assert unflatten(leaves, spec) == tree


def test_paths_read_like_python():
    assert paths_of([1, {"w": 2}, Pair(3, 4)]) == ["[0]", "[1]['w']", "[2].left", "[2].right"]
    assert paths_of(5) == [""]


def test_only_tensors_are_picked():
    x, y = torch.ones(2), torch.zeros(3)

    assert [t.shape for t in tensor_leaves((x, [1, {"k": y}], "text"))] == [(2,), (3,)]


def test_leaves_are_mapped_in_place():
    assert map_leaves(lambda n: n + 1, (1, [2, 3])) == (2, [3, 4])


def test_row_is_one_level_deep():
    forms = {"leaf": 1, "row": (1, [], 2), "flat": [1, 2], "nested": (1, (2,))}

    assert [name for name, tree in forms.items() if is_row(flatten(tree)[1])] == ["flat"]


def test_leaf_is_written_as_python_writes_it():
    plain = [None, True, 2, 0.5, 1j, "a", torch.float32, float("inf")]
    written = ["None", "True", "2", "0.5", "1j", "'a'", "torch.float32", 'float("inf")']

    assert [literal_of(leaf) for leaf in plain] == written
    assert literal_of(torch.ones(2)) is None
