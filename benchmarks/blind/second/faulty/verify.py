"""Runs every evidence and checks `visible` for every case; prints failures and a tally."""
import collections
import glob
import importlib
import os
import sys
import traceback
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import torch  # noqa: E402
from support import same_value, wrong  # noqa: E402

torch.set_num_threads(1)


def main(only):
    warnings.simplefilter("ignore")
    seen, failures = set(), []
    tally = collections.Counter()
    for path in sorted(glob.glob(os.path.join(HERE, "*.py"))):
        mod = os.path.basename(path)[:-3]
        if mod in ("support", "verify") or (only and mod not in only):
            continue
        try:
            cases = importlib.import_module(mod).CASES
        except Exception:
            failures.append((mod, "import", traceback.format_exc()))
            continue
        for c in cases:
            name = c["name"]
            tally["cases"] += 1
            tally["kind " + c["kind"]] += 1
            tally["visible" if c["visible"] else
                  ("elsewhere (wrong)" if c["kind"] == "wrong" else "not visible (fragile or wasteful)")] += 1
            tally["module " + mod] += 1
            if name in seen:
                failures.append((mod, name, "name is not unique"))
            seen.add(name)
            if c["kind"] not in ("wrong", "fragile", "wasteful"):
                failures.append((mod, name, "kind"))
            try:
                if c["evidence"]() is not True:
                    failures.append((mod, name, "evidence is not True"))
            except Exception:
                failures.append((mod, name, "evidence raised: " + traceback.format_exc(limit=-3)))
            try:
                twin = c.get("twin")
                if twin is not None and not same_value(c["target"], twin, c["inputs"]()):
                    failures.append((mod, name, "twin computes other values"))
                seen_wrong = [wrong(c["target"], c["inputs"](), twin, seed) for seed in (7, 8)]
                if seen_wrong != [c["visible"]] * 2:
                    failures.append((mod, name, f"visible={c['visible']} but differs={seen_wrong}"))
            except Exception:
                failures.append((mod, name, "visible check raised: " + traceback.format_exc(limit=-3)))
    for f in failures:
        print("FAIL", *f)
    for k in sorted(tally):
        print(f"{k}: {tally[k]}")
    print("failures:", len(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
