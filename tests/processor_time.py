"""What the tests cost, in processor time, which other work on the machine changes little.

At the end of a long run it prints the sums by part, and which tests need more than BUDGET seconds
without the marker `slow`, or `long` with a reason (tests/README.md). It fails nothing.
"""

import collections
import contextlib
import os

import pytest

BUDGET = 5.0  # seconds of the test itself, without the setup of fixtures
QUIET_BELOW = 60.0  # seconds of the whole run

_elsewhere = collections.Counter()  # since the last look: seconds by name of what is not a test's


def now() -> float:
    """Seconds of this process and of those that it started and waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@contextlib.contextmanager
def counted_as(name: str):
    """What runs inside is no cost of the test that happens to be the first to need it."""
    start = now()
    try:
        yield
    finally:
        _elsewhere[name] += now() - start


class Measured:
    """In the process that runs tests: puts what each took into its report."""

    def pytest_runtest_logstart(self):
        self.start = now()
        self.call = 0.0
        _elsewhere.clear()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item):
        before, start = sum(_elsewhere.values()), now()
        yield
        self.call = now() - start - (sum(_elsewhere.values()) - before)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        if call.when == "teardown":
            whole = now() - self.start - sum(_elsewhere.values())
            may = any(item.get_closest_marker(name) for name in ("slow", "long", "demo"))
            cost = {"whole": whole, "call": self.call, "may": may, "elsewhere": dict(_elsewhere)}
            item.user_properties.append(("processor_time", cost))


class Summary:
    """In the process that prints: adds them up."""

    def __init__(self):
        self.parts = collections.Counter()
        self.over = []

    def pytest_runtest_logreport(self, report):
        if report.when != "teardown":
            return
        for name, cost in report.user_properties:
            if name == "processor_time":
                self.parts["/".join(report.nodeid.split("/")[:2])] += cost["whole"]
                self.parts.update(cost["elsewhere"])
                if cost["call"] > BUDGET and not cost["may"]:
                    self.over.append((cost["call"], report.nodeid))

    def pytest_terminal_summary(self, terminalreporter):
        total = sum(self.parts.values())
        if total < QUIET_BELOW:
            return
        terminalreporter.section("processor time")
        for part, seconds in self.parts.most_common():
            terminalreporter.write_line(f"{seconds:7.0f} s  {part}")
        terminalreporter.write_line(f"{total:7.0f} s  in all")
        for seconds, name in sorted(self.over, reverse=True):
            terminalreporter.write_line(
                f"over {BUDGET:.0f} s and not marked: {seconds:.1f} s {name}"
            )


def register(config):
    config.pluginmanager.register(Measured(), "measured-processor-time")
    config.pluginmanager.register(Summary(), "summary-of-processor-time")
