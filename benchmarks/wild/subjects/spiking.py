"""Spiking networks: a step in forward, and a smooth curve of the author's choice in backward."""

from functools import partial
from typing import Any

import torch

from benchmarks.wild.subject import Subject, load, normal, uniform

BRAINCOG = "braincog.base.strategy.surrogate"
SPAIC = "spaic.Learning.surrogate"
SINABS = "sinabs.activation"


def voltage(*more: Any) -> tuple[Any, ...]:
    """Membrane voltages around a threshold of zero, and further arguments."""
    return (normal(4, 6), *more)


def sharpness(value: float = 2.0) -> torch.Tensor:
    """The parameter `alpha` as the packages keep it: a tensor of no dimensions."""
    return torch.tensor(value, requires_grad=True)


def above_one(curve: str, *more: Any) -> tuple[Any, ...]:
    """Voltages up to four thresholds of 1, and a surrogate of sinabs."""
    made = load(f"{SINABS}.surrogate_gradient_fn:{curve}")
    return (uniform(4, 6, low=-1.0, high=4.0), *more, 1.0, made())


SUBJECTS = [
    *(
        Subject(package, f"{module}:{name}", partial(voltage, 2.0), name)
        for package, module in (("braincog", BRAINCOG), ("spaic", SPAIC))
        for name in ("sigmoid", "gate", "quadratic_gate")
    ),
    *(
        Subject(package, f"{module}:{name}", lambda: voltage(sharpness()), name)
        for package, module in (("braincog", BRAINCOG), ("spaic", SPAIC))
        for name in ("atan", "relu_like")
    ),
    *(
        Subject("braincog", f"{BRAINCOG}:{name}", voltage)
        for name in ("straight_through_estimator", "stdp", "backeigate", "ei")
    ),
    Subject("spaic", f"{SPAIC}:rectangle", lambda: voltage(torch.tensor(0.5))),
    Subject("spaic", f"{SPAIC}:straight_through_estimator", voltage),
    Subject("sinabs", f"{SINABS}.quantize:Quantize", voltage),
    Subject("sinabs", f"{SINABS}.quantize:StochasticRounding", voltage),
    Subject(
        "sinabs", f"{SINABS}.spike_generation:MultiSpike", partial(above_one, "PeriodicExponential")
    ),
    Subject(
        "sinabs",
        f"{SINABS}.spike_generation:MaxSpikeInner",
        partial(above_one, "SingleExponential", 2),
    ),
    Subject(
        "sinabs", f"{SINABS}.spike_generation:SingleSpike", partial(above_one, "SingleExponential")
    ),
    Subject(
        "pytorch-spiking",
        "pytorch_spiking.functional:SpikingActivation",
        lambda: (normal(2, 5, 3), torch.nn.functional.relu, 0.1, uniform(2, 3, grad=False)),
    ),
]
