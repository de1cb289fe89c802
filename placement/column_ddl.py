"""Types of columns in two spellings: Spark's DDL, which a table declares, and Delta's JSON, which is a tree.

Read without a JVM. A type that Delta cannot store is refused.
"""

from __future__ import annotations

import re

from epochlake.placement.errors import InvalidRequest

DeltaType = str | dict[str, object]

_PRIMITIVES: dict[str, str] = {
    "boolean": "boolean",
    "tinyint": "byte",
    "byte": "byte",
    "smallint": "short",
    "short": "short",
    "int": "integer",
    "integer": "integer",
    "bigint": "long",
    "long": "long",
    "float": "float",
    "real": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
}

_NAMES = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}
"""Delta's names of types that Spark calls something else."""

_LEXEME = re.compile(r"\s*(`(?:[^`]|``)+`|\w+|[<>(),:])")
_SIGNS = frozenset("<>(),:")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def delta_type(ddl: str) -> DeltaType:
    """The Delta type of a Spark DDL type. Raises InvalidRequest when it is malformed or Delta cannot store it."""
    lexemes = _lexemes(ddl)
    parsed = _type(lexemes, ddl)
    if lexemes:
        raise _malformed(ddl, f"{lexemes[0]!r} follows a complete type")
    return parsed


def ddl_of(type_: DeltaType) -> str:
    """A type as DDL of Spark, in one spelling."""
    match type_:
        case str():
            return _NAMES.get(type_, type_)
        case {"type": "array", "elementType": element}:
            return f"array<{ddl_of(element)}>"  # type: ignore[arg-type]
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"map<{ddl_of(key)},{ddl_of(value)}>"  # type: ignore[arg-type]
        case _:
            fields = [f"{quoted(one['name'])}:{ddl_of(one['type'])}" for one in type_["fields"]]  # type: ignore[attr-defined]
            return f"struct<{','.join(fields)}>"


def spark_type(ddl: str) -> str:
    """A type as DDL of Spark that means the same in every session: what `timestamp` means is a setting of it.

    Raises InvalidRequest as `delta_type`.
    """
    return ddl_of(_with_zone(delta_type(ddl))) if "timestamp" in ddl.lower() else ddl


def _with_zone(type_: DeltaType) -> DeltaType:
    if isinstance(type_, str):
        return "timestamp_ltz" if type_ == "timestamp" else type_
    parts = {name: type_[name] for name in ("elementType", "keyType", "valueType") if name in type_}
    changed: DeltaType = type_ | {name: _with_zone(part) for name, part in parts.items()}  # type: ignore[arg-type]
    if "fields" in type_:
        changed["fields"] = [one | {"type": _with_zone(one["type"])} for one in type_["fields"]]  # type: ignore
    return changed


def quoted(name: str) -> str:
    """A name as DDL has it: in backquotes where it is no word."""
    return name if _PLAIN.match(name) else f"`{name.replace('`', '``')}`"


def _lexemes(ddl: str) -> list[str]:
    lexemes, position, text = [], 0, ddl.strip()
    while position < len(text):
        match = _LEXEME.match(text, position)
        if match is None:
            raise _malformed(ddl, f"{text[position:]!r} is not understood")
        lexemes.append(match.group(1))
        position = match.end()
    return lexemes


def _type(lexemes: list[str], ddl: str) -> DeltaType:
    name = _next(lexemes, ddl).lower()
    if name == "array":
        _expect(lexemes, "<", ddl)
        element = _type(lexemes, ddl)
        _expect(lexemes, ">", ddl)
        return {"type": "array", "elementType": element, "containsNull": True}
    if name == "map":
        _expect(lexemes, "<", ddl)
        key = _type(lexemes, ddl)
        _expect(lexemes, ",", ddl)
        value = _type(lexemes, ddl)
        _expect(lexemes, ">", ddl)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if name == "struct":
        return _struct(lexemes, ddl)
    if name in ("decimal", "dec", "numeric"):
        return _decimal(lexemes, ddl)
    if name in _PRIMITIVES:
        return _PRIMITIVES[name]
    raise InvalidRequest(
        f"the column type {ddl!r} cannot be stored: {name!r} is unknown",
        hint=f"Use one of {', '.join(sorted(_PRIMITIVES))}, decimal(p,s), array<…>, map<…,…>, struct<name:type,…>",
    )


def _struct(lexemes: list[str], ddl: str) -> DeltaType:
    _expect(lexemes, "<", ddl)
    fields: list[dict[str, object]] = []
    while True:
        name = _next(lexemes, ddl)
        if name in _SIGNS:
            raise _malformed(ddl, f"{name!r} stands where the name of a field should")
        name = name[1:-1].replace("``", "`") if name.startswith("`") else name
        if lexemes and lexemes[0] == ":":
            lexemes.pop(0)
        fields.append({"name": name, "type": _type(lexemes, ddl), "nullable": True, "metadata": {}})
        separator = _next(lexemes, ddl)
        if separator == ">":
            return {"type": "struct", "fields": fields}
        if separator != ",":
            raise _malformed(ddl, f"{separator!r} stands where , or > should")


def _decimal(lexemes: list[str], ddl: str) -> str:
    precision, scale = 10, 0
    if lexemes and lexemes[0] == "(":
        lexemes.pop(0)
        precision = _number(lexemes, ddl)
        if lexemes and lexemes[0] == ",":
            lexemes.pop(0)
            scale = _number(lexemes, ddl)
        _expect(lexemes, ")", ddl)
    if not (1 <= precision <= 38 and scale <= precision):
        raise _malformed(ddl, "a decimal has a precision from 1 to 38 and a scale of at most that")
    return f"decimal({precision},{scale})"


def _next(lexemes: list[str], ddl: str) -> str:
    if not lexemes:
        raise _malformed(ddl, "it ends too early")
    return lexemes.pop(0)


def _number(lexemes: list[str], ddl: str) -> int:
    lexeme = _next(lexemes, ddl)
    if not (lexeme.isascii() and lexeme.isdigit()):
        raise _malformed(ddl, f"{lexeme!r} stands where a number should")
    return int(lexeme)


def _expect(lexemes: list[str], wanted: str, ddl: str) -> None:
    found = _next(lexemes, ddl)
    if found != wanted:
        raise _malformed(ddl, f"{found!r} stands where {wanted!r} should")


def _malformed(ddl: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"the column type {ddl!r} is malformed: {why}",
        hint="Write it as decimal(10,2), array<int>, map<string,int> or struct<name:string,size:int>",
    )
