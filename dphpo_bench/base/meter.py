"""Count how much of a run's planned work is done, for one estimate of the time left over all of its phases."""

import time


class Meter:
    """Counter of example passes, the unit of a plan's cost. It is public: batches count with their expected sizes.

    Args:
        total: how many are planned; 0 if nobody knows, or may know. Nothing is counted then.
        until: what follows and is not counted, such as "the test".
    """

    def __init__(self, total: float = 0.0, until: str = "the end") -> None:
        self.total, self.until = total, until
        self.done = 0.0
        self._first: tuple[float, float] | None = None  # when the first report came, and how much was done then

    def advance(self, examples: float) -> None:
        """Count some more."""
        if self.total:
            self.done += examples
            self._first = self._first or (time.monotonic(), self.done)

    def seconds_left(self) -> float | None:
        """Return the seconds for the rest at the rate since the first report; None if that is not known."""
        if self._first is None or self.total <= 0:
            return None
        since, before = self._first
        counted = self.done - before
        return (time.monotonic() - since) * max(self.total - self.done, 0.0) / counted if counted else None
