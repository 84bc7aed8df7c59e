"""What is wrong with the settings, in our words: name, value, origin, what is allowed.

pydantic finds the problems; people should not have to know its vocabulary to read them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from quiver.config.sources import Layers, suggestion
from quiver.errors import ConfigError

_SHOWN_CHARACTERS: Final = 80
_PHRASES: Final = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "dict_type": "a mapping of names to values",
    "model_type": "a section with settings of its own",
    "finite_number": "a finite number",
}
_BOUNDS: Final = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def not_allowed(allowed: str, *, setting: str = "", value: object = None) -> PydanticCustomError:
    """What our own validators raise; ``setting`` only where pydantic can't know the place."""
    context = {"allowed": allowed, "setting": setting, "value": value}
    return PydanticCustomError("not_allowed", "{allowed}", context)


@dataclass(frozen=True, slots=True)
class _ConfigProblem:
    setting: str
    value: object
    allowed: str
    source: str | None
    unknown: bool

    def __str__(self) -> str:
        where = f"{self.setting} (from {self.source})" if self.source else self.setting
        if self.unknown:
            return f"{where} is not a setting. {self.allowed}"
        return f"{where} is {_shown(self.value)}; it must be {self.allowed}."


def explain(
    error: ValidationError, prefix: str, known: Iterable[str], layers: Layers | None
) -> ConfigError:
    """All problems in one error; its details are those of the first.

    ``prefix`` is the section that was being made, ``known`` all dotted names there are.
    """
    names = list(known)
    items = error.errors(include_url=False)
    problems = [_problem(item, prefix, names, layers) for item in items]
    first = problems[0]
    return ConfigError(
        "\n".join(str(problem) for problem in problems),
        setting=first.setting,
        value=first.value,
        allowed=first.allowed,
        source=first.source,
        problems=[problem.setting for problem in problems],
    )


def _problem(
    item: ErrorDetails, prefix: str, known: list[str], layers: Layers | None
) -> _ConfigProblem:
    context = item.get("ctx", {})
    place = ".".join([prefix, *map(str, item["loc"])] if prefix else map(str, item["loc"]))
    setting = str(context.get("setting") or place)
    unknown = item["type"] == "extra_forbidden"
    return _ConfigProblem(
        setting=setting,
        value=context["value"] if context.get("setting") else item["input"],
        allowed=suggestion(setting, known) if unknown else _allowed(item),
        source=layers.origin(setting) if layers else None,
        unknown=unknown,
    )


def _allowed(item: ErrorDetails) -> str:
    bound = _BOUNDS.get(item["type"])
    if bound is not None:
        key, phrase = bound
        return f"{phrase} {item['ctx'][key]:,}"
    return _PHRASES.get(item["type"]) or item["msg"].removeprefix("Input should be ").replace(
        "'", ""
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
