"""Which texts can be stored: a `str` of Python holds more than UTF-8 has."""

from __future__ import annotations


def is_unicode(text: str) -> bool:
    """Whether a text can be stored: half a character cannot, as which bytes of a name come that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
