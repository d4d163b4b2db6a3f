"""Gradients that are turned round, scaled, stopped or passed on: domain adaptation, attribution."""

import torch

from benchmarks.wild.subject import Subject, normal

DOMAINLAB = "domainlab.compos.nn_zoo.net_adversarial"


SUBJECTS = [
    Subject(
        "pytorch-revgrad",
        "pytorch_revgrad.functional:RevGrad",
        lambda: (normal(3, 5), torch.tensor(1.0)),
    ),
    Subject("dalib", "dalib.modules.grl:GradientReverseFunction", lambda: (normal(3, 5), 0.5)),
    Subject("domainlab", f"{DOMAINLAB}:AutoGradFunReverseMultiply", lambda: (normal(3, 5), 0.5)),
    Subject("domainlab", f"{DOMAINLAB}:AutoGradFunMultiply", lambda: (normal(3, 5), 0.5)),
    Subject("skada", "skada.deep.modules:GradientReversalLayer", lambda: (normal(3, 5), 0.5)),
    Subject("zennit", "zennit.core:Identity", lambda: (normal(3, 5), normal(2, 4, seed=1))),
]
