from collections.abc import Callable, Sequence
from typing import Any

abi_version: int

def registrations() -> dict[str, dict[str, Any]]: ...
def set_resolver(
    resolver: Callable[[str, str], str] | None,
) -> Callable[[str, str], str] | None: ...
def call(
    key: str,
    recipe: str,
    extents: Sequence[int],
    args: Sequence[tuple[int, Sequence[int]]],
    results: Sequence[tuple[int, Sequence[int]]],
) -> str: ...
