"""Ctrl-C that waits for what is being done."""

from __future__ import annotations

import signal
import threading


class Interrupt:
    """The first SIGINT or SIGTERM sets `asked`, for a loop to end cleanly; a second one acts as
    usual."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Interrupt:
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, *_) -> None:
        self.asked = True
        self._restore()

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def __exit__(self, *_) -> None:
        self._restore()
