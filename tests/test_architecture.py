# SPDX-License-Identifier: Apache-2.0
"""What holds for the source as a whole: layers, budgets, names, and what the documents may say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from jsparse.codegen.cpp import HELPERS
from jsparse.format import PRESETS
from jsparse.ir import interpret
from jsparse.levels import LEVELS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "jsparse"

# Every module, lowest first: each imports only from those before it. An entry is a layer.
LAYERS = (
    "errors record target config",
    "ir.loop ir.rewrite ir.verify ir.interpret",
    "levels.level levels.dense levels.compressed levels.singleton levels.diagonal",
    "levels.uniform levels",
    "format parse ir.index ir",
    "schedule.stats schedule.cost schedule.legality schedule.directives schedule.notation",
    "schedule.infer schedule.orders schedule.finish schedule.auto schedule.storage",
    "schedule.split",
    "schedule",
    "lower.cursor lower.walk lower.buffers lower.chunks lower.sums lower.parts lower.products",
    "lower.ahead lower.registers lower.inflight lower.vectors lower.running lower.loops",
    "lower.kernel lower.packer lower.arrange lower.assemble lower.draft lower.fit",
    "lower",
    "codegen.cstyle codegen.cpp codegen.build codegen",
    "entries matrix_market io",
    "pipeline",
    "partition partitioner",
    "fibers reference fallback ffi operands direct primitive contract assembly",
    "concrete gather blocks diagonals validate array choice reblock derivative fitting",
    "convert exchange sharding",
    "rules construct generate",
    "splitting job solve api structure functions",
    "files explain trees",
    "__init__",
    "latency command __main__",
)
ORDER = [module for layer in LAYERS for module in layer.split()]

# Those that may import JAX; the compiler itself is Python and NumPy.
USES_JAX = {
    *("reference", "fallback", "ffi", "operands", "direct", "primitive", "contract", "assembly"),
    *("concrete", "blocks", "array", "reblock", "derivative", "convert", "exchange", "sharding"),
    *("rules", "construct", "generate", "job", "solve", "api", "structure", "functions", "explain"),
    *(
        "fitting",
        "fibers",
        "gather",
        "partitioner",
        "trees",
        "__init__",
        "latency",
        "command",
        "__main__",
    ),
}

EMPTY_NAMES = {"utils", "util", "common", "helpers", "misc", "core", "tools"}
LINES = 450


def _files(*folders: str) -> list[Path]:
    return sorted(f for folder in folders for f in (ROOT / folder).rglob("*.py"))


def _name(path: Path) -> str:
    """The module's name below the package: `lower.walk`; a folder's `__init__` has the folder's."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {_name(path): path for path in _files("jsparse")}


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a file imports: modules, and names from modules."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import; write it out"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _modules_of(name: str) -> str | None:
    """The module of ours that an imported name belongs to; None if it is somebody else's."""
    if name.split(".")[0] != "jsparse" or name.startswith("jsparse._xla_ffi"):
        return None
    parts = name.split(".")[1:]
    while parts and ".".join(parts) not in MODULES:
        parts.pop()
    return ".".join(parts) or "__init__"


# --------------------------------------------------------------------- layers
def test_every_module_has_a_layer() -> None:
    """A new module gets its place in ORDER above."""
    assert sorted(ORDER) == sorted(MODULES)


@pytest.mark.parametrize("module", ORDER)
def test_imports_point_down(module: str) -> None:
    wrong = []
    for line, name in _imports(MODULES[module]):
        target = _modules_of(name)
        if name == "jsparse._xla_ffi" and module != "ffi":
            wrong.append(f"line {line}: only ffi knows the extension")
        if target is not None and ORDER.index(target) >= ORDER.index(module):
            wrong.append(f"line {line}: {name} is not below {module}")
    assert not wrong, wrong


def test_jax_only_on_top() -> None:
    """The compiler core works without JAX: Python and NumPy."""
    users = {
        m for m, path in MODULES.items() if any(n.split(".")[0] == "jax" for _, n in _imports(path))
    }
    assert users <= set(USES_JAX), users - set(USES_JAX)


def test_only_public_jax() -> None:
    private = ".".join(("jax", "_src"))
    for path in _files("jsparse", "examples", "tests"):
        assert not [n for _, n in _imports(path) if n.startswith(private)], path
    for path in _files("jsparse", "examples"):
        assert private not in path.read_text(), path


def test_ffi_only_in_ffi() -> None:
    for module, path in MODULES.items():
        used = [n for _, n in _imports(path) if n.startswith("jax.ffi")]
        assert module == "ffi" or not used, path


# ---------------------------------------------------------------------- files
@pytest.mark.parametrize("path", _files("jsparse"), ids=lambda p: str(p.relative_to(ROOT)))
def test_file(path: Path) -> None:
    """A license line, a docstring, not too long, a name that says something."""
    text = path.read_text()
    assert ast.get_docstring(_tree(path)), "no module docstring"
    assert "SPDX-License-Identifier: Apache-2.0" in text[:200], "no license line at the top"
    count = text.count("\n")
    assert count <= LINES, f"{count} lines, at most {LINES} (400 to aim at): split by noun"
    assert not EMPTY_NAMES & set(_name(path).split(".")), "a name that says nothing"


@pytest.mark.parametrize("path", _files("examples"), ids=lambda p: p.name)
def test_example_is_short(path: Path) -> None:
    assert path.read_text().count("\n") < 80
    assert ast.get_docstring(_tree(path))


# --------------------------------------------------------------------- levels
def _level_comparisons(path: Path) -> Iterator[str]:
    """Places that ask which kind a level is, instead of asking the level what it can do."""
    classes = {c.__name__ for c in LEVELS.values()}

    def named(node: ast.AST) -> bool:
        return any(
            (isinstance(n, ast.Name) and n.id in classes)
            or (isinstance(n, ast.Attribute) and n.attr in classes)
            for n in ast.walk(node)
        )

    def type_of(node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "type"
        )

    def kind(node: ast.AST) -> bool:
        """`level.kind`, or the name of a kind."""
        return (isinstance(node, ast.Attribute) and node.attr == "kind") or any(
            isinstance(n, ast.Constant) and n.value in LEVELS for n in ast.walk(node)
        )

    for node in ast.walk(_tree(path)):
        match node:
            case ast.Call(func=ast.Name("isinstance" | "issubclass"), args=[_, classinfo]):
                wrong = named(classinfo)
            case ast.Compare(left=left, comparators=others):
                sides = [left, *others]
                wrong = any(named(n) for n in sides) or all(type_of(n) for n in sides)
                wrong |= all(kind(n) for n in sides) and ".kind" in ast.unparse(node)
            case ast.MatchClass(cls=cls):
                wrong = named(cls)
            case _:
                wrong = False
        if wrong:
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"  # type: ignore[attr-defined]


def test_nothing_outside_levels_compares_level_kinds() -> None:
    """A new level format is a file in levels/ and a line in LEVELS, so nobody else may ask."""
    found = [
        line
        for module, path in MODULES.items()
        if module.split(".")[0] != "levels"
        for line in _level_comparisons(path)
    ]
    assert not found, found


def test_every_level_is_a_file() -> None:
    assert {c.__module__ for c in LEVELS.values()} == {f"jsparse.levels.{name}" for name in LEVELS}


# -------------------------------------------------------------------- kernels
def test_kernel_headers_are_light() -> None:
    """Generated code compiles in a fraction of a second because its headers need almost nothing."""
    folder = ROOT / "csrc"
    for path in sorted(folder.rglob("*.h")):
        for name in re.findall(r"^\s*#\s*include\s+(\S+)", path.read_text(), re.M):
            ours = name.startswith('"') and (folder / name.strip('"')).exists()
            assert ours or name in ("<stdint.h>", "<string.h>"), f"{path.name} includes {name}"


def test_helpers_agree() -> None:
    """What generated code may call is in a header, and the interpreter knows it."""
    for name, header in HELPERS.items():
        text = (ROOT / "csrc" / "cpu" / header).read_text()
        assert re.search(rf"\bjs_{name}\(", text), f"{header} does not define js_{name}"
    source = _tree(Path(interpret.__file__))
    sets = {
        n.value
        for n in ast.walk(source)
        if isinstance(n, ast.Constant) and re.fullmatch(r"set_[a-z]+", str(n.value))
    }
    assert set(interpret._HELPERS) | sets == set(HELPERS)


# ------------------------------------------------------------------ documents
DOCUMENTS = ("README.md", "CONTRIBUTING.md")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_document(name: str) -> None:
    """Short, about the project alone, and every file that it names exists."""
    text = (ROOT / name).read_text()
    assert text.count("\n") <= 120
    places = re.findall(
        r"(?<![\w.:/~>])/(?:root|home|work|tmp|usr|opt|var|etc|mnt|data)\b\S*", text
    )
    assert not places, f"a path of some machine: {places}"
    assert not re.search(r"\blocalhost\b|\b\d+\.\d+\.\d+\.\d+\b", text)
    for path in re.findall(r"`((?:jsparse|csrc|xla_ffi|tests|examples)/[\w./]*\w)`", text):
        assert (ROOT / path).exists(), f"{name} names {path}, which does not exist"


def _blocks(mark: str) -> list[str]:
    """The lines of the fenced block after a mark of README.md."""
    text = (ROOT / "README.md").read_text()
    found = re.search(rf"<!-- ci: {mark} -->\n+```\w*\n(.*?)```", text, re.S)
    assert found, f"README.md has no block after <!-- ci: {mark} -->"
    return found[1].splitlines()


def test_readme_is_what_ci_runs() -> None:
    """Two commands set everything up, one runs the tests: .ci/run takes them from here."""
    assert len(_blocks("setup")) == 2
    assert len(_blocks("test")) == 1


def test_readme_names_every_format() -> None:
    text = (ROOT / "README.md").read_text()
    assert not [name for name in PRESETS if f"`{name}`" not in text]
