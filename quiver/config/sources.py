"""Where settings come from: files, the environment, keyword arguments.

Each source is turned into a nested mapping, the mappings are laid over one another
(defaults < file < environment < arguments), and the origin of every value is kept, so
that an error can say not only which setting is wrong but who set it.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from quiver.errors import ConfigError

ENV_PREFIX: Final = "QUIVER_"
NESTING: Final = "__"
# A settings file is a page of text; anything bigger is the wrong file.
MAX_FILE_BYTES: Final = 1 << 20
# How alike two names must be before one is offered for the other.
SIMILARITY: Final = 0.6
# A variable that is no setting may belong to another program; one this close is a typo.
TYPO_SIMILARITY: Final = 0.8


class Layers:
    """Settings laid over one another, with the origin of each value."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}

    def add(self, layer: Mapping[str, Any], origin: str) -> None:
        """Lay ``layer`` on top of what is there; sections are merged, values replaced."""
        for name, value in layer.items():
            if isinstance(value, Mapping) and isinstance(self.values.get(name), dict):
                self._merge_section(name, value, origin)
            else:
                self._set(name, value, origin)

    def _merge_section(self, name: str, section: Mapping[str, Any], origin: str) -> None:
        self.values[name].update(section)
        for key in section:
            self.origins[f"{name}.{key}"] = origin

    def _set(self, name: str, value: Any, origin: str) -> None:
        self.values[name] = dict(value) if isinstance(value, Mapping) else value
        self.origins[name] = origin
        if isinstance(value, Mapping):
            for key in value:
                self.origins[f"{name}.{key}"] = origin

    def origin(self, dotted: str) -> str | None:
        """Who set it, e.g. ``QUIVER_WAL__MAX_SIZE``; ``None`` for a default."""
        return self.origins.get(dotted)


class _Yaml12Loader(yaml.SafeLoader):
    """YAML 1.2's plain scalars, and no key twice.

    PyYAML follows YAML 1.1, where ``off`` is false and ``1:30`` is ninety: a setting
    ``validation: off`` would never arrive as written.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key!r} is set twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_Yaml12Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag in ("tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _resolve(tag: str, pattern: str, first: str) -> None:
    _Yaml12Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first)
    )


_resolve("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF")
_resolve("int", r"^[-+]?(?:0|[1-9][0-9]*)$", "-+0123456789")
_resolve("float", r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789")


def parse_text(text: str) -> Any:
    """The value written in one variable: a YAML scalar, list or mapping."""
    try:
        return yaml.load(text, Loader=_Yaml12Loader)  # a SafeLoader: plain values only
    except yaml.YAMLError:
        return text


def read_file(path: str | Path) -> dict[str, Any]:
    """The settings in a ``.yaml``, ``.yml`` or ``.toml`` file."""
    file = Path(path)
    if file.suffix not in (".yaml", ".yml", ".toml"):
        raise ConfigError(
            f"{file}: settings are read from .yaml, .yml and .toml files.", file=str(file)
        )
    try:
        data = file.read_bytes()
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(
                f"{file} has {len(data):,} bytes, a settings file at most {MAX_FILE_BYTES:,}.",
                file=str(file),
            )
        text = data.decode("utf-8")
        if file.suffix == ".toml":
            return tomllib.loads(text)
        content = yaml.load(text, Loader=_Yaml12Loader)
    except OSError as error:
        raise ConfigError(f"{file} can't be read: {error.strerror}.", file=str(file)) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file} can't be parsed: {error}.", file=str(file)) from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must hold settings by name.", file=str(file))
    return content


def read_environment(env: Mapping[str, str], known: Iterable[str]) -> dict[str, Any]:
    """Dotted name -> value for each ``QUIVER_…`` variable that is a setting.

    ``known`` are the dotted names of all settings.  A variable of a known section must
    be a known setting; others may belong to somebody else (an image name, a token) and
    are left alone, unless they look like a misspelt setting.
    """
    names = sorted(known)
    sections = {name.partition(".")[0] for name in names if "." in name}
    found: dict[str, Any] = {}
    for variable in sorted(env):
        if not variable.startswith(ENV_PREFIX):
            continue
        dotted = variable.removeprefix(ENV_PREFIX).lower().replace(NESTING, ".")
        if dotted in names:
            found[dotted] = parse_text(env[variable])
        elif dotted.partition(".")[0] in sections or _like(dotted, names, TYPO_SIMILARITY):
            raise ConfigError(
                f"{variable} is not a setting.",
                advice=suggestion(variable, [env_name(name) for name in names]),
                setting=dotted,
                source=variable,
            )
    return found


def env_name(dotted: str) -> str:
    """The variable that sets ``dotted``: ``wal.max_size`` -> ``QUIVER_WAL__MAX_SIZE``."""
    return ENV_PREFIX + dotted.replace(".", NESTING).upper()


def nested(dotted: Mapping[str, Any], separator: str = ".") -> dict[str, Any]:
    """``{"wal.max_size": 1}`` as ``{"wal": {"max_size": 1}}``."""
    result: dict[str, Any] = {}
    for name, value in dotted.items():
        section, _, field = name.partition(separator)
        if not field:
            result[section] = value
            continue
        inner = result.setdefault(section, {})
        if isinstance(inner, Mapping):
            result[section] = {**inner, field: value}
        else:
            raise ConfigError(
                f"{section} is given both as a value and by its parts.", setting=section
            )
    return result


def _like(name: str, known: Iterable[str], cutoff: float) -> list[str]:
    return difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)


def suggestion(name: str, known: Iterable[str]) -> str:
    """The nearest known name, or those beside it where nothing comes near."""
    section = name.rpartition(".")[0]
    # A section is no answer to a misspelt setting inside it.
    choices = sorted(choice for choice in known if "." in choice or not section)
    close = _like(name, choices, SIMILARITY)
    if close:
        return f"Did you mean {close[0]}?"
    beside = [choice for choice in choices if choice.rpartition(".")[0] == section]
    return f"Known are {', '.join(dict.fromkeys(beside))}."
