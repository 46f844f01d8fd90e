"""The fields of the official SDKs' request types, walked through their own definitions: TypedDicts of openai and anthropic, pydantic
models of google-genai."""

import collections
import typing

import pydantic
import typing_extensions


def typed_dict_fields(root, skip=()):
    """`{type: {field}}` of a TypedDict and all that it holds, in the order of a breadth-first walk."""
    found = collections.OrderedDict()
    waiting = collections.deque([root])
    while waiting:
        kind = waiting.popleft()
        if kind in found or kind.__name__ in skip:
            continue
        hints = typing_extensions.get_type_hints(kind, include_extras=True)
        found[kind] = set(hints)
        for hint in hints.values():
            waiting.extend(inner for inner in parts(hint) if typing_extensions.is_typeddict(inner))
    return named(found)


def model_fields(root, skip=()):
    """The same of a pydantic model; fields have the names that the wire has."""
    found = collections.OrderedDict()
    waiting = collections.deque([root])
    while waiting:
        kind = waiting.popleft()
        if kind in found or kind.__name__ in skip:
            continue
        found[kind] = {field.serialization_alias or field.alias or name for name, field in kind.model_fields.items()}
        for field in kind.model_fields.values():
            models = (inner for inner in parts(field.annotation) if isinstance(inner, type))
            waiting.extend(inner for inner in models if issubclass(inner, pydantic.BaseModel))
    return named(found)


def named(found):
    """By the types' names; two of one name (a type of the same name in another module) have their fields together."""
    fields = collections.OrderedDict()
    for kind, names in found.items():
        fields.setdefault(kind.__name__, set()).update(names)
    return fields


def parts(hint):
    """A type and all types that it is made of."""
    seen, waiting = [], [hint]
    while waiting:
        hint = waiting.pop()
        seen.append(hint)
        if isinstance(hint, typing.ForwardRef):
            raise TypeError(f"{hint} is not resolved")
        alias = getattr(hint, "__value__", None)
        waiting.extend(typing.get_args(hint) or ([alias] if alias is not None else []))
    return seen
