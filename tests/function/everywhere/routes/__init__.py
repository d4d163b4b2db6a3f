"""Every way to run and differentiate a Function, one function for each.

A route is called with the Function under test, its plain-torch reference and a factory of inputs,
and raises if the two differ.
"""

from tests.function.everywhere.routes.compiled import COMPILED
from tests.function.everywhere.routes.eager import EAGER
from tests.function.everywhere.routes.transforms import TRANSFORMS

ROUTES = {**EAGER, **TRANSFORMS, **COMPILED}
