"""`python bench/plots.py FILE FOLDER`: the curves of `bench.curves` as SVG pictures, one a file.

Needs matplotlib, which nothing else here does: `make bench-plots` gives it an environment of its own.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

# Wider than this from the least to the most, and an axis counts in powers of ten.
_WIDE = 30


def main() -> int:
    """Exit code 0."""
    file, folder = Path(sys.argv[1]), Path(sys.argv[2])
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("svg")
    # Text as text: small, and to be found; the same numbers give the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "hermes", "font.size": 9})
    drawing: Any = importlib.import_module("matplotlib.pyplot")
    whole = json.loads(file.read_text())
    said = whole["conditions"]
    folder.mkdir(parents=True, exist_ok=True)
    for curve in whole["curves"]:
        figure, axes = drawing.subplots(figsize=(5.6, 3.4))
        for name, points in curve["lines"].items():
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
        values = [point for points in curve["lines"].values() for point in points]
        for at, scale in ((0, axes.set_xscale), (1, axes.set_yscale)):
            if max(value[at] for value in values) > _WIDE * min(value[at] for value in values):
                scale("log")
        axes.set_xlabel(curve["across"])
        axes.set_ylabel(curve["up"])
        axes.set_title(f"{curve['title']} ({said['date']}, {said['machine'].split(',')[0]})", fontsize=9)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
        figure.tight_layout()
        figure.savefig(folder / f"{curve['name']}.svg", metadata={"Date": None})
        drawing.close(figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
