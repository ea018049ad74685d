"""Why the order of a sum cannot be revealed."""

from __future__ import annotations

from driftscope.errors import DriftscopeError


class RevealError(DriftscopeError):
    """A kernel is not a sum that can be revealed; the message says which requirement it does not meet."""


class RaisedError(RevealError):
    """A kernel raised."""


class AloneError(RevealError):
    """A kernel adds a row alone otherwise than among others."""


class BudgetSpentError(RevealError):
    """More calls or seconds were needed than were allowed."""
