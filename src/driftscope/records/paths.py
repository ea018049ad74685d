"""Where a value stands in a tree of values, printed the way the user would index it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attribute:
    """A step into a named field (``cache.layers``) as opposed to an item (``out['layers']``)."""

    name: str


@dataclass(frozen=True, slots=True)
class Path:
    """A place in a tree: ``out['past'][0].keys``.

    Parameters
    ----------
    keys : tuple of str, int or Attribute
        The steps from the root.
    root : str
        The root's name: ``"out"`` for results, ``"in"`` for inputs.
    """

    keys: tuple[str | int | Attribute, ...] = ()
    root: str = "out"

    def __truediv__(self, key: str | int | Attribute) -> Path:
        return Path((*self.keys, key), self.root)

    def __str__(self) -> str:
        steps = (f".{k.name}" if isinstance(k, Attribute) else f"[{k!r}]" for k in self.keys)
        return self.root + "".join(steps)
