"""What tests read from a figure."""

import io


def png(figure):
    """The picture, drawn: labels that cannot be drawn would warn."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def texts(labels):
    return [label.get_text() for label in labels]
