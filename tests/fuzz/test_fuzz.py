"""Every reader, fed with changed files: typed errors, no hang, no memory without end."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import KINDS, Mutation, apply
from tests.fuzz.targets import feed, targets

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(600)]

EXAMPLES: Final = int(os.environ.get("QUIVER_FUZZ_EXAMPLES", "1500"))
MOST_MEMORY: Final = 1 << 30
"""What a reader may take on top of what is there, whatever a length in a file says."""

MUTATIONS = st.lists(
    st.builds(
        Mutation,
        st.sampled_from(KINDS),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**32 - 1),
    ),
    min_size=1,
    max_size=6,
)


@pytest.fixture
def limited_memory() -> Iterator[None]:
    """More than this, and an allocation fails: a MemoryError is no typed error."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("name", list(targets()))
@pytest.mark.usefixtures("limited_memory")
def test_changed_files(name: str, record_property: Callable[[str, object], None]) -> None:
    """Files with a few changes, half of them with a checksum that fits."""
    target = targets()[name]
    tried = 0

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(target.seeds), MUTATIONS, st.booleans())
    def run(seed: bytes, mutations: list[Mutation], fixed: bool) -> None:
        nonlocal tried
        tried += 1
        data = apply(seed, mutations)
        feed(target, target.fix(data) if fixed and len(data) > 4 else data)

    run()
    record_property("tried", tried)


@pytest.mark.parametrize("name", list(targets()))
@pytest.mark.usefixtures("limited_memory")
def test_anything(name: str, record_property: Callable[[str, object], None]) -> None:
    """Bytes that were never a file of any kind."""
    target = targets()[name]
    tried = 0

    @settings(max_examples=EXAMPLES // 5, deadline=None, database=None)
    @given(st.binary(max_size=300))
    def run(data: bytes) -> None:
        nonlocal tried
        tried += 1
        feed(target, data)

    run()
    record_property("tried", tried)


@pytest.mark.parametrize("name", list(targets()))
def test_the_seeds_are_good(name: str) -> None:
    """What is changed was sound before: otherwise the changes would try nothing."""
    target = targets()[name]
    for seed in target.seeds:
        target.run(seed)
        assert target.fix(seed) == seed
