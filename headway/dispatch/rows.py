"""Core's dataclasses as rows of msgpack, made from their fields: [tag, field, field, ...].

msgspec decodes no union of dataclasses, and writes a dataclass as a map with the names of its fields. So each kind gets
a Struct with the same fields, which msgspec decodes and checks in C, and two functions of one expression each: from the
dataclass to a tuple, and from the Struct to the dataclass. Their source is generated: it is as fast as if written by
hand, and a new field needs nothing here.

A type that is not supported raises TypeError when the module is imported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

PLAIN = (str, int, float, bool, bytes, NoneType)


class RowSet:
    """The rows of a union of dataclasses. The tag of a kind is its place in the union."""

    def __init__(self, kinds: Iterable[type]) -> None:
        self.to_row: dict[type, Callable[[Any], tuple[Any, ...]]] = {}
        self.from_row: dict[type, Callable[[Any], Any]] = {}
        for tag, kind in enumerate(kinds):
            struct = _struct(kind, tag)
            self.to_row[kind] = _function(f"({tag}, {_each_to_row(kind, 'value')})")
            self.from_row[struct] = _function(_from_row(kind, "value"))
        self.union = union_of(self.from_row)
        self.description = "\n".join(describe(kind) for kind in self.to_row)


def union_of(kinds: Iterable[type]) -> Any:
    return Union[tuple(kinds)]  # noqa: UP007 (made from a tuple)


def batch_struct(kind: Any, rows: RowSet, max_rows: int) -> type[msgspec.Struct]:
    """What msgspec decodes instead of this Struct, whose last field is a list of rows."""
    *others, (last, _) = fields_of(kind).items()
    listed = Annotated[list[rows.union], msgspec.Meta(max_length=max_rows)]  # type: ignore[name-defined]
    tag = kind.__struct_config__.tag
    fields = [*others, (last, listed)]
    return msgspec.defstruct(kind.__name__, fields, array_like=True, tag=tag, forbid_unknown_fields=True)


def describe(hint: Any) -> str:
    """Name a type with all that is in it. Two types with the same description have the same rows."""
    if hint in PLAIN:
        return str(hint.__name__)
    if _is_kind(hint) or (isinstance(hint, type) and issubclass(hint, msgspec.Struct)):
        return f"{hint.__name__}({', '.join(f'{name}: {describe(part)}' for name, part in fields_of(hint).items())})"
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"Literal[{', '.join(sorted(map(repr, parts)))}]"
    if _is_union(hint):
        return " | ".join(sorted(map(describe, parts)))
    if origin in (list, tuple):
        return f"{origin.__name__}[{', '.join('...' if part is ... else describe(part) for part in parts)}]"
    raise TypeError(f"{hint} cannot be sent in a row: rows.py does not support it.")


def fields_of(kind: type) -> dict[str, Any]:
    """The fields and their types, as they are written in the source: the annotations of a compiled class (setup.py)
    have lost every alias and every union."""
    module = sys.modules[kind.__module__]
    own = _annotations(kind.__module__)[kind.__name__]
    if is_dataclass(kind) and list(own) != [field.name for field in fields(kind)]:
        raise TypeError(f"{kind} cannot be sent in a row: it inherits fields.")
    return get_type_hints(SimpleNamespace(__annotations__=own), vars(module))


def build(hint: Any, value: Any) -> Any:
    """Make a value of this type from what its JSON was decoded to. Raises KeyError, TypeError, AttributeError or
    msgspec.MsgspecError if it is none."""
    if _is_kind(hint):
        own = fields_of(hint)
        return hint(**{name: build(part, value[name]) for name, part in own.items() if name in value})
    origin, parts = get_origin(hint), get_args(hint)
    if origin is dict:
        return {msgspec.convert(key, parts[0]): build(parts[1], one) for key, one in value.items()}
    if not _has_dataclass(hint):
        return msgspec.convert(value, hint)
    if _is_union(hint):
        return None if value is None else build(_without_none(hint), value)
    return [build(_element(hint), one) for one in value]


@cache
def _annotations(module: str) -> dict[str, dict[str, str]]:
    """The annotations of the fields of each class. The source of a compiled module lies beside it."""
    compiled_or_not = Path(sys.modules[module].__file__ or "")
    source = compiled_or_not.with_name(compiled_or_not.name.split(".")[0] + ".py")
    classes = [node for node in ast.parse(source.read_bytes()).body if isinstance(node, ast.ClassDef)]
    return {
        node.name: {
            field.target.id: ast.unparse(field.annotation)
            for field in node.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        }
        for node in classes
    }


def _is_kind(hint: Any) -> bool:
    return isinstance(hint, type) and is_dataclass(hint)


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)


@cache
def _struct(kind: type, tag: int | None = None) -> type[msgspec.Struct]:
    decoded = [(name, _decoded(hint)) for name, hint in fields_of(kind).items()]
    # gc: a row is never part of a cycle.
    return msgspec.defstruct(kind.__name__, decoded, array_like=True, tag=tag, forbid_unknown_fields=True, gc=False)


def _decoded(hint: Any) -> Any:
    """The type that msgspec decodes instead of this one."""
    if not _has_dataclass(hint):
        return hint
    if _is_kind(hint):
        return _struct(hint)
    if _is_union(hint):
        return _decoded(_without_none(hint)) | None
    return list[_decoded(_element(hint))]  # type: ignore[misc]


def _has_dataclass(hint: Any) -> bool:
    return _is_kind(hint) or any(map(_has_dataclass, get_args(hint)))


def _without_none(hint: Any) -> Any:
    parts = [part for part in get_args(hint) if part is not NoneType]
    if len(parts) > 1:
        raise TypeError(f"{hint} cannot be sent in a row: a dataclass may only be united with None.")
    return parts[0]


def _element(hint: Any) -> Any:
    if get_origin(hint) is list:
        return get_args(hint)[0]
    raise TypeError(f"{hint} cannot be sent in a row: dataclasses may only be in lists.")


# --- generated functions ---------------------------------------------------------------------------------------------


def _function(expression: str) -> Callable[[Any], Any]:
    function: Callable[[Any], Any] = eval(f"lambda value: {expression}", dict(_classes))
    return function


_classes: dict[str, type] = {}  # the dataclasses, by the names that the expressions have for them


def _to_row(hint: Any, value: str) -> str:
    """The expression that makes of `value`, an expression too, what msgspec encodes."""
    if _is_kind(hint):
        return f"({_each_to_row(hint, value)})"
    return _inside(hint, value, _to_row) if _has_dataclass(hint) else value


def _each_to_row(kind: type, value: str) -> str:
    return "".join(f"{_to_row(hint, f'{value}.{name}')}, " for name, hint in fields_of(kind).items())


def _from_row(hint: Any, value: str) -> str:
    """The expression that makes a dataclass of a decoded Struct."""
    if _is_kind(hint):
        kind = f"{hint.__module__}.{hint.__name__}".replace(".", "_")
        _classes[kind] = hint
        return f"{kind}({', '.join(_from_row(part, f'{value}.{name}') for name, part in fields_of(hint).items())})"
    return _inside(hint, value, _from_row) if _has_dataclass(hint) else value


def _inside(hint: Any, value: str, convert: Callable[[Any, str], str]) -> str:
    if _is_union(hint):
        return f"(None if {value} is None else {convert(_without_none(hint), value)})"
    return f"[{convert(_element(hint), 'one')} for one in {value}]"
