"""Runs every evidence() and compares the gradients at the author's example with finite
differences (or with the module's ORACLES[name], a plain differentiable reference)."""
import importlib, os, sys, traceback, collections, warnings
import torch
warnings.filterwarnings("ignore")
torch.set_num_threads(1)
here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, here)
mods = sys.argv[1:] or sorted(f[:-3] for f in os.listdir(here) if f.endswith(".py") and f != "verify.py")
bad, names, tally = [], [], collections.Counter()
for m in mods:
    mod = importlib.import_module(m)
    oracles = getattr(mod, "ORACLES", {})
    for c in mod.CASES:
        assert set(c) == {"name", "target", "inputs", "fault", "kind", "visible", "evidence"}, (m, c.get("name"))
        n = c["name"]; names.append(n)
        tally["visible" if c["visible"] else ("hidden" if c["kind"] == "wrong" else c["kind"])] += 1
        try:
            ev = c["evidence"]()
            if ev is not True:
                bad.append((m, n, f"evidence -> {ev!r}"))
        except Exception:
            bad.append((m, n, "evidence raised\n" + traceback.format_exc(limit=-3)))
        try:
            right = mod._agrees(c["target"], c["inputs"](), oracles.get(n))
            if right == c["visible"]:
                bad.append((m, n, f"visible={c['visible']} but right at example={right}"))
        except Exception:
            bad.append((m, n, "example raised\n" + traceback.format_exc(limit=-3)))
dup = [n for n, k in collections.Counter(names).items() if k > 1]
if dup: bad.append(("all", str(dup), "duplicate names"))
for b in bad: print("FAIL", *b)
print(len(names), "cases", dict(tally), "failures:", len(bad))
sys.exit(bool(bad))
