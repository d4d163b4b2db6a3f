"""What is said about each planted fault: by input, the pattern and the edit."""

SWAPPED_AB = "return the gradient of `a` first, that of `b` after it"
SWAPPED_X = "return the gradient of `x` first, that of `scale` after it"
SWAPPED_W = "return the gradient of `x` first, that of `w` after it"

PLANTED = {
    # a constant factor, a sign
    "SquareWithoutTwo": {"x": ("1/2 times what it should be", "multiply by 2")},
    "CubeWithTwo": {"x": ("2/3 times what it should be", "use 3 instead of 2 in `2 * g`")},
    "PowerTooHigh": {
        "x": (
            "a constant is wrong: 4 instead of 3 in `x**4`",
            "use 3 instead of 4 in `x**4`",
        )
    },
    "NormalWithoutRoot": {"x": ("1/sqrt(2) times what it should be", "multiply by sqrt(2)")},
    "DecayWithoutMinus": {"rate": ("the sign is wrong", "change its sign")},
    "CosineWithPlus": {
        "x": (
            "a sign is wrong in `x.sin() + 1`",
            "use `1 - x.sin()` instead of `x.sin() + 1`",
        )
    },
    "DifferenceWithMinusTwice": {"a": ("the sign is wrong", "drop the minus of `-g`")},
    # gradients in the wrong place
    "ProductSwapped": {
        "a": ("swapped with the gradient of `b`", SWAPPED_AB),
        "b": ("swapped with the gradient of `a`", SWAPPED_AB),
    },
    "PowerSwapped": {
        "x": ("swapped with the gradient of `scale`", SWAPPED_X),
        "scale": ("swapped with the gradient of `x`", SWAPPED_X),
    },
    "LinearSwapped": {
        "x": ("swapped with the gradient of `w`", SWAPPED_W),
        "w": ("swapped with the gradient of `x`", SWAPPED_W),
    },
    "ProductWithNone": {
        "b": ("`None` is returned where a gradient flows", "return `g * a` instead of `None`")
    },
    "NamedWithoutOne": {
        "b": (
            "`None` is returned where a gradient flows",
            "return `g * a.sin()` instead of `None`",
        )
    },
    # reductions
    "BiasWithMean": {
        "bias": (
            "the mean is taken where the sum is needed",
            "use `g.sum(0)` instead of `g.mean(0)`",
        )
    },
    "BiasOverColumns": {
        "bias": ("a dimension is wrong in `g.sum(-1)`", "use `g.sum(0)` instead of `g.sum(-1)`")
    },
    "MeanWithSum": {"x": ("`x.shape[0]` times what it should be", "divide by `x.shape[0]`")},
    "SoftmaxWithoutSum": {
        "x": (
            "a reduction is missing",
            "take the sum of `g * y` over dimension 1 (keepdim=True) in `g - g * y`",
        )
    },
    "SoftmaxOverRows": {
        "x": (
            "a dimension is wrong: 0 instead of 1 in `(g * y).sum(0, keepdim=True)`",
            "use 1 instead of 0 in `(g * y).sum(0, keepdim=True)`",
        )
    },
    "SoftmaxWithoutKeepdim": {
        "x": (
            "a dimension is lost in `(g * y).sum(-1)`",
            "use `(g * y).sum(-1, keepdim=True)` instead of `(g * y).sum(-1)`",
        )
    },
    # summands and factors
    "GeluWithoutDensity": {
        "x": (
            "the derivative of `cdf` is missing, as if it were a constant",
            "add `torch.pi**-0.5 * (-(x / 2**0.5) ** 2).exp() * (g * x) / 2**0.5`",
        )
    },
    "GateWithoutSecond": {
        "x": (
            "the derivative of `x` in `x * gate` is missing, as if it were a constant",
            "add `g * gate`",
        )
    },
    "CentredWithoutMean": {
        "x": (
            "the derivative of `mean` is missing, as if it were a constant",
            "subtract `g.mean(-1, keepdim=True)`",
        )
    },
    "NormedWithoutMean": {
        "x": (
            "the derivative of `x.mean(-1, keepdim=True)` is missing, as if it were a constant",
            "subtract `g.mean(1, keepdim=True)` from `g - projected` in `rstd * (g - projected)`",
        )
    },
    "NormedWithConstantScale": {
        "x": (
            "the derivative of `rms` is missing, as if it were a constant",
            "subtract `2 * ((g * (x / rms / rms)).sum(-1, keepdim=True) / (2 * rms) "
            "/ g.shape[1] * x)`, and save `x`",
        )
    },
    "NormedWithScaleForValue": {
        "x": (
            "the saved inverse root `rstd` is used where the output `normed` is needed",
            "use `normed` instead of `rstd` in `rstd * (g * normed).mean(-1, keepdim=True)`",
        )
    },
    "LayerNormWithCotangentOnce": {
        "weight": (
            "`scaled` is used where the cotangent `g` is needed",
            "use `g` instead of `scaled` in `scaled * normed`",
        ),
        "bias": (
            "the mean is taken where the sum is needed",
            "use `g.sum(0)` instead of `g.mean(0)`",
        ),
    },
    "SquareWithSummandTooMany": {
        "x": ("a summand too many in `2 * x + y`: `y`", "drop `y` from `2 * x + y`")
    },
    "LogWithFactorTooMany": {
        "x": ("a factor too many: `scale`", "drop the factor `scale` of `g * scale`")
    },
    "ExpWithoutCotangent": {"x": ("the cotangent `g` is not used", "multiply by `g`")},
    "PairWithoutSecondCotangent": {
        "x": ("the cotangent `g_square` is not used", "add `2 * (g_square * x)`")
    },
    "ReluWithoutMask": {"x": ("a factor is missing: `mask`", "multiply by `mask`")},
    # one value for another
    "SineWithSavedSine": {
        "x": (
            "the saved sine `s` is used where the input `x` is needed",
            "use `x` instead of `s` in `s.cos()`, and save `x`",
        )
    },
    "TanhWithInput": {
        "x": (
            "the input `x` is used where the output `y` is needed",
            "use `y` instead of `x` in `x * x`, and save `y`",
        )
    },
    "QuotientWithNumerator": {
        "a": (
            "the input `a` is used where the input `b` is needed",
            "use `b` instead of `a` in `g / a`",
        )
    },
    "TwoOutputsCrossed": {
        "x": (
            "the cotangent `g_exp` is used where the cotangent `g_sine` is needed",
            "use `g_sine` instead of `g_exp` in `g_exp * x.cos()`",
        )
    },
    "SineForCosine": {
        "x": (
            "`x.sin()` is used where `x.cos()` is needed",
            "use `x.cos()` instead of `x.sin()`",
        )
    },
    # transposed, reversed, conjugated, of another shape
    "LinearTransposed": {
        "w": ("transposed: the shape is [6, 5] instead of [5, 6]", "return `(x.T @ g).T`")
    },
    "SquareLinearTransposed": {
        "x": (
            "the input `w` is used where `w.T` is needed",
            "use `w.T` instead of `w` in `g @ w`",
        )
    },
    "AttentionNotTransposed": {
        "v": (
            "the saved softmax `probs` is used where `probs.mT` is needed",
            "use `probs.mT` instead of `probs` in `probs @ g`",
        )
    },
    "SumNotExpanded": {
        "x": ("not expanded: the shape is [] instead of [5]", "return `g.expand_as(x)`")
    },
    "ScaleNotReduced": {
        "scale": (
            "a reduction is missing: the shape is [4, 6] instead of [4]",
            "return `(g * x).sum(-1)`",
        )
    },
    "CumsumNotReversed": {
        "x": ("it follows no simple pattern", "return `g.flip(0).cumsum(0).flip(0)`")
    },
    "RollForwards": {
        "x": (
            "a constant is wrong: 1 instead of -1 in `g.roll(1, 0)`",
            "use -1 instead of 1 in `g.roll(1, 0)`",
        )
    },
    "ComplexNotConjugated": {"a": ("a conjugate is missing", "conjugate `b` in `g * b`")},
    # here and there
    "LeakyWithoutSlope": {
        "x": (
            "1/10 times what it should be, only where `~(x > 0)`",
            "use 0.1 instead of 0.01 in `0.01 * g`",
        )
    },
    "EluWithWrongBranch": {
        "x": (
            "`x.exp() - 1` is used where `x.exp()` is needed, only where `~is_positive`",
            "use `x.exp()` instead of `x.exp() - 1` in `g * (x.exp() - 1)`",
        )
    },
    "BranchOfPython": {"x": ("1/2 times what it should be", "")},
    "OneOfAThousand": {
        "x": (
            "the cotangent `g` is used where `g * x.cos()` is needed, "
            "only at index 617 of dimension 0",
            "use `g * x.cos()` instead of `g` in `g[617]`",
        )
    },
    "LastRowForgotten": {
        "x": (
            "zero where a gradient flows, only at index -1 of dimension 0",
            "use `3 * g` instead of `torch.zeros_like(g)` in "
            "`torch.zeros_like(g).slice_scatter(3 * g[:-1], 0, 0, -1)`",
        )
    },
    "MeanOfFour": {
        "x": (
            "5/4 times what it should be, for inputs of shape [5, 4]",
            "use `x.shape[0]` instead of 4 in `2 * x * g / 4`",
        )
    },
    "ClampedCotangent": {
        "x": (
            "`g.clamp(-1, 1)` is used where the cotangent `g` is needed",
            "use `g` instead of `g.clamp(-1, 1)` in `2 * x * g.clamp(-1, 1)`",
        )
    },
    "StraightThrough": {"x": ("a gradient is returned where none flows", "return `None`")},
    "HiddenFromAutograd": {
        "x": (
            "forward hides it from autograd, and finite differences give another gradient",
            "",
        )
    },
    "ManySteps": {
        "x": (
            "a constant is wrong: 0.2 instead of 0.1 in `0.9 * (0.9 * states_5).cos() + 0.2`",
            "use 0.1 instead of 0.2 in `0.9 * (0.9 * states_5).cos() + 0.2`",
        )
    },
    "SeveralThingsAtOnce": {
        "x": (
            "it follows no simple pattern",
            "return `g * x.sin() * x.exp() + g * x.exp() * x.cos()`",
        )
    },
}
"""For each wrong gradient the pattern and the edit, "" if none is found."""
