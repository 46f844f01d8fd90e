"""The official Python SDKs, each told to do one thing, and what it then got in one normal form."""

import importlib


def run(asked):
    """Does what is asked (see `cases.Cell.asked`, with `url` and `key`); gives what the client got."""
    wire = importlib.import_module(f"clients.{asked['wire']}")
    got = blank()
    try:
        getattr(wire, asked["way"])(asked, got)
    except Exception as error:
        # An SDK's failure is a value here; what it got before stands beside it.
        headers = getattr(getattr(error, "response", None), "headers", {})
        got["error"] = {
            "class": type(error).__name__,
            "status": getattr(error, "status_code", None) or getattr(error, "code", None),
            "message": str(error),
            "retry_after": headers.get("retry-after"),
        }
    return got


def blank():
    """Nothing yet. `calls` are [name, arguments]; `ran` those that the SDK ran itself; `usage` is [input, output]."""
    return {"text": "", "reasoning": "", "refusal": None, "calls": [], "ran": [], "finish": None, "stop_sequence": None,
            "usage": None, "parsed": None, "error": None}


def results(got):
    """The tools that a runner runs, by name: they note that they were."""
    def weather(city):
        got["ran"].append(["weather", {"city": city}])
        return f"sunny in {city}"

    def now():
        got["ran"].append(["now", {}])
        return "noon"

    return {"weather": weather, "now": now}


class HungUp(Exception):
    """The client went away, as it was asked to."""
