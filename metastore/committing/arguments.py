"""What callers give, looked at before anything is done with it: Python does not look itself.

A text where a list of texts belongs would be committed as its letters, and what does not fit fails somewhere in the
middle, with words that say nothing to who called.
"""

from __future__ import annotations

import numbers
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from epochlake.metastore.texts import is_unicode
from epochlake.metastore.waiting import MOST_SECONDS
from epochlake.placement.errors import InvalidRequest


def require_request_id(request_id: str | None) -> None:
    """Raise InvalidRequest for an empty request id: who gives one wants the second try to be known by it."""
    if request_id is not None and (not isinstance(request_id, str) or not request_id.strip()):
        raise InvalidRequest(
            f"the request id {request_id!r} cannot be used",
            hint="Give a text that is not empty, the same for each try, or none at all",
        )


def require_seconds(timeout: float | None) -> None:
    """Raise InvalidRequest for a time to wait that is no number of seconds from 0 on."""
    if timeout is None:
        return
    if not _is_number(timeout, numbers.Real) or not 0 <= timeout <= MOST_SECONDS:
        raise InvalidRequest(
            f"a commit cannot wait for {timeout!r} seconds", hint=f"Give a number from 0 to {MOST_SECONDS:,.0f}"
        )


def require_epoch_number(epoch: int) -> None:
    """Raise InvalidRequest for an epoch that is no whole number."""
    if not _is_number(epoch, numbers.Integral):
        raise InvalidRequest(f"{epoch!r} is no epoch", hint="Give a whole number")


def require_reason(reason: str) -> None:
    """Raise InvalidRequest for a reason that is no text."""
    if not isinstance(reason, str):
        raise InvalidRequest(f"{reason!r} is no reason", hint="Give a text, or none at all")


def require_fitting(what: msgspec.Struct, said: str) -> None:
    """Raise InvalidRequest where a field holds what its annotation does not allow; `said` names what it is for."""
    for name, hint in _hints(type(what)).items():
        value = getattr(what, name)
        if not fits(value, hint):
            shown = repr(value)
            shown = shown if len(shown) <= 100 else f"{shown[:100]}…"
            raise InvalidRequest(f"{said}: {name} cannot be {shown}", hint=f"Give {described(hint)}")


def fits(value: object, hint: Any) -> bool:
    """Whether a value is what a type hint says; numbers of NumPy are numbers, its arrays are lists."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if hint is None or hint is type(None):
        return value is None
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in arguments)
    if isinstance(origin, type):
        return _fits_generic(value, origin, arguments)
    if hint in _NUMBERS:
        return _is_number(value, _NUMBERS[hint])
    if hint is str and isinstance(value, str):
        return is_unicode(value)
    if issubclass(hint, Enum):
        return isinstance(value, hint) or any(value == member.value for member in hint)
    if not isinstance(value, hint):
        return False
    if isinstance(value, msgspec.Struct) or hasattr(hint, "_fields"):
        return all(fits(getattr(value, name), one) for name, one in _hints(hint).items())
    return True


def described(hint: Any) -> str:
    """A type hint in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is None or hint is type(None):
        return "None"
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(described(one) for one in arguments))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a mapping of {_plural(arguments[0])} to {_plural(arguments[1])}"
    if origin is tuple and Ellipsis not in arguments:
        return f"({', '.join(described(one) for one in arguments)})"
    if isinstance(origin, type):
        return f"a list of {_plural(arguments[0])}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(repr(str(member.value)) for member in hint)
    return _WORDS.get(hint, f"a {getattr(hint, '__name__', hint)}")


_NUMBERS: dict[Any, type] = {int: numbers.Integral, float: numbers.Real}
_WORDS: dict[Any, str] = {str: "a text", int: "a whole number", float: "a number", bool: "True or False"}
_PLURALS = {"a text": "texts", "a whole number": "whole numbers", "a number": "numbers"}


def _fits_generic(value: object, origin: type, arguments: tuple[Any, ...]) -> bool:
    if issubclass(origin, Mapping):
        key, content = arguments
        return isinstance(value, Mapping) and all(fits(k, key) and fits(v, content) for k, v in value.items())
    if origin is tuple and Ellipsis not in arguments:
        return (
            isinstance(value, tuple | list)
            and len(value) == len(arguments)
            and all(fits(one, hint) for one, hint in zip(value, arguments, strict=True))
        )
    if isinstance(value, str | bytes | Mapping):
        return False
    kind = Sequence | np.ndarray if issubclass(origin, Sequence) else Collection
    return isinstance(value, kind) and all(fits(one, arguments[0]) for one in value)


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool | np.bool_)


def _plural(hint: Any) -> str:
    words = described(hint)
    return _PLURALS.get(words, words)


@cache
def _hints(kind: Callable[..., object]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    names = getattr(kind, "__struct_fields__", ()) or getattr(kind, "_fields", ())
    return {name: hints[name] for name in names}
