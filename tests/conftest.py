"""Settings that must stand before torch is imported, the order of the tests, and what happens without vLLM."""

from __future__ import annotations

import importlib.util
import os

import hypothesis
import pytest

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("any_machine", deadline=None)
hypothesis.settings.load_profile("any_machine")

# Tests start processes of their own: with a thread pool each, they slow each other many times.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The tokenizers library warns about its threads whenever a process forks.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# No test may depend on a download.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run unit tests first, and skip the tests of vLLM where it is missing (``REQUIRE_VLLM=1``: fail instead)."""
    items.sort(key=lambda item: item.get_closest_marker("integration") is not None)
    if importlib.util.find_spec("vllm") is not None:
        return
    if os.environ.get("REQUIRE_VLLM") == "1":
        raise pytest.UsageError("REQUIRE_VLLM=1 is set, but vLLM is not installed")
    skip = pytest.mark.skip(reason="vLLM is not installed here; see .ci/setup_env.sh")
    for item in items:
        if item.get_closest_marker("vllm") is not None:
            item.add_marker(skip)
