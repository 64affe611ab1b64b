"""What tests read from a figure."""

import io


def png(figure):
    """The picture, drawn: labels that cannot be drawn would warn."""
    picture = io.BytesIO()
    figure.canvas.print_figure(picture, format="png", dpi=30)
    return picture.getvalue()


def texts(labels):
    return [label.get_text() for label in labels]


def drawn_axes(figure):
    """The axes of a figure, which can be drawn: labels that cannot would warn."""
    assert png(figure).startswith(b"\x89PNG")
    return figure.axes
