"""What every figure must be: words that can be read, data and axes that are named."""

import itertools

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text


def words(figure):
    """Every drawn text with its box in pixels (tick labels outside the axes' range are not drawn)."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    hidden = set()
    upper_axes = [child for axes in figure.axes for child in axes.child_axes]
    for axes in [*figure.axes, *upper_axes]:
        axis_pairs = [(axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())]
        for axis, limits in axis_pairs:
            low, high = sorted(limits)
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not low <= tick.get_loc() <= high:
                    hidden |= {tick.label1, tick.label2}
    texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and t not in hidden]
    return [(text.get_text(), text.get_window_extent(renderer)) for text in texts]


def readable_words(figure):
    """`words`, of which none may lie on another or outside the figure."""
    boxes = words(figure)
    for text, box in boxes:
        assert box.x0 >= 0 and box.y0 >= -1, f"{text!r} leaves the figure"
        assert box.x1 <= figure.bbox.width + 1 and box.y1 <= figure.bbox.height + 1, f"{text!r} leaves the figure"
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        across, along = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        assert across < 1 or along < 1, f"{one!r} lies on {other!r}"
    return boxes


def assert_named(figure, data):
    """It says what data it shows, and what its axes are."""
    assert any(data in text.get_text().replace("\n", " ") for text in figure.texts)
    assert all(axes.get_xlabel() for axes in figure.axes)
    assert figure.get_facecolor() == (1.0, 1.0, 1.0, 1.0)  # opaque: reads the same on dark pages
