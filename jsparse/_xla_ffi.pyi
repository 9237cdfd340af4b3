from collections.abc import Callable
from typing import Any

abi_version: int

def registrations() -> dict[str, dict[str, Any]]: ...
def set_resolver(
    resolver: Callable[[str, str], str] | None,
) -> Callable[[str, str], str] | None: ...
