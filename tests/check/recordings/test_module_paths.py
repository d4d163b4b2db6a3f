"""Paths of calls are read off the stack, and are those of `named_modules`."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pullback as pb
from pullback.check.recordings.module_paths import ModulePaths
from pullback.check.recordings.recorded import load_recording
from tests.check.models.models import Net, batch


class Asking(nn.Module):
    def __init__(self, paths, found):
        super().__init__()
        self.paths, self.found = paths, found

    def forward(self, x):
        self.found.append(self.paths.here())
        return x


def test_path_is_empty_outside_of_modules():
    assert ModulePaths().here() == ""


def test_path_is_that_of_named_modules():
    found = []
    ask = Asking(ModulePaths(), found)
    model = nn.Sequential(nn.Sequential(nn.ReLU(), ask), ask)

    model(torch.ones(1))
    ask(torch.ones(1))

    assert found == ["0.1", "1", "0.1"]


def test_root_is_called_by_its_class():
    found = []
    ask = Asking(ModulePaths(), found)

    ask(torch.ones(1))

    assert found == ["Asking"]


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net(2)

    def forward(self, x):
        for layer in self.net.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def test_recording_knows_paths_also_of_what_a_checkpoint_runs_again(tmp_path):
    with pb.recording() as rec:
        Checkpointed()(batch().requires_grad_()).sum().backward()

    (places,) = rec.places.values()
    assert places == {"net.layers.0.act": 2, "net.layers.1.act": 2}
    assert "called at `net.layers.0.act`, `net.layers.1.act`" in str(rec)

    rec.save(tmp_path / "rec.pt")
    loaded = load_recording(tmp_path / "rec.pt")
    assert loaded.places == rec.places
    assert loaded.calls[0].path == "net.layers.0.act"


def test_report_of_a_recording_says_where_it_was_called():
    with pb.recording() as rec:
        Net(5)(batch())

    (report,) = rec.check(profile="quick")

    assert report.notes[-1] == (
        "called at `layers.0.act`, `layers.1.act`, `layers.2.act` and 2 more places"
    )
