"""Every export of the compiled half is wrapped, typed in the stub, and cannot be changed from outside."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import draftgauge
from draftgauge import _core

PACKAGE = Path(draftgauge.__file__).parent
EXPORTS = sorted(name for name in vars(_core) if not name.startswith("_"))
CLASSES = [name for name in EXPORTS if inspect.isclass(getattr(_core, name))]


def wrapped() -> set[str]:
    """Names that the package reaches through its door, and types of what it hands on."""
    names: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "core":
                names.add(node.attr)
    return names


def stubbed() -> dict[str, ast.stmt]:
    """Names of the stub."""
    tree = ast.parse((PACKAGE / "_core.pyi").read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def test_the_door_is_the_only_import_of_the_compiled_half() -> None:
    importers = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            if isinstance(node, ast.ImportFrom):
                names.append(node.module or "")
            if any(name == "_core" or name.endswith("._core") for name in names):
                importers.add(path.name)
    assert importers == {"_door.py"}


def test_the_reference_imports_nothing_compiled() -> None:
    for path in (PACKAGE / "reference").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("draftgauge"):
                assert (node.module or "").startswith(("draftgauge.reference", "draftgauge.types")), path


@pytest.mark.parametrize("name", EXPORTS)
def test_each_export_is_typed(name: str) -> None:
    assert name in stubbed()


# Handed out by a method that is wrapped: nobody constructs it by name.
HANDED_OUT = {"Run"}
# The engine's own noise and log weights, for the tests that compare the NumPy twins with them to the last bit.
FOR_TWINS = {"noise_rows", "verify_log_weights"}


@pytest.mark.parametrize("name", EXPORTS)
def test_each_export_is_wrapped(name: str) -> None:
    assert name in wrapped() | HANDED_OUT | FOR_TWINS


@pytest.mark.parametrize("name", CLASSES)
def test_each_class_is_frozen(name: str) -> None:
    """No subclass can change what a class does, and instances take no attributes."""
    cls = getattr(_core, name)
    assert cls.__module__ == "draftgauge._core"
    with pytest.raises(TypeError):
        type("Sub", (cls,), {})
    assert "__dict__" not in vars(cls)


@pytest.mark.parametrize("name", sorted(draftgauge.__all__))
def test_each_public_name_is_documented(name: str) -> None:
    value = getattr(draftgauge, name)
    assert inspect.getdoc(value)
    if inspect.isclass(value) and not issubclass(value, Exception):
        for member, function in vars(value).items():
            if not member.startswith("_") and (inspect.isfunction(function) or isinstance(function, property)):
                assert inspect.getdoc(function), f"{name}.{member}"
