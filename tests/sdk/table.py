"""The table of cells that a run of the matrix ends with."""

import cases

LETTERS = {"whole": "w", "stream": "s", "helper": "h", "parse": "p", "runner": "r", "runner_stream": "R"}


def lines(outcomes):
    """The table, as lines: `outcomes` has "passed", "failed" or nothing for the id of each cell."""
    columns = list(cases.WAYS)
    heads = [f"{wire} {language}" for wire, language in columns]
    rows = [[case.name] + [entry(outcomes, case, *column) for column in columns] for case in cases.CASES]
    widths = [max(map(len, column)) for column in zip(["case", *heads], *rows)]
    yield "w whole body, s stream, h the SDK's stream helper, p parsed output, r tool runner, R tool runner streamed; ! failed"
    for row in [["case", *heads], *rows]:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
    counted = [outcomes.get(cell.id) for cell in cases.cells()]
    missing = sum(1 for column in columns for case in cases.CASES if (column[0], case.name) in cases.NOT_APPLICABLE)
    yield (f"{counted.count('passed')} passed, {counted.count('failed')} failed, {counted.count(None)} not run, "
           f"{missing} places of wire, SDK and case n/a:")
    for (wire, case), reason in cases.NOT_APPLICABLE.items():
        yield f"  {wire}, {case}: {reason}"


def entry(outcomes, case, wire, language):
    if (wire, case.name) in cases.NOT_APPLICABLE:
        return "n/a"
    marks = {"passed": "", "failed": "!", None: "?"}
    ways = cases.ways(wire, language, case)
    return "".join(marks[outcomes.get(cases.Cell(wire, language, case, way).id)] + LETTERS[way] for way in ways)
