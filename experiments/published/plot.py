#!/usr/bin/env python3
"""Plots what run.py found: published beside simulated, from raw.csv alone.

usage: plot.py RESULTS-FOLDER
Writes scaling.svg (Dryden et al., speed-ups) and epochs.svg (ParaDL, seconds of an epoch) into the folder.
"""
import csv, math, os, sys

folder = sys.argv[1]
rows = list(csv.DictReader(open(os.path.join(folder, "raw.csv"))))
WIDTH, HEIGHT, LEFT, TOP, PLOT_W, PLOT_H = 760, 420, 70, 40, 440, 320
COLOURS = ["#1b6ca8", "#c4512d", "#3a7d44", "#7b4b94"]

def plot(name, title, y_title, series):
    """Lines of (ranks, published, simulated), both axes by powers of two."""
    xs = [x for _, points in series for x, _, _ in points]
    ys = [y for _, points in series for _, a, b in points for y in (a, b)]
    x0, x1 = math.floor(math.log2(min(xs))), math.ceil(math.log2(max(xs)))
    y0, y1 = math.floor(math.log2(min(ys))), math.ceil(math.log2(max(ys)))
    at = lambda x, y: (LEFT + PLOT_W * (math.log2(x) - x0) / max(x1 - x0, 1), TOP + PLOT_H * (y1 - math.log2(y)) / max(y1 - y0, 1))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', f'<text x="{LEFT}" y="22" font-size="14">{title}</text>']
    for p in range(x0, x1 + 1):
        x, _ = at(2 ** p, 2 ** y0)
        out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{TOP + PLOT_H}" stroke="#ddd"/>')
        out.append(f'<text x="{x:.1f}" y="{TOP + PLOT_H + 18}" text-anchor="middle">{2 ** p}</text>')
    for p in range(y0, y1 + 1):
        _, y = at(2 ** x0, 2.0 ** p)
        out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + PLOT_W}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{2.0 ** p:g}</text>')
    out.append(f'<text x="{LEFT + PLOT_W / 2}" y="{TOP + PLOT_H + 40}" text-anchor="middle">GPUs (ranks)</text>')
    out.append(f'<text x="18" y="{TOP + PLOT_H / 2}" transform="rotate(-90 18 {TOP + PLOT_H / 2})" text-anchor="middle">{y_title}</text>')
    for i, (label, points) in enumerate(series):
        colour = COLOURS[i % len(COLOURS)]
        for which, dash in [(1, ""), (2, ' stroke-dasharray="6 4"')]:
            line = " ".join("%.1f,%.1f" % at(p[0], p[which]) for p in points)
            out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
            out += ['<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s" stroke="%s"/>' % (*at(p[0], p[which]), colour if which == 1 else "white", colour) for p in points]
        y = TOP + 16 + 40 * i
        out.append(f'<text x="{LEFT + PLOT_W + 20}" y="{y}" fill="{colour}">{label}</text>')
    y = TOP + 16 + 40 * len(series)
    out.append(f'<text x="{LEFT + PLOT_W + 20}" y="{y}">solid: published</text><text x="{LEFT + PLOT_W + 20}" y="{y + 18}">dashed: simulated</text>')
    open(os.path.join(folder, name), "w").write("\n".join(out + ["</svg>"]) + "\n")

def series(paper, label):
    found = {}
    for row in rows:
        if row["what"].startswith(paper):
            points = found.setdefault(label(row), [])
            points.append((int(row["ranks"]), float(row["published"]), float(row["simulated"])))
    return list(found.items())

plot("scaling.svg", "Dryden et al. 2019: strong scaling of one group of samples", "speed-up over one GPU",
     series("Dryden", lambda row: f'{row["net"].removesuffix(".toml")}, {row["batch"]} sample{"s" if row["batch"] != "1" else ""}'))
plot("epochs.svg", "ParaDL 2021: an epoch of 1,280,000 images", "seconds",
     series("ParaDL", lambda row: f'{row["net"]}, {"samples x space" if row["what"].endswith("ds") else "samples x filters"}'))
