"""For verify.py only: where inputs are bound to one another, free parameters and how the inputs
follow from them, so that finite differences stay inside the domain.  Names in DIRTY write into
their first input on purpose (mark_dirty) and are called on a copy."""
from support import *

CHARTS = {}
DIRTY = set()

DIRTY |= {"inplace_elu"}
CHARTS["group_max_ties"] = (lambda: (randn(3, 8, seed=40),), lambda x: (x, 4))
CHARTS["kl_probability_rows"] = (
    lambda: (randn(3, 4, seed=11), randn(3, 4, seed=12)),
    lambda a, b: (torch.softmax(a, -1), torch.softmax(b, -1)))
DIRTY |= {"inplace_scale_shift"}
CHARTS["l2_normalize_zero_row"] = (lambda: (randn(4, 3, seed=50),), lambda x: (x,))


def _to_spd(b):
    return b @ b.mT + b.shape[-1] * torch.eye(b.shape[-1], dtype=b.dtype)


CHARTS["spd_solve"] = (lambda: (randn(4, 4, seed=1), randn(4, 2, seed=2)), lambda b, r: (_to_spd(b), r))
CHARTS["kepler_equation"] = (lambda: (rand(5, seed=7, high=6.0), rand(5, seed=8, low=0.1, high=0.9)),
                             lambda m, e: (m, e))
CHARTS["sym_eigenvalues"] = (lambda: (randn(4, 4, seed=9),), lambda b: (_to_spd(b),))
CHARTS["spd_sqrt"] = (lambda: (randn(3, 3, seed=10),), lambda b: (_to_spd(b),))
CHARTS["spd_logdet_custom_op"] = (lambda: (randn(4, 4, seed=16),), lambda b: (_to_spd(b),))
CHARTS["segment_max_ties"] = (lambda: (randn(4, 2, seed=60),), lambda x: (x, torch.tensor([0, 0, 2, 0]), 4))
CHARTS["quat_rotate_unit"] = (lambda: (randn(4, 4, seed=2), randn(4, 3, seed=3)),
                              lambda q, p: (F.normalize(q, dim=-1), p))


def _rot(w):
    s = torch.zeros(*w.shape[:-1], 3, 3, dtype=w.dtype)
    i, j = torch.tensor([2, 0, 1]), torch.tensor([1, 2, 0])
    s = s.index_put((torch.arange(len(w))[:, None], i, j), w).index_put((torch.arange(len(w))[:, None], j, i), -w)
    return torch.matrix_exp(s)


CHARTS["rotation_geodesic_distance"] = (lambda: (randn(3, 3, seed=4), randn(3, 3, seed=5)),
                                        lambda a, b: (_rot(a), _rot(b)))


def _tangent(x, v):
    x = F.normalize(x, dim=-1)
    return x, v - (v * x).sum(-1, keepdim=True) * x


CHARTS["sphere_exp_map"] = (lambda: (randn(4, 3, seed=6), randn(4, 3, seed=7)), _tangent)
CHARTS["sinkhorn_envelope"] = (
    lambda: (rand(3, 4, seed=6), randn(3, seed=7), randn(4, seed=8)),
    lambda C, a, b: (C, torch.softmax(a, 0), torch.softmax(b, 0), 0.3, 2000))
CHARTS["total_variation_float32"] = (lambda: (randn(3, 4, seed=9, dtype=torch.float32) * 3,), lambda x: (x,))
CHARTS["planck_radiance_si_units"] = (
    lambda: (rand(4, seed=9, low=0.4, high=3.0), rand(4, seed=10, low=1.0, high=6.0)),
    lambda l, t: (l * 1e-6, t * 1e3))

# Other argument sets of the same cases, checked in full as well.
VARIANTS = {
    "layer_norm_aux_outputs": [lambda: (randn(2, 3, 5, seed=2), randn(5, seed=4), randn(5, seed=3), 1e-5)],
    "linear_tutorial": [lambda: (randn(2, 3, 4, seed=11), randn(5, 4, seed=12), randn(5, seed=13))],
    "linear_recurrence_optional_state": [lambda: (rand(2, 5, 3, seed=6), randn(2, 5, 3, seed=7), randn(2, 3, seed=8))],
    "lif_sequence_optional_state": [lambda: (randn(5, 2, 3, seed=6, shift=1.0), randn(2, 3, seed=7), 1.5)],
    "chunked_attention": [lambda: (randn(2, 3, 4, seed=8), randn(2, 5, 4, seed=9), randn(2, 5, 3, seed=10), 3, False)],
    "triangular_solve": [lambda: ((randn(4, 4, seed=3, grad=False).triu() + 3 * torch.eye(4, dtype=torch.float64)
                                   ).requires_grad_(), randn(4, 2, seed=4), True)],
    "fake_quantize_modes": [lambda: (randn(3, 7, seed=6), 0.2), lambda: (randn(3, 7, seed=6), 0.2, 0, 4, True, "floor")],
    "seed_dropout": [lambda: (randn(4, 6, seed=8), 0.3, False), lambda: (randn(4, 6, seed=8), 0.0, True)],
    "relu_optional_inplace": [lambda: (randn(3, 5, seed=9),)],
    "checkpointed_mlp_rng": [lambda: (randn(4, 3, seed=5), randn(3, 6, seed=6), randn(6, 2, seed=7), 0.0)],
    "reversible_block": [lambda: (randn(2, 3, 4, seed=1), randn(2, 3, 4, seed=2), randn(4, 4, seed=3, grad=False),
                                  randn(4, 4, seed=4))],
    "moments_named_tuple": [lambda: (randn(3, 5, seed=1), False)],
    "masked_softmax_empty_row": [lambda: (randn(2, 3, 4, seed=7), rand(2, 3, 4, seed=8, grad=False) > 0.4)],
    "sparsemax": [lambda: (randn(4, 6, 2, seed=5), 1)],
}
