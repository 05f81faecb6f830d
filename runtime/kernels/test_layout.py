"""Every operator folder is complete, documented and independent of the other operators."""

import ast
from pathlib import Path

import pytest

KERNELS = Path(__file__).parent
PACKAGE = "runtime.kernels"
OPS = sorted(path.parent.name for path in KERNELS.glob("*/__init__.py") if path.parent.name != "common")
HEADINGS = ["## Mathematics", "## Shapes", "## Rounding points", "## Sources"]


def imported_siblings(source: str, op: str) -> set[str]:
    """Names directly under `runtime.kernels` that the source of a module in folder `op` imports."""
    siblings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # Two dots or more leave the folder; one dot stays in it.
            module = node.module or ""
            base = {0: module, 1: f"{PACKAGE}.{op}.{module}"}.get(
                node.level, f"{PACKAGE}.{module}".rstrip(".")
            )
            modules = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        siblings |= {name.split(".")[2] for name in modules if name.startswith(f"{PACKAGE}.")}
    return siblings - {op}


def test_the_operators_of_k3_are_all_here():
    expected = {"attn_res", "kda", "latent_moe", "mla", "moe_experts", "moe_route", "skinny_gemm"}
    assert expected <= set(OPS)


def test_every_folder_is_a_package():
    folders = {path.name for path in KERNELS.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders == {*OPS, "common"}


@pytest.mark.parametrize("op", OPS)
def test_an_operator_has_its_files(op):
    required = ["__init__.py", "reference.py", "README.md", f"test_{op}.py"]
    assert [name for name in required if not (KERNELS / op / name).is_file()] == []


@pytest.mark.parametrize("op", OPS)
def test_a_readme_has_its_sections(op):
    lines = (KERNELS / op / "README.md").read_text().splitlines()
    assert [heading for heading in HEADINGS if heading not in lines] == []


@pytest.mark.parametrize("op", OPS)
def test_a_package_exports_documented_functions(op):
    tree = ast.parse((KERNELS / op / "reference.py").read_text())
    public = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]
    assert public
    assert [node.name for node in public if not ast.get_docstring(node)] == []


@pytest.mark.parametrize("op", [*OPS, "common"])
def test_an_operator_imports_no_other_operator(op):
    found = {
        path.relative_to(KERNELS).as_posix(): imported_siblings(path.read_text(), op) - {"common"}
        for path in (KERNELS / op).rglob("*.py")
    }
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import runtime.kernels.mla.reference",
        "import runtime.kernels.mla as attention",
        "from runtime.kernels.mla import mla_absorbed",
        "from runtime.kernels.mla.reference import mla_absorbed",
        "from runtime.kernels import mla",
        "from ..mla import mla_absorbed",
        "from .. import mla",
        "def late():\n    from runtime.kernels.mla import mla_absorbed",
    ],
)
def test_every_way_to_import_another_operator_is_seen(source):
    assert imported_siblings(source, "latent_moe") == {"mla"}


def test_imports_inside_the_folder_are_fine():
    lines = ["from . import spec", "from .reference import route", "import runtime.kernels.latent_moe.spec"]
    assert imported_siblings("\n".join([*lines, "import torch"]), "latent_moe") == set()
