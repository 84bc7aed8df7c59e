"""Code that travels: executors have pyspark and pyarrow, and this project comes with the job.

What is sent is a *cargo*: the sources of ``spark_client``, ``flight_service.client`` and
``flight_service.protocol``, compressed (some 100 KB), and a pickled object that needs them.
Whoever unpickles it puts a finder for those sources into its import system, once per
process, and from then on they are ordinary modules there.  Pickling every class by value,
as cloudpickle can, would do it class by class: caches, registries and ``isinstance`` break.

Only this module is pickled by value, so its functions must get by with the standard library.

* :func:`ship` makes a function that can be sent, for ``mapInArrow`` and its kin.
* :class:`Travels` is a base for objects that Spark pickles: data sources, readers, writers.
  What arrives after them (partitions, commit messages, offsets) may be plain classes.
* :func:`door` stands for a data source's class, which Spark sends before any object.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.abc
import importlib.machinery
import importlib.resources
import json
import pickle
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple, ParamSpec, TypeVar

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource

P = ParamSpec("P")
T = TypeVar("T")

PACKAGES = ("spark_client", "flight_service.client", "flight_service.protocol")
"""What travels, with the packages they are in; a contract of import-linter keeps them to
pyarrow, pyspark and the standard library."""

Cargo = tuple[str, bytes, bytes]
"""Digest of the sources, the sources, the pickled object.  A plain tuple: a class of this
module would arrive as many classes."""


class Code(NamedTuple):
    """The sources, ready to be sent."""

    digest: str
    packed: bytes


# ---------------------------------------------------------------- sending


@functools.cache
def code() -> Code:
    """The sources of :data:`PACKAGES`: from the files here, or as they came here."""
    for finder in sys.meta_path:
        if hasattr(finder, "quiver_code"):
            return Code(*finder.quiver_code)
    sources: dict[str, tuple[bool, str]] = {}
    for name in PACKAGES:
        for parent in _parents(name):
            text = (importlib.resources.files(parent) / "__init__.py").read_text("utf-8")
            sources[parent] = (True, text)
        sources.update(_modules(name, importlib.resources.files(name)))
    packed = zlib.compress(json.dumps(sources, sort_keys=True).encode(), 9)
    return Code(hashlib.sha256(packed).hexdigest(), packed)


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _modules(package: str, where: Traversable) -> Iterator[tuple[str, tuple[bool, str]]]:
    yield package, (True, (where / "__init__.py").read_text("utf-8"))
    for entry in where.iterdir():
        name = entry.name
        if entry.is_dir() and (entry / "__init__.py").is_file():
            yield from _modules(f"{package}.{name}", entry)
        elif name.endswith(".py") and name != "__init__.py":
            yield f"{package}.{name[:-3]}", (False, entry.read_text("utf-8"))


def pack(thing: object) -> Cargo:
    """An object and the code it needs."""
    digest, packed = code()
    return digest, packed, cloudpickle.dumps(thing)


def ship(function: Callable[P, T], name: str) -> Callable[P, T]:
    """The same function, for machines that have none of this; plans show its name.

    It is packed now: a function that can't be sent fails here, not in a job.
    """
    cargo = pack(function)

    def shipped(*args: P.args, **kwargs: P.kwargs) -> T:
        result: T = unpack(cargo)(*args, **kwargs)
        return result

    shipped.__name__ = shipped.__qualname__ = name
    return shipped


def ship_grouped(function: Callable[[Any, Any, Any], T], name: str) -> Callable[[Any, Any, Any], T]:
    """The same for ``cogroup(…).applyInArrow``, which counts a function's arguments."""
    cargo = pack(function)

    def shipped(key: Any, left: Any, right: Any) -> T:
        result: T = unpack(cargo)(key, left, right)
        return result

    shipped.__name__ = shipped.__qualname__ = name
    return shipped


class Travels:
    """A base for objects that Spark pickles and unpickles where this project isn't.

    Their state is what ``__dict__`` holds; leave connections and threads out of it.
    """

    def __reduce__(self) -> tuple[Callable[[Cargo], Any], tuple[Cargo]]:
        return rebuild, (pack((type(self), self.__dict__)),)


def door(real: type[DataSource]) -> type[DataSource]:
    """A class to register instead of a data source's own: it opens to the real one.

    Spark sends the class by itself, before any code could arrive.  This one travels by
    value, and making an object of it unpacks the code and makes one of the real class.
    """
    cargo = pack(real)
    provider = real.name()

    class Door(DataSource):
        def __new__(cls, options: dict[str, str]) -> Any:
            return unpack(cargo)(options)

        @classmethod
        def name(cls) -> str:
            return provider

    Door.__name__ = Door.__qualname__ = real.__name__
    Door.__doc__ = real.__doc__
    return Door


# ---------------------------------------------------------------- arriving
# From here on: by value, on a machine where none of the above may be.


def unpack(cargo: Cargo) -> Any:
    """The object that was packed; its code is importable from here on."""
    digest, packed, pickled = cargo
    install(digest, packed)
    return pickle.loads(pickled)


def rebuild(cargo: Cargo) -> Any:
    """An object that :class:`Travels`."""
    kind, state = unpack(cargo)
    thing = object.__new__(kind)
    thing.__dict__.update(state)
    return thing


def install(digest: str, packed: bytes) -> None:
    """Make the sources importable, once; others that came before them are let go.

    Where the project is installed and in use it stays as it is: that is the driver, or a
    test in one process.
    """
    for finder in list[Any](sys.meta_path):
        if hasattr(finder, "quiver_code"):
            if finder.quiver_code[0] == digest:
                return
            sys.meta_path.remove(finder)
            for name in finder.sources:
                sys.modules.pop(name, None)
    if "spark_client" not in sys.modules:
        sys.meta_path.insert(0, Finder(digest, packed))


class Finder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds and loads modules whose sources came with a job."""

    def __init__(self, digest: str, packed: bytes) -> None:
        self.quiver_code = (digest, packed)
        self.sources: dict[str, tuple[bool, str]] = json.loads(zlib.decompress(packed))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Ours, if it is one; what else lies in the same packages here is still found."""
        if fullname not in self.sources:
            return None
        package, _ = self.sources[fullname]
        spec = importlib.machinery.ModuleSpec(
            fullname, self, origin=self.get_filename(fullname), is_package=package
        )
        if package:
            here = importlib.machinery.PathFinder.find_spec(fullname, path)
            spec.submodule_search_locations = list((here and here.submodule_search_locations) or [])
        return spec

    def get_filename(self, fullname: str) -> str:
        """What tracebacks show."""
        return f"<quiver>/{fullname.replace('.', '/')}.py"

    def is_package(self, fullname: str) -> bool:
        """For ``importlib``."""
        return self.sources[fullname][0]

    def get_source(self, fullname: str) -> str:
        """For ``importlib`` and for tracebacks."""
        return self.sources[fullname][1]

    def exec_module(self, module: Any) -> None:
        """Run a module's source."""
        name = module.__spec__.name
        exec(compile(self.get_source(name), self.get_filename(name), "exec"), module.__dict__)


cloudpickle.register_pickle_by_value(sys.modules[__name__])
