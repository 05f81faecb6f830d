"""Which kernels the operators' source files define, read without importing them."""

import ast
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[4]


def sources() -> list[Path]:
    """Source files of the kernels' package, without tests."""
    files = (ROOT / "runtime" / "kernels").rglob("*.py")
    return sorted(path for path in files if not path.name.startswith("test_"))


def build_modules() -> list[str]:
    """Modules with a function `builds`: what CI compiles and audits."""
    found = []
    for path in sources():
        functions = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef))
        if any(node.name == "builds" for node in functions):
            found.append(".".join(path.relative_to(ROOT).with_suffix("").parts))
    return found


def kernels(texts: Iterable[str]) -> set[str]:
    """Names of the kernels in source texts: classes with a `cute.kernel` method, and Triton functions.

    A Triton function that another one calls is a part, not a kernel.
    """
    classes, jitted, parts = set(), set(), set()
    for tree in map(ast.parse, texts):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and any(_decorated(n, "cute.kernel") for n in node.body):
                classes.add(node.name)
            elif isinstance(node, ast.FunctionDef) and _decorated(node, "triton.jit"):
                jitted.add(node.name)
                calls = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
                parts |= {function.id for function in calls if isinstance(function, ast.Name)}
    return classes | (jitted - parts)


def _decorated(node: ast.AST, name: str) -> bool:
    """Whether a function carries the decorator `name`, with or without arguments."""
    if not isinstance(node, ast.FunctionDef):
        return False
    found = (d.func if isinstance(d, ast.Call) else d for d in node.decorator_list)
    return name in map(ast.unparse, found)
