"""One gleaner and one scripted policy for all cells, and the table at the end."""

import pytest

import field as fields
import programs
import table

pytest.register_assert_rewrite("record", "derive")
OUTCOMES = {}


@pytest.fixture(scope="session")
def policy():
    with programs.scripting() as policy:
        yield policy


@pytest.fixture(scope="session")
def gleaner(policy, tmp_path_factory):
    with programs.serving(policy.url, tmp_path_factory.mktemp("gleaner"), fields.CONFIG) as gleaner:
        yield gleaner


@pytest.fixture(scope="session")
def field(policy, gleaner, request):
    fields.without_others()
    field = fields.Field(policy, gleaner)
    field.start(filter(None, map(cell_of, request.session.items)))
    yield field
    field.stop()


def cell_of(item):
    return item.callspec.params.get("cell") if hasattr(item, "callspec") else None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    report = (yield).get_result()
    cell = cell_of(item)
    if cell and (report.when == "call" or report.failed):
        OUTCOMES[cell.id] = "failed" if report.failed else OUTCOMES.get(cell.id, "passed")


def pytest_terminal_summary(terminalreporter):
    if OUTCOMES:
        terminalreporter.section("wires x SDKs x cases")
        for line in table.lines(OUTCOMES):
            terminalreporter.write_line(line)
