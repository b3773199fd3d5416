"""Writes js/src/panel-types.ts: the types of nb_agents/presentation/panel_types.py in TypeScript.

python js/panel_types.py
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "nb_agents/presentation/panel_types.py"
TARGET = ROOT / "js/src/panel-types.ts"

_NAMES = {"str": "string", "int": "number", "float": "number", "bool": "boolean", "None": "null"}


def type_script(source: str) -> str:
    """Return the TypeScript of a file of TypedDicts and Literals."""
    head = f"/** Made by `make js-types` from {SOURCE.relative_to(ROOT)}; change that. */"
    return "\n\n".join([head, *_declarations(ast.parse(source).body)]) + "\n"


def _declarations(body: list[ast.stmt]) -> Iterator[str]:
    for node, comment in _commented(body):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield f"{_doc(comment, '')}export type {name} = {_type(value)};"
            case ast.ClassDef(name=name, bases=bases, body=members):
                above = [ast.unparse(base) for base in bases if ast.unparse(base) != "TypedDict"]
                extends = f" extends {', '.join(above)}" if above else ""
                doc = _doc(ast.get_docstring(node) or "", "")
                fields = "\n".join(_fields(members))
                yield f"{doc}export interface {name}{extends} {{\n{fields}\n}}"


def _fields(members: list[ast.stmt]) -> Iterator[str]:
    for node, comment in _commented(members):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            kind, mark = node.annotation, ""
            if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "NotRequired":
                kind, mark = kind.slice, "?"
            yield f"{_doc(comment, '  ')}  readonly {node.target.id}{mark}: {_type(kind)};"


def _commented(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """Yield each statement with the text that stands below it."""
    for node, after in zip(body, [*body[1:], None], strict=True):
        match after:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node, text.strip()
            case _:
                yield node, ""


def _doc(text: str, indent: str) -> str:
    return f"{indent}/** {text} */\n" if text else ""


def _type(node: ast.expr) -> str:
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return f"{_type(left)} | {_type(right)}"
        case ast.Subscript(value=ast.Name(id="list"), slice=item):
            return f"readonly {_type(item)}[]"
        case ast.Subscript(value=ast.Name(id="dict")):
            return "Readonly<Record<string, unknown>>"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=options):
            each = options.elts if isinstance(options, ast.Tuple) else [options]
            return " | ".join(f'"{ast.literal_eval(option)}"' for option in each)
    name = ast.unparse(node)
    return _NAMES.get(name, name)


if __name__ == "__main__":
    TARGET.write_text(type_script(SOURCE.read_text("utf-8")), "utf-8")
