"""Sound functions pass `nonhomogeneous-jvp`; planted faults are caught, and named."""

from tests.check.functions import Sine
from tests.check.subjects import check_of, normal, rule_tests

check = check_of("nonhomogeneous-jvp")


class Clipped(Sine):
    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return (t * x.cos()).clamp(-5, 5)


class Difference(Sine):
    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return (x + t).sin() - x.sin()


SOUND = {"sine": (Sine, lambda: (normal(5),))}
PLANTED = {
    "clipped": (Clipped, lambda: (normal(5),), "tangent of output 0"),
    "difference": (Difference, lambda: (normal(5),), "tangent of output 0"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
