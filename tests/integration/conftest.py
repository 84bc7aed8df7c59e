"""Fixtures: images once, a compose project per test, and what is kept of one that failed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration import engine, images
from tests.integration.project import Project

REQUIRED: Final = "QUIVER_REQUIRE_DOCKER"
KEPT: Final = engine.REPOSITORY / "build" / "integration"
MUST_HAVE: Final = os.environ.get(REQUIRED) == "1"  # read before the environment is cleaned

MakeProject = Callable[..., Project]
_failed: Final = pytest.StashKey[bool]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    report = yield
    if report.failed:
        item.stash[_failed] = True
        if item.parent is not None:
            item.parent.stash[_failed] = True
    return report


@pytest.fixture(scope="session")
def tag() -> str:
    """The tag of the images under test; where there is no engine, the end of it."""
    if (why := engine.problem()) is not None:
        if MUST_HAVE:
            pytest.fail(f"{REQUIRED}=1, and {why}.")
        pytest.skip(f"needs a Docker engine: {why}.")
    return images.build_all()


@pytest.fixture
def make_project(request: pytest.FixtureRequest, tag: str) -> Iterator[MakeProject]:
    """Projects of one test; taken down whatever happens."""
    yield from _projects(request, tag)


@pytest.fixture(scope="module")
def make_shared_project(request: pytest.FixtureRequest, tag: str) -> Iterator[MakeProject]:
    """Projects of all tests of a file."""
    yield from _projects(request, tag)


def _projects(request: pytest.FixtureRequest, tag: str) -> Iterator[MakeProject]:
    made: list[Project] = []

    def make(**how: Any) -> Project:
        made.append(Project(tag, **how))
        return made[-1]

    try:
        yield make
    finally:
        for project in made:
            if request.node.stash.get(_failed, False):
                project.collect(KEPT / f"{request.node.name}-{project.name}")
        for project in made:
            project.down()
