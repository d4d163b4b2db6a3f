"""Sparse softmax and its kin: projections onto the simplex with hand-written Jacobians."""

from benchmarks.wild.subject import Subject, normal

ACTIVATIONS = "pytorch_tabular.models.common.layers.activations"
WIDEDEEP = "pytorch_widedeep.models.tabular.tabnet.sparsemax"


def scores() -> tuple[object, ...]:
    """A batch of scores, and the dimension along which they are normalised."""
    return normal(4, 6), -1


SUBJECTS = [
    Subject("sparsemax", "sparsemax.sparsemax:SparsemaxFunction", scores),
    Subject("pytorch-tabnet", "pytorch_tabnet.sparsemax:SparsemaxFunction", scores),
    Subject("pytorch-tabnet", "pytorch_tabnet.sparsemax:Entmax15Function", scores),
    Subject("pytorch-tabnet", "pytorch_tabnet.sparsemax:Entmoid15", lambda: (normal(4, 6),)),
    Subject("pytorch-tabular", f"{ACTIVATIONS}:SparsemaxFunction", scores),
    Subject("pytorch-tabular", f"{ACTIVATIONS}:Entmax15Function", scores),
    Subject("pytorch-tabular", f"{ACTIVATIONS}:Entmoid15", lambda: (normal(4, 6),)),
    Subject("pytorch-widedeep", f"{WIDEDEEP}:SparsemaxFunction", scores),
    Subject("pytorch-widedeep", f"{WIDEDEEP}:Entmax15Function", scores),
]
