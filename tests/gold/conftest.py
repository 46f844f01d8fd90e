"""One stage for all gold tests, and their figures at the end."""

import contextlib
import os

# Before numpy is there: threads that wait for each other in a spin are slower than one alone where others want the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest

pytest.register_assert_rewrite("proof", "conversations")
FIGURES = {}


@pytest.fixture(scope="session")
def stage(tmp_path_factory):
    from stage import Stage

    with contextlib.ExitStack() as stack:
        yield Stage(tmp_path_factory.mktemp("gold"), stack)


@pytest.fixture(scope="session")
def figures():
    return FIGURES


def pytest_terminal_summary(terminalreporter):
    if FIGURES:
        terminalreporter.section("gold: exported samples against the model's own forward pass")
        for name, figures in sorted(FIGURES.items()):
            terminalreporter.write_line(f"{name}: {figures}")
