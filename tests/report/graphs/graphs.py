"""Graphs to draw."""

import random

from pullback.report.graphs.picture import DrawnGraph, DrawnNode

SHAPE = "float32[8]"
WHY = "backward reads it for grad_x (mul)"

SMALL = DrawnGraph(
    "small",
    (
        DrawnNode("x", "input", shape=SHAPE, bytes=32, saved=WHY),
        DrawnNode("h", "forward", "sin", 0, "net.py:4", SHAPE, 32, 8, 1e-6, WHY),
        DrawnNode("y", "forward", "mul", 1, "net.py:5", SHAPE, 32, 8, 2e-6, returns=("output",)),
        DrawnNode("grad_out", "cotangent", shape=SHAPE, bytes=32),
        DrawnNode("g", "backward", "cos", 0, "net.py:4", SHAPE, 32, 8, 1e-6),
        DrawnNode("grad_x", "backward", "mul", 1, "net.py:5", SHAPE, 32, 8, 1e-6),
    ),
    ((0, 1), (1, 2), (0, 4), (3, 5), (4, 5), (1, 5)),
    ("sin", "</script><b>mul"),
    ((0, 1),),
    {"save": "auto"},
)


def large(count):
    """A graph of many nodes, each of which reads one or two before it."""
    draw = random.Random(0)
    nodes, edges = [], []
    for i in range(count):
        kind = "input" if i < 20 else "forward" if i < count // 2 else "backward"
        op = "" if i < 20 else draw.choice(["mul", "add", "mm", "exp"])
        saved = WHY if kind == "forward" and i % 5 == 0 else ""
        unit = None if i < 20 else i * 7 // 10 % 600
        nodes.append(DrawnNode(f"v{i}", kind, op, unit, f"net.py:{i}", SHAPE, 32, 8, 1e-6, saved))
        if i >= 20:
            edges += sorted({(max(0, i - 1 - draw.randrange(30)), i) for _ in range(2)})
    return DrawnGraph("large", tuple(nodes), tuple(edges), tuple(f"call{i}" for i in range(600)))
