"""Repros of a backward that is not linear in its cotangent."""

from __future__ import annotations

from pullback.check.repros.scene import Form, Scene, text_of

SCALES = ("", "64 * ", "1 / 64 * ")


def combined(scale: str) -> Form:
    """A form: the pull of a combination against the combination of pulls, at one scale."""

    def form(scene: Scene) -> str:
        both = scene.each("2 * g - 3 * h", "g", "h")
        scaled = scene.each(f"{scale}g", "g")
        other = scene.each(f"{scale}h", "h")
        return text_of(
            scene.settings(),
            scene.weights(),
            scene.weights("h", draw=1),
            [f"g, h = {scaled}, {other}"] if scale else [],
            scene.pulling(),
            f"for got, of_g, of_h in zip(pull({both}), pull(g), pull(h)):",
            "    expected = 2 * of_g - 3 * of_h",
            '    assert torch.allclose(got, expected, 1e-3, 1e-5), f"{got=}, {expected=}"',
        )

    return form


def scaled(scene: Scene) -> str:
    """The pull of a scaled cotangent against the scaled pull."""
    size = scene.said(r"cotangents (?:of size )?([\d.e+-]+)")
    if not size:
        return ""
    larger = scene.each(f"{size} * g", "g")
    if ":" in scene.finding.got:
        return text_of(
            scene.settings(),
            scene.weights(),
            scene.pulling(),
            f"pull({larger})  # {scene.finding.got}",
        )
    return text_of(
        scene.settings(),
        scene.weights(),
        scene.pulling(),
        f"for got, expected in zip(pull({larger}), pull(g)):",
        f"    got = got / {size}",
        "    limit = 1e-3 * expected.abs() + 1e-5 * expected.abs().max()",
        '    assert bool(((got - expected).abs() <= limit).all()), f"{got=}, {expected=}"',
    )


def zero(scene: Scene) -> str:
    """The pull of zeros must be zeros."""
    return text_of(
        scene.settings(),
        scene.weights(),
        scene.pulling(),
        f"for got in pull({scene.each('0 * g', 'g')}):",
        '    assert not got.any(), f"{got=}"',
    )
