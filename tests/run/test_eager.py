"""The backends by name, and the eager one: a graph as Python."""

import pytest
import torch
from torch import fx

from pullback.errors import BackendError
from pullback.run import BACKENDS, backend_of


def test_eager_makes_a_function_of_a_graph():
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(2)
    y = graph.call_function(torch.ops.aten.sin.default, (x,))
    y.meta["val"] = torch.ones(2)
    graph.output((y,))
    function = backend_of("eager")(graph, "forward", "sine", {x: "x", y: "y"})

    assert torch.equal(function(torch.ones(2)), torch.ones(2).sin())
    assert function.__name__ == "forward"


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_is_there(name):
    assert callable(backend_of(name))


def test_unknown_backend_is_refused():
    with pytest.raises(BackendError):
        backend_of("abacus")
