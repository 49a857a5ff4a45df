"""Draws what ``run.py --json FILE`` has measured: ``python draw.py FILE latency.png``."""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt


def draw(milliseconds, path):
    """Draw a bar for each way to decode a token. The axis is logarithmic."""
    names = list(milliseconds)[::-1]
    values = [milliseconds[name] for name in names]
    figure, axes = plt.subplots(figsize=(6.4, 1.9), layout="constrained")
    bars = axes.barh(names, values, color="#4c72b0", height=0.6)
    axes.bar_label(bars, [f"{value:.1f} ms" for value in values], padding=4)
    axes.set_xscale("log")
    axes.set_xlim(left=1, right=max(values) * 2.5)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("milliseconds a token")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2])
