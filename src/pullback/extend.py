"""The door for a stranger's check, backend or emitter: the names that our own are written with.

A check is a module with `RULE`, a `Rule`, and `check(subject)`, which yields `Finding` or `Skip`;
its docstring is its page. A package names it in the entry-point group `pullback.checks`:

    [project.entry-points."pullback.checks"]
    not-finite = "acme_checks.not_finite"

A backend is a module with `absence`, `specialise`, which gives a `Compiled`, and perhaps
`make_node`, of a `NodeSpec`: its law stands in `pullback.run`. The groups `pullback.backends` and
`pullback.targets` are kept for backends and emitters: no entry there is read yet.

Every name that a module under `check/rules/` takes from another module of ours is here as well, and
means the same; what is not here may change without notice. Nothing of ours imports this module.
"""

from pullback.capture.indices import is_index as is_index
from pullback.check.blamed import wrong_gradients as wrong_gradients
from pullback.check.boxes import Box as Box
from pullback.check.boxes import boxed as boxed
from pullback.check.boxes import opened as opened
from pullback.check.dispatch import Fill as Fill
from pullback.check.dispatch import Foreign as Foreign
from pullback.check.dispatch import Work as Work
from pullback.check.dispatch import foreign_calls as foreign_calls
from pullback.check.dispatch import in_turns as in_turns
from pullback.check.dispatch import poisoned as poisoned
from pullback.check.draws import draws as draws
from pullback.check.elsewhere import Results as Results
from pullback.check.elsewhere import difference as difference
from pullback.check.elsewhere import is_repeatable as is_repeatable
from pullback.check.elsewhere import positions_of as positions_of
from pullback.check.elsewhere import results_of as results_of
from pullback.check.elsewhere import wrapped as wrapped
from pullback.check.entries import common_shape as common_shape
from pullback.check.entries import is_by_entry as is_by_entry
from pullback.check.example import Example as Example
from pullback.check.example import can_differ as can_differ
from pullback.check.example import copy_of as copy_of
from pullback.check.example import example_of as example_of
from pullback.check.example import mapped as mapped
from pullback.check.example import name_of as name_of
from pullback.check.example import tensors_in as tensors_in
from pullback.check.example import wide_of as wide_of
from pullback.check.extremes import value_trials as value_trials
from pullback.check.finding import PROFILES as PROFILES
from pullback.check.forward_mode import inner as inner
from pullback.check.forward_mode import pushed as pushed
from pullback.check.forward_mode import tangents_of as tangents_of
from pullback.check.inputs.arguments import arguments_of as arguments_of
from pullback.check.inputs.arguments import doubled as doubled
from pullback.check.inputs.arguments import indices_of as indices_of
from pullback.check.inputs.arguments import is_order as is_order
from pullback.check.inputs.arguments import masks_of as masks_of
from pullback.check.inputs.domains import ALONE as ALONE
from pullback.check.inputs.domains import EDGES as EDGES
from pullback.check.inputs.domains import FAINT as FAINT
from pullback.check.inputs.domains import FAR as FAR
from pullback.check.inputs.domains import HUGE as HUGE
from pullback.check.inputs.domains import INFINITE as INFINITE
from pullback.check.inputs.domains import MISSING as MISSING
from pullback.check.inputs.domains import NEGATIVE as NEGATIVE
from pullback.check.inputs.domains import SHIFTED as SHIFTED
from pullback.check.inputs.domains import SMALL as SMALL
from pullback.check.inputs.domains import SQUARES as SQUARES
from pullback.check.inputs.domains import ZERO as ZERO
from pullback.check.inputs.domains import Change as Change
from pullback.check.inputs.domains import changed as changed
from pullback.check.inputs.domains import emptied as emptied
from pullback.check.inputs.domains import hidden as hidden
from pullback.check.inputs.domains import tied as tied
from pullback.check.inputs.dtypes import LOW as LOW
from pullback.check.inputs.dtypes import coarser_of as coarser_of
from pullback.check.inputs.dtypes import dtype_of as dtype_of
from pullback.check.inputs.dtypes import in_dtype as in_dtype
from pullback.check.inputs.layouts import CONJUGATE as CONJUGATE
from pullback.check.inputs.layouts import FILL as FILL
from pullback.check.inputs.layouts import LAYOUTS as LAYOUTS
from pullback.check.inputs.layouts import dense as dense
from pullback.check.inputs.layouts import is_expanded as is_expanded
from pullback.check.inputs.layouts import is_lazy as is_lazy
from pullback.check.inputs.layouts import is_same_layout as is_same_layout
from pullback.check.inputs.layouts import layouts_of as layouts_of
from pullback.check.inputs.shapes import batches_of as batches_of
from pullback.check.inputs.shapes import blocks_of as blocks_of
from pullback.check.inputs.shapes import broadcast_of as broadcast_of
from pullback.check.inputs.shapes import empty_of as empty_of
from pullback.check.inputs.shapes import fits as fits
from pullback.check.inputs.shapes import lower_ranks_of as lower_ranks_of
from pullback.check.inputs.shapes import many_of as many_of
from pullback.check.inputs.shapes import oblong_of as oblong_of
from pullback.check.inputs.shapes import ranks_of as ranks_of
from pullback.check.inputs.shapes import resized as resized
from pullback.check.inputs.shapes import sizes_of as sizes_of
from pullback.check.inputs.shapes import symbols_of as symbols_of
from pullback.check.inputs.values import is_permutation as is_permutation
from pullback.check.inputs.values import resampled as resampled
from pullback.check.intermediates import keeps_intermediate as keeps_intermediate
from pullback.check.leftovers import leftovers_of as leftovers_of
from pullback.check.leftovers import with_leftovers as with_leftovers
from pullback.check.mismatch import Mismatch as Mismatch
from pullback.check.mismatch import index_of as index_of
from pullback.check.mismatch import number as number
from pullback.check.others import other_values as other_values
from pullback.check.patterns import CUT as CUT
from pullback.check.patterns import FACTOR as FACTOR
from pullback.check.patterns import REDUCTION as REDUCTION
from pullback.check.patterns import SIGN as SIGN
from pullback.check.patterns import SWAPPED as SWAPPED
from pullback.check.patterns import VALUES as VALUES
from pullback.check.precision import precisions as precisions
from pullback.check.reference import FINEST as FINEST
from pullback.check.reference import Precision as Precision
from pullback.check.registration import body_of as body_of
from pullback.check.registration import has_vmap_rule as has_vmap_rule
from pullback.check.registration import overload_of as overload_of
from pullback.check.retrial import by_indices as by_indices
from pullback.check.retrial import by_masks as by_masks
from pullback.check.retrial import by_shape as by_shape
from pullback.check.retrial import by_ties as by_ties
from pullback.check.retrial import by_zero as by_zero
from pullback.check.retrial import is_finite_number as is_finite_number
from pullback.check.retrial import set_aside as set_aside
from pullback.check.run import Run as Run
from pullback.check.run import copies_of as copies_of
from pullback.check.run import cotangent_of as cotangent_of
from pullback.check.run import cotangents_of as cotangents_of
from pullback.check.run import run as run
from pullback.check.run import seeded as seeded
from pullback.check.saving import saving as saving
from pullback.check.second_order import second_order as second_order
from pullback.check.snapshot import FREED as FREED
from pullback.check.snapshot import Snapshot as Snapshot
from pullback.check.snapshot import share_memory as share_memory
from pullback.check.spy import marking_of as marking_of
from pullback.check.spy import spy_on as spy_on
from pullback.check.subject import BackwardFailedError as BackwardFailedError
from pullback.check.subject import Finding as Finding
from pullback.check.subject import ForwardRefusedError as ForwardRefusedError
from pullback.check.subject import Rule as Rule
from pullback.check.subject import Severity as Severity
from pullback.check.subject import Skip as Skip
from pullback.check.subject import Subject as Subject
from pullback.check.subject import differing as differing
from pullback.check.subject import each as each
from pullback.check.subject import is_close as is_close
from pullback.check.subject import told as told
from pullback.check.subject import words_of as words_of
from pullback.check.subject import worst_of as worst_of
from pullback.check.target import Intent as Intent
from pullback.check.target import Target as Target
from pullback.check.target import target_of as target_of
from pullback.check.trials import Trial as Trial
from pullback.check.trials import failed as failed
from pullback.check.trials import is_finite as is_finite
from pullback.check.trials import is_new as is_new
from pullback.check.trials import reported as reported
from pullback.check.trials import trial_of as trial_of
from pullback.check.trials import trials as trials
from pullback.check.writes import Written as Written
from pullback.check.writes import written_inputs as written_inputs
from pullback.errors import CaptureError as CaptureError
from pullback.errors import PullbackError as PullbackError
from pullback.function.modes import DispatchMode as DispatchMode
from pullback.run.node import Compiled as Compiled
from pullback.run.node import NodeSpec as NodeSpec
