"""Leave out the members of a document that this version does not know, because a newer one wrote it."""

from __future__ import annotations

from typing import Any

from msgspec import inspect as kinds

Path = tuple[str, ...]


def without_unknown(value: Any, kind: kinds.Type) -> tuple[Any, list[Path]]:
    """Return a decoded JSON value without the members that the structs in `kind` lack, and the paths of these."""
    left_out: list[Path] = []
    return _known(value, kind, (), left_out), left_out


def _known(value: Any, kind: kinds.Type, path: Path, left_out: list[Path]) -> Any:
    match kind, value:
        case kinds.Metadata(type=inner), _:
            return _known(value, inner, path, left_out)
        case kinds.UnionType(types=types), _:
            return _known(value, next(filter(_container, types), kinds.AnyType()), path, left_out)
        case kinds.StructType(fields=fields), dict():
            members = {field.encode_name: field.type for field in fields}
            left_out += [(*path, name) for name in value if name not in members]
            return {
                name: _known(one, members[name], (*path, name), left_out)
                for name, one in value.items()
                if name in members
            }
        case kinds.DictType(value_type=inner), dict():
            return {name: _known(one, inner, (*path, name), left_out) for name, one in value.items()}
        case kinds.ListType(item_type=inner) | kinds.VarTupleType(item_type=inner), list():
            return [_known(one, inner, (*path, str(index)), left_out) for index, one in enumerate(value)]
        case _:
            return value


def _container(kind: kinds.Type) -> bool:
    return isinstance(kind, kinds.StructType | kinds.DictType | kinds.ListType | kinds.VarTupleType)
