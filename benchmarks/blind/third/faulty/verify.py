"""Runs every evidence, checks ``visible`` and prints a tally.  usage: verify.py [module ...]"""
import importlib
import sys
import time
import warnings
from collections import Counter

import torch
from support import *

MODULES = ["activations", "losses", "quantizers", "spiking", "norms", "attention", "memory",
           "implicit", "graphs", "signals", "geometry", "sequences"]


def main(names):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    kinds, vis, bad, seen, total = Counter(), Counter(), [], set(), 0
    for name in names:
        mod = importlib.import_module(name)
        for case in mod.CASES:
            total += 1
            t0 = time.time()
            assert set(case) == {"name", "target", "inputs", "fault", "kind", "visible", "evidence"}, case["name"]
            assert case["kind"] in ("wrong", "fragile", "wasteful")
            if case["name"] in seen:
                bad.append((case["name"], "duplicate name"))
            seen.add(case["name"])
            kinds[case["kind"]] += 1
            vis[case["visible"]] += 1
            try:
                torch.manual_seed(0)
                if case["evidence"]() is not True:
                    bad.append((case["name"], "evidence is not True"))
            except Exception as err:
                bad.append((case["name"], "evidence raised %r" % err))
            try:
                inputs = case["inputs"]()
                inplace = False
                try:
                    got = wrong_first(case["target"], inputs)
                except RuntimeError as err:
                    if "in-place" not in str(err):
                        raise
                    got = wrong_first(case["target"], case["inputs"](), inplace=True)
                if got != case["visible"]:
                    bad.append((case["name"], "visible is %s, stated %s" % (got, case["visible"])))
            except Exception as err:
                bad.append((case["name"], "visible check raised %r" % err))
            if time.time() - t0 > 5:
                print("slow", case["name"], round(time.time() - t0, 1))
        print(name, len(mod.CASES))
    for row in bad:
        print("FAIL", *row)
    print("total", total, "kinds", dict(kinds), "visible", dict(vis), "failures", len(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or MODULES))
