"""pullback makes custom autograd functions right and fast."""

import _pullback_start as _pullback_start  # first: Ctrl-C while PyTorch is loaded
from pullback.candidates import judge as judge
from pullback.candidates import judge_all as judge_all
from pullback.check import assert_sound as assert_sound
from pullback.check import check as check
from pullback.check import recording as recording
from pullback.compose import chunked as chunked
from pullback.compose import combine as combine
from pullback.compose import hybrid as hybrid
from pullback.compose import nest as nest
from pullback.derive import derive as derive
from pullback.derive import jvp_of as jvp_of
from pullback.derive import vmap_of as vmap_of
from pullback.derive.returned import DerivedFunction as DerivedFunction
from pullback.emit import build as build
from pullback.emit import emit as emit
from pullback.errors import PullbackError as PullbackError
from pullback.errors import PullbackWarning as PullbackWarning
from pullback.function.context import AutogradContext as AutogradContext
from pullback.function.dispatch import below_autograd as below_autograd
from pullback.function.function import Function as Function
from pullback.function.unwritten import derived as derived
from pullback.plan import load_plan as load_plan
from pullback.plan import plan as plan
from pullback.prove import prove as prove
from pullback.report import draw as draw
from pullback.report import load_ipython_extension as load_ipython_extension

__version__ = "0.1.0"
