"""The fields of the official SDKs' request types, walked through their own definitions (TypedDicts of openai and anthropic, pydantic
models of google-genai), and requests that set one of them."""

import collections
import datetime
import types
import typing

import pydantic
import typing_extensions
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_tokens_params
from anthropic.types.beta import message_create_params as beta_create_params
from google.genai import types as genai
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

# What each wire's requests are typed as, the first for those that tests send.
ROOTS = {
    "chat": [chat_create_params.CompletionCreateParamsStreaming],
    "completions": [completion_create_params.CompletionCreateParamsStreaming],
    "responses": [response_create_params.ResponseCreateParamsStreaming],
    "messages": [
        beta_create_params.MessageCreateParamsStreaming,
        message_create_params.MessageCreateParamsStreaming,
        beta_count_tokens_params.MessageCountTokensParams,
        message_count_tokens_params.MessageCountTokensParams,
    ],
    "gemini": [genai.Content, genai.Tool, genai.GenerateContentConfig],
}


# google-genai's types require nothing; its service does.
MUST = {
    "FunctionDeclaration": {"name"},
    "FunctionCall": {"name"},
    "FunctionResponse": {"name", "response"},
    "Blob": {"data", "mimeType"},
    "FunctionResponseBlob": {"data", "mimeType"},
    "FileData": {"fileUri", "mimeType"},
    "FunctionResponseFileData": {"fileUri", "mimeType"},
}


def name(kind):
    """A type's name; anthropic's beta types are those of the same name and more."""
    return kind.__name__.removeprefix("Beta")


def is_model(kind):
    return isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def is_type(kind):
    return typing_extensions.is_typeddict(kind) or is_model(kind)


def hints(kind):
    """`{field: annotation}`; a model's fields have the names that the wire has."""
    if is_model(kind):
        return {field.serialization_alias or field.alias or name: field.annotation for name, field in kind.model_fields.items()}
    return {field: bare(hint) for field, hint in typing_extensions.get_type_hints(kind, include_extras=False).items()}


def bare(hint):
    while typing_extensions.get_origin(hint) in (typing_extensions.Required, typing_extensions.NotRequired, typing.Annotated):
        hint = typing_extensions.get_args(hint)[0]
    return hint


def parts(hint):
    """A type and all types that it is made of, in their order."""
    yield hint
    for inner in typing_extensions.get_args(hint):
        yield from parts(inner)
    if hasattr(hint, "__value__"):
        yield from parts(hint.__value__)


def inner_types(hint):
    return [part for part in parts(hint) if is_type(part)]


def walk(wire, stops=lambda kind, field: False):
    """All types that a wire's requests are made of, each with the way to it: `{type: (parent, field) | None}`. What is inside of a field
    at which `stops` says so shares that field's fate and is not walked."""
    ways = collections.OrderedDict((root, None) for root in ROOTS[wire])
    waiting = collections.deque(ways)
    while waiting:
        kind = waiting.popleft()
        for field, hint in hints(kind).items():
            if stops(name(kind), field):
                continue
            for inner in inner_types(hint):
                if inner not in ways:
                    ways[inner] = (kind, field)
                    waiting.append(inner)
    return ways


def required(kind):
    if is_model(kind):
        asked = {field.alias or name for name, field in kind.model_fields.items() if field.is_required()}
        return asked | MUST.get(kind.__name__, set())
    # Annotations that are strings hide `Required` from TypedDict itself.
    bases = [base for base in getattr(kind, "__orig_bases__", ()) if typing_extensions.is_typeddict(base)]
    inherited = set().union(*map(hints, bases)) if bases else set()
    must = set().union(*map(required, bases)) if bases else set()
    for field, hint in typing_extensions.get_type_hints(kind, include_extras=True).items():
        origins = {typing_extensions.get_origin(part) for part in (hint, *typing_extensions.get_args(hint))}
        is_own = field not in inherited
        if typing_extensions.Required in origins or is_own and kind.__total__ and typing_extensions.NotRequired not in origins:
            must.add(field)
    return must


def sample(hint, field):
    """A value of this type that can be found again."""
    if field == "mimeType":
        return "image/png"
    hint = bare(hint)
    origin, arguments = typing_extensions.get_origin(hint), typing_extensions.get_args(hint)
    if hasattr(hint, "__value__"):
        return sample(hint.__value__, field)
    if origin in (typing.Literal, typing_extensions.Literal):
        return arguments[0]
    if origin in (typing.Union, types.UnionType):
        return sample(next(arm for arm in arguments if arm is not type(None)), field)
    if is_type(hint):
        return instance(hint)
    if hint is bool:
        return True
    if hint in (int, float):
        return 1
    if hint is str or hint is object or hint is typing.Any:
        return f"the-{field}"
    if origin in (dict, collections.abc.Mapping) or hint is dict:
        return {"a": "b"}
    if origin in (list, tuple, collections.abc.Iterable, collections.abc.Sequence):
        return [sample(arguments[0], field)]
    if isinstance(hint, type) and issubclass(hint, str):
        return next(iter(hint)).value if hasattr(hint, "__members__") else f"the-{field}"
    if hint is list:
        return []
    if hint is datetime.datetime:
        return "2026-12-01T00:00:00Z"
    if hint is bytes:
        return "YQ=="
    raise TypeError(f"no sample of {hint} for {field}")


def instance(kind, **fields):
    """The smallest value of a type, with these fields."""
    known = hints(kind)
    return {field: sample(known[field], field) for field in known if field in required(kind) and field not in fields} | fields


def holding(hint, kind, value):
    """A value of `hint` that holds `value`, which is one of `kind`."""
    hint = bare(hint)
    if hint is kind:
        return value
    arguments = typing_extensions.get_args(hint)
    if hasattr(hint, "__value__"):
        return holding(hint.__value__, kind, value)
    origin = typing_extensions.get_origin(hint)
    if origin in (dict, collections.abc.Mapping):
        return {"a": holding(arguments[1], kind, value)}
    arm = next(arm for arm in arguments if any(part is kind for part in parts(arm)))
    made = holding(arm, kind, value)
    return made if origin in (typing.Union, types.UnionType, typing.Annotated) else [made]


def request(ways, kind, field, value, complete=lambda kind, made: made):
    """The smallest request in which a `kind` has this field. `complete` may add what a service asks for beyond the types."""
    made = complete(kind, instance(kind, **{field: value}))
    while ways[kind] is not None:
        parent, field = ways[kind]
        made = complete(parent, instance(parent, **{field: holding(hints(parent)[field], kind, made)}))
        kind = parent
    return kind, made
